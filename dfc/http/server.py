"""The HTTP server of every node: accepts connections within limits and answers their requests.

It is built on aiohttp's low-level server. It handles request ids, the check of Host, access control, routing, errors in the
form of their face, the access log and request metrics. What a route does is the node's business.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from dfc.addresses import KnownHosts, host_of
from dfc.config import Settings
from dfc.errors import BadRequest, DfcError, LengthMismatch, NotFound, ServerTrouble, Unavailable
from dfc.http.answers import NO_DESCRIPTORS, OWN_PAGES, Answer, error_answer
from dfc.http.exchange import Bulk, Exchange
from dfc.http.faces import HEALTH_PATH, Face, Faces, Handler, Route
from dfc.http.rates import Counted, RateSampler
from dfc.http.shutdown import end_threads
from dfc.http.transfer import EXHAUSTED, duplicate
from dfc.limits import (
    HEAD_BYTES_MAX,
    HEADER_COUNT_MAX,
    HEADER_FIELD_BYTES_MAX,
    NODE_CONNECTION_S,
    NODE_CONNECTIONS_MAX,
    REQUEST_LINE_BYTES_MAX,
    STOP_CANCEL_S,
)
from dfc.logs import AccessLog
from dfc.metrics import RequestStats
from dfc.names import check_unreserved

_log: Final = logging.getLogger("dfc.http")
CANCEL_LEAST_S: Final = 0.3
OWN_FILES: Final = 64  # descriptors of a node without connections
SWEEP_S: Final = 0.5  # how often head deadlines are checked
REFUSED_PENDING_MAX: Final = 64  # refused connections that are still open to deliver the 503
REFUSAL_S: Final = 1.0
LISTEN_BACKLOG: Final = 1024
_READS: Final = frozenset(("GET", "HEAD"))
_ABOUT_OBJECTS: Final = frozenset(("PUT", "DELETE"))  # in the web namespace
LENGTH_MAX: Final = (1 << 63) - 1
# The internals of aiohttp's connection that answering at once needs. If one is missing, nothing is answered at once.
_AT_ONCE: Final = all(
    hasattr(RequestHandler, name)
    for name in ("_waiter", "_messages", "_close", "_keepalive_timeout", "_keepalive_handle", "_next_keepalive_close_time")
)


def _plain_answer(status: str, code: str, message: str, extra: str = "") -> bytes:
    """Return a complete answer for a connection that has no request yet."""
    body = f'{{"error": {{"code": "{code}", "message": "{message}", "request_id": ""}}}}\n'
    return (
        f"HTTP/1.1 {status}\r\nServer: dfc\r\n{OWN_PAGES}\r\n{extra}Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    ).encode()


_REFUSAL: Final = _plain_answer("503 Service Unavailable", "unavailable", "too many connections", "Retry-After: 1\r\n")
_LARGE_HEAD: Final = _plain_answer("400 Bad Request", "bad_request", f"the request head is over {HEAD_BYTES_MAX} bytes long")
_SLOW_HEAD: Final = _plain_answer("408 Request Timeout", "header_timeout", "the request head did not arrive in time")


class Connection(RequestHandler):
    """A client's connection: aiohttp's, plus a limit on their number, a deadline for heads and JSON for protocol errors."""

    node: NodeServer
    refused = False
    ended = False
    head_begun_s = 0.0
    head_bytes = 0
    half_closed = False
    is_internal = False  # one of its requests was of those that only nodes make
    is_extra = False  # beyond `connections_max`, and not known to be another node's
    turned_away = False  # such a one whose request was not a node's
    task: asyncio.Task[None] | None = None
    _answered = 0  # compared with aiohttp's _request_count
    _last_body: Any = None
    made: Exchange | None = None  # for a request that could not be answered at once

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.node = cast(NodeServer, self._manager)
        if self.node.stats.connections >= self.node.connections_max:
            if not self.node.may_be_a_node(self):
                self._refuse(transport)
                return
            self.is_extra = True
        self.node.stats.connections += 1
        self.head_begun_s = self._loop.time()
        super().connection_made(transport)
        self.task = self._task_handler  # aiohttp drops it when the client disconnects, but its request may still be running

    def finish(self) -> asyncio.Task[None] | None:
        """Accept no further request. Return the task that is working on one; if the connection is idle, close it: None."""
        self.close()
        if self._request_in_progress or self._messages:
            return self.task
        self.force_close()
        return None

    def cut_off(self) -> None:
        """Cancel the running request. Shut its socket down first, or a thread would go on moving its bytes."""
        if self.transport is not None:
            with suppress(OSError), duplicate(self.transport.get_extra_info("socket")) as ending:
                ending.shutdown(socket.SHUT_RDWR)
        if self.task is not None:
            self.task.cancel()

    def _refuse(self, transport: asyncio.BaseTransport) -> None:
        """Answer 503 and close a little later: closing right away would reset a client that is still sending its request."""
        self.refused = True
        self.node.stats.connections_refused += 1
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        if self.node.refused_pending >= REFUSED_PENDING_MAX:
            transport.abort()  # type: ignore[attr-defined]
            return
        self.node.refused_pending += 1
        transport.write(_REFUSAL)
        with suppress(OSError, RuntimeError):
            transport.write_eof()  # type: ignore[attr-defined]
        self._loop.call_later(REFUSAL_S, self._end_refusal, transport)

    def _end_refusal(self, transport: asyncio.BaseTransport) -> None:
        self.node.refused_pending -= 1
        transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.refused:
            self._manager = None
            return
        if self._manager is not None:
            self.node.stats.connections -= 1
            self.node.extra.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.refused or self.ended:
            return
        heads, in_body = self._request_count, self._last_body is not None and not self._last_body.is_eof()
        waiter = None
        if _AT_ONCE:  # while the connection is idle, aiohttp's task waits for the next request; it is woken below if needed
            waiter, self._waiter = self._waiter, None
        try:
            super().data_received(data)
        finally:
            if _AT_ONCE:
                self._waiter = waiter
        if self._messages:
            self._end_broken_body()
            self._last_body = self._messages[-1][1]
        if self._request_count != heads:
            self.head_begun_s, self.head_bytes = 0.0, 0
        elif data and not in_body:  # aiohttp calls this with nothing when it goes on reading
            self._note_head(len(data))
        if self._messages and waiter is not None and not waiter.done() and not self._answer_at_once():
            waiter.set_result(None)

    def _answer_at_once(self) -> bool:
        """Answer a single request that needs no waiting without starting a task; whether it was answered."""
        message, payload = self._messages[0]
        transport = self.transport
        if len(self._messages) > 1 or isinstance(message, _ErrInfo) or message.method != "GET" or transport is None:
            return False
        if payload is not EMPTY_PAYLOAD or message.should_close or message.upgrade or self._close or self.half_closed:
            return False
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        exchange = self.made = self.node.exchange(message, payload, self, None, self.task)
        answer = self.node.answer_at_once(exchange)
        if answer is None:
            return False
        answer.write(exchange)
        self.made = None
        self._messages.popleft()
        # Newer parsers limit how far they read ahead.
        consumed = getattr(getattr(self, "_parser", None), "message_consumed", None)
        if consumed is not None:
            consumed()
        self.node.requests_count += 1
        self.log_access(exchange, answer, None)
        close_s = self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(close_s, self._process_keepalive)
        return True

    def _note_head(self, size: int) -> None:
        """Count more bytes of an incomplete head, which may arrive while the previous request is being answered."""
        if not self.head_begun_s:
            self.head_begun_s = self._loop.time()
        self.head_bytes += size
        if self.head_bytes > HEAD_BYTES_MAX:
            if self._is_idle():
                self._end_early(_LARGE_HEAD)
            else:
                self.close()

    def _is_idle(self) -> bool:
        return self._answered >= self._request_count

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for the answer when a client has only closed its sending side."""
        if self._is_idle():
            return False
        self.half_closed = True
        if self._last_body is not None and not self._last_body.is_eof():
            self._last_body.set_exception(LengthMismatch("the body ended early"))
        return True

    def _end_broken_body(self) -> None:
        """End a body with an error when one of its chunks cannot be parsed: aiohttp only queues the error behind the request,
        which may not even have started."""
        found, body = self._messages[-1][0], self._last_body
        if isinstance(found, _ErrInfo) and body is not None and not body.is_eof():
            body.set_exception(BadRequest(found.message.partition("\n")[0][:200]))

    def check_head_deadline(self, now: float, timeout_s: float) -> None:
        """Answer 408 and close if a head takes too long to arrive."""
        if self.is_extra and not self.node.take_in_if_room(self):
            timeout_s = min(timeout_s, NODE_CONNECTION_S)
        if self.head_begun_s and now - self.head_begun_s > timeout_s and self._is_idle():
            if self.is_extra:
                self.make_room()
            else:
                self._end_early(_SLOW_HEAD)

    def make_room(self) -> None:
        """Close it, of which nothing is known, or which was answered 503 already, for another one."""
        self.node.extra.pop(self, None)
        if self.transport is None or self.ended:
            return
        self.ended = True
        if self.turned_away:
            self.transport.abort()
            return
        self.node.stats.connections_refused += 1
        self.transport.write(_REFUSAL)
        self.transport.close()

    def _end_early(self, answer: bytes) -> None:
        """Answer an incomplete head and close a little later, like `_refuse`."""
        transport = self.transport
        if transport is None or self.ended:
            return
        self.ended = True
        transport.write(answer)
        with suppress(OSError, RuntimeError):
            transport.write_eof()
        self._loop.call_later(REFUSAL_S, transport.close)

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> tuple[web.StreamResponse, bool]:
        """Send an answer, whose bytes count in a budget until they are gone."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if isinstance(request, Exchange):
                request.leave()

    def log_access(self, request: Any, response: Any, time: float | None) -> None:
        """Record a request; called by aiohttp when the last byte is sent."""
        if isinstance(request, Exchange):
            self.node.record(request, response)
        self._answered += 1
        if self.half_closed and self._is_idle():
            self.close()

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a head that aiohttp cannot parse. (aiohttp calls this for nothing else: our handlers raise nothing.)"""
        _log.debug("bad request from %s: %s", self.peername, message)
        request.close_after()
        request.is_broken = True
        text = (message or "the request could not be read").partition("\n")[0][:200]
        return error_answer(BadRequest(text), request.request_id)  # type: ignore[return-value]


def _with_port(url: str, port: int) -> str:
    url = url.rstrip("/")
    return f"{url[:-1]}{port}" if url.endswith(":0") else url


def _take_absolute(exchange: Exchange) -> str:
    """Turn a target in absolute form into a path; return its host and port, which replace `Host` (RFC 9112, 3.2.2)."""
    try:
        parts = urlsplit(exchange.raw_target)
    except ValueError:
        exchange.close_after()
        raise BadRequest("the request target is not a valid URL") from None
    if parts.scheme != "http" or exchange.method == "CONNECT":
        exchange.close_after()
        raise BadRequest("this node does not forward requests to other hosts")
    exchange.target_path = parts.path or "/"
    exchange.raw_target = f"{exchange.target_path}?{exchange.raw_query}" if exchange.raw_query else exchange.target_path
    return parts.netloc.rpartition("@")[2]


def connections_within(wanted: int) -> int:
    """How many connections a node may have, of the number in its settings: three quarters of its descriptors at most. The rest
    is for disks, and for what a request needs besides. More connections than descriptors would be reset by the system."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, (files - OWN_FILES) * 3 // 4))


class NodeServer(web.Server):
    """The HTTP server of one node, with its connections and transfer threads."""

    def __init__(self, settings: Settings, faces: Sequence[Face]) -> None:
        """ValueError when the faces do not fit together (see `Faces`)."""
        super().__init__(
            self._answer,  # type: ignore[arg-type]
            request_factory=self.exchange,  # type: ignore[arg-type]
            keepalive_timeout=settings.keepalive_timeout_s,
            max_line_size=REQUEST_LINE_BYTES_MAX,
            max_field_size=HEADER_FIELD_BYTES_MAX,
            max_headers=HEADER_COUNT_MAX,
            auto_decompress=False,
            lingering_time=0,
            access_log=_log,
        )
        self.settings = settings
        self.connections_max = connections_within(settings.connections_max)
        if self.connections_max < settings.connections_max:
            _log.warning("only %d connections are allowed, by the limit of file descriptors", self.connections_max)
        self.stats = RequestStats()
        self.rates = RateSampler(self._counted)
        self.origins: Mapping[str, str] = {}  # of the settings; none: not known
        self.refused_pending = 0
        self.extra: dict[Connection, None] = {}  # the oldest first
        self.port = 0
        self.faces = tuple(faces)
        self._faces = Faces(faces)
        self._access = AccessLog() if settings.access_log else None
        self._hosts = KnownHosts((settings.host, *map(host_of, self.own_urls()), *settings.allowed_hosts))
        self._token_always = bool(settings.token and settings.token_for_reads)
        self._bound: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._drained_by_s: float | None = None
        self.bulk = Bulk(
            ThreadPoolExecutor(settings.transfer_threads, thread_name_prefix="transfer"),
            settings.body_min_rate_bytes_per_s,
            settings.body_grace_s,
            settings.read_stall_timeout_s,
        )

    # --- life

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    def bind(self) -> int:
        """Bind the address and return the port. Connections wait until `serve`. OSError when the address is in use."""
        settings = self.settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=LISTEN_BACKLOG)
        self.port = listener.getsockname()[1]
        listener.setblocking(False)
        self._bound = listener
        return self.port

    async def serve(self) -> None:
        """Accept connections on the bound address."""
        assert self._bound is not None
        self._listener = await self._loop.create_server(self, sock=self._bound, backlog=LISTEN_BACKLOG)
        self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
        self.rates.start()
        self.bulk.pauses.start()

    def own_urls(self) -> tuple[str, str]:
        """Return this node's URLs for other nodes and for clients. Port 0 in a setting stands for the bound port."""
        settings = self.settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        own = _with_port(settings.url or f"http://{host}:0", self.port)
        return own, _with_port(settings.advertise_url or own, self.port)

    def may_be_a_node(self, connection: Connection) -> bool:
        """Take a connection beyond `connections_max`, which may be another node's; the one that has said nothing for longest
        makes room for it. Whether there is any."""
        if self.stats.connections >= self.connections_max + NODE_CONNECTIONS_MAX:
            if not self.extra:
                return False
            next(iter(self.extra)).make_room()
        self.extra[connection] = None
        return True

    def _sweep(self) -> None:
        now, timeout_s = self._loop.time(), self.settings.header_timeout_s
        # A process that has just stood still has not read yet what lies in its sockets.
        for connection in () if self.bulk.pauses.within(0.0) else self._all_connections():
            connection.check_head_deadline(now, timeout_s)
        self._sweep_handle = self._loop.call_later(min(SWEEP_S, timeout_s / 4), self._sweep)

    async def drain(self) -> None:
        """Accept no more, let running requests of clients finish within the drain timeout, then cancel them. Nodes that are
        connected are answered meanwhile, and until `stop`: without heartbeats, no running upload could be committed."""
        self._accept_no_more()
        await self._end_requests([each for each in self._all_connections() if not each.is_internal])

    async def stop(self) -> None:
        """Accept no more, let running requests finish within the drain timeout, then cancel them. Bounded in time: if `drain`
        came before, what that took counts."""
        self._accept_no_more()
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()
        await self._end_requests(self._all_connections())
        self.bulk.pauses.stop()
        await self.rates.stop()
        await end_threads(self.bulk.threads, "the transfer threads")
        self.bulk.helpers.close()
        if self._access is not None:
            self._access.close()

    def _accept_no_more(self) -> None:
        if self._drained_by_s is None:
            self._drained_by_s = self._loop.time() + self.settings.drain_timeout_s
        if self._listener is not None:
            self._listener.close()
        elif self._bound is not None:
            self._bound.close()

    def _all_connections(self) -> list[Connection]:
        return [connection for connection in self.connections if isinstance(connection, Connection)]

    async def _end_requests(self, connections: list[Connection]) -> None:
        """Wait for running requests, then cancel them. aiohttp's own `shutdown` cancels only after twice the timeout, and never
        a request whose client has disconnected."""
        running = {task: connection for connection in connections if (task := connection.finish()) is not None}
        if not running:
            return
        assert self._drained_by_s is not None
        _, late = await asyncio.wait(running, timeout=max(0.0, self._drained_by_s - self._loop.time()))
        if not late:
            return
        _log.warning("%d requests did not finish within %g s and were cut off", len(late), self.settings.drain_timeout_s)
        for task in late:
            running[task].cut_off()
        until_s = self._drained_by_s + STOP_CANCEL_S  # of `drain` and `stop` together
        _, hung = await asyncio.wait(late, timeout=max(CANCEL_LEAST_S, until_s - self._loop.time()))
        if hung:
            _log.warning("gave up waiting for %d of them after %g s more", len(hung), STOP_CANCEL_S)
        for task in late:
            running[task].force_close()

    # --- a request

    def exchange(self, message: Any, payload: Any, protocol: Connection, writer: Any, task: Any) -> Exchange:
        """Make the Exchange of a request, or return the one made before for the same request."""
        made, protocol.made = protocol.made, None
        if made is not None and made._message is message:
            made._payload_writer = writer
            return made
        return Exchange(message, payload, protocol, writer, task, self._loop, self.bulk, self.settings)

    def answer_at_once(self, exchange: Exchange) -> Answer | None:
        """Return what `_answer` would if that needs no waiting; else, and for any error, None."""
        if not exchange.target_path.startswith("/"):
            return None
        try:
            route, _, parameters = self._admit(exchange)
            return None if route.at_once is None else route.at_once(exchange, parameters)
        except DfcError:
            return None
        except Exception:
            _log.exception("%s %s failed when answered at once; trying the usual way", exchange.method, exchange.target_path)
            return None

    async def _answer(self, exchange: Exchange) -> Answer:
        try:
            route, handler, parameters = self._admit(exchange)
            if not route.reads and exchange.method not in _READS:
                exchange.check_not_given_up()
            if route.budget is not None:
                await exchange.enter(route.budget)
            answer = await handler(exchange, parameters)
            if exchange.place is not None and type(answer) is Answer:  # a reader may take its time with what is left
                exchange.place.shrink(len(answer.body))
            return answer
        except DfcError as error:
            if isinstance(error, ServerTrouble):
                _log.warning("%s %s: %s", exchange.method, exchange.target_path, error.message)
            return self._error(exchange, error)
        except (asyncio.CancelledError, ConnectionError):
            exchange.leave()
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                _log.error("%s %s: %s", exchange.method, exchange.target_path, error)
                return self._error(exchange, Unavailable(NO_DESCRIPTORS))
            _log.exception("%s %s failed (request %s)", exchange.method, exchange.target_path, exchange.request_id)
            return self._error(exchange, DfcError("internal error; see the node's log under this request id"))

    def _error(self, exchange: Exchange, error: DfcError) -> Answer:
        """Render an error in the form of the face that the path belongs to, however early it occurred."""
        try:
            return self._faces.find(exchange.target_path).face.render_error(error, exchange)
        except Exception:
            _log.exception("the error %r cannot be rendered (request %s)", error.message, exchange.request_id)
            return error_answer(error, exchange.request_id)

    def _admit(self, exchange: Exchange) -> tuple[Route, Handler, tuple[str, ...]]:
        """Check a request, as `_checked` does. Of a connection beyond `connections_max`, only those of nodes: Unavailable."""
        connection = cast(Connection, exchange.protocol)
        if not connection.is_extra:
            return self._checked(exchange)
        if self.take_in_if_room(connection):
            return self._checked(exchange)
        try:
            found = self._checked(exchange)
        except DfcError:
            exchange.close_after()
            raise
        if not found[0].internal:
            exchange.close_after()
            if not connection.turned_away:
                connection.turned_away = True  # what is left of its request may take a while, but it keeps no node out
                self.stats.connections_refused += 1
            raise Unavailable("too many connections", retry_after_s=1)
        self._take_in(connection)
        return found

    def take_in_if_room(self, connection: Connection) -> bool:
        """Count a connection beyond `connections_max` with the others, if others have gone meanwhile."""
        if self.stats.connections - len(self.extra) >= self.connections_max or connection.turned_away:
            return False
        self._take_in(connection)
        return True

    def _take_in(self, connection: Connection) -> None:
        self.extra.pop(connection, None)
        connection.is_extra = False

    def _checked(self, exchange: Exchange) -> tuple[Route, Handler, tuple[str, ...]]:
        """Check a request; return the route, its handler and the parameters in the path. `authority` is the host and port that
        the client used for this node; None when it sent none (HTTP/1.0, an empty `Host`)."""
        plain = exchange.target_path.startswith("/")
        authority = (exchange.headers.get("Host") or None) if plain else _take_absolute(exchange)
        self._check_framing(exchange)  # only now: the path decides the form of the error
        face, route, parameters = self._faces.find(exchange.target_path)
        if authority is not None and (face.checks_host or not self._token_always) and exchange.target_path != HEALTH_PATH:
            self._check_host(exchange, authority)
            exchange.authority = authority
        if exchange.method in _ABOUT_OBJECTS and (
            route is None or ("{" in route.pattern and exchange.method not in route.handlers)
        ):
            check_unreserved(exchange.target_path)
        if route is None:
            raise NotFound("no such path; docs/http.md lists all paths")
        exchange.route = route.pattern
        handler = route.handler(exchange.method)
        face.authenticate(exchange, route, authority)
        if route.internal:
            exchange.is_internal = exchange.protocol.is_internal = True  # type: ignore[attr-defined]
        if route.query is not None and exchange.raw_query:
            exchange.query_parameters(route.query)
        return route, handler, parameters

    def _check_framing(self, exchange: Exchange) -> None:
        """Refuse what the parser wrongly accepts: `gzip, chunked` (the gzip would be stored), and the length 2^64 - 1, which it
        takes for no length, so that a pooled connection behind a relay would swallow the next client's request."""
        headers = exchange.headers
        if "Transfer-Encoding" in headers and headers["Transfer-Encoding"].strip().lower() != "chunked":
            exchange.close_after()
            raise BadRequest("unsupported Transfer-Encoding: only chunked is accepted")
        if (exchange.declared_length or 0) > LENGTH_MAX:
            exchange.close_after()
            raise BadRequest(f"Content-Length must be at most {LENGTH_MAX}")

    def _check_host(self, exchange: Exchange, authority: str) -> None:
        """Refuse unknown host names where a browser could do harm with them; where the token is required, it cannot."""
        try:
            self._hosts.check(authority)
        except DfcError:
            exchange.close_after()
            raise

    def record(self, exchange: Exchange, answer: Answer) -> None:
        """Count a finished request and write its line of the access log."""
        seconds = time.perf_counter() - exchange.started_s
        self.stats.record(exchange.method, exchange.route, answer.status, seconds, exchange.received_bytes, answer.sent_bytes)
        self.stats.metered_in += exchange.metered_in
        self.stats.metered_out += exchange.metered_out
        if answer.cut:
            self.stats.cut[exchange.route] = self.stats.cut.get(exchange.route, 0) + 1
        if self._access is not None:
            self._access.line(
                exchange.remote or "",
                exchange.method,
                exchange.target_path,
                answer.status,
                answer.sent_bytes,
                exchange.received_bytes,
                seconds,
                exchange.request_id,
                cut=answer.cut,
            )

    def _counted(self) -> Counted:
        """What was counted so far. Bulk bytes are metered while they move, and recorded with their requests, but count once."""
        stats = self.stats
        return Counted(
            stats.received_bytes() - stats.metered_in + self.bulk.coming.total(),
            stats.sent_bytes() - stats.metered_out + self.bulk.going.total(),
            sum(stats.requests.values()),
            stats.errors(),
            stats.connections,
        )
