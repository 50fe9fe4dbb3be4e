"""Calls of a target to other targets about copies. No answer in time is None: the caller asks again later.

Rows with small bodies that go to one disk at the same time share a request, as they share a commit there. Others are not in it:
a disk of the same target that is slow, or a large body that is late, would hold up the answer.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from dfc.checksum import CHECKSUM_NAME, ExpectedChecksums
from dfc.errors import DfcError, Unavailable, Unreachable
from dfc.http.blocking import Transport, Upload
from dfc.http.peer import ControlClient
from dfc.http.retry import Cancellation
from dfc.http.shutdown import end
from dfc.limits import (
    CLUSTER_MAP_BYTES_MAX,
    COPY_ANSWER_BYTES_MAX,
    COPY_ITEMS_MAX,
    COPY_REQUEST_BYTES,
    KIB,
    MIB,
    TRANSFER_BUFFER_BYTES,
)
from dfc.names import object_path
from dfc.placement.map import Durability, NodeEntry
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.changes import StagedRow
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, RowChanged, Supplied
from dfc.target.copies.messages import (
    Confirmed,
    ConfirmedRow,
    CopiesSent,
    CopiesTaken,
    CopyItem,
    CopyKey,
    DiskReply,
    DiskRequest,
    MissingRows,
    NameReply,
    NamesRequest,
    Offered,
    Outcome,
    PendingCopy,
    PendingPosition,
    PendingReply,
    PendingRequest,
    RowState,
    Sender,
    StatesReply,
)
from dfc.target.local import TargetState
from dfc.wire import CHECKSUM_HEADER, MSGPACK

CALL_S: Final = 5.0  # for an answer, except to a body that is being stored
STREAM_S: Final = 30.0  # a body that does not move for so long is given up
AHEAD_S: Final = 10.0  # and one that is sent while it is received, which holds up an upload
EXPECT_BYTES: Final = 256 * KIB  # larger bodies wait for a word of the other target, and pass its event loop by
STREAM_PIECE_BYTES: Final = MIB  # of a body: whoever waits for it hears that it moves
SILENT_S: Final = 10.0  # a disk that has left a row unanswered counts as silent for so long, unless it answers
REQUESTS_MAX: Final = 2  # with rows of one queue at a time: while one is committed, the next gathers
ATTRIBUTES_HEADER: Final = "X-DFC-Attributes"
T = TypeVar("T")
_log: Final = logging.getLogger("dfc.target")
_encode: Final = msgspec.msgpack.encode


class AnswerCounts(NamedTuple):
    """How many calls about a disk were answered, and how many were not."""

    answers: int = 0
    silences: int = 0

    def is_silent_since(self, before: AnswerCounts) -> bool:
        """Whether calls were made since then, and none was answered."""
        return self.silences > before.silences and self.answers == before.answers


class Reached:
    """Which disks of other targets answer."""

    def __init__(self) -> None:
        self._of: dict[str, AnswerCounts] = {}
        self._unanswered: dict[str, float] = {}  # by disk: when it has left a row or a body unanswered

    def of(self, disk: str) -> AnswerCounts:
        """What there was from a disk until now."""
        return self._of.get(disk, AnswerCounts())

    def note(self, disk: str, *, answered: bool) -> None:
        """A call about a disk has ended."""
        found = self.of(disk)
        self._of[disk] = AnswerCounts(found.answers + answered, found.silences + (not answered))

    def silent(self) -> list[str]:
        """The disks that did not answer when something was last sent to them, which was a moment ago."""
        since_s = monotonic() - SILENT_S
        return [disk for disk, at_s in tuple(self._unanswered.items()) if at_s > since_s]

    def heard(self, disk: str, *, answers: bool) -> None:
        """Remember whether a disk has answered, be it by a refusal. Usable from any thread."""
        if answers:
            self._unanswered.pop(disk, None)
        else:
            self._unanswered[disk] = monotonic()


class _Waiting(NamedTuple):
    item: CopyItem
    done: asyncio.Future[Outcome | None]


class _QueueKey(NamedTuple):
    """Which rows share requests: for the same disk, and either all or none of them wait there for bodies sent ahead."""

    url: str
    disk: str
    is_bodiless: bool


class _Queue:
    def __init__(self) -> None:
        self.waiting: list[_Waiting] = []
        self.requests = 0


class Peers:
    """The other targets, as this one calls them."""

    def __init__(self, local: TargetState, control: ControlClient, token: str) -> None:
        self._local = local
        self._control = control
        self._cancellation = Cancellation()
        self._transport = Transport(self._cancellation, STREAM_S)
        self._ahead = Transport(self._cancellation, AHEAD_S)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.reached = Reached()
        self._queues: dict[_QueueKey, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give up what is under way."""
        self._cancellation.cancel()
        await end(*self._tasks)
        self._transport.close()
        self._ahead.close()

    def node_of(self, disk: str) -> NodeEntry | None:
        """The target that has a disk, by the map."""
        owner = self._local.map.placed().get(disk)
        return owner.node if owner is not None else None

    def up_node_of(self, disk: str) -> NodeEntry | None:
        """The other target that has a disk, if that is up by the map."""
        node = self.node_of(disk)
        return node if node is not None and node.state == "up" and node.id != self._local.node_id else None

    # --- rows

    async def send(self, item: CopyItem) -> Outcome | None:
        """Send a row, with its body if that is small; None: no answer."""
        node = self.node_of(item.to)
        if node is None:
            return None
        done: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        key = _QueueKey(node.url, item.to, item.body is None and not item.state.is_tombstone)
        queue = self._queues.setdefault(key, _Queue())
        queue.waiting.append(_Waiting(item, done))
        if queue.requests < REQUESTS_MAX:
            queue.requests += 1
            task = asyncio.create_task(self._drain(key, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        outcome = await done
        self.reached.note(item.to, answered=outcome is not None)
        return outcome

    async def _drain(self, key: _QueueKey, queue: _Queue) -> None:
        try:
            while some := _take(queue.waiting):
                outcomes: list[Outcome | None] | None = None
                try:
                    outcomes = await self._send(key.url, [each.item for each in some])
                finally:
                    if outcomes is None:  # what has come meanwhile would wait for as long again
                        some += queue.waiting
                        queue.waiting.clear()
                    for each, outcome in zip(some, outcomes or [None] * len(some), strict=True):
                        if not each.done.done():
                            each.done.set_result(outcome)
        finally:
            queue.requests -= 1
            if not queue.requests and not queue.waiting:
                self._queues.pop(key, None)

    async def _send(self, url: str, items: list[CopyItem]) -> list[Outcome | None] | None:
        """The outcome for each; None: no answer."""
        taken, answers = None, False
        with suppress(Unavailable, TimeoutError):
            taken = await self._fetch_told(url, "/v1/node/copies", CopiesSent(self.sender, items), CopiesTaken)
            answers = True
        for disk in {each.to for each in items}:
            self.reached.heard(disk, answers=answers)
        if not answers:
            return None
        if taken is None or len(taken.outcomes) != len(items):
            return [None] * len(items)
        if taken.map is not None:
            self._local.take_map(taken.map)
        return list(taken.outcomes)

    async def stream(
        self, item: CopyItem, disk: Disk, row: ObjectRow, moved: Callable[[], object] = lambda: None
    ) -> Outcome | None:
        """Send a row with its body, from the file of its blob; None: no answer, or the blob cannot be read. `moved` is
        called in a thread, after each piece."""
        node = self.node_of(item.to)
        if node is None:
            return None
        try:
            taken = await self._local.threads(disk).copy(
                self._send_blob, node.url, item, partial(disk.open_blob, row), row.size, moved
            )
        except (DfcError, RowChanged) as error:
            if isinstance(error, Unreachable):
                self.reached.heard(item.to, answers=False)
            _log.info("cannot send %s to disk %s: %s", item.name, item.to, error)
            return None
        self.reached.heard(item.to, answers=True)
        if taken.map is not None:
            self._local.take_map(taken.map)
        return taken.outcomes[0] if taken.outcomes else None

    async def stage(self, item: CopyItem, disk: Disk, entry: StagedRow, moved: Callable[[], object]) -> None:
        """Send an output that a job has staged here to a disk that is to have a copy. `moved` is called in a thread, after each
        piece. Raises Unavailable, and what the other target answers: JobCancelled, NoSpace."""
        node = self.node_of(item.to)
        if node is None:
            raise Unavailable(f"disk {item.to} is not in the cluster map")
        opening = partial(disk.staging.open, entry)
        await self._local.threads(disk).copy(self._send_blob, node.url, item, opening, entry.row.size, moved)

    def _send_blob(
        self, url: str, item: CopyItem, opening: Callable[[], int], size: int, moved: Callable[[], object]
    ) -> CopiesTaken:
        """Send a row with its body, in a thread. DfcError."""
        file = opening()
        try:
            url += self._path_of(item)
            headers = {
                **self._headers,
                CHECKSUM_HEADER: f"{CHECKSUM_NAME}={item.state.checksum}",
                ATTRIBUTES_HEADER: base64.b64encode(item.state.attributes).decode(),
            }
            upload = self._transport.begin("PUT", url, headers, size, expect_bytes=EXPECT_BYTES)
            for at in range(0, size, STREAM_PIECE_BYTES):
                if not upload.send_parts([(b"", file, at, min(STREAM_PIECE_BYTES, size - at))]):
                    break
                moved()
            answer = upload.finish()
        finally:
            os.close(file)
        if answer.status != 200:
            raise answer.error()
        return _decoded(answer.read_all(CLUSTER_MAP_BYTES_MAX), CopiesTaken)

    def _path_of(self, item: CopyItem) -> str:
        query = {
            "kind": item.kind,
            "of": item.of,
            "version": item.state.version,
            "durability": item.durability,
            "pending": int(item.is_pending),
            "node": self._local.node_id,
            "map": self._local.map.version,
        }
        if item.job:  # a target of the version before refuses what it does not know
            query["job"] = item.job
        return f"{_copy_path(item.key)}?{urlencode(query)}"

    # --- bodies ahead of their rows; these block

    def begin_body(self, url: str, key: CopyKey, version: str, durability: Durability, size: int | None) -> Upload:
        """Begin to send a body whose row will follow; `size` None: it is not known yet. DfcError."""
        query = {"version": version, "durability": durability, "node": self._local.node_id, "map": self._local.map.version}
        return self._ahead.begin("PUT", f"{url}{_ahead_path(key)}?{urlencode(query)}", self._headers, size)

    def drop_body(self, url: str, key: CopyKey, version: str) -> None:
        """Say that no row follows. DfcError."""
        path = f"{_ahead_path(key)}?{urlencode({'version': version})}"
        self._ahead.request("DELETE", url + path, self._headers).close()

    async def fetch(self, key: CopyKey, state: RowState, to: Disk, durability: Durability) -> BlobWriter | None:
        """Fetch an object from a disk of a target into a new, finished blob; None: that disk does not have this version."""
        node = self.node_of(key.disk)
        if node is None:
            return None
        try:
            fetch = partial(self._fetch, node.url, key, state, to, durability)
            return await self._local.threads(to).copy(fetch, release=_abort)
        except DfcError as error:
            _log.info("cannot get %s from disk %s: %s", key.name, key.disk, error.message)
            return None

    def _fetch(self, url: str, key: CopyKey, state: RowState, to: Disk, durability: Durability) -> BlobWriter | None:
        path = f"{_copy_path(key)}?{urlencode({'version': state.version})}"
        with self._transport.request("GET", url + path, self._headers) as answer:
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise answer.error()
            expected = ExpectedChecksums(xxh3_128=state.checksum)
            supplied = Supplied(state.version, state.attributes)
            writer = to.begin_put(
                key.bucket_id, key.name, size=state.size, expected=expected, durability=durability, supplied=supplied
            )
            try:
                buffer = bytearray(TRANSFER_BUFFER_BYTES)
                while count := answer.readinto(buffer):
                    writer.write(memoryview(buffer)[:count])
                writer.finish()
            except BaseException:
                writer.abort()
                raise
            return writer

    # --- questions

    async def states(self, disk: str, names: list[CopyKey]) -> list[NameReply] | None:
        """What a disk has of names; None: no answer."""
        node = self.node_of(disk)
        if node is None:
            return None
        reply = await self._ask(node.url, "/v1/node/copies/states", NamesRequest(self.sender, names), StatesReply)
        self.reached.note(disk, answered=reply is not None)
        return reply.replies if reply is not None and len(reply.replies) == len(names) else None

    async def state(self, key: CopyKey) -> NameReply | None:
        """What a disk has of a name; None: no answer."""
        reply = await self.states(key.disk, [key])
        return None if reply is None or not reply[0].is_known else reply[0]

    async def pending(self, node: NodeEntry, step: int, after: PendingPosition | None) -> PendingReply | None:
        """A page of the pending rows that a target has of names whose primary is here, by this step; None: no answer."""
        return await self._ask(node.url, "/v1/node/copies/pending", PendingRequest(self.sender, step, after), PendingReply)

    async def is_resolved(self, disk: str) -> bool:
        """Whether nothing is pending on a disk that an existing primary could resolve."""
        reply = await self.ask(disk, "/v1/node/copies/resolved", DiskRequest(self.sender, disk), DiskReply)
        return reply is not None and reply.holds

    async def hand_over(self, primary: str, missing: list[CopyKey]) -> bool:
        """Tell the primary of names which disks lack their rows."""
        reply = await self.ask(primary, "/v1/node/copies/missing", MissingRows(self.sender, missing), DiskReply)
        return reply is not None

    async def offer(self, primary: str, rows: list[PendingCopy]) -> bool:
        """Offer outputs of jobs to their primary; whether it has heard that."""
        reply = await self.ask(primary, "/v1/node/copies/offers", Offered(self.sender, rows), DiskReply)
        return reply is not None

    async def ask(self, disk: str, path: str, question: Any, kind: type[T]) -> T | None:
        """What the target of a disk answers to a question about it; None: no answer, or it refuses to answer."""
        node = self.node_of(disk)
        return None if node is None else await self._ask(node.url, path, question, kind)

    @property
    def sender(self) -> Sender:
        """This target, for messages of others."""
        return Sender(self._local.node_id, self._local.map.version)

    async def confirm(self, url: str, rows: list[ConfirmedRow]) -> None:
        """Tell a target which of its rows count. If that is lost, it asks."""
        await self._ask(url, "/v1/node/copies/confirm", Confirmed(self.sender, rows), DiskReply)

    async def _ask(self, url: str, path: str, body: Any, kind: type[T]) -> T | None:
        try:
            return await self._fetch_told(url, path, body, kind)
        except (Unavailable, TimeoutError):
            return None

    async def _fetch_told(self, url: str, path: str, body: Any, kind: type[T]) -> T | None:
        """None: the other target refuses. Unavailable and TimeoutError: it does not answer."""
        async with asyncio.timeout(CALL_S):
            status, _, content = await self._control.fetch(
                "POST", url + path, _encode(body), {"Content-Type": MSGPACK}, bytes_max=COPY_ANSWER_BYTES_MAX
            )
        return _decoded(content, kind) if status == 200 else None


def _abort(writer: BlobWriter | None) -> None:
    """Drop a fetched blob whose caller has left."""
    if writer is not None:
        writer.abort()


def _take(waiting: list[_Waiting]) -> list[_Waiting]:
    """Take the first rows, at most so many and so large together, and none whose sender has left."""
    waiting[:] = [each for each in waiting if not each.done.done()]
    count = size = 0
    for each in waiting[:COPY_ITEMS_MAX]:
        size += len(each.item.body or b"")
        if count and size > COPY_REQUEST_BYTES:
            break
        count += 1
    taken, waiting[:] = waiting[:count], waiting[count:]
    return taken


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unavailable(f"unexpected answer of another target: {error}") from None


def _copy_path(key: CopyKey) -> str:
    return f"/v1/node/copies/{key.disk}{object_path(key.bucket_id, key.name)}"


def _ahead_path(key: CopyKey) -> str:
    return f"/v1/node/bodies/{key.disk}{object_path(key.bucket_id, key.name)}"
