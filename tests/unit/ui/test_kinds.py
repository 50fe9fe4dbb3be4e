"""What fields are to a browser."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.ui.words import array_of, folded, hexadecimal, kind_of, text_of


@pytest.mark.parametrize(
    ("ext", "kind"),
    [
        ("jpg", "picture"),
        ("seg.png", "picture"),
        ("png.txt", "text"),
        ("cls", "text"),
        ("svg", "text"),
        ("html", "text"),
        ("pdf", "bytes"),
        ("tiff", "picture"),
        ("wav", "audio"),
        ("mp4", "video"),
        ("npy", "array"),
        ("", "bytes"),
    ],
)
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
