"""Blocking HTTP requests: connections that notice a node that hangs, and bodies received straight into buffers."""

from __future__ import annotations

import http.client
import io
import ipaddress
import math
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Final, Protocol
from urllib.parse import urlsplit
from weakref import WeakSet

from dfc.checksum import Buffer
from dfc.errors import BadRequest, DfcError, NotConnected, Unreachable
from dfc.handover import Part, part_bytes
from dfc.http.retry import Cancellation, Headers, current_cancellation, error_from_answer
from dfc.http.sending import EXPECT_BYTES, is_readable, may_continue, send, send_head, send_parts, send_piece
from dfc.limits import ERROR_BODY_BYTES_MAX, KIB

# --- Receive an answer's body from its socket straight into the caller's buffer, in as few system calls as possible.
#
# While another thread computes, each return from a system call waits for the interpreter's lock, up to 5 ms, so there should be
# few. Therefore a plain connection is read with one call that fills the whole buffer (MSG_WAITALL), on a blocking socket whose
# timeout is the kernel's (SO_RCVTIMEO). TLS, and bodies without a length, are read in steps.

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_STEP_BYTES: Final = 256 * KIB  # of a chunked body: the most that is lost when the connection breaks within a step


class Receiver:
    """Receives the body of one answer. `count` is the number of bytes that the last `fill` received, even if it failed."""

    def __init__(self, response: http.client.HTTPResponse, sock: socket.socket, timeout_s: float) -> None:
        self.count = 0
        self._response = response
        self._sock = sock
        self._timeout_s = timeout_s
        self._plain = not isinstance(sock, ssl.SSLSocket)
        self._stepwise = bool(response.chunked) or response.length is None
        self._drained = False
        self._blocking = False

    def fill(self, view: memoryview) -> None:
        """Fill the view, or stop where the connection ended. Raises OSError (including TimeoutError) and HTTPException."""
        self.count = 0
        while self.count < len(view):
            rest = view[self.count :]
            got = self._step(rest) if self._stepwise else self._receive(rest)
            if got == 0:
                return
            self.count += got

    def limit(self, timeout_s: float) -> None:
        """Use this timeout from now on."""
        self._timeout_s = timeout_s
        self._blocking = False
        self._sock.settimeout(timeout_s)

    def restore(self, timeout_s: float) -> None:
        """Reset the socket's timeout for its next user."""
        if self._blocking or self._timeout_s != timeout_s:
            self._sock.settimeout(timeout_s)
            self._blocking = False

    def _receive(self, view: memoryview) -> int:
        if not self._drained:
            # The head was read through a buffer, which may hold the first bytes of the body. A read larger than the buffer
            # empties it; after that, bytes are received directly.
            self._drained = len(view) > io.DEFAULT_BUFFER_SIZE
            return self._response.fp.readinto1(view)
        if not self._plain:
            return self._sock.recv_into(view)
        if not self._blocking:
            self._block()
        try:
            return self._sock.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError from None

    def _block(self) -> None:
        fraction, whole = math.modf(self._timeout_s)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(whole), int(fraction * 1e6)))
        self._sock.settimeout(None)
        self._blocking = True

    def _step(self, view: memoryview) -> int:
        try:
            return self._response.readinto(view[:_STEP_BYTES])
        except http.client.IncompleteRead as problem:
            self.count += len(problem.partial)
            raise


def reset_on_close(sock: socket.socket) -> None:
    """Make closing the connection in the middle of an answer reset it, so that the sender notices immediately.

    After an orderly close, Linux may keep a sender with a full window waiting for a minute: the closed end still reports that
    the window is full, and the node keeps its files open meanwhile.
    """
    with suppress(OSError):  # it is closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


# --- What blocking connections cannot do themselves: look up a host within a time limit, and tell a node that hangs.

_ASKED: Final = "/v1/health"  # nodes answer it without waiting for anything
_EACH_MIN_S = 0.05  # for an address of a host that has very many: enough within a data centre


def connect_share_s(host: str, port: int, limit_s: float) -> float:
    """Return a connect timeout per IP address of a host, so that the lookup and trying them all take at most `limit_s`.

    TimeoutError when the lookup alone takes longer, OSError when the host does not exist.
    """
    if _is_literal(host):
        return limit_s
    begun_s = time.monotonic()
    count = len(_look_up(host, port, limit_s))
    return max((limit_s - (time.monotonic() - begun_s)) / max(count, 1), _EACH_MIN_S)


def check_answers(base: str, limit_s: float) -> None:
    """Ask the node at a URL for anything. NotConnected if it says nothing: a node that hangs is connected to all the same."""
    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        host, port = parts.hostname or "", parts.port
        with closing(kind(host, port, timeout=connect_share_s(host, port or 0, limit_s))) as connection:
            connection.connect()
            connection.sock.settimeout(limit_s)
            connection.request("HEAD", _ASKED)
            connection.getresponse()
    except http.client.HTTPException:
        pass  # not what was expected, but an answer
    except TimeoutError:
        raise NotConnected(f"{base}: connected, but without an answer within {limit_s:g} s") from None
    except OSError as problem:
        raise NotConnected(f"{base}: cannot connect: {problem}") from None


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, port: int, limit_s: float) -> list[object]:
    found: list[object] = []
    problem: OSError | None = None

    def work() -> None:
        nonlocal problem
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            problem = error
        except UnicodeError as error:  # a name that cannot be one
            problem = OSError(str(error))

    # A hanging resolver cannot be interrupted. The thread ends when the resolver gives up, and does not delay process exit.
    thread = threading.Thread(target=work, name="lookup", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"looking up {host} took longer than {limit_s:g} s")
    if problem is not None:
        raise problem
    return found


# --- Blocking HTTP requests over `http.client`, with bodies read straight into the caller's buffer.
#
# For callers with their own threads: the client library and the workers of jobs. Connections are kept alive and reused. Every
# connection failure becomes `NotConnected` (nothing was sent) or `Broken`; an answer that ends before its announced length is
# `Broken`, never a short read. There are no retries and no redirects here.

CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 60.0  # without a single byte; nodes send or fail long before that
IDLE_CONNECTIONS_MAX: Final = 16
_DRAIN_BYTES: Final = 64 * KIB  # reading this much is cheaper than a new connection
_DRAIN_TIMEOUT_S: Final = 0.2  # and so is waiting this long for it
_NO_SUCH_HOST: Final = frozenset((socket.EAI_NONAME, socket.EAI_NODATA))  # other errors are trouble with the resolver
_READS: Final = frozenset(("GET", "HEAD"))
Origin = tuple[str, str, int]


class Body(Protocol):
    """A request body for `Transport.request`: `chunks` yields the bytes, from the start each time if it is `replayable`."""

    @property
    def size(self) -> int | None: ...
    @property
    def replayable(self) -> bool: ...
    def chunks(self) -> Iterator[Buffer]: ...


class WrongAddress(NotConnected):
    """The URL is probably wrong: the host does not exist, does not speak TLS, or its certificate is not trusted."""


class Broken(Unreachable):
    """The connection broke, timed out or was not HTTP, after the request had begun."""


@contextmanager
def _own_errors(what: str) -> Iterator[None]:
    """Convert errors of sockets and http.client to `Broken`, in this one place."""
    try:
        yield
    except TimeoutError:
        raise Broken(f"{what}: timed out") from None
    except (OSError, http.client.HTTPException, ValueError) as problem:
        # ValueError: http.client raises it for a chunk size that is not a number, and for a file closed meanwhile.
        raise Broken(f"{what}: {problem or type(problem).__name__}") from None


class Response:
    """An answer: status, headers and unread body. Close it, or read it to its end, to free the connection."""

    def __init__(self, transport: Transport, link: _Link, response: http.client.HTTPResponse, what: str) -> None:
        self._transport = transport
        self._link: _Link | None = link
        self._response = response
        self._what = what
        self.status = response.status
        self.headers: Headers = response.headers
        self.url = what.partition(" ")[2]  # of the request
        self.early = link.spoiled  # it came before the whole body of the request was sent
        # http.client does not say when a body ends early, so the bytes are counted here.
        self._left = response.length
        self._chunked = bool(response.chunked)
        self._receiver = Receiver(response, link.sock, transport.read_timeout_s)
        self._failure: Broken | None = None
        if self._left == 0 or response.isclosed():
            self._finish()

    @property
    def length(self) -> int | None:
        """The number of unread bytes of the body; None when the node did not announce a length."""
        return self._left

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer as far as the body goes and return the number of bytes; 0 at its end. Broken if it ends early."""
        count = self.receive(buffer)
        if self._failure is not None:
            raise self._failure
        return count

    def receive(self, buffer: bytearray | memoryview) -> int:
        """`readinto` for callers that can resume elsewhere: returns the bytes that came before the body broke off; the next
        call raises Broken."""
        link = self._link
        if link is None:
            if self._failure is not None:
                raise self._failure
            return 0
        link.move_to(self._transport.cancellation)
        view = memoryview(buffer)
        if self._left is not None:
            view = view[: self._left]
        if not view:
            return 0
        try:
            with _own_errors(self._what):
                self._receiver.fill(view)
            self._check_whole(self._receiver.count, len(view))
        except Broken as problem:
            self._failure = problem
            self._abandon()
            link.cancellation.check()
            if self._receiver.count == 0:
                raise
            return self._receiver.count
        except BaseException:
            self._failure = Broken(f"{self._what}: interrupted")  # rather than reporting the end
            self._abandon()  # the unread rest would be taken for the next answer
            raise
        if self._receiver.count == 0 or self._left == 0:
            self._finish()
        return self._receiver.count

    def _check_whole(self, count: int, wanted: int) -> None:
        if self._left is not None:
            self._left -= count
            if count < wanted:
                raise Broken(f"{self._what}: the connection was closed {self._left} bytes early")
        elif count == 0 and not self._chunked:
            raise Broken(f"{self._what}: the answer has no length, so it may be incomplete")

    def read_all(self, limit: int) -> bytes:
        """Read the rest of the body and close the answer; Broken when it has more than `limit` bytes."""
        buffer = bytearray(min(limit, self._left if self._left is not None else 64 * KIB) + 1)
        data = b""
        try:
            while (count := self.readinto(buffer)) > 0:
                data += buffer[:count]
                if len(data) > limit:
                    raise Broken(f"{self._what}: the answer is longer than {limit} bytes")
        finally:
            self.close()
        return data

    def error(self, what: str = "") -> DfcError:
        """Read the body and return the error for a status of 300 or more; `what` replaces a URL not to be shown. Broken."""
        return error_from_answer(self.status, self.headers, self.read_all(ERROR_BODY_BYTES_MAX), what or self._what)

    def close(self) -> None:
        """Free the connection: read a short rest of the body so that it can be reused, or else close it. Idempotent."""
        link = self._link
        if link is None:
            return
        if self._left is not None and 0 < self._left <= _DRAIN_BYTES and not link.cancellation.is_set:
            try:
                self._receiver.limit(_DRAIN_TIMEOUT_S)
                self._receiver.fill(memoryview(bytearray(self._left)))
            except (OSError, http.client.HTTPException, ValueError):
                pass
            else:
                if self._receiver.count == self._left:
                    self._finish()
                    return
        self._abandon()

    def forget(self) -> None:
        """Drop it in a child after a fork: it is the parent's, and `Transport.forget` closed the copied connection."""
        link, self._link = self._link, None
        if link is not None:
            self._response.close()

    def _abandon(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            reset_on_close(link.sock)
            self._response.close()
            link.close()

    def _finish(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        reusable = not self._response.will_close and not link.spoiled
        self._response.close()
        if reusable:
            self._receiver.restore(self._transport.read_timeout_s)
            self._transport.give_back(link)
        else:
            link.close()

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Link:
    """A connection, and what is needed to reuse it."""

    def __init__(self, origin: Origin, connection: http.client.HTTPConnection, cancellation: Cancellation) -> None:
        self.origin = origin
        self.connection = connection
        self.cancellation = cancellation
        self.spoiled = False  # a body was only partly sent: the next request would be read as the rest of it
        assert connection.sock is not None
        self.sock: socket.socket = connection.sock
        cancellation.track(self.sock)

    def move_to(self, cancellation: Cancellation) -> None:
        """Put it under another cancellation: an answer may be read by a later call than the one that opened it."""
        if cancellation is not self.cancellation:
            self.cancellation.untrack(self.sock)
            self.cancellation = cancellation
            cancellation.track(self.sock)

    def close(self) -> None:
        self.cancellation.untrack(self.sock)
        self.connection.close()


class Transport:
    """A pool of connections to nodes. Thread-safe; an answer belongs to one thread at a time."""

    def __init__(
        self, cancellation: Cancellation, read_timeout_s: float = READ_TIMEOUT_S, connect_timeout_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self.read_timeout_s = read_timeout_s
        self._cancellation = cancellation
        self._connect_timeout_s = connect_timeout_s
        self._lock = threading.Lock()
        self._idle: list[_Link] = []
        self._links: WeakSet[_Link] = WeakSet()  # all that are open
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        source: Body | None = None,
        *,
        limit_s: float | None = None,
        once: bool = False,
    ) -> Response:
        """Send one request with the source as its body, and read the head of the answer, whatever its status.

        An answer that arrives during the body ends the sending. A kept connection that turns out to be dead is replaced,
        except for requests to be sent `once`; a source that cannot be replayed gets a new connection right away. Connecting
        takes at most `limit_s`. Raises Broken also when a write failed on a kept connection and no new one can be made.
        """
        what = f"{method} {url}"
        spent = source is not None and not source.replayable
        link = None if spent else self._take(_origin(url))
        lost: Broken | None = None
        if link is not None:
            try:
                return self._exchange(link, method, url, headers, source, what)
            except Broken as problem:
                link.cancellation.check()
                if once:
                    raise
                lost = problem
        try:
            link = self._connect(_origin(url), what, limit_s)
        except NotConnected as problem:
            if lost is None or method in _READS:
                raise
            raise Broken(f"{lost.message}; then {problem.message}") from None  # the node may have carried it out
        try:
            return self._exchange(link, method, url, headers, source, what)
        except Broken:
            link.cancellation.check()
            raise

    @property
    def cancellation(self) -> Cancellation:
        """The cancellation for transfers of this thread: the thread's own, or the whole client's."""
        return current_cancellation(self._cancellation)

    def close(self) -> None:
        """Close idle connections now, and those in use when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def forget(self) -> None:
        """In a child after a fork: close its copies of all connections, even those in use; otherwise they would stay open after
        the parent has closed them. Takes no locks, since other threads of the parent may have held them."""
        for link in tuple(self._links):
            descriptor = link.sock.detach()
            if descriptor >= 0:
                os.close(descriptor)
        self._idle = []

    def give_back(self, link: _Link) -> None:
        link.cancellation.untrack(link.sock)
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(link)
                return
        link.connection.close()

    def _take(self, origin: Origin) -> _Link | None:
        cancellation = self.cancellation
        cancellation.check()
        while True:
            with self._lock:
                at = next((at for at in reversed(range(len(self._idle))) if self._idle[at].origin == origin), None)
                if at is None:
                    return None
                link = self._idle.pop(at)
            if not is_readable(link.sock, 0):  # else the node has closed it, or sent something unasked
                link.move_to(cancellation)
                cancellation.track(link.sock)
                return link
            link.close()

    def _connect(self, origin: Origin, what: str, limit_s: float | None = None) -> _Link:
        cancellation = self.cancellation
        cancellation.check()
        scheme, host, port = origin
        connection: http.client.HTTPConnection
        if scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=self._connect_timeout_s, context=self._tls_context())
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._connect_timeout_s)
        try:
            if limit_s is not None:
                connection.timeout = connect_share_s(host, port, min(limit_s, self._connect_timeout_s))
            connection.connect()
        except OSError as problem:
            wrong = isinstance(problem, socket.gaierror) and problem.errno in _NO_SUCH_HOST
            wrong = wrong or (isinstance(problem, ssl.SSLError) and problem.errno == ssl.SSL_ERROR_SSL)
            kind = WrongAddress if wrong else NotConnected
            raise kind(f"{what}: cannot connect to {host}:{port}: {_cause(problem)}") from None
        link = _Link(origin, connection, cancellation)
        link.sock.settimeout(self.read_timeout_s)
        with self._lock:
            self._links.add(link)
        return link

    def _tls_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return self._tls

    def begin(
        self, method: str, url: str, headers: Mapping[str, str], size: int | None, *, expect_bytes: int = EXPECT_BYTES
    ) -> Upload:
        """Send a request head on a new connection; the caller then sends the body piece by piece. `size` None: chunked. From
        `expect_bytes` on, the node is asked first."""
        what = f"{method} {url}"
        link = self._connect(_origin(url), what)
        try:
            return Upload(self, link, method, url, headers, size, what, expect_bytes)
        except BaseException:
            link.close()
            link.cancellation.check()
            raise

    def _exchange(
        self, link: _Link, method: str, url: str, headers: Mapping[str, str], source: Body | None, what: str
    ) -> Response:
        try:
            if source is not None:
                upload = Upload(self, link, method, url, headers, source.size, what)
                for data in source.chunks() if upload.wanted else ():
                    if not upload.send(data):
                        break
                return upload.finish()
            with _own_errors(what):
                send_head(link.connection, method, url, headers)
                return Response(self, link, link.connection.getresponse(), what)
        except BaseException:
            link.close()
            raise


class Upload:
    """A request whose body the caller sends piece by piece.

    `wanted` becomes False when an answer arrives during the body: sending more is useless, `finish` reads that answer. Every
    error closes the connection, and so does `abort`."""

    def __init__(
        self,
        transport: Transport,
        link: _Link,
        method: str,
        url: str,
        headers: Mapping[str, str],
        size: int | None,
        what: str,
        expect_bytes: int = EXPECT_BYTES,
    ) -> None:
        self.wanted = True
        self._transport = transport
        self._link = link
        self._what = what
        self._chunked = size is None
        link.spoiled = True  # until the last byte is sent
        with _own_errors(what):
            asks = send_head(link.connection, method, url, headers, size, body=True, expect_bytes=expect_bytes)
            if asks and not may_continue(link.sock):
                self.wanted = False

    def send(self, data: Buffer) -> bool:
        """Send the next bytes; whether more are wanted."""
        if self.wanted and len(data) > 0:
            with self._fatal():
                self.wanted = send_piece(self._link.sock, data, self._chunked)
        return self.wanted

    def send_parts(self, parts: Sequence[Part]) -> bool:
        """Send the next bytes, those in files by sendfile; whether more are wanted. Broken if a file is too short."""
        if self.wanted and part_bytes(parts) > 0:
            with self._fatal():
                self.wanted = send_parts(self._link.sock, parts, self._chunked)
        return self.wanted

    def finish(self) -> Response:
        """End the body and read the head of the answer."""
        link = self._link
        with self._fatal():
            if self._chunked and self.wanted:
                self.wanted = send(link.sock, b"0\r\n\r\n")
            link.spoiled = not self.wanted
            return Response(self._transport, link, link.connection.getresponse(), self._what)

    def abort(self) -> None:
        """Close the connection, so that the node knows that the body is incomplete. Idempotent."""
        self._link.close()

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        try:
            with _own_errors(self._what):
                yield
        except BaseException:
            self._link.close()
            self._link.cancellation.check()
            raise


def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"not an http:// or https:// URL: {url}")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _cause(problem: OSError) -> str:
    """Say why the connection failed, for the person who wrote the URL."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return f"TLS handshake failed ({problem.reason or problem}); should the URL begin with http://?"
    return problem.strerror or str(problem)
