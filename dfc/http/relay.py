"""The relay: requests passed on to another node, and answers that go on at a second one if the first breaks off."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from time import monotonic
from typing import Any, Final, NamedTuple

from dfc.addresses import CONNECT_LIMIT_S, Addresses
from dfc.errors import BodyTimeout, DfcError, LengthMismatch, Unavailable
from dfc.http.answers import Answer, AnswerCut, BulkAnswer, StreamAnswer
from dfc.http.exchange import Exchange, GivenUp
from dfc.http.faces import RenderError
from dfc.http.peer import PeerConnection, PeerGone, PeerPool, PeerResponse
from dfc.http.retry import error_from_answer
from dfc.http.transfer import Splice, duplicate, wait_ready
from dfc.limits import ERROR_BODY_BYTES_MAX, SMALL_BODY_BYTES, SMALL_READ_BYTES
from dfc.wire import HOP_HEADER, LOST_HEADER, MAP_HEADER

# --- Answers of other nodes with large bodies: sent on with splice, and gone on with at another node if theirs breaks off.

TURNS_MAX: Final = 16  # so often an answer is gone on with elsewhere
_CONTENT_RANGE: Final = re.compile(rb"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Rest(NamedTuple):
    """What is left of an answer: bytes `first` to `last` of an object of `size` with a strong `etag`. The node at `url` broke
    off."""

    url: str
    etag: bytes
    first: int
    last: int
    size: int

    def is_continued_by(self, response: PeerResponse) -> bool:
        """Whether the body of an answer is exactly that."""
        return (
            response.status == 206
            and response.header(b"etag") == self.etag
            and response.header(b"content-range") == b"bytes %d-%d/%d" % self[2:]
            and response.header(b"content-length") == b"%d" % (self.last + 1 - self.first)
        )


def rest_of(response: PeerResponse, url: str, length: int, sent: int) -> Rest | None:
    """What is left of an answer of which so many bytes were sent. None if that cannot be asked for: it is not one range of an
    object, or has no strong ETag."""
    etag = response.header(b"etag")
    if etag is None or not etag.startswith(b'"') or response.header(b"accept-ranges") != b"bytes":
        return None
    if response.status == 200:
        return Rest(url, etag, sent, length - 1, length)
    found = _CONTENT_RANGE.fullmatch(response.header(b"content-range") or b"")
    if response.status != 206 or found is None:
        return None
    first, last, size = map(int, found.groups())
    return Rest(url, etag, first + sent, last, size)


GoOn = Callable[[Rest], Awaitable[tuple[PeerConnection, PeerResponse]]]
"""Asks for the rest of an answer. Unavailable."""


class SpliceAnswer(BulkAnswer):
    """An answer with a large body of known length from another node, sent with splice. Owns the node's connection.

    `go_on`: where the rest comes from if the node breaks off; None: the answer is cut off then.
    """

    __slots__ = ("_connection", "_done", "_finish", "_response", "_reusable", "_turns", "go_on")

    def __init__(
        self,
        finish: Callable[[PeerConnection, bool], None],
        response: PeerResponse,
        connection: PeerConnection,
        length: int,
        headers: list[tuple[str, str]],
        reusable: bool,
    ) -> None:
        super().__init__(response.status, b"", headers, content_length=length)
        self._is_begun = False
        self._finish, self._connection, self._reusable = finish, connection, reusable
        self._response = response
        self._done, self._turns = False, 0
        self.go_on: GoOn | None = None

    async def _send(self, exchange: Exchange) -> None:
        head, begun = self._head(exchange, self._length_line()), self._response.begun
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            while True:
                left = self.content_length - self.sent_bytes - len(begun)
                transfer = Splice(self._connection.socket, sink, head + begun, left)
                self._is_begun = True
                try:
                    await exchange.drive_answer(transfer, exchange.bulk.threads)
                    break
                except LengthMismatch as error:
                    cut = AnswerCut(f"the node at {self._connection.url} broke off its answer")
                    cut.__cause__ = error
                finally:
                    self.sent_bytes += max(0, transfer.moved - len(head))
                    head = head[transfer.moved :]
                    transfer.close()
                begun = await self._continued(cut)
        self._done = True

    async def _continued(self, cut: AnswerCut) -> bytes:
        """Go on at another node; returns what has come of its body. AnswerCut if there is none. If this is cancelled, the
        connection that broke off is still this answer's, and is closed at its release."""
        self._turns += 1
        rest = rest_of(self._response, self._connection.url, self.content_length, self.sent_bytes)
        if rest is None or self.go_on is None or self._turns > TURNS_MAX:
            raise cut
        try:
            connection, response = await self.go_on(rest)
        except (DfcError, PeerGone) as error:
            raise cut from error
        self._connection.cut()
        self._connection, self._reusable = connection, response.header(b"connection") != b"close"
        return response.begun

    async def _release(self) -> None:
        if self._done:
            self._finish(self._connection, self._reusable)
        else:
            self._connection.cut()


# --- The relay: pass a request on to another node and its answer back, moving large bodies with splice in the kernel.
#
# `Expect: 100-continue` is passed on, and the other node's 100 or final answer is passed back, so that an upload that will be
# refused is not sent. If the node breaks off in the middle of an object, the rest comes from another node with a copy. If there
# is none, the client's connection breaks off, too: a short answer never looks complete.

_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"transfer-encoding",
     b"upgrade", b"host", b"content-length", b"expect", b"x-request-id", b"x-dfc-hop",
     b"origin",  # the node that the page called has compared it with Host; the next node has another Host
     b"cookie")  # the next node is shown the token instead
)  # fmt: skip
_CONDITIONS: Final = frozenset(
    (b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since")
)
_NOT_PASSED_BACK: Final = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"date", b"server", b"x-request-id",
     b"cross-origin-resource-policy")
)  # fmt: skip
Lines = list[tuple[str, str]]
To = str | list[str] | Addresses
"""Where a request goes: one node, the nodes with copies of an object in the order to ask, or the addresses of a cluster."""
Again = Callable[[Unavailable], Awaitable[list[str]]]
"""Called when no connection to a node can be made, so nothing was sent: waits, and returns the URLs to try next; or raises."""
_READS: Final = ("GET", "HEAD")
_LEADING: Final = frozenset((300, 301, 302, 303, 305, 306, 307, 308))
_MISDIRECTED: Final = 421


@dataclass(frozen=True)
class Rewrite:
    """Changes that a face makes to relayed requests and answers, if its clients use another protocol than the node.

    `target`: the path and query to request. `request`: maps the client's headers to those to send (host, framing and the
    relay's own are added). `answer`: maps the status and the node's headers to those for the client. `error`: renders the
    node's errors, whose body, if any, is JSON.
    """

    target: str | None = None
    request: Callable[[Lines], Lines] | None = None
    answer: Callable[[int, Lines], Lines] | None = None
    error: RenderError | None = None


UNCHANGED: Final = Rewrite()


class Relay:
    """Passes requests on to other nodes, and their answers back."""

    def __init__(self, pool: PeerPool, answer_timeout_s: float, *, redirects: bool = False) -> None:
        """`redirects`: the nodes may send clients to others, as proxies do."""
        self._redirects = redirects
        self._pool = pool
        self._answer_timeout_s = answer_timeout_s
        self.held = 0  # requests that wait for a node to come back

    async def forward(self, exchange: Exchange, to: To, rewrite: Rewrite = UNCHANGED, again: Again | None = None) -> Answer:
        """Pass the request on, unchanged except for `rewrite`, and return the answer. Unavailable when the node cannot be
        reached, or the connection is lost before it answers.

        If there are several addresses, the next one is tried when connecting fails; for reads, also when no answer comes.
        A read goes on at the next node with a copy if one cannot be reached, gives no answer or refuses to serve it.
        """
        if isinstance(to, str):
            to = [to]
        length = exchange.declared_length
        if length is not None and length <= SMALL_BODY_BYTES:
            body = await exchange.read_small(SMALL_BODY_BYTES) if length else b""
            return await self._forward_small(exchange, to, body, rewrite, again)
        connection = await self._open(to, again)
        with _noted(to, connection):
            return await self._forward_body(connection, exchange, length, rewrite)

    # --- requests

    def _head(
        self,
        connection: PeerConnection,
        exchange: Exchange,
        rewrite: Rewrite,
        body_headers: list[tuple[bytes, bytes]],
        without: Container[bytes] = (),
    ) -> bytes:
        host = connection.url.partition("://")[2].rstrip("/").encode()
        headers = [(name, value) for name, value in exchange.raw_headers if name.lower() not in _HOP_BY_HOP]
        if exchange.in_session:
            headers = [(name, value) for name, value in headers if name.lower() != b"authorization"]
            headers.append((b"Authorization", f"Bearer {exchange.settings.token}".encode()))
        if rewrite.request is not None:
            headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in rewrite.request(_lines(headers))]
        headers = [(name, value) for name, value in headers if name.lower() not in without]
        headers += [
            (b"Host", host),
            (b"X-Request-Id", exchange.request_id.encode()),
            (HOP_HEADER.encode(), b"1"),
            *body_headers,
        ]
        target = exchange.raw_target if rewrite.target is None else rewrite.target
        return connection.start_request(exchange.method, target, headers)

    async def _open(self, to: list[str] | Addresses, again: Again | None) -> PeerConnection:
        while isinstance(to, list):
            try:
                return await self._pool.open(to[0])
            except Unavailable as problem:
                if again is None:
                    raise
                to = await again(problem)
        return await to.reach_async(lambda url, limit_s: self._pool.open(url, limit_s=limit_s))

    async def _forward_small(
        self, exchange: Exchange, to: list[str] | Addresses, body: bytes, rewrite: Rewrite, again: Again | None
    ) -> Answer:
        if isinstance(to, list) and exchange.method in _READS:
            return await self._forward_read(exchange, to, body, rewrite, again)
        if isinstance(to, list) or exchange.method not in _READS:
            connection = await self._open(to, again)
            with _noted(to, connection):
                return await self._forward_to(connection, exchange, body, rewrite)

        async def attempt(url: str, limit_s: float | None) -> Answer:
            try:
                connection = await self._pool.open(url, limit_s=limit_s)
                return await self._forward_to(connection, exchange, body, rewrite, limit_s)
            except PeerGone as error:
                raise Unavailable(f"lost the connection to the node at {url} before it answered") from error

        return await to.reach_async(attempt)

    async def _forward_read(
        self, exchange: Exchange, urls: list[str], body: bytes, rewrite: Rewrite, again: Again | None
    ) -> Answer:
        while True:
            url = urls[0]
            if len(urls) > 1:
                found = await self._first_to_serve(exchange, urls, body, rewrite)
                if isinstance(found, Answer):
                    return self._resumable(found, exchange, urls, rewrite, again)
                url = found
            try:
                connection = await self._pool.open(url)
            except Unavailable as problem:
                if again is None:
                    raise
                urls = await again(problem)
                continue
            with _noted(urls, connection):
                answer = await self._forward_to(connection, exchange, body, rewrite)
            return self._resumable(answer, exchange, urls, rewrite, again)

    def _resumable(self, answer: Answer, exchange: Exchange, urls: list[str], rewrite: Rewrite, again: Again | None) -> Answer:
        """Have the rest of a large answer come from these nodes, or those that `again` gives, if its node breaks off."""
        if isinstance(answer, SpliceAnswer) and exchange.method == "GET":
            answer.go_on = lambda rest: self._rest(rest, exchange, urls, rewrite, again)
        return answer

    async def _rest(
        self, rest: Rest, exchange: Exchange, urls: list[str], rewrite: Rewrite, again: Again | None
    ) -> tuple[PeerConnection, PeerResponse]:
        """Ask for the rest of an answer, first at nodes other than the one that broke off. Unavailable when none has it."""
        conditions = [(b"Range", f"bytes={rest.first}-{rest.last}".encode()), (b"If-Match", rest.etag)]
        while True:
            for url in sorted(urls, key=lambda url: url == rest.url):
                try:
                    connection = await self._pool.open(url, fresh=True, limit_s=CONNECT_LIMIT_S)
                except Unavailable:
                    continue
                try:
                    await connection.send(self._head(connection, exchange, rewrite, conditions, _CONDITIONS))
                    response = await self._read_response(connection)
                except (PeerGone, Unavailable):
                    connection.close()
                    continue
                except BaseException:
                    connection.close()
                    raise
                if rest.is_continued_by(response):
                    return connection, response
                connection.close()
                if not _refuses(response):  # it is another object by now, or none
                    raise Unavailable(f"the node at {url} does not have the rest of this object")
            problem = Unavailable(f"no node that can be reached has the rest of this object (the node at {rest.url} broke off)")
            if again is None:
                raise problem
            urls = await again(problem)

    async def _first_to_serve(self, exchange: Exchange, urls: list[str], body: bytes, rewrite: Rewrite) -> Answer | str:
        """Return the answer of the first node that serves a read. If none does, return the URL of the one that has the best
        reason, whose answer is then the client's: one that refused, else the first."""
        refusing = None
        for url in urls:
            try:
                connection = await self._pool.open(url, limit_s=CONNECT_LIMIT_S)
                return await self._forward_to(connection, exchange, body, rewrite, CONNECT_LIMIT_S, may_refuse=False)
            except _Refused:
                refusing = refusing or url
            except (PeerGone, Unavailable):
                pass  # nothing was sent to the client yet
        return refusing or urls[0]

    async def _forward_to(
        self,
        connection: PeerConnection,
        exchange: Exchange,
        body: bytes,
        rewrite: Rewrite,
        limit_s: float | None = None,
        *,
        may_refuse: bool = True,
    ) -> Answer:
        has_body = bool(body) or exchange.method in ("PUT", "POST", "PATCH")
        body_headers = [(b"Content-Length", str(len(body)).encode())] if has_body else []
        try:
            return await self._ask(connection, exchange, rewrite, body_headers, body, may_refuse)
        except PeerGone:
            if not connection.reused or exchange.method not in _READS:
                raise
        # The node closed the idle connection just as we took it: try once more on a new one.
        connection = await self._pool.open(connection.url, fresh=True, limit_s=limit_s)
        return await self._ask(connection, exchange, rewrite, body_headers, body, may_refuse)

    async def _ask(
        self,
        connection: PeerConnection,
        exchange: Exchange,
        rewrite: Rewrite,
        body_headers: list[tuple[bytes, bytes]],
        body: bytes,
        may_refuse: bool,
    ) -> Answer:
        try:
            if exchange.method not in _READS:
                exchange.check_not_given_up()  # while there was no connection yet
            await connection.send(self._head(connection, exchange, rewrite, body_headers) + body)
            response = await self._read_response(connection)
            if not may_refuse and _refuses(response):
                raise _Refused
            return await self._answer(exchange, connection, response, rewrite)
        except BaseException:
            connection.close()
            raise

    async def _forward_body(
        self, connection: PeerConnection, exchange: Exchange, length: int | None, rewrite: Rewrite
    ) -> Answer:
        try:
            body_headers = [(b"Transfer-Encoding", b"chunked") if length is None else (b"Content-Length", str(length).encode())]
            if exchange.expects_continue():
                body_headers.append((b"Expect", b"100-continue"))
            exchange.check_not_given_up()
            await connection.send(self._head(connection, exchange, rewrite, body_headers))
            if exchange.expects_continue():
                response = await self._read_response(connection, informational=True)
                if response.status != 100:
                    return await self._answer(exchange, connection, response, rewrite)
                exchange.send_continue()
                await exchange.write_buffer_empty()
            if length is None:
                await self._send_chunks(exchange, connection)
            else:
                await self._splice_body(exchange, connection, length)
            # The commit syncs a disk, which may take longer than any answer to a read.
            response = await self._read_response(connection, timeout_s=exchange.bulk.read_stall_timeout_s)
            return await self._answer(exchange, connection, response, rewrite)
        except BaseException:
            connection.close()
            raise

    async def _send_chunks(self, exchange: Exchange, connection: PeerConnection) -> None:
        """Send the body until it ends, or until the node answers early; the caller then reads that answer."""
        chunks = exchange.chunks()
        answered = asyncio.ensure_future(wait_ready(((connection.socket.fileno(), select.POLLIN),), None))
        following: asyncio.Future[bytes] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(chunks, b""))
                await asyncio.wait((following, answered), return_when=asyncio.FIRST_COMPLETED)
                if answered.done():
                    return
                piece = following.result()
                exchange.note_received(len(piece))
                async with asyncio.timeout(exchange.bulk.read_stall_timeout_s):
                    await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                if not piece:
                    return
        except PeerGone:
            return
        except TimeoutError:
            raise Unavailable(f"the node at {connection.url} stopped reading the body") from None
        finally:
            await _cancel(answered)
            await _cancel(following)

    async def _splice_body(self, exchange: Exchange, connection: PeerConnection, length: int) -> None:
        begun = exchange.take_over()
        exchange.received_bytes = len(begun)
        with duplicate(exchange.socket()) as source:
            transfer = Splice(source, connection.socket, begun, length - len(begun), watch=True)
            try:
                await exchange.drive_body(
                    transfer, exchange.bulk.threads, pace=exchange.bulk.pace(), stall_s=exchange.bulk.read_stall_timeout_s
                )
            except (LengthMismatch, BodyTimeout):
                raise
            except ConnectionError:
                return  # the node has closed its side; if it answered before that, the answer is read next
            finally:
                exchange.received_bytes = max(len(begun), transfer.moved)
                transfer.close()
            if not transfer.unsent and length > len(begun):
                exchange.mark_taken()

    # --- answers

    async def _read_response(
        self, connection: PeerConnection, *, informational: bool = False, timeout_s: float | None = None
    ) -> PeerResponse:
        try:
            async with asyncio.timeout(timeout_s or self._answer_timeout_s):
                while True:
                    response = await connection.read_head()
                    if response.status >= 200:
                        self._check(connection, response)
                        return response
                    if informational and response.status == 100:
                        return response
        except TimeoutError:
            raise Unavailable(f"the node at {connection.url} did not answer in time") from None

    def _check(self, connection: PeerConnection, response: PeerResponse) -> None:
        """Refuse what no node of ours answers, before any of it is passed on. PeerGone."""
        if response.status > 599:
            raise PeerGone(f"{connection.url} answered with the status {response.status}")
        location = response.header(b"location")
        leads = location is not None or response.status in _LEADING
        if leads and not self._redirects and not (location and location[:1] == b"/" and location[1:2] not in (b"/", b"\\")):
            raise PeerGone(f"{connection.url} sends clients elsewhere")

    async def _answer(self, exchange: Exchange, connection: PeerConnection, response: PeerResponse, rewrite: Rewrite) -> Answer:
        if rewrite.error is not None and response.status >= 400:
            return rewrite.error(await self._read_error(exchange, connection, response), exchange)
        headers = _lines([(name, value) for name, value in response.headers if name.lower() not in _NOT_PASSED_BACK])
        if rewrite.answer is not None:
            headers = rewrite.answer(response.status, headers)
        length_text = response.header(b"content-length")
        reusable = response.header(b"connection") != b"close"
        if response.status in (204, 304) or (exchange.method == "HEAD" and length_text is not None):
            self.finish(connection, reusable and not response.begun)
            return Answer(response.status, b"", headers, content_length=int(length_text or 0))
        if length_text is None:
            return StreamAnswer(response.status, self._decoded(connection), headers, on_close=connection.close)
        length = int(length_text)
        if length <= max(SMALL_READ_BYTES, len(response.begun)):
            body = await self._read_rest(connection, response.begun, length)
            # What comes behind the body belongs to no request of ours, such as a farewell of the node.
            self.finish(connection, reusable and len(response.begun) <= length)
            return Answer(response.status, body[:length], headers)
        return SpliceAnswer(self.finish, response, connection, length, headers, reusable)

    async def _read_error(self, exchange: Exchange, connection: PeerConnection, response: PeerResponse) -> DfcError:
        """Read the node's error, for a face that renders errors its own way. The connection is not reused."""
        try:
            body = b"" if exchange.method == "HEAD" else await self._read_small(connection, response)
        finally:
            connection.close()
        headers = Message()  # its names are case-insensitive
        for name, value in _lines((n, v) for n, v in response.headers if n.lower() not in _NOT_PASSED_BACK):
            headers[name] = value
        return error_from_answer(response.status, headers, body, f"{exchange.method} {connection.url}")

    async def _read_small(self, connection: PeerConnection, response: PeerResponse) -> bytes:
        """Read the body of an error; empty if it is longer than any of our nodes would send."""
        length = response.header(b"content-length")
        if length is not None:
            few = int(length) <= ERROR_BODY_BYTES_MAX
            return await self._read_rest(connection, response.begun, int(length)) if few else b""
        body = bytearray()
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                while piece := await connection.read_chunk():
                    body += piece
                    if len(body) > ERROR_BODY_BYTES_MAX:
                        return b""
        except TimeoutError as error:
            raise PeerGone(f"{connection.url} broke off its answer") from error
        return bytes(body)

    async def _read_rest(self, connection: PeerConnection, begun: bytes, length: int) -> bytes:
        loop = asyncio.get_running_loop()
        body = bytearray(begun)
        while len(body) < length:
            try:
                async with asyncio.timeout(self._answer_timeout_s):
                    piece = await loop.sock_recv(connection.socket, length - len(body))
            except (OSError, TimeoutError) as error:
                raise PeerGone(f"{connection.url} broke off its answer") from error
            if not piece:
                raise PeerGone(f"{connection.url} broke off its answer")
            body += piece
        return bytes(body)

    async def _decoded(self, connection: PeerConnection) -> AsyncIterator[bytes]:
        while piece := await connection.read_chunk():
            yield piece

    def finish(self, connection: PeerConnection, reusable: bool) -> None:
        """Keep or close a connection whose answer was read to its end."""
        if reusable:
            self._pool.give_back(connection)
        else:
            connection.close()


class _Refused(Exception):
    """A node cannot serve a read that another one may be able to serve."""


def _refuses(response: PeerResponse) -> bool:
    """Whether a node cannot serve a read now, or is not where the object is by its own map: that says nothing about others."""
    return response.status >= 500 or (
        response.status == _MISDIRECTED and response.header(MAP_HEADER.lower().encode()) is not None
    )


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> Lines:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


@contextmanager
def _noted(to: list[str] | Addresses, connection: PeerConnection) -> Iterator[None]:
    """If a request was sent but not answered, tell the client so (LOST_HEADER), and begin the next try at another address."""
    begun_s = monotonic()
    try:
        yield
    except GivenUp:
        raise
    except (PeerGone, Unavailable) as error:
        if isinstance(to, Addresses):
            to.failed(connection.url, monotonic() - begun_s)
        gone = f"lost the connection to the node at {connection.url} before it answered"
        lost = Unavailable(error.message if isinstance(error, Unavailable) else gone)
        lost.headers[LOST_HEADER] = "1"
        raise lost from error


async def _cancel(future: asyncio.Future[Any] | None) -> None:
    if future is None:
        return
    future.cancel()
    await asyncio.wait((future,))
    if not future.cancelled():
        future.exception()  # retrieved, so that asyncio does not log that it never was
