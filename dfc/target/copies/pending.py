"""Which rows of a disk are pending, and who is the primary of their names. For threads, since there may be many."""

from __future__ import annotations

from typing import Final, NamedTuple

from dfc.placement.roles import roles
from dfc.placement.state import Placement
from dfc.replication.settle import counts
from dfc.storage.catalog.copyreads import START, Position
from dfc.storage.disk import Disk
from dfc.target.copies.messages import CopyKey, PendingCopy, state_of

PAGE_ROWS: Final = 1000


class Pending(NamedTuple):
    """A version that is not known to count, and the disk that is the primary of its name."""

    bucket_id: str
    name: str
    version: str
    primary: str | None


def all_pending(disk: Disk, placement: Placement) -> list[Pending]:
    """Everything that is pending on a disk. Blocking."""
    found: list[Pending] = []
    after: Position | None = START
    while after is not None:
        rows, after = disk.copies.pending(after, PAGE_ROWS)
        found += [Pending(*row, roles(placement, row.bucket_id, row.name).primary) for row in rows]
    return found


def told_of(disk: Disk, placement: Placement, node: str, after: Position) -> tuple[list[PendingCopy], Position | None]:
    """The next page of the rows on a disk of which a node hears while it settles: of names whose primary is there. Not those
    whose bytes are damaged, since nobody can have them from here. And the `after` of the page that follows. Blocking."""
    position: Position | None = after
    found: list[PendingCopy] = []
    while position is not None and not found:
        rows, position = disk.copies.pending(position, PAGE_ROWS)
        names = [(row.bucket_id, row.name) for row in rows if _concerns(disk, placement, node, row.bucket_id, row.name)]
        versions = {(row.bucket_id, row.name): row.version for row in rows}
        for name, state in zip(names, disk.copies.states(names), strict=True):
            is_damaged = state is not None and state.row is not None and state.row.quarantined
            if state is not None and state.version == versions[name] and not is_damaged:
                found.append(PendingCopy(CopyKey(disk.id, *name), state_of(state)))
    return found, position


def _concerns(disk: Disk, placement: Placement, node: str, bucket_id: str, name: str) -> bool:
    found = roles(placement, bucket_id, name)
    return found.primary is not None and placement.disks[found.primary].node == node and counts(found, disk.id)
