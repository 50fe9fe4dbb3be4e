"""Encodes values to sort by, and stores them in sorted runs, temporary objects that can be searched without reading all.

A run, with numbers of 8 bytes, little-endian: count · ordinals · offsets of the values and the end of the last · values. Values
are bytes whose order is the order of the samples; numbers have 8 bytes.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from dfc.errors import Conflict
from dfc.jobs.moving.orders import encode_entries
from dfc.jobs.shards.output import PlainOutput
from dfc.jobs.store import Source, Store
from dfc.jobs.values.fields import Absent, value_at
from dfc.limits import JOB_SORT_TEXT_BYTES_MAX
from dfc.tar.index.arrays import Integers

SortType = Literal["int", "float", "text"]
Entry = tuple[bytes, int]  # value and global ordinal: no two are equal
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_FLOAT: Final = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_SIGN: Final = 1 << 63
_WORD: Final = (1 << 64) - 1
_FLIPPED: Final = bytes(255 - byte for byte in range(256))
_FLIPPED_TEXT: Final = bytes(max(0, 254 - byte) for byte in range(256))


class Unsortable(Conflict):
    """A sample has no value to sort by, or one that is not of the type."""

    code = "unsortable"


def encoder(kind: SortType, path: Sequence[str], reverse: bool) -> Callable[[bytes], bytes]:
    """Return a function that encodes a text, or the value at a path in it, as sortable bytes. ValueError for the wrong type."""
    one = {"int": _int, "float": _float, "text": _text}[kind]

    def encode(data: bytes) -> bytes:
        if path:
            try:
                data = _scalar(value_at(data, path))
            except Absent:
                raise ValueError(f"no value at {'.'.join(path)!r}") from None
        value = one(data)
        return _reversed(value, kind) if reverse else value

    return encode


def _scalar(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("neither a number nor a string")
    return msgspec.json.encode(value)


def _int(data: bytes) -> bytes:
    if _INTEGER.fullmatch(data) is None or not -_SIGN <= int(data) < _SIGN:
        raise ValueError("not a 64-bit integer")
    return (int(data) + _SIGN).to_bytes(8, "big")


def _float(data: bytes) -> bytes:
    number = float(data) if _FLOAT.fullmatch(data) else math.nan
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    bits = int.from_bytes(struct.pack(">d", number + 0.0), "big")  # -0.0 becomes 0.0
    return (bits ^ _WORD if bits & _SIGN else bits | _SIGN).to_bytes(8, "big")


def _text(data: bytes) -> bytes:
    if len(data) > JOB_SORT_TEXT_BYTES_MAX:
        raise ValueError(f"longer than {JOB_SORT_TEXT_BYTES_MAX} bytes")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ValueError("not valid UTF-8") from None
    return data


def _reversed(value: bytes, kind: SortType) -> bytes:
    """Encode for the reverse order. UTF-8 has no bytes above 0xF4, so 0xFF can end a text."""
    return value.translate(_FLIPPED_TEXT) + b"\xff" if kind == "text" else value.translate(_FLIPPED)


def write_run(store: Store, name: str, entries: Sequence[Entry]) -> int:
    """Write sorted entries as a run; return its size in bytes."""
    lengths = np.array([len(value) for value, _ in entries], dtype=np.int64)
    offsets = np.zeros(len(entries) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    with PlainOutput(store, name, temporary=True) as output:
        output.write(encode_entries(np.array([len(entries)])))
        output.write(encode_entries(np.array([ordinal for _, ordinal in entries], dtype=np.int64)))
        output.write(encode_entries(offsets))
        output.write(b"".join(value for value, _ in entries))
        return output.commit().size


class SortedRun:
    """A stored run that can be searched."""

    def __init__(self, store: Store, name: str) -> None:
        self._source: Source = store.open_temporary(name)
        self.count = int(self._numbers(0, 1)[0])
        self._values = 8 * (2 * self.count + 2)

    def entries(self, lo: int, hi: int) -> list[Entry]:
        """Read the entries from the `lo`-th up to the `hi`-th."""
        ordinals = self._numbers(1 + lo, hi - lo).tolist()
        offsets = self._numbers(1 + self.count + lo, hi - lo + 1).tolist()
        data = bytearray(offsets[-1] - offsets[0])
        if data:
            self._source.read_into(self._values + offsets[0], memoryview(data))
        raw, base = bytes(data), offsets[0]
        return [(raw[offsets[i] - base : offsets[i + 1] - base], ordinal) for i, ordinal in enumerate(ordinals)]

    def below(self, bound: Entry | None) -> int:
        """Return how many entries are smaller than `bound`; None is larger than all."""
        if bound is None:
            return self.count
        lo, hi = 0, self.count
        while lo < hi:
            middle = (lo + hi) // 2
            if self.entries(middle, middle + 1)[0] < bound:
                lo = middle + 1
            else:
                hi = middle
        return lo

    def close(self) -> None:
        self._source.close()

    def _numbers(self, first: int, count: int) -> Integers:
        data = bytearray(8 * count)
        if count:
            self._source.read_into(8 * first, memoryview(data))
        return np.frombuffer(data, dtype="<i8").astype(np.int64)
