"""A body to be sent that alternates between bytes from memory and ranges of files."""

from __future__ import annotations

from collections.abc import Iterable

from dfc.checksum import Buffer

Part = tuple[Buffer, int, int, int]
"""Bytes from memory, then a range of a file: its descriptor, offset and count."""


def part_bytes(parts: Iterable[Part]) -> int:
    """Return the total number of bytes."""
    return sum(len(data) + count for data, _, _, count in parts)
