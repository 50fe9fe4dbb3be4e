"""Merge pages of a listing from several disks or targets into one page in byte order. No I/O.

A page has rows and, with a delimiter, common prefixes, both sorted. `more` says that its source has names after the last one
shown; then nothing after that name may be shown from any source, or the merged listing would have a gap.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final

import msgspec

from dfc.errors import BadRequest

# name, size in bytes, xxh3-128 in hex, modified in µs since 1970, samples and members (None if it is not a shard)
Row = tuple[str, int, str, int, int | None, int | None]
_NAME: Final = itemgetter(0)


@dataclass(frozen=True)
class ListingQuery:
    """What to list. `start_after` is exclusive; with a delimiter, names are rolled up into common prefixes that end with it.
    BadRequest for a delimiter that no target supports."""

    bucket_id: str
    prefix: str = ""
    start_after: str = ""
    delimiter: str = ""

    def __post_init__(self) -> None:
        if len(self.delimiter) > 1:
            raise BadRequest("delimiter must be a single character")


class Page(msgspec.Struct, frozen=True):
    """A part of a listing, in order."""

    rows: list[Row]
    prefixes: list[str]
    more: bool

    @property
    def last(self) -> str:
        """The last name or prefix shown; empty for an empty page."""
        return max(self.rows[-1][0] if self.rows else "", self.prefixes[-1] if self.prefixes else "")


def merge_pages(pages: Sequence[Page], limit: int) -> Page:
    """Merge into one page of at most `limit` rows and prefixes. Strings sort like their UTF-8 bytes, so this is byte order."""
    unfinished = [page.last for page in pages if page.more]
    horizon = min(unfinished) if unfinished else None
    rows: list[Row] = []
    prefixes: set[str] = set()
    cut = False
    for page in pages:
        kept, kept_prefixes = page.rows, page.prefixes
        if horizon is not None:
            kept = kept[: bisect_right(kept, horizon, key=_NAME)]
            kept_prefixes = kept_prefixes[: bisect_right(kept_prefixes, horizon)]
            cut = cut or len(kept) < len(page.rows) or len(kept_prefixes) < len(page.prefixes)
        rows += kept
        prefixes.update(kept_prefixes)
    rows.sort(key=_NAME)
    ordered = sorted(prefixes)
    more = bool(unfinished) or cut
    if len(rows) + len(ordered) > limit:
        rows, ordered = _first(rows, ordered, limit)
        more = True
    return Page(rows, ordered, more)


def _first(rows: list[Row], prefixes: list[str], limit: int) -> tuple[list[Row], list[str]]:
    """Return the first `limit` of rows and prefixes together."""
    if not prefixes:
        return rows[:limit], []
    last = sorted([*(row[0] for row in rows), *prefixes])[limit - 1]
    return rows[: bisect_right(rows, last, key=_NAME)], prefixes[: bisect_right(prefixes, last)]


def after_prefix(prefix: str) -> bytes | None:
    """Return the smallest byte string after all that begin with `prefix`; None if there is none."""
    stem = prefix.encode().rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


@lru_cache(maxsize=4096)
def _second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def rfc3339(microseconds: int) -> str:
    """Format µs since 1970 as RFC 3339, UTC, with milliseconds. Cached by second, which many objects of a listing share."""
    second, rest = divmod(microseconds, 1_000_000)
    return f"{_second(second)}.{rest // 1000:03d}Z"


class ListedObject(msgspec.Struct, frozen=True, gc=False):
    """An entry of a listing as clients see it."""

    name: str
    size: int
    etag: str
    modified: str
    samples: int | None
    members: int | None


def listed(rows: Sequence[Row]) -> list[ListedObject]:
    """Rows as clients see them."""
    found, second, text = list[ListedObject](), -1, ""
    for name, size, checksum, modified_us, samples, members in rows:
        now, rest = divmod(modified_us, 1_000_000)
        if now != second:  # neighbours were often stored in one second
            second, text = now, _second(now)
        found.append(ListedObject(name, size, checksum, f"{text}.{rest // 1000:03d}Z", samples, members))
    return found
