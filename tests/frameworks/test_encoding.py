"""Samples as bytes: by extension, so that decoding gives them back."""

from __future__ import annotations

import gzip
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.inputs.base import SampleBroken
from dfc.inputs.decoding import decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(st.integers(), st.text(), JSON)
def test_what_is_decoded_again_is_the_same(number, text, value):
    sample = {"__key__": "a", "__source__": "u", "cls": number % 10**18, "txt": text, "json": value, "txt.gz": text}
    stored = encode(sample)
    assert all(type(stored[ext]) is bytes for ext in ("cls", "txt", "json", "txt.gz"))
    assert decode(stored) == sample
    assert encode(stored) == stored


def test_every_kind_comes_back():
    sample = {
        "__key__": "a",
        "mp": {"a": [1, b"x", "y"]},
        "npy": np.arange(6.0).reshape(2, 3),
        "npz": {"a": np.arange(2)},
        "ten": [np.arange(3, dtype=np.int32), np.float32([[1.5]])],
        "png": np.zeros((2, 3, 3), np.float32),
        "id": "n0123",
        "bin": b"\0",
    }
    stored = encode(sample)
    assert all(type(value) is bytes for ext, value in stored.items() if ext != "__key__")
    found = decode(stored)
    assert found["mp"] == sample["mp"]
    assert np.array_equal(found["npy"], sample["npy"])
    assert np.array_equal(found["npz"]["a"], sample["npz"]["a"])
    assert all(np.array_equal(one, other) for one, other in zip(found["ten"], sample["ten"], strict=True))
    assert np.array_equal(found["png"], sample["png"])
    assert (found["id"], found["bin"]) == ("n0123", b"\0")


@pytest.mark.parametrize(
    ("ext", "value", "data"),
    [
        ("cls", 7, b"7"),
        ("cls", np.int64(7), b"7"),
        ("cls", 7.0, b"7"),
        ("cls", True, b"1"),
        ("cls", np.array(7), b"7"),
        ("weight", 0.5, b"0.5"),
        ("score", np.float32(0.5), b"0.5"),
        ("caption", "grün", "grün".encode()),
        ("json", {"a": np.arange(2), "b": np.float32(0.5), "c": {2, 1}}, b'{"a": [0, 1], "b": 0.5, "c": [1, 2]}'),
        ("json", "grün", '"grün"'.encode()),
        ("json.gz", [1], gzip.compress(b"[1]", mtime=0)),
        ("mp", np.arange(2), b"\x92\x00\x01"),
        ("CLS", 7, b"7"),
        ("png", memoryview(b"as it is"), b"as it is"),
    ],
)
def test_the_bytes_of_a_field(ext, value, data):
    assert encode({"__key__": "a", ext: value}) == {"__key__": "a", ext: data}


def test_tensors_are_arrays():
    import torch

    stored = encode({"cls": torch.tensor(3), "npy": torch.arange(3), "ten": [torch.ones(2)], "json": torch.arange(2)})
    found = decode(stored)
    assert (found["cls"], found["json"], found["npy"].tolist(), found["ten"][0].tolist()) == (3, [0, 1], [0, 1, 2], [1, 1])


@pytest.mark.parametrize(
    ("ext", "value"),
    [
        ("cls", 1.5),
        ("cls", float("nan")),
        ("cls", "dog"),
        ("txt", None),
        ("bin", [1]),
        ("json", object()),
        ("npy", object()),
        ("npz", np.arange(2)),
        ("ten", ["a"]),
        ("png", np.zeros(3)),
        ("pyd", {"a": 1}),
        ("mp", 1 << 70),
    ],
)
def test_what_has_no_form_names_its_sample(ext, value):
    with pytest.raises(SampleBroken, match=f"sample 'k': field '{ext}' cannot be encoded") as caught:
        encode({"__key__": "k", ext: value})
    assert caught.value.key == "k"


def test_pickles_only_when_asked_for():
    assert pickle.loads(encode({"pyd": {"a": 1}}, pickle=True)["pyd"]) == {"a": 1}  # noqa: S301
