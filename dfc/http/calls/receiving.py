"""Receive an answer's body from its socket straight into the caller's buffer, in as few system calls as possible.

While another thread computes, each return from a system call waits for the interpreter's lock, up to 5 ms, so there should be
few. Therefore a plain connection is read with one call that fills the whole buffer (MSG_WAITALL), on a blocking socket whose
timeout is the kernel's (SO_RCVTIMEO). TLS, and bodies without a length, are read in steps.
"""

from __future__ import annotations

import http.client
import io
import math
import socket
import ssl
import struct
from typing import Final

from dfc.limits import KIB

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
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    except OSError:
        pass  # it is closed already
