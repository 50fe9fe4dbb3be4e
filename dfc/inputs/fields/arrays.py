"""Decode and encode arrays: NumPy's .npy and .npz, and .ten, WebDataset's tensors (Tensorcom). Never pickles.

A .ten file is a list of chunks: the magic number, the length in bytes (64 bits, little-endian), then the bytes, padded to a
multiple of 64. Two chunks make an array: its header (type and name of 8 characters each, number of dimensions, dimensions; 64
bits each) and its data in C order. Source: webdataset/tenbin.py.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dfc.limits import INPUT_FIELD_BYTES_MAX

TEN_MAGIC: Final = b"~TenBin~"
_TEN_ALIGN: Final = 64
_TEN_DIMENSIONS_MAX: Final = 9  # WebDataset writes no more
_TEN_TYPES: Final = frozenset(("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


def decode_npy(data: bytes) -> NDArray[Any]:
    """The array of a .npy file, writable. ValueError if it is not one, is truncated, or holds Python objects."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        if version == (3, 0):
            data = _as_version_2(data)
            stream = io.BytesIO(data)
            stream.seek(8)
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects, which would have to be unpickled")
    count = math.prod(shape)
    if count and not dtype.itemsize:  # as many as one likes would fit; NumPy gives texts of no length a size
        raise ValueError(f"shape {shape} of {dtype}: items of no size")
    if min(shape, default=0) < 0 or count * dtype.itemsize > len(data) - stream.tell():
        raise ValueError(f"truncated: shape {shape} of {dtype} does not fit into {len(data)} bytes")
    array = np.frombuffer(data, dtype, count, stream.tell()) if count else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C").copy(order="K")


def _as_version_2(data: bytes) -> bytes:
    """A .npy file of version 3.0, whose header is in UTF-8 instead of Latin-1. It is a Python literal: escapes will do."""
    end = 12 + int.from_bytes(data[8:12], "little")
    header = data[12:end].decode().encode("ascii", "backslashreplace")
    return data[:8] + len(header).to_bytes(4, "little") + header + data[end:]


def decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name. ValueError, BadZipFile if broken, or decompressed beyond INPUT_FIELD_BYTES_MAX."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(info.file_size for info in archive.infolist()) > INPUT_FIELD_BYTES_MAX:  # no more is ever read of a member
            raise ValueError(f"decompresses to more than {INPUT_FIELD_BYTES_MAX} bytes")
        return {name.removesuffix(".npy"): decode_npy(archive.read(name)) for name in archive.namelist()}


def decode_ten(data: bytes) -> list[NDArray[Any]]:
    """The arrays of a .ten file, in order; writable. ValueError if it is broken."""
    memory = memoryview(bytearray(data))  # one copy, shared by all arrays
    chunks = _ten_chunks(memory)
    if len(chunks) % 2:
        raise ValueError("a header without its array")
    return [_ten_array(header, body) for header, body in zip(chunks[::2], chunks[1::2], strict=True)]


def _ten_chunks(memory: memoryview) -> list[memoryview]:
    chunks: list[memoryview] = []
    at, total = 0, len(memory)
    while at < total:
        if bytes(memory[at : at + 8]) != TEN_MAGIC or at + 16 > total:
            raise ValueError(f"no chunk at offset {at}")
        (size,) = struct.unpack_from("<q", memory, at + 8)
        at += 16
        if not 0 <= size <= total - at:
            raise ValueError(f"truncated: {size} bytes at offset {at} of {total}")
        chunks.append(memory[at : at + size])
        at += size + -size % _TEN_ALIGN
    return chunks


def _ten_array(header: memoryview, body: memoryview) -> NDArray[Any]:
    if len(header) < 24 or len(header) % 8:
        raise ValueError(f"invalid header of {len(header)} bytes")
    dtype = bytes(header[:8]).rstrip(b"\0").decode("ascii")
    dimensions, *shape = struct.unpack(f"<{len(header) // 8 - 2}q", header[16:])
    if dtype not in _TEN_TYPES:
        raise ValueError(f"arrays of type {dtype!r} are not supported")
    if dimensions != len(shape) or dimensions > _TEN_DIMENSIONS_MAX or min(shape, default=0) < 0:
        raise ValueError(f"invalid shape {shape} with {dimensions} dimensions")
    count = math.prod(shape)
    if count * int(dtype[1]) != len(body):
        raise ValueError(f"shape {tuple(shape)} of {dtype} does not fit {len(body)} bytes")
    return np.frombuffer(body, "<" + dtype, count).reshape(shape)


def as_array(value: Any) -> NDArray[Any]:
    """Convert to an array: NumPy arrays, torch tensors on any device, numbers, lists of numbers. TypeError for the rest."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"a {type(value).__name__} cannot become an array of numbers")
    return array


def encode_npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, as_array(value), allow_pickle=False)
    return stream.getvalue()


def encode_npz(value: Mapping[str, Any]) -> bytes:
    """Make a .npz file. It is not compressed, since the shard can be."""
    if not isinstance(value, Mapping):
        raise TypeError(f".npz holds a dict of arrays, not {type(value).__name__}")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in value.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))  # without the time, so that it is reproducible
    return stream.getvalue()


def encode_ten(value: Any) -> bytes:
    """Make a .ten file of one array or a list of them. TypeError for types and dimensions that the format does not support."""
    arrays = [as_array(entry) for entry in value] if _is_list_of_arrays(value) else [as_array(value)]
    parts: list[bytes] = []
    for array in arrays:
        dtype = array.dtype.str[1:]
        if dtype not in _TEN_TYPES or array.ndim > _TEN_DIMENSIONS_MAX:
            raise TypeError(f".ten does not support arrays of {array.dtype} with {array.ndim} dimensions")
        header = struct.pack(f"<8s8sq{array.ndim}q", dtype.encode("ascii"), b"", array.ndim, *array.shape)
        for chunk in (header, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()):
            parts += (TEN_MAGIC, struct.pack("<q", len(chunk)), chunk, bytes(-len(chunk) % _TEN_ALIGN))
    return b"".join(parts)


def _is_list_of_arrays(value: Any) -> bool:
    return isinstance(value, Sequence) and not (value and isinstance(value[0], int | float))
