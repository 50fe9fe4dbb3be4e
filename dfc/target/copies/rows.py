"""Rows of a disk, read page by page in threads, since there may be many: those that are pending, and all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from dfc.placement.roles import roles
from dfc.placement.state import Placement
from dfc.replication.settle import counts
from dfc.storage.catalog.copyreads import START, Position, RankedRow
from dfc.storage.disk import Disk
from dfc.target.copies.messages import CopyKey, PendingCopy, state_of
from dfc.target.threads import DiskThreads

PENDING_PAGE: Final = 1000
PAGE: Final = 500  # names that are looked at together
Row = tuple[str, str, str]  # bucket id, name and version; or for a note: disk, bucket id and name
T = TypeVar("T")

# --- those that are pending


class PendingHere(NamedTuple):
    """A version that is not known to count, and the disk that is the primary of its name."""

    bucket_id: str
    name: str
    version: str
    primary: str | None


def all_pending(disk: Disk, placement: Placement) -> list[PendingHere]:
    """Everything that is pending on a disk. Blocking."""
    found: list[PendingHere] = []
    after: Position | None = START
    while after is not None:
        rows, after = disk.copies.pending(after, PENDING_PAGE)
        found += [PendingHere(*row, roles(placement, row.bucket_id, row.name).primary) for row in rows]
    return found


class PendingRows(NamedTuple):
    """What is pending on a disk: rows of which it is the primary itself, `others` with another primary, and those of them that
    have been `waiting`, by their primaries."""

    own: list[Row]
    others: set[Row]
    waiting: dict[str, list[Row]]


def pending_rows(disk: Disk, placement: Placement, before: Collection[Row]) -> PendingRows:
    """Everything that is pending on a disk; `before`: what was at the last look. Blocking, and long if there are many."""
    found = PendingRows([], set(), {})
    for each in all_pending(disk, placement):
        row: Row = each[:3]
        if each.primary == disk.id:
            found.own.append(row)
        else:
            found.others.add(row)
            if each.primary is not None and row in before:
                found.waiting.setdefault(each.primary, []).append(row)
    return found


def own_pending(disk: Disk, placement: Placement) -> list[Row]:
    """Those of which the disk is the primary itself. Blocking."""
    return [each[:3] for each in all_pending(disk, placement) if each.primary == disk.id]


def told_of(disk: Disk, placement: Placement, node: str, after: Position) -> tuple[list[PendingCopy], Position | None]:
    """The next page of the rows on a disk of which a node hears while it settles: of names whose primary is there. Not those
    whose bytes are damaged, since nobody can have them from here. And the `after` of the page that follows. Blocking."""
    position: Position | None = after
    found: list[PendingCopy] = []
    while position is not None and not found:
        rows, position = disk.copies.pending(position, PENDING_PAGE)
        names = [(row.bucket_id, row.name) for row in rows if _concerns(disk, placement, node, row.bucket_id, row.name)]
        versions = {(row.bucket_id, row.name): row.version for row in rows}
        for name, state in zip(names, disk.copies.states(names), strict=True):
            is_damaged = state is not None and state.row is not None and state.row.quarantined
            if state is not None and state.version == versions[name] and not is_damaged:
                found.append(PendingCopy(CopyKey(disk.id, *name), state_of(state)))
    return found, position


def _concerns(disk: Disk, placement: Placement, node: str, bucket_id: str, name: str) -> bool:
    found = roles(placement, bucket_id, name)
    return found.primary is not None and placement.disks[found.primary].node == node and counts(placement, found, disk.id)


# --- all of them


async def walk(threads: DiskThreads, disk: Disk, choose: Callable[[list[Row]], T]) -> AsyncIterator[T]:
    """What `choose` makes of each page of all objects and tombstones on a disk. It runs in a thread, as the roles of so many
    names would hold up the event loop."""
    for read in (disk.copies.rows, disk.copies.tombstones):
        async for chosen in _pages(threads, read, lambda page: choose([(row[0], row[1], row[2]) for row in page])):
            yield chosen


async def walk_names(threads: DiskThreads, disk: Disk, choose: Callable[[list[tuple[str, str]]], T]) -> AsyncIterator[T]:
    """The same of their bucket ids and names alone."""
    for read in (disk.copies.object_names, disk.copies.tombstone_names):
        async for chosen in _pages(threads, read, choose):
            yield chosen


async def walk_ranked(threads: DiskThreads, disk: Disk, choose: Callable[[list[RankedRow]], T]) -> AsyncIterator[T]:
    """The same of all objects, with their ranks."""
    async for chosen in _pages(threads, disk.copies.rows, choose):
        yield chosen


async def _pages(
    threads: DiskThreads, read: Callable[..., tuple[list[Any], Position | None]], choose: Callable[[list[Any]], T]
) -> AsyncIterator[T]:
    def page(after: Position) -> tuple[T, Position | None]:
        rows, then = read(after, limit=PAGE)
        return choose(rows), then

    after: Position | None = START
    while after is not None:
        chosen, after = await threads.read(page, after)
        yield chosen


def chunks(items: Sequence[T], size: int = PAGE) -> Iterator[Sequence[T]]:
    """The items, at most so many at a time."""
    for at in range(0, len(items), size):
        yield items[at : at + size]
