"""The preamble of a batch: the length of each item and, between nodes, the checksums of their objects. Pure."""

from __future__ import annotations

import sys
from array import array
from typing import Final

import msgspec

from dfc.limits import BATCH_ITEMS_MAX

PREAMBLE_BYTES_MAX: Final = BATCH_ITEMS_MAX * (8 + 1200)  # for each item a length and, at worst, its own object


class Preamble(msgspec.Struct, frozen=True):
    """The length of each item, as 64-bit little-endian numbers, and checksums of objects."""

    lengths: bytes
    objects: list[tuple[str, str, str]]  # bucket, object, checksum


def encode_preamble(lengths: bytes, checksums: dict[tuple[str, str], str]) -> bytes:
    """Encode the preamble, with its own length in front in four bytes, big-endian."""
    packed = msgspec.msgpack.encode(Preamble(lengths, [(*key, checksum) for key, checksum in checksums.items()]))
    return len(packed).to_bytes(4, "big") + packed


def preamble_bytes(begin: bytes | bytearray, length: int) -> int:
    """The length of the preamble, from the first four bytes of a body of `length` bytes. ValueError if it is not a batch."""
    size = int.from_bytes(begin[:4], "big")
    if size > min(PREAMBLE_BYTES_MAX, length - 4):
        raise ValueError("not the preamble of a batch")
    return size


def decode_preamble(content: bytes | bytearray) -> tuple[array[int], dict[tuple[str, str], str]]:
    """Decode the preamble. Run it in a thread: a hundred thousand objects take a tenth of a second. Raises ValueError."""
    try:
        preamble = msgspec.msgpack.decode(content, type=Preamble)
    except RecursionError:
        raise ValueError("not the preamble of a batch") from None
    return array("Q", preamble.lengths), {(bucket, name): checksum for bucket, name, checksum in preamble.objects}


def little_endian(lengths: array[int]) -> array[int]:
    """Convert lengths to or from the little-endian form that clients get, without a preamble. Changes and returns the array."""
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths
