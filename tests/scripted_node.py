"""A node whose connections follow the scripts of a test: it answers early, breaks off, closes or keeps silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Upstream:
    """A node whose connections follow scripts, one after the other; the last script is used again and again."""

    def __init__(self) -> None:
        self.scripts: list[Script] = []
        self.connections = 0
        self.heads: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.server: asyncio.Server | None = None
        self.over = asyncio.Event()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def head(self, reader: asyncio.StreamReader) -> str:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.heads.append(head)
        return head


def answer(status: str = "200 OK", body: bytes = b"ok", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def always(upstream: Upstream, reply: bytes) -> Script:
    """Answer every request of a connection, bodies of known length taken first."""

    async def script(reader, writer):
        while True:
            head = await upstream.head(reader)
            for line in head.lower().split("\r\n"):
                if line.startswith("content-length: "):
                    await reader.readexactly(int(line.partition(" ")[2]))
            writer.write(reply)

    return script
