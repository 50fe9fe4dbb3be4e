"""What goes before the bytes of a batch: the length of each item. Between nodes with checksums of their objects. Pure."""

from __future__ import annotations

import sys
from array import array
from typing import Final

import msgspec

from dfc.limits import BATCH_ITEMS_MAX

PREAMBLE_BYTES_MAX: Final = BATCH_ITEMS_MAX * (8 + 1200)  # a length and, at worst, an object of its own for each item


class Preamble(msgspec.Struct, frozen=True):
    """The length of each item, as 64-bit little-endian numbers, and checksums of objects."""

    lengths: bytes
    objects: list[tuple[str, str, str]]  # bucket, object, checksum


def encode_preamble(lengths: bytes, checksums: dict[tuple[str, str], str]) -> bytes:
    """With its own length in front, in four bytes, big-endian."""
    packed = msgspec.msgpack.encode(Preamble(lengths, [(*key, checksum) for key, checksum in checksums.items()]))
    return len(packed).to_bytes(4, "big") + packed


def preamble_bytes(begin: bytes | bytearray, length: int) -> int:
    """How many bytes follow these first four of a body of that length. ValueError for something else than a batch."""
    size = int.from_bytes(begin[:4], "big")
    if size > min(PREAMBLE_BYTES_MAX, length - 4):
        raise ValueError("not the preamble of a batch")
    return size


def decode_preamble(content: bytes | bytearray) -> tuple[array[int], dict[tuple[str, str], str]]:
    """For a thread: with a hundred thousand objects it takes a tenth of a second. ValueError."""
    try:
        preamble = msgspec.msgpack.decode(content, type=Preamble)
    except RecursionError:
        raise ValueError("not the preamble of a batch") from None
    return array("Q", preamble.lengths), {(bucket, name): checksum for bucket, name, checksum in preamble.objects}


def little_endian(lengths: array[int]) -> array[int]:
    """The numbers as clients get them, without a preamble, or the way back. Changes and returns the array."""
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths
