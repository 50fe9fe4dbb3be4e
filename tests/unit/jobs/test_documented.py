"""Every operation has a section in docs/jobs.md with all its options, every format a row in docs/formats.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from dfc.formats import table
from dfc.formats.table import FORMATS
from dfc.jobs.operations import OPERATIONS, operation
from dfc.jobs.spec import SizeOptions

DOCS = Path(__file__).parents[3] / "docs"
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", (DOCS / "jobs.md").read_text(), re.MULTILINE | re.DOTALL))
SIZES = {field.name for field in msgspec.structs.fields(SizeOptions)} - {"on_split"}


def test_the_page_has_the_operations_and_no_others() -> None:
    assert sorted(SECTIONS) == sorted(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_option_is_in_the_section_of_its_operation(name: str) -> None:
    text = SECTIONS[name]
    for field in msgspec.structs.fields(operation(name).Options):
        said = f"`{field.encode_name}`" in text or f"`{field.encode_name}:" in text
        assert said or (field.name in SIZES and re.search(r"\bsizes?\b", text, re.IGNORECASE)), f"{name}: {field.encode_name}"


def test_every_format_has_a_row_and_is_listed_for_convert() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \|", (DOCS / "formats.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(FORMATS)
    listed = next(line for line in SECTIONS["convert"].splitlines() if line.startswith("| `format` |"))
    assert [name for name in FORMATS if f"`{name}`" not in listed] == []
    sources = next(line for line in SECTIONS["convert"].splitlines() if line.startswith("| `from` |"))
    assert [name for name in get_args(table.SourceName) if f"`{name}`" not in sources] == []


def test_every_code_of_a_failed_job_is_on_the_page() -> None:
    """Codes of classes where jobs run, and those that are given to JobFailure."""
    listed = set(re.findall(r"`(\w+)`", (DOCS / "jobs.md").read_text().split("## Errors")[1].split("\n## ")[0]))
    found = set()
    for folder in ("jobs", "formats", "engine", "proxy/jobs"):
        for path in (DOCS.parent / "dfc" / folder).rglob("*.py"):
            source = path.read_text()
            found |= set(re.findall(r'^    code = "(\w+)"', source, re.MULTILINE))
            found |= set(re.findall(r'JobFailure\("(\w+)"', source))
    assert {"split_sample", "output_lost", "result_too_large"} <= found
    assert found - listed == set()
