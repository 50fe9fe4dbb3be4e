"""A client that discards bodies inside the kernel, so that a reader costs the server's machine almost nothing.

`recv` with MSG_TRUNC on a TCP socket drops the bytes without copying them (tcp(7), Linux). As a program,
`python -m loadtest.discard --rounds N URL…` reads one stream per URL, N times each, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import mmap
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from loadtest.addresses import is_loopback

CHUNK_BYTES = 64 << 20  # address space only: pages that are never written take no memory
HEAD_BYTES_MAX = 64 << 10
TIMEOUT_S = 60


class DiscardError(RuntimeError):
    """The answer is not 200 with a length, or the body ended early."""


class DiscardStream:
    """A keep-alive connection whose bodies are counted and discarded."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not is_loopback(parts.hostname):
            raise DiscardError(f"{url} is not an http URL of this machine")
        self._sock = socket.create_connection((parts.hostname, parts.port or 80), TIMEOUT_S)
        # Python's timeout would add a poll before every recv; the kernel's own costs nothing.
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TIMEOUT_S, 0))
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        self._request = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        self._nowhere = mmap.mmap(-1, CHUNK_BYTES)

    def close(self) -> None:
        self._sock.close()
        self._nowhere.close()

    def get(self) -> int:
        """GET the URL. Returns the length of the body, once all of it has arrived; else DiscardError or OSError."""
        self._sock.sendall(self._request)
        length = _content_length(self._read_head())
        left = length
        while left:
            count = self._sock.recv_into(self._nowhere, min(left, CHUNK_BYTES), socket.MSG_TRUNC)
            if count == 0:
                raise DiscardError(f"the body ended {left} bytes early")
            left -= count
        return length

    def _read_head(self) -> bytes:
        """Read the head of the answer and not a byte more: peek first, then take it out of the socket."""
        head = b""
        while True:
            seen = self._sock.recv(HEAD_BYTES_MAX, socket.MSG_PEEK)
            if not seen:
                raise DiscardError("the connection was closed before the answer")
            end = (head + seen).find(b"\r\n\r\n")
            take = len(seen) if end < 0 else end + 4 - len(head)
            head += self._sock.recv(take)
            if end >= 0:
                return head
            if len(head) > HEAD_BYTES_MAX:
                raise DiscardError("the head of the answer is too long")


def _content_length(head: bytes) -> int:
    status, *lines = head.decode("latin-1").split("\r\n")
    if status.split(" ")[1:2] != ["200"]:
        raise DiscardError(f"the server answered {status!r} instead of 200")
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-length":
            return int(value)
    raise DiscardError("the answer has no Content-Length")


def discard_all(urls: Sequence[str], rounds: int) -> tuple[int, float]:
    """Read all URLs at once, `rounds` times, with a connection and thread each. Returns (body bytes, seconds of wall time)."""
    streams = [DiscardStream(url) for url in urls]
    counts = [0] * len(streams)
    errors: list[BaseException] = []
    start = threading.Barrier(len(streams) + 1)

    def read(index: int) -> None:
        start.wait()
        try:
            counts[index] = sum(streams[index].get() for _ in range(rounds))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(index,), daemon=True) for index in range(len(streams))]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.monotonic()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    for stream in streams:
        stream.close()
    if errors:
        raise errors[0]
    return sum(counts), seconds


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.discard", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("urls", nargs="+", metavar="URL")
    arguments = parser.parse_args(argv)
    count, seconds = discard_all(arguments.urls, arguments.rounds)
    print(json.dumps({"bytes": count, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
