"""How values are shown, and what fields are to a browser; characters that cannot be seen are."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from dfc.ui import words
from dfc.ui.pages.jobs import FOLLOWED_MAX, shape_with
from dfc.ui.plots import Figures
from dfc.ui.words import array_of, folded, hexadecimal, kind_of, text_of
from dfc.wire.jobs import Job


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (120, "2 min"), (5999, "100 min"), (7200, "2.0 h"), (864000, "10 d")]
)
def test_times(seconds: float, text: str) -> None:
    assert words.seconds(seconds) == text


def test_numbers_and_shares() -> None:
    assert words.count(1234567) == "1\u202f234\u202f567"
    assert words.count(None) == words.percent(1, 0) == ""
    assert words.percent(1, 3) == "33 %"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("photo\u202egpj.exe", "photo⟨202E⟩gpj.exe"),
        ("a\u200bb\ufeff", "a⟨200B⟩b⟨FEFF⟩"),
        ("bell\x07\x1b[31m", "bell⟨0007⟩⟨001B⟩[31m"),
        ("\U000e0041\ud800", "⟨E0041⟩⟨D800⟩"),
        ("line\nand\ttab", "line\nand\ttab"),
        ("äöü 日本 🙂 \u202f", "äöü 日本 🙂 \u202f"),
    ],
)
def test_what_cannot_be_seen_is_shown(text: str, shown: str) -> None:
    assert words.visible(text) == shown


@given(st.text())
def test_whatever_a_template_prints_is_visible_and_no_markup(text: str) -> None:
    environment = Environment(autoescape=True, finalize=words.finalize)
    shown = environment.from_string("<p title='{{ text }}'>{{ text }}</p>").render(text=text)
    inside = shown.removeprefix("<p title='").removesuffix("</p>")
    assert not set(inside) & {'"', "\u202e", "\x00", "\x1b"}
    assert inside.count("<") == 0
    assert inside.count("'") == 1
    assert inside.count(">") == 1
    shown.encode()


def test_a_job_that_is_not_in_the_figures_yet_has_its_page_rendered_anew() -> None:
    """It may begin and end between two of them, and no later one would say so."""
    figures = Figures("s1", {"job.a.done": "5 %"})
    jobs = [Job(id="a", operation="map", state="running"), Job(id="z", operation="map", state="succeeded")]
    later = Job(id="b", operation="map", state="queued")
    assert shape_with(jobs, figures) == "s1"
    assert shape_with([later, *jobs], figures) == ""
    many = jobs[:1] * FOLLOWED_MAX
    assert shape_with([*many, later], figures) == "s1", "the figures never have more"


@pytest.mark.parametrize(
    ("ext", "kind"),
    [
        ("jpg", "picture"), ("seg.png", "picture"), ("png.txt", "text"), ("cls", "text"), ("svg", "text"), ("html", "text"),
        ("pdf", "bytes"), ("tiff", "picture"), ("wav", "audio"), ("mp4", "video"), ("npy", "array"), ("", "bytes"),
    ],
)  # fmt: skip
def test_kinds(ext: str, kind: str) -> None:
    assert kind_of(ext) == kind


def test_text_that_is_cut_in_a_character_is_text() -> None:
    content = "日本語".encode()
    for length in range(3, len(content) + 1):
        assert text_of(content[:length], is_whole=False) == "日本語"[: length // 3]
    assert text_of(content[:4], is_whole=True) is None
    assert text_of(b"a\0b", is_whole=True) is None
    assert text_of(b"\xff\xfe\xfd\xfc\xfb", is_whole=False) is None
    assert text_of(b"", is_whole=True) == ""


@given(st.binary(max_size=600))
def test_any_bytes_can_be_shown(content: bytes) -> None:
    shown = hexadecimal(content)
    assert len(shown.splitlines()) == (min(len(content), 256) + 15) // 16
    assert shown.isascii()
    text_of(content, is_whole=False)
    array_of(content)


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.zeros((3, 4), "float32"), "float32, 3 × 4"),
        (np.asfortranarray(np.zeros((3, 4), "uint8")), "uint8, 3 × 4, by columns"),
        (np.array(1.5), "float64, one number"),
        (np.zeros(2, "S3"), "|S3, 2"),
        (np.zeros(5, "int64"), "int64, 5"),
    ],
)
def test_arrays_are_described_by_their_heads(array: np.ndarray, shown: str) -> None:
    file = io.BytesIO()
    np.save(file, array)
    assert array_of(file.getvalue()) == shown
    assert array_of(file.getvalue()[:8]) is None


def test_json_is_folded_and_nothing_in_it_changes() -> None:
    assert folded('{"a":[1,{}],"b":[]}') == '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": []\n}'
    assert folded('{"a":[1,"x,]",null],"b":[[0.5,1],[]]}') == (
        '{\n  "a": [1, "x,]", null],\n  "b": [\n    [0.5, 1],\n    []\n  ]\n}'
    )
    assert folded('"日: , {"') == '"日: , {"'
    assert folded('{"a":1,"a":0.10000000000000000001}') == '{\n  "a": 1,\n  "a": 0.10000000000000000001\n}'
    for text in ("{", "", "[" * 100_000, "[" * 34 + "]" * 34, "[" + ",".join(["[[[[[[1]]]]]]"] * 20_000) + "]"):
        assert folded(text) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_folded_json_means_the_same(value: object) -> None:
    shown = folded(json.dumps(value))
    assert shown is None or json.loads(shown) == value
    assert shown is not None or json.dumps(value).count("[") + json.dumps(value).count("{") > 32
