"""Many slow readers and many large uploads at once, for measuring a target's memory."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.addresses import Address
from loadtest.bodies import Body
from loadtest.connection import Connection, HttpFailure
from loadtest.processes import meanwhile
from loadtest.scenarios import check_stored, expect

RECEIVE_BUFFER_BYTES = 64 << 10  # small, so that the server has to wait
READ_BYTES = 16 << 10
READ_PAUSE_S = 0.25


@dataclass(slots=True)
class ReaderCount:
    """The number of slow readers that hold a connection now, and the bytes read so far."""

    open: int = 0
    bytes_read: int = 0


@contextlib.contextmanager
def slow_readers(address: Address, path: str, count: int) -> Iterator[ReaderCount]:
    """Hold `count` GETs of one object open for a `with` block, each read at 64 kB/s, all by one thread."""
    counted = ReaderCount()
    selector = selectors.DefaultSelector()
    request = f"GET {address.prefix}{path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n\r\n".encode()
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            sock.settimeout(30)
            sock.connect((address.host, address.port))
            sock.sendall(request)
            if not sock.recv(16).startswith(b"HTTP/1.1 200"):
                raise HttpFailure("slow_reader", f"GET {path} was not answered 200")
            selector.register(sock, selectors.EVENT_READ)
            counted.open += 1
        with meanwhile(lambda stop: _sip(selector, counted, stop)):
            yield counted
    finally:
        selector.close()
        for sock in sockets:
            sock.close()


def _sip(selector: selectors.BaseSelector, counted: ReaderCount, stop: threading.Event) -> None:
    while not stop.is_set():
        for key, _ in selector.select(READ_PAUSE_S):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            data = sock.recv(READ_BYTES)
            counted.bytes_read += len(data)
            if not data:
                selector.unregister(sock)
                counted.open -= 1
        stop.wait(READ_PAUSE_S)


def upload_at_once(address: Address, prefix: str, count: int, size: int) -> float:
    """PUT `count` bodies of `size` bytes at the same time and check the answers. Returns seconds of wall time.

    The bodies are windows of one block of memory, so the client needs almost no memory.
    """
    errors: list[BaseException] = []

    def upload(number: int) -> None:
        try:
            with contextlib.closing(Connection(address, timeout_s=600)) as connection:
                body = Body(number, size)
                answer = connection.request("PUT", f"{prefix}{number:03d}.bin", body=body.pieces(), size=size)
                check_stored(expect(answer, 200, 201), size, body.checksum())
        except BaseException as error:
            errors.append(error)

    begin = time.monotonic()
    threads = [threading.Thread(target=upload, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.monotonic() - begin
