"""The segments of which the log of a job consists: what is in them, and how they are written and read as objects."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from dfc.errors import BucketDeleting, BucketNotFound, DfcError, Unavailable
from dfc.http.calls.problems import RemoteError
from dfc.jobs.journal import TaskEntry
from dfc.jobs.records import JobRecord
from dfc.jobs.tasks import InputShard
from dfc.names import HIDDEN_PREFIX
from dfc.proxy.cluster import Cluster
from dfc.wire import OBJECTS_PATH

_log: Final = logging.getLogger("dfc.proxy.jobs")
FORMAT: Final = 1
SHARDS_MAX: Final = 20_000  # in one segment
RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 5.0
PREFIX: Final = f"{HIDDEN_PREFIX}jobs/"
NAME: Final = re.compile(re.escape(PREFIX) + r"([0-9a-f]{22})/(\d{8})")  # ids begin with their time
_EXISTS: Final = 412
_REFUSED: Final = (413, 507)
T = TypeVar("T")


class LogRefused(DfcError):
    """A target does not take a segment, for the reason in `code`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class UnknownSegment(DfcError):
    """A segment that this version of DFC cannot read."""

    code = "job_interrupted"


def _passes(status: int) -> bool:
    """Whether a refusal may pass: a target is away, or is not the one to ask any more."""
    return status not in _REFUSED and (status >= 500 or status in (307, 408, 421, 429))


class InputPart(msgspec.Struct, frozen=True):
    """Some shards of an input, in order."""

    number: int
    shards: list[InputShard]


class LogSegment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has happened: the job's record, if that has changed, and results of tasks. The first ones have the spec and the
    inputs. `owner`: who was the coordinator; in the first segment of each it may be all there is."""

    owner: str
    format: int = FORMAT
    record: JobRecord | None = None
    spec: bytes | None = None
    input_count: int = 0
    inputs: list[InputPart] = []
    results: list[TaskEntry] = []


def segment_name(job_id: str, number: int) -> str:
    return f"{PREFIX}{job_id}/{number:08d}"


def first_segments(owner: str, record: JobRecord, spec: bytes, inputs: Sequence[Sequence[InputShard]]) -> list[LogSegment]:
    """The segments of a job that has just been accepted."""
    parts = [
        InputPart(number, list(shards[start : start + SHARDS_MAX]))
        for number, shards in enumerate(inputs)
        for start in range(0, len(shards), SHARDS_MAX)
    ]
    head = LogSegment(owner=owner, record=record, spec=spec, input_count=len(inputs), inputs=parts[:1])
    return [head, *(LogSegment(owner=owner, inputs=[part]) for part in parts[1:])]


def decoded(data: bytes, job_id: str, number: int) -> LogSegment:
    """Decode a segment. UnknownSegment."""
    try:
        segment = msgspec.msgpack.decode(data, type=LogSegment)
    except msgspec.MsgspecError as error:
        raise UnknownSegment(f"segment {number} of the log of job {job_id} cannot be read: {error}") from None
    if segment.format != FORMAT:
        raise UnknownSegment(
            f"another version of DFC has begun this job (its log has format {segment.format}, not {FORMAT}): submit it again"
        )
    return segment


class LogObjects:
    """The segments of a job as objects of the cluster. Whatever fails for a while is tried again, however long that takes;
    BucketDeleting when their bucket is gone, LogRefused when a target refuses for another reason, such as a full disk."""

    def __init__(self, cluster: Cluster, job_id: str, bucket: str, bucket_id: str) -> None:
        self._cluster = cluster
        self._job_id = job_id
        self._bucket = bucket
        self._bucket_id = bucket_id

    async def put(self, number: int, data: bytes) -> bool:
        """Write a segment that is not there yet; False if another one is."""

        async def attempt() -> bool | None:
            status, content = await self._ask("PUT", number, data, {"If-None-Match": "*"})
            if status == _EXISTS:
                found = await self._get(number)  # it may be ours: the answer to an earlier try was lost
                return None if found is None else found == data
            return self._check(status, content, (200, 201))

        while (is_ours := await self._retried(attempt)) is None:
            pass
        return is_ours

    async def get(self, number: int) -> bytes | None:
        """Read a segment; None if there is none."""
        return await self._retried(lambda: self._get(number))

    async def delete(self, number: int) -> None:
        """Delete a segment, if it is there."""

        async def attempt() -> None:
            self._check(*await self._ask("DELETE", number), (200, 204, 404))

        await self._retried(attempt)

    async def _get(self, number: int) -> bytes | None:
        status, content = await self._ask("GET", number)
        self._check(status, content, (200, 404))
        return content if status == 200 else None

    def _check(self, status: int, content: bytes, wanted: tuple[int, ...]) -> bool:
        if status not in wanted:
            raise RemoteError(status, content, segment_name(self._job_id, 0))
        return True

    async def _ask(
        self, method: str, number: int, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        bucket = self._cluster.bucket(self._bucket)
        if bucket.id != self._bucket_id or bucket.state == "deleting":
            raise self._gone()
        name = segment_name(self._job_id, number)
        url = f"{self._cluster.primary(bucket, name).url}{OBJECTS_PATH}{self._bucket}/{quote(name)}"
        status, _, content = await self._cluster.control.fetch(method, url, data, headers or {}, long=True)
        return status, content

    def _gone(self) -> BucketDeleting:
        return BucketDeleting(f"the bucket {self._bucket!r} was deleted while the job was running")

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        wait_s = RETRY_FIRST_S
        while True:
            try:
                return await attempt()
            except BucketNotFound:
                raise self._gone() from None
            except (Unavailable, RemoteError) as error:
                if isinstance(error, RemoteError) and not _passes(error.status):
                    raise LogRefused(error.code, f"the log of the job cannot be written: {error.message}") from error
                _log.info("the log of job %s: %s; trying again", self._job_id, error.message)
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)
