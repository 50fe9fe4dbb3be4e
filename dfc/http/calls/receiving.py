"""Bytes of an answer's body, straight from its socket into the caller's buffer, in as few calls as the kernel allows.

A thread that receives while another computes must come back seldom: each return from a system call waits for the interpreter's
lock, up to 5 ms. So a plain connection is read with one call that fills the whole buffer (MSG_WAITALL), on a socket that
blocks; its timeout is the kernel's (SO_RCVTIMEO). TLS, and bodies without a length, are read in steps.
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
_STEP_BYTES: Final = 256 * KIB  # of a chunked body: so much at most is lost when the connection breaks in the middle of a step


class Receiver:
    """The body of one answer. Bytes that came before an error are counted: `count` is that of the last call of `fill`."""

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
        """Fill the view, or stop where the connection ended. Raises OSError (TimeoutError too) and HTTPException."""
        self.count = 0
        while self.count < len(view):
            rest = view[self.count :]
            got = self._step(rest) if self._stepwise else self._receive(rest)
            if got == 0:
                return
            self.count += got

    def limit(self, timeout_s: float) -> None:
        """Wait no longer than this from now on."""
        self._timeout_s = timeout_s
        self._blocking = False
        self._sock.settimeout(timeout_s)

    def restore(self, timeout_s: float) -> None:
        """Leave the socket as its next user expects it."""
        if self._blocking or self._timeout_s != timeout_s:
            self._sock.settimeout(timeout_s)
            self._blocking = False

    def _receive(self, view: memoryview) -> int:
        if not self._drained:
            # The head was read through a buffer, which may hold the first bytes of the body. One that is larger than that
            # buffer empties it, and whatever follows is received past it.
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
    """Let closing a connection in the middle of an answer tell the sender at once, with a reset.

    After an orderly end Linux may leave a sender that meets a full window waiting for a minute: the other end is gone, what is
    left of it answers that the window is full, and the node keeps its files open for it.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    except OSError:
        pass  # it is closed already
