"""Answers: bytes, ranges of files, streams; their conditions and ranges; and helpers that routes share.

Each answer writes itself in `prepare`, which aiohttp's server calls. They replace aiohttp's own response classes, whose header
handling costs more than a whole small read here. An answer to a request whose body was not read closes the connection
gracefully: write, shut down the sending side, read and discard a little, close. Otherwise the client would see a reset instead
of the answer.

If an answer has begun and cannot be finished, it is cut: the connection is broken, so that no client takes a part for the
whole. The cut is logged and counted, because the status was sent before the failure.
"""

from __future__ import annotations

import asyncio
import http
import logging
import mimetypes
import os
import re
import select
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry

from dfc.errors import BadRequest, DfcError, PreconditionFailed, RangeNotSatisfiable, Unavailable
from dfc.http.transfer import EXHAUSTED, SendFile, duplicate, to_its_end, wait_ready
from dfc.limits import LINGER_BYTES, LINGER_S, LIST_PAGE_MAX
from dfc.metrics import CONTENT_TYPE, render
from dfc.wire import JSON, OCTETS, TAR

if TYPE_CHECKING:
    from dfc.http.exchange import Exchange

_log: Final = logging.getLogger("dfc.http")
Headers = Sequence[tuple[str, str]] | str
BODILESS_STATUSES: Final = frozenset((204, 304))
PAGE_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
)
OWN_PAGES: Final = "Cross-Origin-Resource-Policy: same-origin"
"""On every answer: pages of other sites show nothing of a node, run nothing, and do not learn what there is."""
NO_DESCRIPTORS: Final = "this node has no file descriptors left; try again"
WRITE_BUFFER_BYTES: Final = 64 * 1024  # above this, an answer waits for the client before the next request is read
_REASONS: Final = {status.value: status.phrase for status in http.HTTPStatus}
_ENCODER: Final = msgspec.json.Encoder()


class AnswerCut(ConnectionError):
    """This node cannot finish an answer that it has begun."""


def header_lines(headers: Sequence[tuple[str, str]]) -> str:
    """Format header pairs as the lines of a head."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


@lru_cache(maxsize=1)
def _first_lines(second: int) -> str:
    """The headers that all answers begin with, made once a second for the date in them."""
    return time.strftime(f"Server: dfc\r\n{OWN_PAGES}\r\nDate: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(second))


class Answer:
    """An answer with a status, headers and a body in memory. Pass `content_length` for HEAD, where the body is not sent.

    `headers` are pairs, or a text of complete header lines.
    """

    __slots__ = ("_closing", "body", "content_length", "cut", "headers", "sent_bytes", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers = (), *, content_length: int | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = headers if isinstance(headers, str) else header_lines(headers)
        self.content_length = len(body) if content_length is None else content_length
        self.sent_bytes = 0
        self.cut = False  # whether this node cut it off
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
        if exchange.in_session:  # no cache on the way may give it to whoever has no session
            framing += "" if "Cache-Control:" in self.headers else "Cache-Control: private\r\n"
            framing += "" if "Vary:" in self.headers else "Vary: Cookie\r\n"
        return (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Unknown')}\r\n{_first_lines(int(time.time()))}"
            f"X-Request-Id: {exchange.request_id}\r\n{self.headers}{framing}\r\n"
        ).encode("latin-1", "replace")

    def _length_line(self) -> str:
        return "" if self.status in BODILESS_STATUSES else f"Content-Length: {self.content_length}\r\n"

    def write(self, exchange: Exchange) -> asyncio.Transport:
        """Write all of it to the transport and return the transport. ConnectionError when the client is gone."""
        self._closing = exchange.must_close
        head = self._head(exchange, self._length_line())
        bodiless = exchange.method == "HEAD" or self.status in BODILESS_STATUSES
        transport = exchange.open_transport()
        transport.write(head if bodiless else head + self.body)
        self.sent_bytes = 0 if bodiless else len(self.body)
        return transport

    async def prepare(self, exchange: Exchange) -> None:
        """Send it. ConnectionError when the client is gone."""
        transport = self.write(exchange)
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
            await exchange.drain(exchange.bulk.read_stall_timeout_s)
        if self._closing:
            await finish_connection(exchange)

    async def write_eof(self) -> None:
        """Do nothing; called by aiohttp after `prepare`."""


class BulkAnswer(Answer):
    """An answer whose body is produced while it is sent, so that either side may break it off. Those that open descriptors
    before the first byte set `_is_begun` to False, and to True when they have them."""

    __slots__ = ("_is_begun",)

    def __init__(self, status: int, body: bytes = b"", headers: Headers = (), *, content_length: int | None = None) -> None:
        super().__init__(status, body, headers, content_length=content_length)
        self._is_begun = True

    async def prepare(self, exchange: Exchange) -> None:
        """Send it. ConnectionError when the client is gone or has stalled; AnswerCut, a subclass, when this node failed."""
        self._closing = exchange.must_close
        try:
            await self._send(exchange)
        except AnswerCut as error:
            self._note_cut(exchange, str(error), bug=False)
            raise
        except (asyncio.CancelledError, ConnectionError):
            exchange.abort()
            raise
        except Exception as error:
            if not self._is_begun and isinstance(error, OSError) and error.errno in EXHAUSTED:
                await self._refuse(exchange)
                return
            message = error.message if isinstance(error, DfcError) else f"{type(error).__name__}: {error}"
            self._note_cut(exchange, message, bug=not isinstance(error, DfcError | OSError))
            raise AnswerCut(message) from error
        finally:
            await self._release()
        if self._closing:
            await finish_connection(exchange)

    async def _refuse(self, exchange: Exchange) -> None:
        """Send an error instead: there are no descriptors for the transfer, and the client has got nothing yet."""
        instead = error_answer(Unavailable(NO_DESCRIPTORS), exchange.request_id)
        await instead.prepare(exchange)
        self.status, self.sent_bytes, self._closing = instead.status, instead.sent_bytes, instead._closing

    def _note_cut(self, exchange: Exchange, why: str, *, bug: bool) -> None:
        self.cut = True
        exchange.abort()
        line = "%s %s: cut off after %d bytes: %s (request %s)"
        _log.warning(
            line, exchange.method, exchange.target_path, self.sent_bytes, why, exchange.request_id, exc_info=bug or None
        )

    async def _send(self, exchange: Exchange) -> None:
        raise NotImplementedError

    async def _release(self) -> None:
        """Release the source of the body, however sending ended."""


class FileAnswer(BulkAnswer):
    """An answer with `count` bytes of an open file from `offset`, sent with sendfile, then a short `tail`. Owns the descriptor.

    `threads` do the blocking work. If the file cannot be read, one of them calls `on_error(error, offset)`.
    """

    __slots__ = ("_file", "_offset", "_on_error", "_tail", "_threads")

    def __init__(
        self,
        status: int,
        file: int,
        offset: int,
        count: int,
        headers: Headers,
        threads: ThreadPoolExecutor,
        on_error: Callable[[OSError, int], object],
        tail: bytes = b"",
    ) -> None:
        super().__init__(status, b"", headers, content_length=count + len(tail))
        self._is_begun = False
        self._tail = tail
        self._file = file
        self._offset = offset
        self._threads = threads
        self._on_error = on_error

    async def _send(self, exchange: Exchange) -> None:
        head = self._head(exchange, self._length_line())
        if exchange.method == "HEAD":
            exchange.open_transport().write(head)
            return
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            self._is_begun = True
            count = self.content_length - len(self._tail)
            transfer = SendFile(sink, head, self._file, self._offset, count)
            try:
                await exchange.drive_answer(transfer, self._threads)
            except (ConnectionError, DfcError):
                raise
            except OSError as error:
                told = asyncio.get_running_loop().run_in_executor(self._threads, self._on_error, error, transfer.offset)
                await to_its_end(told)
                raise
            finally:
                self.sent_bytes = transfer.moved
        if self._tail:
            exchange.open_transport().write(self._tail)
            self.sent_bytes += len(self._tail)

    async def _release(self) -> None:
        os.close(self._file)


class StreamAnswer(BulkAnswer):
    """An answer with a body from an async iterator: chunked, or exactly `content_length` bytes if that is given."""

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

    async def _send(self, exchange: Exchange) -> None:
        chunked = self.content_length < 0 and not exchange.is_http10
        self._closing = exchange.must_close or (self.content_length < 0 and not chunked)
        framing = "Transfer-Encoding: chunked\r\n" if chunked else "" if self.content_length < 0 else self._length_line()
        exchange.open_transport().write(self._head(exchange, framing))
        if exchange.method != "HEAD":
            await self._stream(exchange, chunked)

    async def _release(self) -> None:
        try:
            await self._chunks.aclose()  # type: ignore[attr-defined]  # all iterators passed in are generators
        finally:
            if self._on_close is not None:
                self._on_close()

    async def _stream(self, exchange: Exchange, chunked: bool) -> None:
        transport = exchange.open_transport()
        while (chunk := await self._next()) is not None:
            if not chunk:
                continue
            if transport.is_closing():
                raise ConnectionResetError("the client closed the connection")
            transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
            self.sent_bytes += len(chunk)
            exchange.note_sent(len(chunk))
            if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
                await exchange.drain(exchange.bulk.read_stall_timeout_s)
        if chunked:
            exchange.open_transport().write(b"0\r\n\r\n")
        elif 0 <= self.content_length != self.sent_bytes:
            raise AnswerCut(f"the body has {self.sent_bytes} bytes instead of {self.content_length}")

    async def _next(self) -> bytes | None:
        """Return the next piece; None at the end. A connection error from the iterator is not the client's, so it is a cut."""
        try:
            return await anext(self._chunks, None)
        except ConnectionError as error:
            raise AnswerCut(str(error) or type(error).__name__) from error


async def finish_connection(exchange: Exchange) -> None:
    """Close a connection so that the client still gets the answer: half-close, then discard up to 1 MiB or 2 s of input."""
    with suppress(OSError, RuntimeError):  # RuntimeError: the transport was closed meanwhile
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as connection:
            if not exchange.body_is_read or _has_unread(connection):
                exchange.open_transport().pause_reading()
                connection.shutdown(socket.SHUT_WR)
                await _discard(connection)
    exchange.protocol.force_close()


def _has_unread(connection: socket.socket) -> bool:
    """Whether the client has sent more than was read, such as a pipelined request."""
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
    """Answer with any msgspec-encodable value as JSON."""
    return Answer(status, _ENCODER.encode(value) + b"\n", [("Content-Type", JSON), *headers])


def error_answer(error: DfcError, request_id: str) -> Answer:
    """Render an error as `{"error": {"code", "message", "request_id"}}`."""
    body = {"error": {"code": error.code, "message": error.message, "request_id": request_id}}
    return json_answer(body, error.status, list(error.headers.items()))


def json_error(error: DfcError, exchange: Exchange) -> Answer:
    """Render an error for DFC's own faces."""
    return error_answer(error, exchange.request_id)


def text_answer(text: str, content_type: str = "text/plain; charset=utf-8") -> Answer:
    """Answer with a page of ours, plain or HTML. The security policy keeps scripts from running even if escaping ever fails."""
    return Answer(200, text.encode(), [("Content-Type", content_type), *PAGE_HEADERS])


# --- Conditional requests and ranges, RFC 9110 sections 13 and 14, as pure functions of headers and an object's validators.

_RANGE: Final = re.compile(r"([0-9]{0,19})-([0-9]{0,19})")
_ENTITY_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')


class ByteRange(NamedTuple):
    """A half-open range of a body: bytes start to stop - 1."""

    start: int
    stop: int


def http_date(microseconds: int) -> str:
    """Format µs since 1970 as an HTTP date (IMF-fixdate)."""
    return _date_of_second(microseconds // 1_000_000)


@lru_cache(maxsize=4096)
def _date_of_second(second: int) -> str:
    return format_datetime(datetime.fromtimestamp(second, UTC), usegmt=True)


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether a request has none of the headers handled here: the common case, checked quickly."""
    return not (
        "Range" in headers
        or "If-None-Match" in headers
        or "If-Match" in headers
        or "If-Modified-Since" in headers
        or "If-Unmodified-Since" in headers
    )


def _parse_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def entity_tags(header: str) -> frozenset[str]:
    """Parse the tags of an `If-Match` or `If-None-Match` header, without quotes; `*` stays `*`. BadRequest if it has none."""
    if header.strip() == "*":
        return frozenset("*")
    tags = frozenset(_ENTITY_TAG.findall(header))
    if not tags and re.fullmatch(r"[0-9A-Fa-f]+", header.strip()):
        return frozenset((header.strip(),))  # unquoted, as many scripts send it
    if not tags:
        raise BadRequest("an entity tag must be '*' or text in double quotes")
    return tags


def is_not_modified(headers: Mapping[str, str], etag: str, modified_us: int) -> bool:
    """Whether to answer a GET or HEAD with 304. PreconditionFailed if `If-Match` or `If-Unmodified-Since` fails."""
    if_match = headers.get("If-Match")
    if if_match is not None:
        tags = entity_tags(if_match)
        if "*" not in tags and etag not in tags:
            raise PreconditionFailed("the object's ETag does not match If-Match")
    elif (unmodified := headers.get("If-Unmodified-Since")) is not None:
        since = _parse_date(unmodified)
        if since is not None and modified_us // 1_000_000 > since:
            raise PreconditionFailed("the object was modified after the time in If-Unmodified-Since")
    none_match = headers.get("If-None-Match")
    if none_match is not None:
        tags = entity_tags(none_match)
        return "*" in tags or etag in tags
    modified_since = headers.get("If-Modified-Since")
    if modified_since is not None:
        since = _parse_date(modified_since)
        return since is not None and modified_us // 1_000_000 <= since
    return False


def requested_range(headers: Mapping[str, str], size: int, etag: str, modified_us: int) -> ByteRange | None:
    """Return the range to answer with 206; None for the whole body.

    Several ranges, or another unit than bytes, are ignored as RFC 9110 allows; a malformed range or one outside of the
    body raises RangeNotSatisfiable.
    """
    header = headers.get("Range")
    if header is None or not _if_range_holds(headers.get("If-Range"), etag, modified_us):
        return None
    unit, equals, specs = header.partition("=")
    if (equals and unit.strip().lower() != "bytes") or "," in specs:
        return None
    match = _RANGE.fullmatch(specs.strip())
    if not equals or not match or match[0] == "-":
        raise RangeNotSatisfiable(size)
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            raise RangeNotSatisfiable(size)
    if start >= stop:
        raise RangeNotSatisfiable(size)
    return ByteRange(start, stop)


def _if_range_holds(header: str | None, etag: str, modified_us: int) -> bool:
    if header is None:
        return True
    header = header.strip()
    if header.startswith('"'):
        return header == f'"{etag}"'
    date = _parse_date(header)
    return date is not None and modified_us // 1_000_000 == int(date)


# --- Helpers shared by the routes of proxies and targets: query parameters, content types, metrics, health.

# Keeps browsers from guessing the type of stored bytes, or running them as a page of this origin.
SAFETY_HEADERS: Final = (("X-Content-Type-Options", "nosniff"), ("Content-Security-Policy", "sandbox"))
INSIDE_QUERY: Final = frozenset(
    ("member", "archpath", "sample", "number", "ext", "list", "start", "limit", "thumbnail", "version")
)
OBJECT_QUERY: Final = INSIDE_QUERY | {"redirect", "relay"}
_LIMIT: Final = re.compile("[0-9]{1,9}")
LISTING_QUERY: Final = frozenset(("prefix", "start_after", "delimiter", "limit", "token"))
_TYPES: Final = {
    ".tar": TAR,
    ".tgz": "application/gzip",
    ".gz": "application/gzip",
    ".zst": "application/zstd",
    ".lz4": "application/x-lz4",
    ".bz2": "application/x-bzip2",
    ".xz": "application/x-xz",
    ".cls": "text/plain; charset=utf-8",
    ".npy": OCTETS,
}


@lru_cache(maxsize=1024)
def _type_of_extension(extension: str) -> str:
    known = _TYPES.get(extension)
    if known is not None:
        return known
    guessed = mimetypes.guess_type("x" + extension, strict=False)[0] or OCTETS
    return guessed + "; charset=utf-8" if guessed.startswith("text/") else guessed


def content_type(name: str) -> str:
    """Return the content type for a name, by its last extension."""
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    return _type_of_extension("." + extension.lower() if dot else "")


def page_limit(query: Mapping[str, str], default: int = LIST_PAGE_MAX) -> int:
    """Parse the `limit` of a listing, 1 to LIST_PAGE_MAX. BadRequest."""
    text = query.get("limit")
    if text is None:
        return default
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= LIST_PAGE_MAX:
        raise BadRequest(f"limit must be between 1 and {LIST_PAGE_MAX}")
    return int(text)


def flag(query: Mapping[str, str], name: str) -> bool:
    """Parse a query flag: absent, 0 or 1. BadRequest."""
    value = query.get(name, "0")
    if value not in ("0", "1"):
        raise BadRequest(f"{name} must be 0 or 1")
    return value == "1"


def metrics_answer(registry: CollectorRegistry) -> Answer:
    return Answer(200, render(registry), [("Content-Type", CONTENT_TYPE)])


def health_answer(ready: bool, **facts: Any) -> Answer:
    """Answer a health check: 200 if ready to serve, else 503; the facts describe the node."""
    headers = () if ready else (("Retry-After", "1"),)
    return json_answer({"ready": ready, **facts}, 200 if ready else 503, headers)
