"""A network between a client and a real server that breaks by a plan: a TCP proxy on a port of its own."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

_PIECE: Final = 64 * 1024


@dataclass(frozen=True)
class Fault:
    """What befalls a connection after so many bytes have gone to the client.

    `reset` and `close` end it, `stall` keeps it open and silent, `refuse` resets it before it has sent anything.
    """

    kind: Literal["reset", "close", "stall", "refuse"]
    after: int = 0


class Listener:
    """Has each connection to a port of its own served by a thread, within a `with` block. `url` is the port's."""

    def __init__(self, scheme: str = "http") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.closing = threading.Event()
        self.connections = 0
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        for sock in (self._listener, *self._sockets):
            end(sock)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        assert not any(thread.is_alive() for thread in self._threads)

    def _listen(self) -> None:
        while not self.closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(client)
            self._start(self._serve, client, *self._plan())

    def _plan(self) -> tuple[object, ...]:
        """What `_serve` is told of the next connection, in the order in which they come."""
        return ()

    def _serve(self, client: socket.socket, *planned: Any) -> None:
        raise NotImplementedError

    def _start(self, work: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread


class FlakyNetwork(Listener):
    """Relays connections to the server of `url` within a `with` block; each takes the next fault, those after the last none."""

    def __init__(self, url: str, faults: Iterable[Fault | None] = ()) -> None:
        super().__init__()
        self._server = address_of(url)
        self._faults: Iterator[Fault | None] = iter(faults)
        self.broken = 0

    def _plan(self) -> tuple[object, ...]:
        return (next(self._faults, None),)

    def _serve(self, client: socket.socket, *planned: Fault | None) -> None:
        (fault,) = planned
        with client:
            if fault is not None and fault.kind == "refuse":
                self.broken += 1
                reset(client)
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                return
            with server:
                self._sockets.append(server)
                upwards = self._start(_copy, client, server)
                self._send(server, client, fault)
                end(client)
                end(server)
                upwards.join()

    def _send(self, server: socket.socket, client: socket.socket, fault: Fault | None) -> None:
        left = fault.after if fault is not None else None
        try:
            while piece := server.recv(_PIECE if left is None else min(_PIECE, left + 1)):
                client.sendall(piece if left is None else piece[:left])
                if left is None:
                    continue
                left -= len(piece)
                if left < 0:
                    assert fault is not None
                    self.broken += 1
                    if fault.kind == "stall":
                        self.closing.wait(60)
                    elif fault.kind == "reset":
                        reset(client)
                    return
        except OSError:
            pass  # one of the two went away


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            sink.sendall(piece)


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def reset(sock: socket.socket) -> None:
    """Have it reset the connection when it is closed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def end(sock: socket.socket) -> None:
    """End a connection, or a listener's waiting, whatever others do with it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
