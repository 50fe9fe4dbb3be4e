"""Every filter, extension and form of pictures stands in docs/inputs.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import dfc.inputs.filters as df
from dfc.inputs import decoding
from dfc.inputs.images import FORMS

PAGE = (Path(__file__).parents[4] / "docs" / "inputs.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    return PAGE.split(f"## {name}\n")[1].split("\n## ")[0]


def cells() -> str:
    """The first cells of the tables about filters."""
    return "\n".join(line.split("|")[1] for line in section("Filters").splitlines() if line.startswith("|"))


def test_every_filter_with_its_options():
    for name in df.__all__:
        if name == "FieldMissing":
            assert f"`{name}`" in section("Filters")
            continue
        assert re.search(rf"`{name}[`(]", cells()), f"{name} is not documented"


def test_defaults_are_those_of_the_page():
    for name in ("shuffle", "batch", "cached", "merge", "concat", "collate", "decode", "encode", "unique", "patched", "info"):
        listed = re.search(rf"`{name}\((.*?)\)`", cells())
        assert listed is not None, name
        for parameter in inspect.signature(getattr(df, name)).parameters.values():
            if parameter.default is not inspect.Parameter.empty and parameter.name != "handler":
                shown = f"{parameter.name}={parameter.default!r}".replace("'", '"')
                assert shown in listed[1], f"{name}: {shown}"


def test_every_extension_and_form():
    text = section("Decoding and encoding")
    known = decoding.IMAGES | decoding.NUMBERS | decoding.NUMBERS_OR_WORDS | decoding.TEXTS | decoding.JSONS
    known |= decoding.MESSAGES | decoding.TENSORS | decoding.PICKLES
    missing = [name for name in (*known, *FORMS) if f"`{name}`" not in text]
    assert missing == []
