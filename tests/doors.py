"""Addresses that lead to a server or nowhere: a door that can be shut, a port without a listener, one whose listener sleeps."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final, Self

import pytest
from flaky_network import address_of, end, reset

_PIECE: Final = 64 * 1024
_FILLING: Final = 8  # connections that fill the queue of a listener which takes none


class Door:
    """A port of its own in front of the server of `url`. `came` counts those who knocked; `reset` has them thrown out at once,
    without a byte; while it is `deaf`, connections stay and no byte passes; while it is `shut`, nobody listens. Use it as a
    context manager; it is open then."""

    def __init__(self, url: str) -> None:
        self._server = address_of(url)
        self._port = 0
        self._listener: socket.socket | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.came = 0
        self.reset = False
        self._passes = threading.Event()
        self._passes.set()

    @property
    def deaf(self) -> bool:
        return not self._passes.is_set()

    @deaf.setter
    def deaf(self, deaf: bool) -> None:
        if deaf:
            self._passes.clear()
        else:
            self._passes.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.deaf = False
        self.shut()
        for thread in self._threads:
            thread.join(10)

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self._start(self._listen, self._listener)

    def shut(self) -> None:
        """Connections that are open end, too."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            end(sock)

    def _start(self, work: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()
        return thread

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.came += 1
            if self.reset:
                reset(client)
                client.close()
                continue
            self._sockets.append(client)
            self._start(self._pass, client)

    def _pass(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._server)
            except OSError:
                return
            with server:
                self._sockets.append(server)
                upwards = self._start(_copy, client, server, self._passes)
                _copy(server, client, self._passes)
                end(client)
                upwards.join()


def _copy(source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE):
            passes.wait()
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


class NoDoor:
    """A port that is taken and where nobody listens: connections are refused."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class BlackHole(NoDoor):
    """A listener with a full queue that takes nobody out of it: connections are neither made nor refused."""

    def __enter__(self) -> Self:
        self._socket.listen(0)
        self._waiting = []
        for _ in range(_FILLING):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", self.port))
            self._waiting.append(sock)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._waiting:
            sock.close()
        super().__exit__()


class Knocks:
    """Counts the tries to connect of this process that are made by blocking calls, by port."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ports: list[int] = []
        connect = socket.create_connection

        def counted(address: tuple[str, int], *arguments: object, **options: object) -> socket.socket:
            self.ports.append(address[1])
            return connect(address, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(socket, "create_connection", counted)

    def at(self, door: NoDoor) -> int:
        return self.ports.count(door.port)
