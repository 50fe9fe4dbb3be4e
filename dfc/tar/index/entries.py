"""The entries of an index: members and samples."""

from __future__ import annotations

import msgspec


class Member(msgspec.Struct, frozen=True, gc=False):
    """One member. `offset` is that of its data in the (uncompressed) archive, `size` that of the data, in bytes.

    `key` and `ext` are None for a member of no sample; `type` is one of `dfc.tar.header.TYPES`.
    """

    name: str
    key: str | None
    ext: str | None
    offset: int
    size: int
    type: str


class Sample(msgspec.Struct, frozen=True):
    """Adjacent members with the same key. `start` to `end`: their bytes in the archive, including headers and padding.

    Members that belong to no sample may lie between them: `pieces` are the starts and ends of the sample's own bytes.
    """

    key: str
    number: int
    start: int
    end: int
    members: tuple[Member, ...]
    pieces: tuple[tuple[int, int], ...]
