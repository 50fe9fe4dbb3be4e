"""Which rows of a disk a target lists: those of objects of which the disk is primary, so that each object is listed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from dfc.pages import Row
from dfc.placement.roles import roles
from dfc.placement.state import Placement
from dfc.storage.disk import Disk
from dfc.target.copies.ledger import Ledger
from dfc.target.local import Local

SCAN_ROWS: Final = 1000  # read at a time while some are left out


class Listed(NamedTuple):
    """The rows to be listed: of these `ranks`, and if there is a `wanted`, only names for which that is true."""

    ranks: Literal["first", "all"]
    wanted: Callable[[str], bool] | None = None

    def tuples(self, disk: Disk, bucket_id: str, *, prefix: str, start_after: str, after_prefix: bool, limit: int) -> list[Row]:
        """`Disk.list_tuples` of these rows; fewer than `limit` only at the end. Blocking."""
        found: list[Row] = []
        while len(found) < limit:
            count = limit if self.wanted is None else max(SCAN_ROWS, limit - len(found))
            page = disk.list_tuples(
                bucket_id, prefix=prefix, start_after=start_after, after_prefix=after_prefix, limit=count, ranks=self.ranks
            )
            if self.wanted is None:
                return page
            found += [row for row in page if self.wanted(row[0])]
            if len(page) < count:
                break
            start_after, after_prefix = page[-1][0], False
        return found[:limit]


FIRST: Final = Listed("first")


class ListedRows:
    """Decides for each disk of a target."""

    def __init__(self, local: Local, ledger: Ledger) -> None:
        self._local = local
        self._ledger = ledger

    def of(self, disk: Disk, bucket_id: str) -> Listed:
        """The rows of a bucket on a disk that are listed now. Usable from any thread."""
        placement = self._ledger.placement
        if self._ledger.is_ranked(disk.id) and _is_calm(placement, bucket_id):
            return FIRST
        return Listed("all", lambda name: roles(placement, bucket_id, name).primary == disk.id)

    def are_counted(self, disk: Disk) -> bool:
        """Whether the counters of a disk, which go by ranks, are by the layout in force. Usable from any thread."""
        return self._ledger.is_ranked(disk.id) and not self._ledger.placement.is_moving


def _is_calm(placement: Placement, bucket_id: str) -> bool:
    """Whether the first home of each object is its primary, so that ranks tell it. With one copy it always is."""
    copies = placement.copies_of(bucket_id)
    if placement.is_moving:
        return False
    if copies.reading == 1:
        return True
    return all(disk.is_up and not disk.behind for disk in placement.disks.values())
