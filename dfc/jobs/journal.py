"""The journal of jobs: one SQLite file of the proxy, and the long sequences in it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar, overload

import msgspec

from dfc.errors import Conflict, JobFinished, JobNotFound
from dfc.filesystem import FileSystem, open_database
from dfc.jobs.lifecycle import RECORDED_BEFORE, WrittenState
from dfc.jobs.records import JobEntry, JobRecord, NewJob, OutputSummary, RecordedProgress, StageTotals
from dfc.jobs.tasks import InputShard, OutputRecord, TaskResult
from dfc.limits import JOB_SPEC_KEPT_BYTES
from dfc.wire.jobs import JobError, JobState

# --- The SQLite file of the journal of jobs: its schema, opening it, transactions. WAL, synchronous=FULL.

FILE_NAME: Final = "jobs.sqlite"
SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, operation TEXT NOT NULL,
    spec BLOB NOT NULL, label TEXT NOT NULL, bucket TEXT NOT NULL, bucket_id TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
    program TEXT NOT NULL, created_us INTEGER NOT NULL, started_us INTEGER, finished_us INTEGER, error BLOB,
    warnings BLOB NOT NULL, output BLOB, progress BLOB NOT NULL, inputs INTEGER NOT NULL, discard INTEGER NOT NULL DEFAULT 0,
    details INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE TABLE inputs (
    job INTEGER NOT NULL, input INTEGER NOT NULL, number INTEGER NOT NULL, shard BLOB NOT NULL,
    PRIMARY KEY (job, input, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE tasks (
    job INTEGER NOT NULL, stage INTEGER NOT NULL, number INTEGER NOT NULL, result BLOB NOT NULL, samples INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL, PRIMARY KEY (job, stage, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE outputs (
    job INTEGER NOT NULL, name TEXT NOT NULL, stage INTEGER NOT NULL, task INTEGER NOT NULL, record BLOB NOT NULL,
    samples INTEGER NOT NULL, PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;
"""


class JournalFile:
    """The file, with one connection that threads share under a lock."""

    def __init__(
        self,
        directory: str,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        *,
        filesystem: FileSystem | None = None,
    ) -> None:
        """Open or create the file. DiskRefused if it is not a journal in this format."""
        self.wall_us = wall_us
        self._lock = threading.RLock()
        self._filesystem = filesystem or FileSystem()
        path = f"{os.path.abspath(directory)}/{FILE_NAME}"
        # Labels and specs may be confidential, so only the owner can read the file.
        self._database = open_database(
            path, "a journal of jobs", _SCHEMA, SCHEMA_VERSION, self._filesystem, way_out="Move it away to begin a new one"
        )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction: all or nothing, and durable when it ends."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._filesystem.commit(self._database)
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        with self._lock:
            return self._database.execute(query, values).fetchall()


# --- Long sequences stored in a database, fetched a page at a time, so that a job of a million tasks takes little memory.

T = TypeVar("T")
PAGE: Final = 1024
PAGES_KEPT: Final = 8


class Stored(Sequence[T]):
    """A sequence of `count` items; `fetch(start, stop)` returns a range of them. Not thread-safe."""

    def __init__(self, count: int, fetch: Callable[[int, int], list[T]]) -> None:
        self._count = count
        self._fetch = fetch
        self._pages: OrderedDict[int, list[T]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                return self._fetch(start, stop) if start < stop else []
            return [self[at] for at in range(start, stop, step)]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(index)
        return self._page(at // PAGE)[at % PAGE]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, self._count, PAGE):
            yield from self._fetch(start, min(start + PAGE, self._count))

    def _page(self, number: int) -> list[T]:
        page = self._pages.get(number)
        if page is None:
            page = self._fetch(number * PAGE, min((number + 1) * PAGE, self._count))
            self._pages[number] = page
            if len(self._pages) > PAGES_KEPT:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(number)
        return page


# --- The journal of jobs: a SQLite file of the proxy (WAL, synchronous=FULL) from which a restarted proxy continues.
#
# States go `queued → running → publishing → succeeded`, or end as `failed` or `cancelled`; `lifecycle` defines the allowed
# changes, and others are refused here. The transaction that writes `publishing` is a job's commit point. Results of tasks are
# kept until the job ends. Blocking and thread-safe; at most a page of a job's data is held in memory.

FORGET_ROWS: Final = 20_000  # deleted per transaction, so that others wait at most about 50 ms
SMALL: Final = 10_000  # up to this number, shards are simply a tuple
_COLUMNS: Final = (
    "id, operation, state, label, bucket, bucket_id, memory_bytes, program, created_us, started_us, finished_us, error, "
    "warnings, output, progress, discard"
)
_ENCODED: Final = {"error": JobError, "warnings": tuple[str, ...], "output": OutputSummary, "progress": RecordedProgress}
_encode: Final = msgspec.msgpack.encode
_shard: Final = msgspec.msgpack.Decoder(InputShard).decode
_result: Final = msgspec.msgpack.Decoder(TaskResult).decode
_output: Final = msgspec.msgpack.Decoder(OutputRecord).decode
TaskEntry = tuple[int, int, TaskResult]
"""Stage, number, result."""


class OutputWrittenTwice(Conflict):
    """Two tasks of a job wrote the same object."""

    code = "output_written_twice"


class Journal(JournalFile):
    """The journal. Opening it after a crash gives the last committed state."""

    def _row(self, columns: str, job_id: str) -> Any:
        rows = self.rows(f"SELECT {columns} FROM jobs WHERE id = ?", job_id)
        if not rows:
            raise JobNotFound(f"job {job_id[:80]!r} does not exist")
        return rows[0]

    def _number(self, job_id: str) -> int:
        return int(self._row("number", job_id)[0])

    # --- jobs

    def create(self, job: NewJob, inputs: Sequence[Sequence[InputShard]]) -> JobRecord:
        """Accept a job with the shards that it will read: it is queued, durably."""
        with self.transaction() as database:
            cursor = database.execute(
                "INSERT INTO jobs (id, state, operation, spec, label, bucket, bucket_id, memory_bytes, program, created_us, "
                "warnings, progress, inputs) VALUES (?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    job.id, job.operation, job.spec, job.label, job.bucket, job.bucket_id, job.memory_bytes, job.program,
                    self.wall_us(), _encode(job.warnings), _encode(RecordedProgress()), len(inputs),
                ),
            )  # fmt: skip
            number = cursor.lastrowid
            for at, shards in enumerate(inputs):
                rows = ((number, at, place, _encode(shard)) for place, shard in enumerate(shards))
                database.executemany("INSERT INTO inputs VALUES (?, ?, ?, ?)", rows)
            return self.get(job.id)  # before the commit, so that an error means there is no job

    def adopt(self, record: JobRecord, spec: bytes = b"", inputs: int = 0) -> None:
        """Put a job that another journal has in the place of what is known of it here."""
        with self.transaction() as database:
            self._adopt(database, record, spec, inputs)

    def take_over(self, entries: Iterable[JobEntry]) -> None:
        """Know these jobs of another journal, and none besides that has not ended."""
        coming = {entry.record.id: entry for entry in entries}
        with self.transaction() as database:
            for record in self.active():
                if record.id not in coming:
                    self._drop(database, record.id)
            for entry in coming.values():
                self._adopt(database, entry.record, entry.spec, 0)

    def _adopt(self, database: sqlite3.Connection, record: JobRecord, spec: bytes, inputs: int) -> None:
        """An empty `spec` is not known: the one that is here stays."""
        if not spec:
            found = database.execute("SELECT spec FROM jobs WHERE id = ?", (record.id,)).fetchone()
            spec = bytes(found[0]) if found else b""
        self._drop(database, record.id)
        values = _values(record)
        marks = ", ".join("?" * (len(values) + 2))
        database.execute(f"INSERT INTO jobs ({_COLUMNS}, spec, inputs) VALUES ({marks})", (*values, spec, inputs))

    def put(self, record: JobRecord) -> None:
        """Replace the record of a job; its spec, inputs and results stay."""
        values = _values(record)
        names = ", ".join(f"{name} = ?" for name in _COLUMNS.split(", "))
        with self.transaction() as database:
            database.execute(f"UPDATE jobs SET {names} WHERE id = ?", (*values, record.id))

    def add_inputs(self, job_id: str, at: int, shards: Sequence[InputShard]) -> None:
        """Add shards to the end of an input."""
        number = self._number(job_id)
        with self.transaction() as database:
            query = "SELECT count(*) FROM inputs WHERE job = ? AND input = ?"
            ((count,),) = database.execute(query, (number, at)).fetchall()
            rows = ((number, at, place, _encode(shard)) for place, shard in enumerate(shards, count))
            database.executemany("INSERT INTO inputs VALUES (?, ?, ?, ?)", rows)

    def drop(self, job_id: str) -> None:
        """Forget a job, and all that is known of it."""
        with self.transaction() as database:
            self._drop(database, job_id)

    @staticmethod
    def _drop(database: sqlite3.Connection, job_id: str) -> None:
        for (number,) in database.execute("SELECT number FROM jobs WHERE id = ?", (job_id,)).fetchall():
            for table in ("inputs", "tasks", "outputs"):
                database.execute(f"DELETE FROM {table} WHERE job = ?", (number,))
            database.execute("DELETE FROM jobs WHERE number = ?", (number,))

    def get(self, job_id: str) -> JobRecord:
        return _record(self._row(_COLUMNS, job_id))

    def spec(self, job_id: str) -> bytes:
        """Return the spec of a job, as the client's JSON; empty if it was too long to be kept, or is not known here."""
        return bytes(self._row("spec", job_id)[0])

    def page(self, states: Iterable[JobState] = (), before: str | None = None, limit: int = 100) -> list[JobRecord]:
        """Return a page of jobs, newest first, accepted before the job `before`; only in these states, if any are given."""
        chosen = tuple(states)
        conditions, values = [], list[Any]()
        if chosen:
            conditions.append(f"state IN ({', '.join('?' * len(chosen))})")
            values += chosen
        if before is not None:
            # Ids are ordered by time, so a token stays valid when its job has been deleted.
            conditions.append("id < ?")
            values.append(before)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return [
            _record(row) for row in self.rows(f"SELECT {_COLUMNS} FROM jobs {where} ORDER BY id DESC LIMIT ?", *values, limit)
        ]

    def known(self, job_ids: Sequence[str]) -> set[str]:
        """Return which of these jobs are in the journal."""
        found = set[str]()
        for start in range(0, len(job_ids), PAGE):
            some = job_ids[start : start + PAGE]
            query = f"SELECT id FROM jobs WHERE id IN ({', '.join('?' * len(some))})"
            found |= {job_id for (job_id,) in self.rows(query, *some)}
        return found

    def active(self) -> list[JobRecord]:
        """Return queued, running and publishing jobs, in the order in which they were accepted."""
        query = f"SELECT {_COLUMNS} FROM jobs WHERE state IN ('queued', 'running', 'publishing') ORDER BY number"
        return [_record(row) for row in self.rows(query)]

    def to_discard(self) -> list[str]:
        """Return the ids of ended jobs whose staged objects may still be on targets."""
        return [job_id for (job_id,) in self.rows("SELECT id FROM jobs WHERE discard = 1 ORDER BY number")]

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by state."""
        return dict(self.rows("SELECT state, count(*) FROM jobs GROUP BY state"))

    # --- states

    def _change(self, job_id: str, state: WrittenState, **values: Any) -> JobRecord:
        """Change the state of a job. JobFinished if the change is not allowed."""
        before = RECORDED_BEFORE[state]
        names = ", ".join(f"{name} = ?" for name in values)
        marks = ", ".join("?" * len(before))
        with self.transaction() as database:
            query = f"UPDATE jobs SET state = ?, {names} WHERE id = ? AND state IN ({marks})"
            if database.execute(query, (state, *values.values(), job_id, *before)).rowcount == 0:
                raise JobFinished(f"the job is already {self.get(job_id).state}")
        return self.get(job_id)

    def start(self, job_id: str) -> JobRecord:
        return self._change(job_id, "running", started_us=self.wall_us())

    def commit(self, job_id: str, output: OutputSummary, progress: RecordedProgress, warnings: Sequence[str]) -> JobRecord:
        """Write the commit point: from now on, the staged outputs will be published, whatever happens."""
        values = {"output": _encode(output), "progress": _encode(progress), "warnings": _encode(tuple(warnings))}
        return self._change(job_id, "publishing", **values)

    def succeed(self, job_id: str) -> JobRecord:
        return self._change(job_id, "succeeded", finished_us=self.wall_us())

    def fail(self, job_id: str, error: JobError, progress: RecordedProgress, warnings: Sequence[str]) -> JobRecord:
        """Write that the job failed and must be discarded. A publishing job fails only if its bucket is gone."""
        values = {"error": _encode(error), "progress": _encode(progress), "warnings": _encode(tuple(warnings))}
        return self._change(job_id, "failed", finished_us=self.wall_us(), discard=1, **values)

    def cancel(self, job_id: str) -> JobRecord:
        """Write that the job was cancelled. JobFinished from the commit point on."""
        return self._change(job_id, "cancelled", finished_us=self.wall_us(), discard=1)

    def discarded(self, job_id: str) -> None:
        """Write that no target holds staged objects of the job any more."""
        with self.transaction() as database:
            database.execute("UPDATE jobs SET discard = 0 WHERE id = ?", (job_id,))

    # --- inputs and results

    def inputs(self, job_id: str) -> tuple[Sequence[InputShard], ...]:
        """Return the shards of each input, as they were when the job was accepted."""
        number = self._number(job_id)
        ((count,),) = self.rows("SELECT inputs FROM jobs WHERE number = ?", number)
        return tuple(self._stored_shards(number, at) for at in range(count))

    def _stored_shards(self, job: int, at: int) -> Sequence[InputShard]:
        query = "SELECT shard FROM inputs WHERE job = ? AND input = ? AND number >= ? AND number < ? ORDER BY number"

        def fetch(start: int, stop: int) -> list[InputShard]:
            return [_shard(shard) for (shard,) in self.rows(query, job, at, start, stop)]

        ((count,),) = self.rows("SELECT count(*) FROM inputs WHERE job = ? AND input = ?", job, at)
        return tuple(fetch(0, count)) if count <= SMALL else Stored(count, fetch)

    def record(self, job_id: str, entries: Sequence[TaskEntry]) -> None:
        """Store results in one transaction. A task that is already recorded is left unchanged.

        OutputWrittenTwice if another task wrote one of the names; then nothing is stored.
        """
        job = self._number(job_id)
        with self.transaction() as database:
            for stage, number, result in entries:
                row = (job, stage, number, _encode(result), result.samples, result.bytes_in, result.bytes_out)
                if database.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?)", row).rowcount == 0:
                    continue
                for output in result.outputs:
                    values = (job, output.name, stage, number, _encode(output), output.samples)
                    if database.execute("INSERT OR IGNORE INTO outputs VALUES (?, ?, ?, ?, ?, ?)", values).rowcount == 0:
                        raise OutputWrittenTwice(f"two tasks of the job write the same object: {output.name!r}")

    def results(self, job_id: str, stage: int) -> Sequence[TaskResult]:
        """Return the results of a stage that has ended, in order of their numbers; only a page is in memory."""
        job = self._number(job_id)
        query = "SELECT result FROM tasks WHERE job = ? AND stage = ? AND number >= ? AND number < ? ORDER BY number"
        ((count,),) = self.rows("SELECT count(*) FROM tasks WHERE job = ? AND stage = ?", job, stage)
        return Stored(count, lambda start, stop: [_result(data) for (data,) in self.rows(query, job, stage, start, stop)])

    def done_numbers(self, job_id: str, stage: int) -> Iterator[int]:
        """Yield the numbers of a stage's finished tasks, ascending."""
        job, last = self._number(job_id), -1
        query = "SELECT number FROM tasks WHERE job = ? AND stage = ? AND number > ? ORDER BY number LIMIT ?"
        while rows := self.rows(query, job, stage, last, PAGE):
            for (last,) in rows:
                yield last

    def stage_totals(self, job_id: str) -> dict[int, StageTotals]:
        """Return the totals of each stage."""
        query = "SELECT stage, count(*), sum(samples), sum(bytes_in), sum(bytes_out) FROM tasks WHERE job = ? GROUP BY stage"
        return {stage: StageTotals(*sums) for stage, *sums in self.rows(query, self._number(job_id))}

    def task_warnings(self, job_id: str) -> Iterator[str]:
        """Yield the warnings of finished tasks, in order of stage and number."""
        job, place = self._number(job_id), (-1, -1)
        query = (
            "SELECT stage, number, result FROM tasks WHERE job = ? AND (stage, number) > (?, ?) ORDER BY stage, number LIMIT ?"
        )
        while rows := self.rows(query, job, *place, PAGE):
            for stage, number, data in rows:
                place = (stage, number)
                yield from _result(data).warnings

    def outputs(self, job_id: str) -> Iterator[OutputRecord]:
        """Yield the outputs written so far, in byte order of their names."""
        job, last = self._number(job_id), ""
        query = "SELECT name, record FROM outputs WHERE job = ? AND name > ? ORDER BY name LIMIT ?"
        while rows := self.rows(query, job, last, PAGE):
            last = rows[-1][0]
            yield from (_output(data) for _, data in rows)

    def output_counts(self, job_id: str) -> tuple[int, int]:
        """Return the number of outputs, and of samples in them."""
        query = "SELECT count(*), coalesce(sum(samples), 0) FROM outputs WHERE job = ?"
        ((objects, samples),) = self.rows(query, self._number(job_id))
        return objects, samples

    def find_outputs(self, job_id: str, names: Sequence[str]) -> dict[str, OutputRecord]:
        """Return the outputs of the job with these names, by name."""
        job, found = self._number(job_id), dict[str, OutputRecord]()
        for start in range(0, len(names), PAGE):
            some = names[start : start + PAGE]
            query = f"SELECT name, record FROM outputs WHERE job = ? AND name IN ({', '.join('?' * len(some))})"
            found.update((name, _output(data)) for name, data in self.rows(query, job, *some))
        return found

    def writes(self, job_id: str, name: str) -> bool:
        """Whether an object with this name is among the outputs."""
        return bool(self.rows("SELECT 1 FROM outputs WHERE job = ? AND name = ?", self._number(job_id), name))

    # --- the end

    def forget_details(self) -> bool:
        """Delete some inputs, tasks, outputs and long specs of ended jobs, which lineages keep; return whether there may be
        more."""
        with self.transaction() as database:
            query = "SELECT number FROM jobs WHERE details = 1 AND state IN ('succeeded', 'failed', 'cancelled') LIMIT 1"
            found = database.execute(query).fetchone()
            if found is None:
                return False
            for table, key in (("inputs", "input, number"), ("tasks", "stage, number"), ("outputs", "name")):
                chosen = f"SELECT {key} FROM {table} WHERE job = ? LIMIT ?"
                values = (found[0], found[0], FORGET_ROWS)
                if database.execute(f"DELETE FROM {table} WHERE job = ? AND ({key}) IN ({chosen})", values).rowcount:
                    return True
            spec = "CASE WHEN length(spec) > ? THEN x'' ELSE spec END"
            database.execute(f"UPDATE jobs SET details = 0, spec = {spec} WHERE number = ?", (JOB_SPEC_KEPT_BYTES, *found))
        return True

    def expire(self, keep_s: float, keep_max: int) -> int:
        """Delete jobs that ended more than `keep_s` ago, and the oldest beyond `keep_max`; return their number."""
        ended = "state IN ('succeeded', 'failed', 'cancelled') AND discard = 0 AND details = 0"
        limit_us = self.wall_us() - int(keep_s * 1_000_000)
        with self.transaction() as database:
            old = database.execute(f"DELETE FROM jobs WHERE {ended} AND finished_us < ?", (limit_us,)).rowcount
            many = f"SELECT number FROM jobs WHERE {ended} ORDER BY number DESC LIMIT -1 OFFSET ?"
            return old + database.execute(f"DELETE FROM jobs WHERE number IN ({many})", (keep_max,)).rowcount


def _values(record: JobRecord) -> list[Any]:
    """What a record has in _COLUMNS."""
    fields = ((name, getattr(record, name)) for name in _COLUMNS.split(", "))
    return [_encode(value) if name in _ENCODED and value is not None else value for name, value in fields]


def _record(row: Sequence[Any]) -> JobRecord:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    for name, kind in _ENCODED.items():
        if values[name] is not None:
            values[name] = msgspec.msgpack.decode(values[name], type=kind)
    values["discard"] = bool(values["discard"])
    return JobRecord(**values)
