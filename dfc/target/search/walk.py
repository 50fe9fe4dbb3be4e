"""Go through the indexes of some shards of one disk, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from dfc.errors import DfcError, NotAShard, NotFound, Unavailable
from dfc.keysearch import SampleHit, SamplePlace, SearchAsked, SearchPart, Stop
from dfc.limits import SEARCH_ANSWER_BYTES_MAX
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.index.finding import find_samples
from dfc.tar.index.format import IndexCorrupt
from dfc.wire.objects import UnsearchedShard

REREADS_MAX: Final = 8  # of a shard that is being replaced
Lookup = Callable[[Disk, str, str], ObjectRow]


class IndexWalk:
    """Searches some shards of a disk, in order: `run` it in a thread, `stop` it from another; `part` is what there is."""

    def __init__(
        self, disk: Disk, bucket_id: str, shards: Sequence[str], asked: SearchAsked, until_s: float, lookup: Lookup
    ) -> None:
        """`shards`: at least one. `until_s`: by `time.monotonic`. `lookup` returns a row that may be served, as
        `CopiedObjects.lookup` does."""
        self.disk = disk
        self._bucket_id = bucket_id
        self._shards = shards
        self._asked = asked
        self._until_s = until_s
        self._lookup = lookup
        self._is_stopped = threading.Event()
        self._is_done = False
        self._hits: list[SampleHit] = []
        self._bytes = 0
        self._searched = 0
        self._stopped: Stop | None = None
        self._reached = asked.begin(shards[0])
        self._missing: list[UnsearchedShard] = []
        self._failed: list[UnsearchedShard] = []

    def stop(self) -> None:
        """Have it end soon."""
        self._is_stopped.set()

    def part(self) -> SearchPart:
        """What was found until now."""
        is_done, reached = self._is_done, self._reached  # before the hits, of which there may be more by now, but not fewer
        stopped = self._stopped if is_done else self._stopped or "time"
        hits, missing, failed = list(self._hits), list(self._missing), list(self._failed)
        return SearchPart(hits, self._searched, stopped, missing, failed, None if stopped is None else reached)

    def run(self) -> None:
        """Search until all is done, the limit or the time is reached, or it is stopped. Blocking."""
        for shard in self._shards:
            if self._stopped is None:
                self._reached = self._asked.begin(shard)
            if self._is_over():
                break
            try:
                hits, reached, stopped = self._search(shard)
            except (NotFound, NotAShard) as error:
                self._missing.append(UnsearchedShard(shard, error.code, error.message))
            except DfcError as error:
                self._failed.append(UnsearchedShard(shard, error.code, error.message))
            else:
                self._hits += hits
                self._reached = reached
                self._stopped = stopped
                self._searched += stopped is None
        self._is_done = True

    def _is_over(self) -> bool:
        if self._stopped is None and (self._is_stopped.is_set() or time.monotonic() >= self._until_s):
            self._stopped = "time"
        return self._stopped is not None

    def _search(self, shard: str) -> tuple[list[SampleHit], SamplePlace, Stop | None]:
        """Search one shard; return its hits, how far they go, and why they are not all. Errors of the disk."""
        begin = self._asked.begin(shard)
        for _ in range(REREADS_MAX):
            row = self._lookup(self.disk, self._bucket_id, shard)
            if row.samples is None:
                raise NotAShard(f"{shard!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
            index, held = None, self._bytes
            try:
                index = self.disk.open_index(row)
                return self._hits_in(begin, find_samples(index, shard, self._asked.query, begin[1]))
            except RowChanged:
                pass
            except IndexCorrupt:  # large indexes are only checked as they are read
                with suppress(RowChanged):
                    self.disk.rebuild_index(row, index)
            self._bytes = held
        raise Unavailable(f"{shard!r} is being replaced faster than it can be searched")

    def _hits_in(
        self, reached: SamplePlace, found: Iterator[SampleHit | int]
    ) -> tuple[list[SampleHit], SamplePlace, Stop | None]:
        hits: list[SampleHit] = []
        for each in found:
            if isinstance(each, SampleHit):
                hits.append(each)
                reached = each.after
                self._bytes += each.line_bytes
                if len(self._hits) + len(hits) >= self._asked.limit or self._bytes >= SEARCH_ANSWER_BYTES_MAX:
                    return hits, reached, "limit"
            else:
                reached = reached[0], each
            if self._is_over():
                return hits, reached, self._stopped
        return hits, reached, None
