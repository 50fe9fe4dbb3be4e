"""Arrays as bytes: equal to what numpy and WebDataset write and read, and never more memory than there are bytes."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from webdataset import tenbin

from dfc.inputs.images import TEN_MAGIC, decode_npy, decode_npz, decode_ten, encode_npy, encode_npz, encode_ten

ARRAYS = hnp.arrays(
    st.sampled_from(["<f2", "<f4", "<f8", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u8"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


def saved(array: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)  # type: ignore[arg-type]
    return stream.getvalue()


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@given(ARRAYS)
def test_npy_is_numpys(array):
    assert encode_npy(array) == saved(array)
    found = decode_npy(saved(array))
    assert same(found, array)
    assert found.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([(1,)], dtype=[("größe", "i4")]),
        np.array([(1, 2)], dtype=[("größe €\\", "i4"), ("\\xe4", "i4")]),
        np.array([], dtype="S0"),
        np.array(["ä", "bc"]),
        np.array([True, False]),
        np.arange(4, dtype=">i4"),
        np.array("2020-01-01", dtype="M8[D]"),
        np.zeros((0, 3)),
    ],
    ids=lambda array: str(array.dtype),
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_npy_of_other_kinds(array):
    found = decode_npy(saved(array))
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype
    assert found.flags.f_contiguous == array.flags.f_contiguous


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode("latin1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01",
        b"\x93NUMPY\x07\x00",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", bytes(64)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", bytes(64)),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(64)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}" % ("9" * 60 + ",")),
        npy("__import__('os').abort()"),
        *(
            npy(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({count},)}}", b" " * 64)
            for kind in ("|V0", "|S0", "<U0")
            for count in (1, 10**12)
        ),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", bytes(64)).replace(
            b"\x01\x00v\x00", b"\x03\x00v\x00\x00\x00"
        ),
        b"\x93NUMPY\x03\x00" + struct.pack("<I", 2**31) + b"1",
        saved(np.arange(10))[:-1],
    ],
)
def test_npy_that_is_none(data):
    with pytest.raises(ValueError):
        decode_npy(data)


def test_npz_is_numpys():
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.float32(1.5) * np.ones(2, np.float32)}
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, **arrays)
        found = decode_npz(stream.getvalue())
        assert list(found) == ["a", "b"]
        assert all(same(found[name], array) for name, array in arrays.items())
    data = encode_npz(arrays)
    assert data == encode_npz(arrays), "reproducible"
    with np.load(io.BytesIO(data)) as read:
        assert all(same(read[name], array) for name, array in arrays.items())


def test_npz_is_bounded(monkeypatch):
    monkeypatch.setattr("dfc.inputs.images.INPUT_FIELD_BYTES_MAX", 1 << 20)
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.zeros(1 << 20, np.uint8))
    with pytest.raises(ValueError, match="decompresses to more than"):
        decode_npz(stream.getvalue())
    liar = bytearray(stream.getvalue())
    at = liar.rindex(b"PK\x01\x02")
    liar[at + 24 : at + 28] = struct.pack("<I", 200)  # the directory says 200 bytes
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        decode_npz(bytes(liar))


@given(st.lists(ARRAYS, max_size=4))
def test_ten_is_webdatasets(arrays):
    arrays = [array for array in arrays if array.dtype != np.uint32]  # which WebDataset cannot write, for a misspelt name
    data = encode_ten(arrays)
    assert data == bytes(tenbin.encode_buffer([np.ascontiguousarray(array).reshape(array.shape) for array in arrays]))
    found = decode_ten(data)
    assert len(found) == len(arrays)
    assert all(same(one, other) for one, other in zip(found, arrays, strict=True))
    assert all(array.flags.writeable for array in found)


def test_ten_of_one_array_and_of_numbers():
    assert [array.tolist() for array in decode_ten(encode_ten(np.arange(3, dtype=np.uint32)))] == [[0, 1, 2]]
    assert [array.tolist() for array in decode_ten(encode_ten([1.5, 2]))] == [[1.5, 2]]
    assert [array.tolist() for array in decode_ten(encode_ten(np.arange(2, dtype=">i4")))] == [[0, 1]]
    with pytest.raises(TypeError, match="complex"):
        encode_ten(np.zeros(2, complex))


def ten(header: bytes, body: bytes) -> bytes:
    return b"".join(TEN_MAGIC + struct.pack("<q", len(part)) + part + bytes(-len(part) % 64) for part in (header, body))


HEADER = struct.pack("<8s8sqq", b"f4", b"", 1, 2)


@pytest.mark.parametrize(
    "data",
    [
        TEN_MAGIC,
        TEN_MAGIC + struct.pack("<q", -1),
        TEN_MAGIC + struct.pack("<q", 1 << 62) + bytes(64),
        ten(HEADER, bytes(8))[:80],
        ten(HEADER, bytes(9)),
        ten(HEADER, bytes(4)),
        ten(HEADER[:16], bytes(8)),
        ten(HEADER[:-1], bytes(8)),
        ten(struct.pack("<8s8sqq", b"O8", b"", 1, 1), bytes(8)),
        ten(struct.pack("<8s8sqq", b"\xff\xff", b"", 1, 1), bytes(8)),
        ten(struct.pack("<8s8sqq", b"f4", b"", 2, 2), bytes(8)),
        ten(struct.pack("<8s8sqq", b"f4", b"", 1, -2), bytes(8)),
        ten(struct.pack("<8s8sqqq", b"f4", b"", 2, 1 << 40, 1 << 40), bytes(8)),
        ten(struct.pack("<8s8sq20q", b"f4", b"", 20, *[1] * 20), bytes(4)),
        ten(HEADER, bytes(8)) + b"more",
    ],
)
def test_ten_that_is_none(data):
    with pytest.raises(ValueError):
        decode_ten(data)


@given(st.binary(max_size=200))
def test_ten_of_anything(data):
    for found in (data, ten(HEADER, bytes(8))[: len(data)] + data):
        try:
            decode_ten(found)
        except ValueError:
            pass
