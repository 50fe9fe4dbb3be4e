"""List and count the objects of a target; common prefixes are rolled up with seeks instead of scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from dfc.names import HIDDEN_PREFIX, is_hidden
from dfc.pages import Page, Row, merge_pages
from dfc.storage.disk import Disk
from dfc.target.copies.listed import FIRST, Listed, ListedRows
from dfc.target.local import Local
from dfc.wire import UNRANKED

PROBE_ROWS: Final = 200  # rows read at a time while prefixes are rolled up


class OwnListings:
    """Listings over the disks of this target."""

    def __init__(self, local: Local, listed: ListedRows) -> None:
        self._local = local
        self._listed = listed

    async def page(
        self, bucket_id: str, prefix: str, start_after: str, delimiter: str, limit: int, step: int | None = None
    ) -> Page:
        """Return at most `limit` names and prefixes after `start_after`, over all disks. `step`: by which the others answer.
        NoLease; MapChanging if this target is at another step."""
        await self._local.check_step(step)
        asked = (bucket_id, prefix, start_after, delimiter, limit)
        pages = await self._local.of_each(lambda disk: list_page(disk, *asked, self._listed.of(disk, bucket_id)))
        self._local.check_leased()
        await self._local.check_step(step)
        return merge_pages(pages, limit)

    async def counts(self) -> dict[str, tuple[int, int]]:
        """Return (objects, bytes) by bucket id, and in `UNRANKED` how many disks do not count by the layout in force.
        NoLease."""
        if any(bucket.state == "checking" for bucket in self._local.map.buckets):
            # Who asks may be about to delete that bucket if it is empty. A commit that a failed disk still carries out was not
            # waited for when this target said that it knows the bucket's state.
            await self._local.until_all_commits_are_done()
        total: dict[str, tuple[int, int]] = {}
        for counts in await self._local.of_each(_counts):
            for bucket_id, more in counts.items():
                before = total.get(bucket_id, (0, 0))
                total[bucket_id] = (before[0] + more[0], before[1] + more[1])
        unranked = sum(not self._listed.are_counted(disk) for disk in self._local.in_order())
        if unranked:
            total[UNRANKED] = (unranked, 0)
        self._local.check_leased()
        return total


def _counts(disk: Disk) -> dict[str, tuple[int, int]]:
    return {bucket_id: disk.counts(bucket_id) for bucket_id in disk.bucket_ids()}


def list_page(
    disk: Disk, bucket_id: str, prefix: str, start_after: str, delimiter: str, limit: int, listed: Listed = FIRST
) -> Page:
    """Return at most `limit` names and prefixes of one disk after `start_after`. Blocking."""

    def scan(start_after: str, limit: int, *, after_prefix: bool = False) -> list[Row]:
        return listed.tuples(disk, bucket_id, prefix=prefix, start_after=start_after, after_prefix=after_prefix, limit=limit)

    return _rolled_up(scan, prefix, start_after, delimiter, limit) if delimiter else _plain(scan, prefix, start_after, limit)


class Scan(Protocol):
    """Lists rows after a name, or with `after_prefix` after all names that begin with it."""

    def __call__(self, start_after: str, limit: int, *, after_prefix: bool = False) -> list[Row]: ...


def _plain(scan: Scan, prefix: str, start_after: str, limit: int) -> Page:
    rows = scan(start_after, limit)
    more = len(rows) == limit
    hidden = _first_hidden(rows, prefix)
    if hidden is not None:
        # Hidden names are adjacent, so one seek skips them all, however many there are.
        rest = scan(HIDDEN_PREFIX, limit - hidden, after_prefix=True)
        more = len(rest) == limit - hidden
        rows = rows[:hidden] + rest
    return Page(rows, [], more)


def _first_hidden(rows: Sequence[Row], prefix: str) -> int | None:
    """Return the position of the first row that is shown only when asking for names of DFC's own objects."""
    return next((at for at, row in enumerate(rows) if is_hidden(row[0], prefix)), None)


def _rolled_up(scan: Scan, prefix: str, start_after: str, delimiter: str, limit: int) -> Page:
    """List the names without the delimiter after the prefix, and for the others their part up to it, each once.

    An entry is shown only if it comes after `start_after`, so names below a prefix that is not greater are skipped.
    """
    rows: list[Row] = []
    prefixes: list[str] = []
    position = start_after
    rolled = _common_prefix(start_after, prefix, delimiter)
    if rolled is not None:
        position = rolled
    after_prefix = rolled is not None
    while len(rows) + len(prefixes) < limit:
        page = scan(position, min(PROBE_ROWS, limit), after_prefix=after_prefix)
        if not page:
            return Page(rows, prefixes, False)
        after_prefix = False
        for row in page:
            if is_hidden(row[0], prefix):
                position, after_prefix = HIDDEN_PREFIX, True
                break
            common = _common_prefix(row[0], prefix, delimiter)
            if common is not None:
                prefixes.append(common)
                position, after_prefix = common, True
                break
            rows.append(row)
            position = row[0]
            if len(rows) + len(prefixes) >= limit:
                break
    return Page(rows, prefixes, True)


def _common_prefix(name: str, prefix: str, delimiter: str) -> str | None:
    """Return the part of a name up to the first delimiter after the listing's prefix; None if there is none."""
    if not name.startswith(prefix):
        return None
    at = name.find(delimiter, len(prefix))
    return None if at < 0 else name[: at + len(delimiter)]
