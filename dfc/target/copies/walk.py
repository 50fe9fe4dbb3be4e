"""Walks over all rows of a disk, for the upkeep of copies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from dfc.storage.disk import Disk
from dfc.target.threads import DiskThreads

PAGE: Final = 500  # names that are looked at together
Row = tuple[str, str, str]  # bucket id, name and version; or for a note: disk, bucket id and name
T = TypeVar("T")


async def walk(threads: DiskThreads, disk: Disk, choose: Callable[[list[Row]], T]) -> AsyncIterator[T]:
    """What `choose` makes of each page of all objects and tombstones on a disk. It runs in a thread, as the roles of so many
    names would hold up the event loop."""
    for read in (disk.copies.rows, disk.copies.tombstones):
        chosen, after = await threads.read(_page, read, choose)
        while True:
            yield chosen
            if after is None:
                break
            chosen, after = await threads.read(_page, read, choose, after)


def _page(read: Callable[..., tuple[list[Any], Any]], choose: Callable[[list[Row]], T], *after: Any) -> tuple[T, Any]:
    rows, then = read(*after, limit=PAGE)
    return choose([(row[0], row[1], row[2]) for row in rows]), then


def chunks(items: Sequence[T], size: int = PAGE) -> Iterator[Sequence[T]]:
    """The items, at most so many at a time."""
    for at in range(0, len(items), size):
        yield items[at : at + size]
