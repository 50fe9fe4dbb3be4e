"""Send a request: its head, then its body in pieces or from files. Sending stops if an answer arrives early.

Errors are those of sockets, and ValueError for a file that is shorter than announced; `dfc.http.blocking` converts them.
"""

from __future__ import annotations

import http.client
import os
import select
import socket
import ssl
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Final
from urllib.parse import urlsplit

from dfc import __version__
from dfc.checksum import Buffer
from dfc.handover import Part, part_bytes
from dfc.limits import KIB, MIB

EXPECT_TIMEOUT_S: Final = 2.0  # after this, the body is sent to a server that does not know `Expect`
EXPECT_BYTES: Final = 1 * MIB  # above this, ask first: a refusal then costs one round trip instead of a broken connection
_JOIN_BYTES: Final = 64 * KIB  # smaller chunks go out in one piece with their frame
_HEAD_BYTES_MAX: Final = 16 * KIB
_CONTINUE: Final = b"HTTP/1.1 100"
_REST_S: Final = 0.001  # pause before peeking again for the rest of a head, which arrives at once
_READ_BYTES: Final = 64 * KIB  # of a file that goes out over TLS
_MORE: Final = int(socket.MSG_MORE)
_SENDFILE_BYTES_MAX: Final = 1 << 30  # the kernel moves at most 2 GiB at a time


def send_head(
    connection: http.client.HTTPConnection,
    method: str,
    url: str,
    headers: Mapping[str, str],
    size: int | None = None,
    *,
    body: bool = False,
    expect_bytes: int = EXPECT_BYTES,
) -> bool:
    """Send the head of a request; whether it asks the node to confirm (`Expect`) before the body is sent: not if the body is
    smaller than `expect_bytes`. `size` None with `body`: the body goes out chunked.
    """
    parts = urlsplit(url)
    connection.putrequest(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    connection.putheader("User-Agent", f"dfc/{__version__}")
    for name, value in headers.items():
        connection.putheader(name, value)
    asks = body and (size is None or size >= expect_bytes)
    if body:
        if size is None:
            connection.putheader("Transfer-Encoding", "chunked")
        else:
            connection.putheader("Content-Length", str(size))
        if asks:
            connection.putheader("Expect", "100-continue")
    connection.endheaders()
    return asks


def send_piece(sock: socket.socket, data: Buffer, chunked: bool) -> bool:
    # A TLS socket may be readable for its own reasons.
    if not isinstance(sock, ssl.SSLSocket) and _has_answered(sock):
        return False
    if not chunked:
        return send(sock, data)
    head = b"%x\r\n" % len(data)
    if len(data) <= _JOIN_BYTES:
        return send(sock, b"".join((head, data, b"\r\n")))
    return send(sock, head) and send(sock, data) and send(sock, b"\r\n")


def send(sock: socket.socket, data: Buffer) -> bool:
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        # The node may have sent an answer with the reason before it closed: then that can still be read.
        if not is_readable(sock, EXPECT_TIMEOUT_S):
            raise
        return False
    return True


def send_parts(sock: socket.socket, parts: Sequence[Part], chunked: bool) -> bool:
    if isinstance(sock, ssl.SSLSocket):
        return _send_encrypted(sock, parts, chunked)
    if chunked:
        return send(sock, b"%x\r\n" % part_bytes(parts)) and _Sender(sock).send(parts) and send(sock, b"\r\n")
    return _Sender(sock).send(parts)


def _send_encrypted(sock: socket.socket, parts: Sequence[Part], chunked: bool) -> bool:
    for data, file, offset, count in parts:
        if len(data) and not send_piece(sock, data, chunked):
            return False
        for at in range(offset, offset + count, _READ_BYTES):
            piece = os.pread(file, min(_READ_BYTES, offset + count - at), at)
            if len(piece) < min(_READ_BYTES, offset + count - at):
                raise ValueError(f"the file being sent ends at byte {at + len(piece)}")
            if not send_piece(sock, piece, chunked):
                return False
    return True


class _Sender:
    """Sends parts to a socket that has a timeout, and so a non-blocking descriptor. Parts are small and many: Python's own
    socket calls, which poll before each piece, would cost as much as the piece."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.fileno()
        # The same socket without a Python timeout, which would poll before every call.
        self._direct = socket.socket(sock.family, sock.type, sock.proto, self._file)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLOUT | select.POLLIN)
        timeout_s = sock.gettimeout()
        self._timeout_ms = None if timeout_s is None else timeout_s * 1000

    def send(self, parts: Sequence[Part]) -> bool:
        """Send the parts; False when an answer has arrived."""
        try:
            if _has_answered(self._sock):
                return False
            for data, file, offset, count in parts:
                if not (self._write(data) if len(data) else True) or not self._send_range(file, offset, count):
                    return False
        except (BrokenPipeError, ConnectionResetError):
            if not is_readable(self._sock, EXPECT_TIMEOUT_S):
                raise
            return False
        finally:
            self._direct.detach()
        return True

    def _write(self, data: Buffer) -> bool:
        view = memoryview(data).cast("B")
        while view:
            try:
                view = view[self._direct.send(view, _MORE) :]
            except BlockingIOError:
                if not self._may():
                    return False
        return True

    def _send_range(self, file: int, offset: int, count: int) -> bool:
        end = offset + count
        while offset < end:
            try:
                moved = os.sendfile(self._file, file, offset, min(end - offset, _SENDFILE_BYTES_MAX))
            except BlockingIOError:
                if not self._may():
                    return False
                continue
            if moved == 0:
                raise ValueError(f"the file being sent ends at byte {offset}")
            offset += moved
        return True

    def _may(self) -> bool:
        """Wait until the socket can take more; False when an answer has arrived."""
        events = self._poll.poll(self._timeout_ms)
        if not events:
            raise TimeoutError
        return not (events[0][1] & select.POLLIN and _has_answered(self._sock))


def may_continue(sock: socket.socket) -> bool:
    """Wait for `100 Continue` and consume it; False when a final answer came instead, which is left to be read."""
    if isinstance(sock, ssl.SSLSocket):
        return True  # TLS cannot be peeked into; an early answer is noticed while sending
    end = monotonic() + EXPECT_TIMEOUT_S
    while is_readable(sock, max(0.0, end - monotonic())):
        if (taken := _take_continue(sock)) is not None:
            return taken
        if monotonic() > end:
            break
        sleep(_REST_S)
    return True


def _has_answered(sock: socket.socket) -> bool:
    """Whether a final answer, or the end, has arrived. Consumes a late `100 Continue` that comes during the body."""
    end = monotonic() + EXPECT_TIMEOUT_S
    while is_readable(sock, 0):
        taken = _take_continue(sock)
        if taken is False or monotonic() > end:
            return True
        if taken is None:
            sleep(_REST_S)
    return False


def _take_continue(sock: socket.socket) -> bool | None:
    """Consume a `100 Continue` from a readable socket; False when it is something else, None when it is incomplete."""
    head = sock.recv(_HEAD_BYTES_MAX, socket.MSG_PEEK)
    if not head or not _CONTINUE.startswith(head[: len(_CONTINUE)]) or len(head) == _HEAD_BYTES_MAX:
        return False
    end = head.find(b"\r\n\r\n")
    if end < 0:
        return None
    sock.recv(end + 4)
    return True


def is_readable(sock: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
