"""The jobs of a dataset: those that made it or read it, and those that could count it.

They are known by the objects that they leave beside their outputs. Anybody who may write can store such an object, so nothing
in it is believed: it is text, or it is compared with what is there.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from dfc.api.shared import listing_query
from dfc.errors import DfcError
from dfc.jobs.records import StatsReport, report_of
from dfc.limits import (
    LINEAGE_BUCKETS_MAX,
    LINEAGE_BYTES_MAX,
    LINEAGE_JOBS_MAX,
    LINEAGE_LISTED_MAX,
    LINEAGE_LOOK_S,
    LINEAGE_READS,
    REPORT_BYTES_MAX,
)
from dfc.listing.datasets import DatasetShards, DatasetTally, NumberedNames
from dfc.listing.pages import rfc3339
from dfc.listing.specs import OutputPattern
from dfc.names import HIDDEN_PREFIX, check_bucket_name, check_object_name, object_path
from dfc.proxy.admin import ProxyServices
from dfc.tar.index.format import index_kind
from dfc.ui.words import dataset_url

SHOWN_MAX: Final = 8  # inputs, and outputs, of a job
TEXT_CHARS_MAX: Final = 200
_INPUTS: Final = b',\n"inputs": ['
_OUTPUTS: Final = b'"outputs": ['
_ID: Final = re.compile(r"[0-9a-f]{22}")


class _Shards(msgspec.Struct, frozen=True):
    bucket: str
    shards: str | list[str] = "**"


class _Output(msgspec.Struct, frozen=True):
    bucket: str
    pattern: str


class _Spec(msgspec.Struct, frozen=True):
    input: _Shards | list[_Shards]
    output: _Output


class _Read(msgspec.Struct, frozen=True):
    bucket: str
    name: str
    checksum: str = ""
    size: int = 0
    samples: int | None = None


class _Written(msgspec.Struct, frozen=True):
    name: str
    checksum: str = ""
    size: int = 0
    samples: int | None = None


class _Head(msgspec.Struct, frozen=True):
    operation: str
    created: str
    spec: _Spec
    label: str = ""


class _Whole(_Head, frozen=True):
    inputs: list[list[_Read]] = []
    outputs: list[_Written] = []


class Linked(NamedTuple):
    """A name, and the page or path that it leads to."""

    text: str
    url: str


class JobTrace(NamedTuple):
    """What a job has to do with a dataset. `made`: shards of it that it wrote, of which `same` are as it wrote them; `reads`:
    it read some. `is_cut`: its inputs and outputs are not known to the end. `report`: the name and the checksum (empty: not
    known) of its report on the dataset, if it made one; `covers`: it made one on the dataset and others; `is_old`: the shards
    are other ones by now."""

    bucket: str
    operation: str
    label: str
    created: str
    url: str
    record: str
    made: int
    same: int
    reads: bool
    inputs: list[Linked]
    outputs: list[Linked]
    is_cut: bool
    report: tuple[str, str] | None
    is_old: bool
    covers: bool = False


def trace_of(content: bytes, *, is_whole: bool, place: tuple[str, str], bucket: str, shards: DatasetShards) -> JobTrace | None:
    """Read what a job left at `place`, a bucket and a name, as far as `content` goes. `bucket` and `shards`: the dataset, which
    is not empty. None if it cannot be read."""
    try:
        job = msgspec.json.decode(content, type=_Whole) if is_whole else _beginning(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    found = [each for each in job.outputs if place[0] == bucket and shards.place(each.name) is not None]
    made, same = len(found), sum(_checksum(shards, each.name) == each.checksum for each in found)
    read = [each for inputs in job.inputs for each in inputs]
    mine = [each for each in read if each.bucket == bucket and shards.place(each.name) is not None]
    given = job.spec.input if isinstance(job.spec.input, list) else [job.spec.input]
    reads = bool(mine) or any(_names(each, bucket, shards) for each in given)
    if not is_whole and not made and _may_make(job, place[0], bucket, shards):
        made = len(shards)
    if not (made or reads):
        return JobTrace(place[0], "", "", "", "", object_path(*place), 0, 0, False, [], [], False, None, False)
    is_report = job.operation == "stats" and reads
    is_exact = is_report and len(mine) == len(read)
    job_id = place[1].rpartition("/")[2].removesuffix(".json")
    return JobTrace(
        bucket=place[0],
        operation=job.operation[:TEXT_CHARS_MAX],
        label=job.label[:TEXT_CHARS_MAX],
        created=job.created[:TEXT_CHARS_MAX],
        url=f"/ui/jobs/{job_id}" if _ID.fullmatch(job_id) else "",
        record=object_path(*place),
        made=made,
        same=same,
        reads=reads,
        inputs=_linked((each.bucket, each.name, each.size, each.samples) for each in read),
        outputs=_linked((place[0], each.name, each.size, each.samples) for each in job.outputs),
        is_cut=not is_whole,
        report=_report(job) if is_exact else None,
        is_old=_is_old(job, mine, shards, is_whole=is_whole),
        covers=is_report and len(shards) <= len(mine) < len(read),
    )


def _report(job: _Whole) -> tuple[str, str] | None:
    with suppress(DfcError):
        return check_object_name(job.spec.output.pattern), job.outputs[0].checksum if job.outputs else ""
    return None


def _beginning(content: bytes) -> _Whole:
    """Read an object that is cut: its first line, and the lines of inputs and outputs as far as they go."""
    first, found, rest = content.partition(_INPUTS)
    if not found:
        raise ValueError("the spec does not end here")
    head = msgspec.json.decode(first + b"}", type=_Head)
    inputs, _, outputs = rest.partition(_OUTPUTS)
    return _Whole(
        head.operation, head.created, head.spec, head.label, [list(_lines(inputs, _Read))], list(_lines(outputs, _Written))
    )


def _lines(content: bytes, kind: Any) -> Iterator[Any]:
    for line in content.split(b"\n"):
        entry = line.strip(b"[], ")
        if entry:
            try:
                yield msgspec.json.decode(entry, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the last one, which is cut
                return


def _names(given: _Shards, bucket: str, shards: DatasetShards) -> bool:
    """Whether an input of a spec is the dataset, by its pattern."""
    return given.bucket == bucket and given.shards in (shards.pattern, shards.spec())


def _may_make(job: _Whole, place: str, bucket: str, shards: DatasetShards) -> bool:
    """Whether the shards are called as the job's outputs are: of one whose outputs were not read."""
    with suppress(DfcError):
        return place == bucket and not job.outputs and OutputPattern(job.spec.output.pattern).matches(shards.name(0))
    return False


def _checksum(shards: DatasetShards, name: str) -> str | None:
    at = shards.place(name)
    return None if at is None else shards.checksum(at)


def _is_old(job: _Whole, read: Sequence[_Read], shards: DatasetShards, *, is_whole: bool) -> bool:
    """Whether the shards are other ones than those that a job read."""
    is_other = len(read) != len(shards) if is_whole else rfc3339(shards.newest_us) > job.created
    return is_other or any(_checksum(shards, each.name) != each.checksum for each in read)


def _linked(objects: Iterable[tuple[str, str, int, int | None]]) -> list[Linked]:
    """Group objects, and link to the pages of datasets; of other objects, to what they are."""
    tallies: dict[str, DatasetTally] = {}
    others: list[Linked] = []
    for bucket, name, size, samples in objects:
        try:
            check_bucket_name(quote(bucket, safe=""))
            check_object_name(name)
        except DfcError:
            continue
        if samples is None or samples < 0 or index_kind(name) is None:
            if len(others) <= SHOWN_MAX:
                others.append(Linked(f"{bucket}/{name}", object_path(bucket, name)))
        else:
            tallies.setdefault(bucket, DatasetTally()).add([(name, size, "", 0, samples, None)])
    found = [
        Linked(f"{bucket}/{dataset.pattern}", dataset_url(bucket, dataset.pattern))
        for bucket, tally in tallies.items()
        for dataset in tally.datasets()
    ]
    return [*found, *others][: SHOWN_MAX + 1]


# --- Look for jobs that made a dataset or used it, and for a report on it. Bounded: newest first, a few at a time, for a while.

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

    def __init__(self, uses: ProxyServices) -> None:
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
        others = [each for each in self._admin.cluster_map().buckets if each.name != bucket]
        others.sort(key=lambda each: each.created, reverse=True)
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


# --- The job that counts the classes and sizes of a dataset, as it is proposed. No I/O.

CLASS_FIELD: Final = "cls"
ENDING: Final = "stats.json"


def counting(bucket: str, pattern: str, exts: Iterable[str], report: FoundReport | None) -> dict[str, str]:
    """The fields of the form for the job: its output beside the shards, which takes the place of the last `report` if that is
    called so, and the field with the class, if there is one."""
    name = report_for(pattern)
    found = {"output_bucket": bucket, **({"pattern": name} if name else {})}
    if CLASS_FIELD in exts:
        found["option.by"] = CLASS_FIELD
    if report is not None and (report.job.bucket, report.name) == (bucket, name):
        found["overwrite"] = "on"
    return found


def report_for(pattern: str) -> str:
    """The name of a report on a dataset: `a/train.stats.json` for `a/train-{000..146}.tar`. Empty if it would be none."""
    names = NumberedNames.of(pattern)
    folder, slash, base = (pattern if names is None else names.before).rpartition("/")
    stem = (base.partition(".")[0] if names is None else base).rstrip("-_.")
    name = f"{folder}{slash}{stem}{'.' if stem else ''}{ENDING}"
    with suppress(DfcError):
        made = OutputPattern(name)
        return "" if made.is_numbered or made.has_part else name
    return ""
