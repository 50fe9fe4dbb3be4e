"""A network between nodes in which what nodes answer is changed at random on its way."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from typing import Final

from ports import LOOPBACK, Loopback

SHARE: Final = 0.3  # of the pieces of answers is changed
_PIECE: Final = 64 * 1024
_STATUSES: Final = (*(b"%d" % status for status in (100, 101, 199, 204, 301, 304, 307, 404, 421, 500, 503, 600, 999)), b"x")
_HEADERS: Final = (
    b"Content-Length: 5", b"Content-Length: 99999999999", b"Transfer-Encoding: chunked", b"Connection: close",
    b"Location: http://evil.example/", b"Content-Type: application/msgpack", b"Content-Encoding: gzip", b"X-DFC-Map: 999999",
    b"X-DFC-Samples: -1", b'ETag: "0"', b"Set-Cookie: a=b", b"A: " + b"b" * 5000, b"Retry-After: 99999999",
)  # fmt: skip


class Liars(Loopback):
    """The network, for `Nodes`. Nothing is changed until `lying` is set."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ports: dict[tuple[str, int], int] = {}
        self._servers: list[asyncio.Server] = []
        self.lying = threading.Event()
        self.changed = 0

    def close(self) -> None:
        async def end() -> None:
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in self._servers:
                server.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url_for_nodes(self, name: str, port: int) -> str:
        if (name, port) not in self._ports:
            listening = asyncio.run_coroutine_threadsafe(self._listen(port), self._loop)
            self._ports[name, port] = listening.result(20)
        return f"http://{LOOPBACK}:{self._ports[name, port]}"

    async def _listen(self, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                onward, back = await asyncio.open_connection(LOOPBACK, port)
                ways = [asyncio.create_task(self._pass(reader, back)), asyncio.create_task(self._pass(onward, writer, True))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in ways:
                        each.cancel()
                    back.close()
            writer.close()

        server = await asyncio.start_server(connected, LOOPBACK, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may_lie: bool = False) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE):
                if may_lie and self.lying.is_set() and self._draw.random() < SHARE:
                    self.changed += 1
                    piece = self._change(piece)
                    if not piece:
                        return
                writer.write(piece)
                await writer.drain()

    def _change(self, piece: bytes) -> bytes:
        """Change one thing; empty: break the connection off."""
        draw, kind = self._draw, self._draw.randrange(8)
        head, end, body = piece.partition(b"\r\n\r\n")
        if kind == 0 or not piece.startswith(b"HTTP/1.1 "):
            at = draw.randrange(len(piece))
            return piece[:at] + bytes([draw.randrange(256)]) + piece[at + draw.randrange(2) :]
        if kind == 1:
            return b"HTTP/1.1 " + draw.choice(_STATUSES) + piece[12:]
        if kind == 2:
            return head + b"\r\n" + draw.choice(_HEADERS) + end + body
        if kind == 3 and body:
            at = draw.randrange(len(body))
            return head + end + body[:at] + bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9))) + body[at + 1 :]
        if kind == 4:
            return head + end + body + draw.randbytes(draw.choice((1, 100, 10_000)))
        if kind == 5:
            lines = head.split(b"\r\n")
            del lines[draw.randrange(len(lines))]
            return b"\r\n".join(lines) + end + body
        if kind == 6:
            return piece[: draw.randrange(len(piece))]
        return b""
