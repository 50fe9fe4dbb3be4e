"""Minimal Python servers, as a baseline for what the machine can do at the same time.

`python -m loadtest.bare files PORT DIRECTORY` writes the bodies of PUTs and sends files by sendfile, with a thread for each
connection and nothing else: no hash, no index, no log. `python -m loadtest.bare answers PORT` answers every request with the
same 1 KiB. Requests are trusted: these servers are for benchmarks on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import uvloop

from loadtest.processes import accepts, free_port, running

BUFFER_BYTES = 256 << 10
SEND_BYTES = 2 << 20
ANSWER_BYTES = 1024
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (ANSWER_BYTES, bytes(ANSWER_BYTES))


@contextlib.contextmanager
def bare_server(mode: str, directory: Path) -> Iterator[str]:
    """Run a bare server for a `with` block. Yields its URL."""
    port = free_port()
    argv = [sys.executable, "-m", "loadtest.bare", mode, str(port), str(directory)]
    with running(argv, directory / "bare.log") as child:
        child.wait_until(lambda: accepts(port), 20, "a bare server")
        yield f"http://127.0.0.1:{port}"


def serve_files(port: int, root: Path) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(connection, root), daemon=True).start()


def _serve(connection: socket.socket, root: Path) -> None:
    with connection, contextlib.suppress(ConnectionError):
        while head := _read_head(connection):
            text, begun = head
            method, target, _ = text.split(" ", 2)
            path = str(root) + target
            if method == "PUT":
                fields = dict(line.lower().split(": ", 1) for line in text.split("\r\n")[1:])
                if "expect" in fields:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                _receive(connection, path, int(fields["content-length"]), begun)
                connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
            else:
                _send(connection, path)


def _read_head(connection: socket.socket) -> tuple[str, bytes] | None:
    """Read the head of a request, and the first bytes of its body; None at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, begun = data.partition(b"\r\n\r\n")
    return head.decode("latin-1"), begun


def _receive(connection: socket.socket, path: str, length: int, begun: bytes) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with open(path, "wb", buffering=0) as file:
        left = length - file.write(begun)
        while left:
            wanted = min(left, BUFFER_BYTES - (length - left) % BUFFER_BYTES)
            count = connection.recv_into(buffer, wanted, socket.MSG_WAITALL)
            if not count:
                raise ConnectionError
            file.write(buffer[:count])
            left -= count


def _send(connection: socket.socket, path: str) -> None:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        sent = 0
        while sent < size:
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, min(SEND_BYTES, size - sent))


class _Answers(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self._write(_ANSWER)


async def serve_answers(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Answers, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bare", description="Run a minimal Python server.")
    parser.add_argument("mode", choices=("files", "answers"))
    parser.add_argument("port", type=int)
    parser.add_argument("directory", type=Path, help="directory of the files")
    arguments = parser.parse_args()
    if arguments.mode == "files":
        serve_files(arguments.port, arguments.directory)
    else:
        uvloop.run(serve_answers(arguments.port))


if __name__ == "__main__":
    main()
