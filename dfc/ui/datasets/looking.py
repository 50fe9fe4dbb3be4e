"""Look for jobs that made a dataset or used it, and for a report on it. Bounded: newest first, a few at a time, for a while."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, NamedTuple

from dfc.api.listings import listing_query
from dfc.datasets import DatasetShards
from dfc.errors import DfcError
from dfc.jobs.reports import StatsReport, report_of
from dfc.limits import (
    LINEAGE_BUCKETS_MAX,
    LINEAGE_BYTES_MAX,
    LINEAGE_JOBS_MAX,
    LINEAGE_LISTED_MAX,
    LINEAGE_LOOK_S,
    LINEAGE_READS,
    REPORT_BYTES_MAX,
)
from dfc.names import HIDDEN_PREFIX
from dfc.proxy.uses import ProxyUses
from dfc.ui.datasets.traces import JobTrace, trace_of

PREFIX: Final = f"{HIDDEN_PREFIX}jobs/"
RECENT_S: Final = 7 * 24 * 3600.0
REPORTS_TRIED_MAX: Final = 3
Place = tuple[int, str, str]
"""When an object was stored, its bucket and its name."""


class FoundReport(NamedTuple):
    """A report on a dataset: the job that made it, its place, its totals; `is_old`: the shards are other ones by now."""

    job: JobTrace
    name: str
    totals: StatsReport
    is_old: bool


@dataclass
class Looked:
    """What a look has found. `looked_at` of `known` objects were read, in `buckets` of `all_buckets`; `is_whole`: nothing more
    could be found."""

    traces: list[JobTrace] = field(default_factory=list)
    report: FoundReport | None = None
    looked_at: int = 0
    known: int = 0
    buckets: int = 0
    all_buckets: int = 0
    unread: int = 0
    is_whole: bool = False

    @property
    def origin(self) -> list[JobTrace]:
        """The jobs that wrote shards of the dataset, the newest first."""
        return [job for job in self.traces if job.made]

    @property
    def uses(self) -> list[JobTrace]:
        """The jobs that read shards of the dataset, the newest first."""
        return [job for job in self.traces if job.reads and not job.made]

    @property
    def wider(self) -> JobTrace | None:
        """The newest job with a report on the dataset and others."""
        return next((job for job in self.traces if job.covers), None)


class JobTraces:
    """Looks for what jobs left. All pages together read LINEAGE_READS objects at a time."""

    def __init__(self, uses: ProxyUses) -> None:
        self._admin, self._listings, self._shards = uses.admin, uses.listings, uses.shards
        self._room = asyncio.Semaphore(LINEAGE_READS)

    async def look(self, bucket: str, shards: DatasetShards) -> Looked:
        """Look for jobs about a dataset, which is not empty; what takes too long, or cannot be read, is not there."""
        found = Looked()
        try:
            async with asyncio.timeout(LINEAGE_LOOK_S):
                places = await self._places(bucket, found)
                await asyncio.gather(*(self._read(place, bucket, shards, found) for place in places))
                found.is_whole = found.looked_at == found.known and not found.unread and found.buckets == found.all_buckets
                found.traces.sort(key=lambda job: job.created, reverse=True)
                found.report = await self._report(found, shards)
        except TimeoutError:
            found.traces.sort(key=lambda job: job.created, reverse=True)
        return found

    async def _places(self, bucket: str, found: Looked) -> list[Place]:
        """Return the newest objects that jobs left: half of them, or more, beside the dataset."""
        others = sorted(
            (each for each in self._admin.cluster_map().buckets if each.name != bucket),
            key=lambda each: each.created,
            reverse=True,
        )
        names = [bucket, *(each.name for each in others[: LINEAGE_BUCKETS_MAX - 1])]
        found.all_buckets = len(others) + 1
        listed = await asyncio.gather(*(self._listed(name, found) for name in names))
        own, rest = listed[0], sorted((place for places in listed[1:] for place in places), reverse=True)
        mine = own[: max(LINEAGE_JOBS_MAX // 2, LINEAGE_JOBS_MAX - len(rest))]
        return mine + rest[: LINEAGE_JOBS_MAX - len(mine)]

    async def _listed(self, bucket: str, found: Looked) -> list[Place]:
        with suppress(DfcError):
            async with self._room:
                query = listing_query(self._listings.bucket_id(bucket), {"prefix": PREFIX})
                page = await self._listings.page(query, LINEAGE_LISTED_MAX)
                rows = page.rows
                if page.more:  # names sort by time, so these are the oldest
                    recent = f"{PREFIX}{int((time.time() - RECENT_S) * 1e6):014x}"
                    page = await self._listings.page(replace(query, start_after=max(recent, page.last)), LINEAGE_LISTED_MAX)
                    found.known += 1  # at least: those between
                    rows = rows + page.rows
            found.known += len(rows)
            found.buckets += 1
            return sorted(((row[3], bucket, row[0]) for row in rows), key=itemgetter(0), reverse=True)
        return []

    async def _read(self, place: Place, bucket: str, shards: DatasetShards, found: Looked) -> None:
        trace = None
        with suppress(DfcError):
            async with self._room:
                head = await self._shards.head(place[1], place[2], LINEAGE_BYTES_MAX)
                trace = await asyncio.to_thread(
                    trace_of, head.content, is_whole=head.is_whole, place=place[1:], bucket=bucket, shards=shards
                )
        found.looked_at += 1
        if trace is None:
            found.unread += 1
        elif trace.made or trace.reads:
            found.traces.append(trace)

    async def _report(self, found: Looked, shards: DatasetShards) -> FoundReport | None:
        """Return the newest report that is still there as it was written."""
        for job in [job for job in found.traces if job.report is not None][:REPORTS_TRIED_MAX]:
            assert job.report is not None
            name, checksum = job.report
            with suppress(DfcError):
                async with self._room:
                    head = await self._shards.head(job.bucket, name, REPORT_BYTES_MAX)
                    totals = None
                    if not checksum or checksum == head.checksum:
                        totals = await asyncio.to_thread(report_of, head.content)
                if totals is not None:
                    same = totals.shards == len(shards) and totals.stored_bytes == shards.total_size
                    return FoundReport(job, name, totals, job.is_old or not same)
        return None
