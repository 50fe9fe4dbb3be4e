"""Answers: bytes at hand, a range of a file, or a stream. Each writes itself in `prepare`, which aiohttp's server calls.

They stand in for aiohttp's own response classes, whose header handling costs more than a whole small read here. An answer
to a request whose body was not read ends the connection gracefully: write, shut down the sending side, read and discard a
little, close; otherwise the client would see a reset and not the answer.
"""

from __future__ import annotations

import asyncio
import http
import os
import select
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dfc.errors import DfcError
from dfc.http.transfer import SendFile, drive, duplicate, wait_ready
from dfc.limits import LINGER_BYTES, LINGER_S

if TYPE_CHECKING:
    from dfc.http.exchange import Exchange

Headers = Sequence[tuple[str, str]] | str
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
TAR: Final = "application/x-tar"
BODILESS_STATUSES: Final = frozenset((204, 304))
PAGE_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)
WRITE_BUFFER_BYTES: Final = 64 * 1024  # above it an answer waits for the client before the next request is read
_REASONS: Final = {status.value: status.phrase for status in http.HTTPStatus}
_ENCODER: Final = msgspec.json.Encoder()


def header_lines(headers: Sequence[tuple[str, str]]) -> str:
    """Header pairs as the lines of a head."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


class _DateHeader:
    """The Date header, made once a second."""

    second = 0
    line = ""

    @classmethod
    def get(cls) -> str:
        now = int(time.time())
        if now != cls.second:
            cls.second = now
            cls.line = time.strftime("Server: dfc\r\nDate: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(now))
        return cls.line


class Answer:
    """A status, headers and a body at hand. `content_length` is set apart for HEAD, where the body is not sent.

    `headers` are pairs, or a text of whole header lines that was made before.
    """

    __slots__ = ("_closing", "body", "content_length", "headers", "sent_bytes", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers = (), *, content_length: int | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = headers if isinstance(headers, str) else header_lines(headers)
        self.content_length = len(body) if content_length is None else content_length
        self.sent_bytes = 0
        self._closing = False

    @property
    def keep_alive(self) -> bool:
        """Read by aiohttp after the answer."""
        return not self._closing

    def _head(self, exchange: Exchange, framing: str) -> bytes:
        if self._closing:
            framing += "Connection: close\r\n"
        elif exchange.is_http10:
            framing += "Connection: keep-alive\r\n"
        return (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Unknown')}\r\n{_DateHeader.get()}"
            f"X-Request-Id: {exchange.request_id}\r\n{self.headers}{framing}\r\n"
        ).encode("latin-1", "replace")

    def _length_line(self) -> str:
        return "" if self.status in BODILESS_STATUSES else f"Content-Length: {self.content_length}\r\n"

    async def prepare(self, exchange: Exchange) -> None:
        """Send it. ConnectionError when the client is gone."""
        self._closing = exchange.must_close
        head = self._head(exchange, self._length_line())
        bodiless = exchange.method == "HEAD" or self.status in BODILESS_STATUSES
        transport = exchange.open_transport()
        transport.write(head if bodiless else head + self.body)
        self.sent_bytes = 0 if bodiless else len(self.body)
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
            await exchange.drain(exchange.bulk.read_stall_timeout_s)
        if self._closing:
            await finish_connection(exchange)

    async def write_eof(self) -> None:
        """Called by aiohttp after `prepare`; nothing is left to do."""


class FileAnswer(Answer):
    """`content_length` bytes of an open file from `offset`, by sendfile. Owns the descriptor."""

    __slots__ = ("_file", "_offset")

    def __init__(self, status: int, file: int, offset: int, count: int, headers: Headers) -> None:
        super().__init__(status, b"", headers, content_length=count)
        self._file = file
        self._offset = offset

    async def prepare(self, exchange: Exchange) -> None:
        try:
            if exchange.method == "HEAD":
                await super().prepare(exchange)
                return
            self._closing = exchange.must_close
            await self._send(exchange, self._head(exchange, self._length_line()))
        finally:
            os.close(self._file)
        if self._closing:
            await finish_connection(exchange)

    async def _send(self, exchange: Exchange, head: bytes) -> None:
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            transfer = SendFile(sink, head, self._file, self._offset, self.content_length)
            try:
                await drive(transfer, exchange.bulk.threads, stall_s=exchange.bulk.read_stall_timeout_s)
            finally:
                self.sent_bytes = transfer.moved


class StreamAnswer(Answer):
    """A body of unknown length from an async iterator, chunked; with `content_length` given, exactly so many bytes.

    An error while streaming breaks the connection: the client never takes a part for the whole.
    """

    __slots__ = ("_chunks", "_on_close")

    def __init__(
        self,
        status: int,
        chunks: AsyncIterator[bytes],
        headers: Headers,
        *,
        content_length: int | None = None,
        on_close: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(status, b"", headers, content_length=-1 if content_length is None else content_length)
        self._chunks = chunks
        self._on_close = on_close

    async def prepare(self, exchange: Exchange) -> None:
        chunked = self.content_length < 0 and not exchange.is_http10
        self._closing = exchange.must_close or (self.content_length < 0 and not chunked)
        framing = "Transfer-Encoding: chunked\r\n" if chunked else "" if self.content_length < 0 else self._length_line()
        try:
            exchange.open_transport().write(self._head(exchange, framing))
            if exchange.method != "HEAD":
                await self._stream(exchange, chunked)
        except BaseException:
            exchange.abort()
            raise
        finally:
            await self._chunks.aclose()  # type: ignore[attr-defined]  # every iterator given is a generator
            if self._on_close is not None:
                self._on_close()
        if self._closing:
            await finish_connection(exchange)

    async def _stream(self, exchange: Exchange, chunked: bool) -> None:
        transport = exchange.open_transport()
        async for chunk in self._chunks:
            if not chunk:
                continue
            if transport.is_closing():
                raise ConnectionResetError("the client went away")
            transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
            self.sent_bytes += len(chunk)
            if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
                await exchange.drain(exchange.bulk.read_stall_timeout_s)
        if chunked:
            exchange.open_transport().write(b"0\r\n\r\n")
        elif 0 <= self.content_length != self.sent_bytes:
            raise ConnectionAbortedError(f"{self.sent_bytes} bytes came instead of {self.content_length}")


async def finish_connection(exchange: Exchange) -> None:
    """End a connection so that the client gets the answer: half-close, discard up to 1 MiB or 2 s of what it still sends."""
    with suppress(OSError, RuntimeError):  # RuntimeError: the transport was closed meanwhile
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as connection:
            if not exchange.body_is_read or _has_unread(connection):
                exchange.open_transport().pause_reading()
                connection.shutdown(socket.SHUT_WR)
                await _discard(connection)
    exchange.protocol.force_close()


def _has_unread(connection: socket.socket) -> bool:
    """Whether the client has sent more than was asked for, a pipelined request for instance."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


async def _discard(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    deadline, budget = loop.time() + LINGER_S, LINGER_BYTES
    scratch = bytearray(64 * 1024)
    while budget > 0 and (left := deadline - loop.time()) > 0:
        try:
            size = connection.recv_into(scratch)
        except BlockingIOError:
            await wait_ready(((connection.fileno(), select.POLLIN),), left)
            continue
        if not size:
            return
        budget -= size


def json_answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """Any msgspec-encodable value."""
    return Answer(status, _ENCODER.encode(value) + b"\n", [("Content-Type", JSON), *headers])


def error_answer(error: DfcError, request_id: str) -> Answer:
    """The one shape of errors: `{"error": {"code", "message", "request_id"}}`."""
    body = {"error": {"code": error.code, "message": error.message, "request_id": request_id}}
    return json_answer(body, error.status, list(error.headers.items()))


def text_answer(text: str, content_type: str = "text/plain; charset=utf-8") -> Answer:
    """A page of ours, plain or HTML. The policy is for the day that a name slips through the escaping: nothing runs."""
    return Answer(200, text.encode(), [("Content-Type", content_type), *PAGE_HEADERS])
