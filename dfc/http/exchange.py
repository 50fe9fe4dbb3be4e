"""A request as handlers see it, its body, and whether it stood still on its way."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import select
import socket as socket_module
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from aiohttp import HttpVersion10
from aiohttp.web import BaseRequest

from dfc.config import Settings
from dfc.errors import BadRequest, BodyTimeout, LengthMismatch, TooLarge, Unavailable
from dfc.http.budget import BODIES, BudgetPlace, Budgets, Kind
from dfc.http.transfer import (
    STALL_S,
    BodySink,
    BufferPool,
    ByteMeter,
    HelperPool,
    Pace,
    ReadStalled,
    Receive,
    Transfer,
    drive,
    duplicate,
    to_its_end,
)
from dfc.limits import BODY_FREE_BYTES, BODY_S, JSON_BODY_BYTES_MAX, MIB, SMALL_BODY_BYTES, TRANSFER_BUFFER_BYTES

# --- Whether this process stood still for a while: it was stopped, its machine was suspended, or its event loop was held up.
#
# A client may have given up a request meanwhile, and made another one elsewhere, before this process saw anything of it. A
# write like that must not be carried out any more: it would undo what is newer. The kernel knows whether a client has closed
# its side (`has_closed`). Asking it always would do harm to clients that close their sending side and wait for the answer,
# which looks the same from here; so it is asked only about requests that a pause may have held up.

LOOK_S: Final = 0.1
PAUSE_S: Final = 0.4  # the event loop was held up for so long, or the process stood still
AFTER_S: Final = 1.0  # what is read within so long after a pause may have arrived in it


def _boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # goes on while the machine is suspended


class Pauses:
    """Looks at the clock now and then, from `start` to `stop`. `within` may be called from any thread."""

    def __init__(self, now_s: Callable[[], float] = _boot_s) -> None:
        self._now_s = now_s
        self._looked_s = math.inf
        self._ended_s = -math.inf
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._looked_s = self._now_s()
        self._look(asyncio.get_running_loop())

    def stop(self) -> None:
        self._looked_s = math.inf
        if self._handle is not None:
            self._handle.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = self._now_s()
        if now_s - self._looked_s > PAUSE_S:
            self._ended_s = now_s
        self._looked_s = now_s
        self._handle = loop.call_later(LOOK_S, self._look, loop)

    def within(self, seconds: float) -> bool:
        """Whether something that was read so many seconds ago may have been held up by a pause, before or after that."""
        now_s = self._now_s()
        return now_s - self._looked_s > PAUSE_S or self._ended_s > now_s - seconds - AFTER_S


def has_closed(connection: socket_module.socket) -> bool:
    """Whether the other end has closed the connection, or its sending side, even if bytes of it are still to be read."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


# --- A request as handlers see it, and the ways to read its body.
#
# There are three: whole, for small bodies (`read_small`); by a thread straight from the socket, if the length is known
# (`receive`); else chunk by chunk through aiohttp's parser. All of them enforce a minimum rate.

# The common query, `member=000017.jpg`, needs no decoding, and parse_qsl takes four times as long.
_ONE_PARAMETER: Final = re.compile("([a-z_]+)=([A-Za-z0-9/._-]*)")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_ID_PREFIX: Final = os.urandom(6).hex()
_ID_COUNTER: Final = itertools.count(1)
OPEN_LOOK_S: Final = 0.1  # between two looks whether a client still waits
JOINED_BYTES: Final = MIB  # of a body that the event loop puts together itself
T = TypeVar("T")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def _joined(pieces: list[bytes]) -> bytes:
    """All pieces in one, which are freed."""
    whole = b"".join(pieces)
    pieces.clear()
    return whole


@dataclass(frozen=True)
class Bulk:
    """The threads, limits and buffers that all transfers of a node share."""

    threads: ThreadPoolExecutor
    body_min_rate_bytes_per_s: int
    body_grace_s: float
    read_stall_timeout_s: float
    buffers: BufferPool = field(default_factory=BufferPool)
    helpers: HelperPool = field(default_factory=HelperPool)
    coming: ByteMeter = field(default_factory=ByteMeter)
    going: ByteMeter = field(default_factory=ByteMeter)
    pauses: Pauses = field(default_factory=Pauses)
    budgets: Budgets = field(default_factory=Budgets)

    def pace(self, pause_s: float | None = None) -> Pace:
        """Return the minimum rate of an upload; with `pause_s`, one byte in that time."""
        rate, grace_s = (self.body_min_rate_bytes_per_s, self.body_grace_s) if pause_s is None else (1 / pause_s, pause_s)
        return Pace(rate, grace_s, lambda: self.pauses.within(0.0))


class GivenUp(Unavailable):
    """The client does not wait any more, and nothing was done or sent on."""


class Exchange(BaseRequest):
    """An aiohttp request with the parsed path, a request id and ways to read the body."""

    bulk: Bulk
    settings: Settings
    """Those of this node."""

    # What most requests leave as it is belongs to the class: objects with over 30 attributes of their own are made more slowly.
    received_bytes = 0
    in_session = False  # whether a browser that has logged in has sent it
    metered_in = metered_out = 0  # bytes of this request and its answer that were counted while they moved
    pause_s: float | None = None  # set for trusted senders, which may be slow and pause for this long
    is_broken = False
    place: BudgetPlace | None = None  # in a budget, until the answer is sent
    is_internal = False  # whether it is one of those that only nodes make
    _taken = False
    _small: bytes | None = None  # the body, once `read_small` has read it

    def __init__(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any, loop: Any, bulk: Bulk, settings: Settings
    ) -> None:
        super().__init__(message, payload, protocol, writer, task, loop)
        self.bulk = bulk
        self.settings = settings
        self.raw_target: str = message.path
        self.target_path, _, self.raw_query = self.raw_target.partition("?")
        self.is_http10 = message.version == HttpVersion10
        self.route = "unknown"
        self.authority: str | None = None  # host and port that the client used for this node, once they are checked
        self.started_s = time.perf_counter()
        given = message.headers.get("X-Request-Id")
        # Accepted only in a form that is safe in a header and in a log line.
        self.request_id = given if given and _REQUEST_ID.fullmatch(given) else f"{_ID_PREFIX}-{next(_ID_COUNTER):x}"
        # After a declined offer to upgrade, the parser would read what follows as bytes of the other protocol.
        self._must_close = bool(message.should_close or message.upgrade)

    # --- the connection

    def open_transport(self) -> asyncio.Transport:
        """Return the transport; ConnectionResetError when the client has disconnected."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        return transport

    def check_still_open(self) -> None:
        """Raise Unavailable if the client has closed its sending side: what it asked for a while ago, it may no longer want."""
        transport = self.transport
        if transport is None or transport.is_closing() or getattr(self.protocol, "half_closed", False):
            raise Unavailable("the client closed the connection while the request was held; nothing was done")

    def check_not_given_up(self) -> None:
        """Raise Unavailable if the client has closed its sending side and this node stood still meanwhile (`Pauses`): it may
        have made another request elsewhere since, which this one must not undo."""
        if not self.bulk.pauses.within(time.perf_counter() - self.started_s):
            return
        transport = self.transport
        if transport is None or transport.is_closing() or has_closed(transport.get_extra_info("socket")):
            raise GivenUp("the client gave this request up while this node stood still; nothing was done")

    async def while_open(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of some work. It is cancelled if the client closes the connection: Unavailable."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait((task,), timeout=OPEN_LOOK_S))[0]:
                self.check_still_open()
            return task.result()
        finally:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it any more
            task.cancel()

    def socket(self) -> socket_module.socket:
        found = self.open_transport().get_extra_info("socket")
        if found is None:
            raise ConnectionResetError("the client closed the connection")
        return cast(socket_module.socket, found)

    async def write_buffer_empty(self) -> None:
        """Wait until the transport's buffer is empty, so that a thread may write to the socket. (`drain` waits for less.)"""
        transport = self.open_transport()
        if transport.get_write_buffer_size() == 0:
            return
        low, high = transport.get_write_buffer_limits()
        transport.set_write_buffer_limits(high=0)
        deadline = self._loop.time() + self.bulk.read_stall_timeout_s
        try:
            while transport.get_write_buffer_size() > 0:
                if transport.is_closing() or self._loop.time() > deadline:
                    raise ConnectionResetError("the client stopped reading")
                await asyncio.sleep(0)  # the loop tries to write at the end of each turn
                await self.drain(deadline - self._loop.time())
        finally:
            transport.set_write_buffer_limits(high, low)  # the next answer on this connection may fill it again

    async def drain(self, timeout_s: float) -> None:
        """Wait until the transport accepts more. ReadStalled after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.protocol._drain_helper()
        except TimeoutError:
            raise ReadStalled("the client has stalled") from None

    def abort(self) -> None:
        """Break the connection, so that the client cannot take what it has for the whole."""
        if self.transport is not None:
            self.transport.abort()
        self.protocol.force_close()

    @property
    def body_is_read(self) -> bool:
        """Whether nothing more of this request can arrive."""
        return (self._taken or self.content.is_eof()) and not self.is_broken

    @property
    def must_close(self) -> bool:
        """Whether the connection closes after this answer."""
        return self._must_close or self._taken or not self.content.is_eof()

    def close_after(self) -> None:
        self._must_close = True

    # --- its place in a budget

    async def enter(self, kind: Kind, size: int = 0) -> BudgetPlace:
        """Take a place for a request that may hold so many bytes, instead of the one that it has. Unavailable.

        Who has a place and waits for another one of the same budget might wait for ever; so it is given back before."""
        self.leave()
        self.place = await self.bulk.budgets[kind].enter(size, self.remote or "")
        try:
            self.open_transport()  # a client that went while it waited is not worked for
        except ConnectionResetError:
            self.leave()
            raise Unavailable("the client has gone while it waited") from None
        return self.place

    def leave(self) -> None:
        """Give the place back, if there is one; safe to call again."""
        if self.place is not None:
            self.place.leave()

    # --- the query

    def query_parameters(self, allowed: frozenset[str] | None) -> Mapping[str, str]:
        """Decode the query; BadRequest for repeated names, and for names not in `allowed` unless that is None."""
        raw = self.raw_query
        if not raw:
            return {}
        plain = _ONE_PARAMETER.fullmatch(raw)
        if plain is not None:
            values = {plain[1]: plain[2]}
        else:
            try:
                pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=32)
            except (ValueError, UnicodeError):
                raise BadRequest("the query is not UTF-8, or has too many parameters") from None
            values = dict(pairs)
            if len(values) != len(pairs):
                raise BadRequest("a query parameter is given twice")
        unknown = values.keys() - allowed if allowed is not None else set()
        if unknown:
            raise BadRequest(f"unknown query parameter {sorted(unknown)[0][:80]!r}")
        return values

    # --- the body

    @property
    def declared_length(self) -> int | None:
        """The Content-Length; None for a chunked body, 0 for a request without a body."""
        value = self.headers.get("Content-Length")
        if value is not None:
            return int(value)
        return None if "Transfer-Encoding" in self.headers else 0

    def expects_continue(self) -> bool:
        return self.headers.get("Expect", "").lower() == "100-continue"

    def send_continue(self) -> None:
        """Send 100 Continue to a client that waits for it."""
        if self.expects_continue() and not self.content.is_eof() and self.content.total_bytes == 0:
            self.open_transport().write(_CONTINUE)

    async def read_small(self, limit_bytes: int = JSON_BODY_BYTES_MAX) -> bytes:
        """Read the whole body, or return what was read; TooLarge over the limit, BodyTimeout below the minimum rate, or after
        BODY_S for a request that has a place, LengthMismatch when cut off. A long one takes a place among the bodies, unless
        the request has one already or comes from a node: Unavailable."""
        if self._small is not None:
            return self._small
        declared = self.declared_length
        if declared is not None and declared > limit_bytes:
            raise TooLarge(f"the body is too large: at most {limit_bytes} bytes are allowed here")
        if self.place is None and self._is_long(limit_bytes) and not self.is_internal:
            await self.enter(BODIES, limit_bytes if declared is None else declared)
        self.send_continue()
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(None if self.place is None else BODY_S):
                async for piece in self.chunks():
                    pieces.append(piece)
                    if self.received_bytes > limit_bytes:
                        raise TooLarge(f"the body is too large: at most {limit_bytes} bytes are allowed here")
        except TimeoutError:
            self.close_after()
            raise BodyTimeout(f"the body did not arrive within {BODY_S:g} s") from None
        self.check_not_given_up()
        if self.received_bytes > JOINED_BYTES:
            self._small = await asyncio.to_thread(_joined, pieces)  # without the lock of the interpreter
        else:
            self._small = b"".join(pieces)
        return self._small

    def _is_long(self, limit_bytes: int) -> bool:
        declared = self.declared_length
        return (limit_bytes if declared is None else declared) > BODY_FREE_BYTES

    def forget_body(self) -> None:
        """Free what `read_small` has read, for a request that may go on for long."""
        self._small = b""

    async def chunks(self) -> Any:
        """Yield the body piece by piece from the parser; BodyTimeout below the minimum rate (see `pause_s`)."""
        pace = self.bulk.pace(self.pause_s)
        content = self.content
        while not content.at_eof():
            left_s = pace.remaining_s(self.received_bytes)
            try:
                async with asyncio.timeout(left_s):
                    piece = await content.readany()
            except TimeoutError:
                continue  # the next round checks whether the window was too slow
            except BadRequest:
                raise
            except Exception as error:
                raise LengthMismatch("the body ended early") from error
            if not piece:
                break
            self.received_bytes += len(piece)
            given_s = time.monotonic()
            yield piece
            pace.extend(time.monotonic() - given_s)  # a disk or node that is slow to take it is not the sender's fault

    async def json(self, kind: type[Any], limit_bytes: int = JSON_BODY_BYTES_MAX) -> Any:  # type: ignore[override]
        """Decode the body from JSON into a msgspec type; BadRequest says what is wrong where. Long ones in a thread."""
        body = await self.read_small(limit_bytes)
        try:
            if self._is_long(len(body)):
                return await asyncio.to_thread(msgspec.json.decode, body or b"{}", type=kind)
            return msgspec.json.decode(body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"invalid JSON: {error}") from None

    async def receive(self, sink: BodySink, threads: ThreadPoolExecutor) -> None:
        """Feed the body to `sink` in one of `threads`.

        When this returns or raises, `sink` is no longer running. If the length is known, the body is read from the connection's
        socket past the parser, so the connection closes after the answer. Raises LengthMismatch and BodyTimeout, and
        Unavailable for a body that was given up; errors of the sink pass through.
        """
        await self._receive(sink, threads)
        self.check_not_given_up()

    async def _receive(self, sink: BodySink, threads: ThreadPoolExecutor) -> None:
        self.send_continue()
        length = self.declared_length
        if length is None or length <= SMALL_BODY_BYTES:
            await self._receive_chunks(sink, threads)
            return
        await self.write_buffer_empty()  # the 100 Continue
        begun = self.take_over()
        if begun:
            await to_its_end(self._loop.run_in_executor(threads, sink.write, memoryview(begun)))
        self.received_bytes = len(begun)
        if len(begun) == length:
            return
        with duplicate(self.socket()) as source:
            transfer = Receive(source, length - len(begun), sink, self.bulk.buffers, self.bulk.helpers, begun=len(begun))
            try:
                pace = self.bulk.pace(self.pause_s)
                await self.drive_body(transfer, threads, pace=pace, stall_s=self.pause_s or STALL_S)
            finally:
                self.received_bytes += transfer.moved
        self._taken = True

    async def drive_body(self, transfer: Transfer, threads: ThreadPoolExecutor, *, pace: Pace, stall_s: float) -> None:
        """Run a transfer of the body of this request, whose bytes count while they come. See `drive`."""
        self.bulk.coming.begin(transfer)
        try:
            await drive(transfer, threads, pace=pace, stall_s=stall_s)
        finally:
            self.metered_in += self.bulk.coming.end(transfer)

    async def drive_answer(self, transfer: Transfer, threads: ThreadPoolExecutor) -> None:
        """Run a transfer of the answer to this request, whose bytes count while they go. See `drive`."""
        self.bulk.going.begin(transfer)
        try:
            await drive(transfer, threads, stall_s=self.bulk.read_stall_timeout_s)
        finally:
            self.metered_out += self.bulk.going.end(transfer)

    def note_received(self, size: int) -> None:
        """Count bytes of a body that came through the parser."""
        self.bulk.coming.add(size)
        self.metered_in += size

    def note_sent(self, size: int) -> None:
        """Count bytes of a streamed answer that are on their way."""
        self.bulk.going.add(size)
        self.metered_out += size

    def take_over(self) -> bytes:
        """Stop the parser and return what it already has of the body; the rest is in the socket.

        There must be no await between the last byte taken and the pause: the loop could deliver more in between.
        """
        pieces: list[bytes] = []
        while piece := self.content.read_nowait(-1):
            pieces.append(piece)
        if not self.content.is_eof():
            self.open_transport().pause_reading()
            self._must_close = True
        return b"".join(pieces)

    def mark_taken(self) -> None:
        """Record that the whole body was read from the socket directly."""
        self._taken = True

    async def _receive_chunks(self, sink: BodySink, threads: ThreadPoolExecutor) -> None:
        waiting = bytearray()
        run = self._loop.run_in_executor
        async for piece in self.chunks():
            waiting += piece
            self.note_received(len(piece))
            if len(waiting) >= TRANSFER_BUFFER_BYTES:
                await to_its_end(run(threads, sink.write, memoryview(waiting)))
                waiting = bytearray()
        if waiting:
            await to_its_end(run(threads, sink.write, memoryview(waiting)))
