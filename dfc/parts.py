"""Bytes on their way out, by turns from memory and from files."""

from __future__ import annotations

from collections.abc import Iterable

from dfc.checksum import Buffer

Part = tuple[Buffer, int, int, int]
"""Bytes, and what follows them from a file: its descriptor, offset and count."""


def part_bytes(parts: Iterable[Part]) -> int:
    """How many they are in all."""
    return sum(len(data) + count for data, _, _, count in parts)
