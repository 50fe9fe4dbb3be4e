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
        self.server: asyncio.Server
        self.over = asyncio.Event()

    async def __aenter__(self) -> Upstream:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.over.set()
        self.server.close()
        await asyncio.sleep(0)  # what waited for the end ends

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

    async def request(self, reader: asyncio.StreamReader) -> None:
        """A head, and the body if its length is known."""
        for line in (await self.head(reader)).lower().split("\r\n"):
            if line.startswith("content-length: "):
                await reader.readexactly(int(line.partition(" ")[2]))


def answer(status: str = "200 OK", body: bytes = b"ok", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def once(upstream: Upstream, reply: bytes) -> Script:
    """Read the head of a request, say this, and end the connection."""

    async def script(reader, writer):
        await upstream.head(reader)
        writer.write(reply)

    return script


def always(upstream: Upstream, reply: bytes) -> Script:
    """Answer every request of a connection."""

    async def script(reader, writer):
        while True:
            await upstream.request(reader)
            writer.write(reply)

    return script
