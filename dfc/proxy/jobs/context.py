"""What all running jobs of a proxy share: the cluster, staged objects, metrics and records."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import sqlite3
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.errors import CopiesMissing, DfcError, NoSpace, OperatorError, StorageFailed, Unavailable
from dfc.filesystem import NEW_SUFFIX, FileSystem, is_full, make_directories, read_small_file, write_small_file
from dfc.http.retry import RemoteError
from dfc.http.shutdown import end_threads, in_time
from dfc.jobs.journal import Journal
from dfc.jobs.operations import operation
from dfc.jobs.recording import JobSummary, Recorder, SummaryDamaged, decode_summary, encode_summary, recorder_of, summary_of
from dfc.jobs.records import STATES, JobRecord
from dfc.jobs.spec import CheckedSpec
from dfc.jobs.tasks import JobInput, Stage, TaskResult
from dfc.limits import JOB_SUMMARY_BYTES_MAX
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.jobs.log import JobLogs
from dfc.registry.base import LeaseLost

# --- Manage the staged objects of jobs on all targets: write, publish and discard them, and sweep those of no known job.

_log: Final = logging.getLogger("dfc.proxy.jobs")
RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 10.0
BEGIN_S: Final = 20.0  # for all targets to make outputs visible; what is not in time is asked for again
DOWN_LOOK_S: Final = 1.0  # between two looks whether a target that does not answer is down
SWEEP_S: Final = 3600.0
SWEEP_RETRY_FIRST_S: Final = 0.5  # while a target is down: a starting cluster is soon complete
SWEEP_RETRY_MAX_S: Final = 10.0


class StagedObject(msgspec.Struct, frozen=True, gc=False):
    """A staged object, as a target describes it."""

    object: str
    size: int
    checksum: str
    version: str = ""  # a target of the version before does not say it


class _Prepared(msgspec.Struct, frozen=True):
    objects: list[StagedObject]


class _NamesReply(msgspec.Struct, frozen=True):
    missing: list[str]
    unknown: list[str]


class Staged:
    """Calls to the staging routes of the targets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def put(self, job_id: str, bucket: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write an output of the job from the proxy itself."""
        node = self._cluster.primary(self._cluster.bucket(bucket), name)
        url = f"{node.url}/v1/node/staged/{job_id}/{bucket}/{quote(name)}"
        await self._cluster.control.upload(url, pieces)

    async def prepare(self, job_id: str, node: NodeEntry) -> list[StagedObject]:
        """Return what a target is going to publish, made durable and verified, and copied to other disks, however long that
        takes. Other errors of the target are raised unchanged."""
        while True:
            try:
                url = f"{node.url}/v1/node/staged/{job_id}/prepare"
                return (await self._cluster.control.call("POST", url, _Prepared, long=True)).objects
            except RemoteError as error:
                if error.code != CopiesMissing.code:
                    raise
                _log.info("job %s: target %s: %s", job_id, node.id, error.message)

    async def publish(self, job_id: str, bucket: str, is_lost: Callable[[], bool]) -> bool:
        """Publish the outputs, however long a target is down; False when `is_lost` says that their bucket is gone.

        If they have copies, nobody waits for a target that is down: others have what it had staged, as `missing` tells."""
        found, path = self._cluster.map.bucket(bucket), f"/v1/node/staged/{job_id}/publish"
        has_copies = found is not None and found.has_several
        if has_copies:
            # First everywhere what was staged, original or copy: else it would be sent to disks that are about to have it.
            nodes = [node for node in self._cluster.map.holders() if node.state == "up"]
            await asyncio.gather(*(self._begin(job_id, node, f"{path}?begin=1") for node in nodes))
        return await self._everywhere("POST", path, is_lost, without_down=has_copies)

    async def _begin(self, job_id: str, node: NodeEntry, path: str) -> None:
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._cluster.control.call("POST", node.url + path, dict, long=True)
        except (DfcError, TimeoutError) as error:
            _log.info("job %s: target %s does not publish yet: %s", job_id, node.id, error)

    def has_down(self) -> bool:
        """Whether a target is down that may have outputs."""
        return any(node.state != "up" for node in self._cluster.map.holders())

    async def missing(self, job_id: str, bucket: str, names: Sequence[str], version: str) -> list[str]:
        """Return those of the names that have neither this version nor a newer one, on all disks that must have it.

        Waits, for as long as it takes, until the targets that decide about them can say so. BucketNotFound."""
        found: list[str] = []
        wait_s, say = RETRY_FIRST_S, _log.warning
        while True:
            entry, unknown = self._cluster.bucket(bucket), list[str]()
            by_url: dict[str, list[str]] = {}
            for name in names:
                try:
                    by_url.setdefault(self._cluster.primary(entry, name).url, []).append(name)
                except Unavailable:
                    unknown.append(name)
            asked = (self._ask_missing(job_id, url, bucket, some, version) for url, some in by_url.items())
            for reply in await asyncio.gather(*asked):
                found += reply.missing
                unknown += reply.unknown
            if not unknown:
                return found
            say("job %s: it is not known yet whether %d outputs are published, such as %r", job_id, len(unknown), unknown[0])
            names, say = unknown, _log.debug
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _ask_missing(self, job_id: str, url: str, bucket: str, names: list[str], version: str) -> _NamesReply:
        """Ask one target; one that does not answer, or decides about them no more, does not know."""
        body = {"bucket": bucket, "objects": names, "version": version}
        try:
            return await self._cluster.control.call("POST", f"{url}/v1/node/staged/{job_id}/missing", _NamesReply, body=body)
        except DfcError as error:
            _log.debug("asking %s for outputs of job %s: %s", url, job_id, error.message)
            return _NamesReply([], names)

    async def discard(self, job_id: str) -> None:
        """Remove everything staged for the job, however long a target is down."""
        await self._everywhere("DELETE", f"/v1/node/staged/{job_id}", lambda: False)

    async def _everywhere(self, method: str, path: str, is_lost: Callable[[], bool], *, without_down: bool = False) -> bool:
        """Call every target of the map until it acknowledges; a target that joins later has nothing of the job."""
        nodes = self._cluster.map.holders()
        calls = (self._until_done(node.id, method, path, is_lost, without_down=without_down) for node in nodes)
        return all(await asyncio.gather(*calls))

    async def _until_done(
        self, node_id: str, method: str, path: str, is_lost: Callable[[], bool], *, without_down: bool
    ) -> bool:
        wait_s, say = RETRY_FIRST_S, _log.warning
        while True:
            node = self._cluster.map.node(node_id)
            if node is None or (without_down and node.state == "down"):
                return True  # what only it held is found to be lacking
            try:
                call = self._cluster.control.call(method, f"{node.url}{path}", dict, long=True)
                await (self._unless_down(node_id, call) if without_down else call)
                return True
            except Exception as error:  # whatever it is, the job goes only forward from here
                if not isinstance(error, DfcError):
                    _log.exception("%s %s at %s failed; trying again", method, path, node_id)
                    error = DfcError(str(error))
                if isinstance(error, RemoteError) and error.status < 500 and is_lost():
                    return False
                say("%s %s at %s: %s; retrying until it succeeds", method, path, node_id, error.message)
                say = _log.debug  # a target may be away for days
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _unless_down(self, node_id: str, call: Coroutine[Any, Any, object]) -> None:
        """Wait for an answer, or until the target is down: one that hangs answers never. Raises what the call raises."""
        task = asyncio.create_task(call)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=DOWN_LOOK_S)
                node = self._cluster.map.node(node_id)
                if not task.done() and (node is None or node.state == "down"):
                    raise Unavailable(f"target {node_id} is down")
            task.result()
        finally:
            task.cancel()

    async def keep_swept(self, is_known: Callable[[str], bool]) -> None:
        """Sweep now and every hour; sooner if not every target could be asked."""
        retry_s = SWEEP_RETRY_FIRST_S
        while True:
            wait_s = SWEEP_S
            try:
                if self._cluster.is_ready() and await self.sweep(is_known):
                    _log.info("no target holds staged objects of jobs that are not running")
                    retry_s = SWEEP_RETRY_FIRST_S
                else:
                    wait_s, retry_s = retry_s, min(SWEEP_RETRY_MAX_S, retry_s * 2)
            except Exception:
                _log.exception("sweeping staged objects failed; trying again")
            await asyncio.sleep(wait_s)

    async def sweep(self, is_known: Callable[[str], bool]) -> bool:
        """Discard what belongs to no unfinished job; False when not every target could be asked."""

        async def ask(node: NodeEntry) -> None:
            found: dict[str, Any] = await self._cluster.control.call("GET", f"{node.url}/v1/node/staged", dict)
            for job_id in found:
                if not is_known(job_id):
                    _log.warning("target %s holds staged objects of job %s, which is not running: discarding", node.id, job_id)
                    await self._cluster.control.call("DELETE", f"{node.url}/v1/node/staged/{job_id}", dict, long=True)

        answers = await asyncio.gather(*(ask(node) for node in self._cluster.map.holders()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, DfcError):
                raise answer
        return not any(isinstance(answer, BaseException) for answer in answers)


# --- Prometheus metrics of jobs (docs/metrics.md). Only the event loop writes them.

DURATION_BUCKETS_S: Final = (0.5, 1, 5, 10, 60, 300, 600, 3600, 6 * 3600, 86_400)


class JobStats:
    """Counts since the start of this proxy."""

    def __init__(self) -> None:
        self.retries = 0
        self.tasks: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.finished: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._durations: dict[str, list[int]] = {}

    def count_task(self, operation: str, result: TaskResult) -> None:
        self.tasks[operation] += 1
        self.bytes_in += result.bytes_in
        self.bytes_out += result.bytes_out

    def count_job(self, job: JobRecord) -> None:
        """Count a job that has ended."""
        self.finished[job.operation, job.state] += 1
        if job.started_us is None or job.finished_us is None:
            return
        seconds = (job.finished_us - job.started_us) / 1e6
        counts = self._durations.setdefault(job.operation, [0] * (len(DURATION_BUCKETS_S) + 1))
        counts[bisect_left(DURATION_BUCKETS_S, seconds)] += 1
        self._seconds[job.operation] = self._seconds.get(job.operation, 0.0) + seconds

    def families(self, states: Mapping[str, int]) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("dfc_jobs", "Jobs in the journal by state", labels=("state",))
        for each in STATES:
            jobs.add_metric((each,), states.get(each, 0))
        yield jobs
        finished = CounterMetricFamily("dfc_jobs_finished", "Jobs that ended", labels=("operation", "state"))
        for ended, count in sorted(self.finished.items()):
            finished.add_metric(ended, count)
        yield finished
        seconds = HistogramMetricFamily("dfc_job_seconds", "Time from the start of a job to its end", labels=("operation",))
        for name, counts in sorted(self._durations.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, DURATION_BUCKETS_S), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            seconds.add_metric((name,), buckets, self._seconds[name])
        yield seconds
        tasks = CounterMetricFamily("dfc_job_tasks", "Tasks that succeeded", labels=("operation",))
        for name, count in sorted(self.tasks.items()):
            tasks.add_metric((name,), count)
        yield tasks
        yield CounterMetricFamily("dfc_job_task_retries", "Tasks run again after a failure", self.retries)
        yield CounterMetricFamily("dfc_job_read_bytes", "Bytes read by tasks", self.bytes_in)
        yield CounterMetricFamily("dfc_job_written_bytes", "Bytes written by tasks", self.bytes_out)


# --- What is recorded of the jobs of this proxy: in memory while they run, in files of the journal's directory for later.
#
# A file is written now and then while its job runs, when the proxy stops and when the job has ended; it goes when the job
# leaves the list. It is for people who look at the job: whatever is wrong with a file, the job does not know. In a cluster with
# several proxies, each has what it recorded itself.

FOLDER: Final = "job-records"
SAVE_S: Final = 15.0  # what a proxy that is killed may lose
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class Recordings:
    """The recorders of jobs by their ids. What is `_blocking` is for threads."""

    def __init__(self, directory: str, filesystem: FileSystem | None = None) -> None:
        self._directory = f"{os.path.abspath(directory)}/{FOLDER}"
        self._filesystem = filesystem or FileSystem()
        self._live: dict[str, Recorder] = {}
        self._writing = threading.Lock()

    def of(self, record: JobRecord) -> Recorder:
        """The recorder of a job under way. One that has ended gets one that nobody sees."""
        if record.finished_us is not None:
            return Recorder()
        return self._live.setdefault(record.id, Recorder())

    def live(self, job_id: str) -> Recorder | None:
        """The recorder of a job that is under way, or has just ended; else what is known may be in a file."""
        return self._live.get(job_id)

    def resume(self, record: JobRecord, found: Recorder | None, why: str) -> None:
        """Go on with a job from before; `found` is what was read of it."""
        recorder = self._live[record.id] = found or Recorder()
        if record.started_us is None and found is None:  # it waited: there was nothing
            return
        if found is None:
            why += "; what was before is not known"
        elif not found.is_closed:
            why += f"; of the last {SAVE_S:.0f} s before, not everything is known"
        recorder.is_complete = recorder.is_complete and recorder.is_closed
        recorder.is_closed = False
        recorder.say("info", why)

    def drop(self, job_id: str) -> None:
        """Forget a recorder; its file stays."""
        self._live.pop(job_id, None)

    def changed(self) -> list[tuple[str, JobSummary]]:
        """What is to be saved now of all jobs under way."""
        found = []
        for job_id, recorder in self._live.items():
            if recorder.is_changed:
                recorder.is_changed = False
                found.append((job_id, summary_of(recorder)))
        return found

    def closed(self, job_id: str = "") -> list[tuple[str, JobSummary]]:
        """What is to be saved at the end, of this job or of all; what never ran has nothing."""
        found = []
        for each, recorder in self._live.items():
            if job_id in ("", each) and recorder.lines:
                recorder.is_closed = True
                found.append((each, summary_of(recorder)))
        return found

    # --- files

    def read_blocking(self, job_id: str) -> Recorder | None:
        """Read what was saved of a job; None if there is nothing, or it is damaged."""
        try:
            data = read_small_file(self._path(job_id), "It can be removed.", JOB_SUMMARY_BYTES_MAX)
            return None if data is None else recorder_of(decode_summary(data))
        except (OperatorError, SummaryDamaged, ValueError) as error:
            _log.warning("what was recorded of job %s cannot be read: %s", job_id, error)
            return None

    def save_blocking(self, summaries: Iterable[tuple[str, JobSummary]]) -> None:
        """Write files. What cannot be written is lost; the log of the proxy says so."""
        with self._writing:  # one after the other, also at a stop: what is told last is newest
            for job_id, summary in summaries:
                try:
                    make_directories(self._directory, self._filesystem)
                    # Labels may be confidential, so only the owner can read the file.
                    write_small_file(self._path(job_id), encode_summary(summary), self._filesystem, 0o600)
                except Exception as error:  # an OSError, or figures without an encoding: the job must not suffer
                    _log.warning("what was recorded of job %s cannot be written: %s", job_id, error)

    def prune_blocking(self, known: Callable[[list[str]], set[str]]) -> None:
        """Remove the files of jobs that are not listed any more; `known` says which ones are."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("cannot look for what was recorded of old jobs: %s", error)
            return
        by_id = {name: name.removesuffix(NEW_SUFFIX) for name in names}
        left = known(sorted(set(by_id.values())))
        for name, job_id in by_id.items():
            if job_id not in left:
                try:
                    self._filesystem.unlink(f"{self._directory}/{name}")
                except OSError as error:
                    _log.warning("cannot remove what was recorded of job %s: %s", job_id, error)

    def _path(self, job_id: str) -> str:
        if not _ID.fullmatch(job_id):
            raise ValueError("not the id of a job")
        return f"{self._directory}/{job_id}"


# --- What all running jobs share: cluster, journal, engine and threads, waiting for targets, retries and planning.

T = TypeVar("T")
TellWaiting = Callable[[Iterable[str] | None], None]
RETRIES: Final = 3
RETRY_DELAYS_S: Final = (0.5, 2.0, 8.0)  # together longer than a target needs to restart after a crash
TARGETS_WAIT_S: Final = 120.0  # how long a job waits for a target that is down before it goes on and fails
TARGETS_POLL_S: Final = 0.2
JOURNAL_RETRY_S: Final = 5.0


class JobFailure(DfcError):
    """The error with which a job fails, for its record."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class JobInterrupted(DfcError):
    """The job was started by another version of DFC, which may have planned other tasks."""

    code = "job_interrupted"


class EngineOnDemand:
    """The engine that runs tasks; the first job that needs it starts it."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._engine: Engine | None = None
        self._starting = asyncio.Lock()

    async def get(self) -> Engine:
        """Return the engine, started."""
        if self._engine is None:
            async with self._starting:
                if self._engine is None:
                    engine = self._make()
                    await engine.start()
                    self._engine = engine
        return self._engine

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()


@dataclass(frozen=True)
class JobContext:
    """What all runners share. `threads` are for plans and long reads of the journal; only `writer` changes it."""

    cluster: Cluster
    journal: Journal
    staged: Staged
    stats: JobStats
    engine: Callable[[], Awaitable[Engine]]
    threads: ThreadPoolExecutor
    writer: ThreadPoolExecutor
    tasks_max: int
    logs: JobLogs
    settings: Settings
    recordings: Recordings

    async def plan(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call, *arguments)

    async def write(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call on the journal. NoSpace or StorageFailed when the proxy's own disk is full or fails."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.writer, lambda: call(*arguments))
        except sqlite3.OperationalError as error:
            kind = NoSpace if is_full(error) else StorageFailed
            raise kind(f"the proxy cannot write its job journal: {error}") from error

    async def write_at_last(
        self, call: Callable[..., T], *arguments: Any, refused: Callable[[Exception], None] | None = None
    ) -> T:
        """Make a change to the journal that must not be lost: retry until it succeeds. `refused` gets the error of each failed
        attempt."""
        while True:
            try:
                return await self.write(call, *arguments)
            except (NoSpace, StorageFailed) as error:
                _log.error("%s; trying again", error.message)
                if refused is not None:
                    refused(error)
            await asyncio.sleep(JOURNAL_RETRY_S)

    async def end_log(self, record: JobRecord) -> None:
        """Say that nothing is left to be done for a job."""
        with suppress(LeaseLost):  # the next coordinator finds out
            await self.logs.end(record)

    async def close(self) -> None:
        """End the threads, and close the journal if nothing uses it any more."""
        ended = await asyncio.gather(
            end_threads(self.threads, "the planning of jobs"), end_threads(self.writer, "the job journal")
        )
        if all(ended):
            await in_time(self.journal.close, "the job journal")

    async def wait_before_retry(self, attempt: int, tell: TellWaiting | None = None) -> None:
        """Wait with a growing delay, and then for targets that are down, up to TARGETS_WAIT_S."""
        await asyncio.sleep(RETRY_DELAYS_S[attempt] * (0.75 + random.random() / 2))
        await self.wait_for_targets(tell)

    async def wait_for_targets(self, tell: TellWaiting | None = None) -> None:
        """Wait while a target is down, up to TARGETS_WAIT_S: its objects cannot be read, and it is usually back in seconds.
        `tell` is called with the ids of those that are waited for, and with None when all are there."""
        deadline = time.monotonic() + TARGETS_WAIT_S
        while time.monotonic() < deadline:
            missing = self.cluster.map.cover().missing
            is_there = self.cluster.is_ready() and not missing
            if tell is not None:
                tell(None if is_there else [node.id for node in missing])
            if is_there:
                return
            await asyncio.sleep(TARGETS_POLL_S)

    async def retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `call`; retry it when a node cannot be reached."""
        for attempt in range(RETRIES):
            try:
                return await call()
            except DfcError as error:
                if error.status != 503:
                    raise
            await self.wait_before_retry(attempt)
        return await call()


def plan_stages(
    spec: CheckedSpec, inputs: tuple[Sequence[Any], ...], memory_bytes: int, cluster: Cluster
) -> tuple[Sequence[Stage], JobInput]:
    """Plan the stages of a job. Pure except for the map, which decides where tasks run, but not what they write."""
    bucket = spec.spec.output.bucket

    def node_of(name: str) -> str | None:
        entry = cluster.map.bucket(bucket)
        owner = None if entry is None else cluster.map.owner(entry, name)
        return None if owner is None else owner.node.id

    prefixes = tuple(source.prefix for source in spec.spec.inputs)
    job = JobInput(spec.options, inputs, bucket, spec.pattern, memory_bytes, node_of, prefixes)
    return operation(spec.spec.operation).plan(job), job
