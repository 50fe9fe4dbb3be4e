"""Links between nodes of one address: connections between them go through a process that holds, resets or delays them.

A node cannot be told by its address here, so it is told by its process: the kernel says whose the other end of a connection is.
Run as a program it takes its orders, one JSON object a line, from standard input, and answers each with a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from ports import LOOPBACK

from failures.links import SLOW_S, Link, LinkState

_PIECE: Final = 64 * 1024
_HELD_S_MAX: Final = 60.0

# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_HEADER_SIZE: Final = 16
_ALL_STATES: Final = 0xFFFFFFFF
_ANY_COOKIE: Final = 0xFFFFFFFFFFFFFFFF
_INODE_AT: Final = _HEADER_SIZE + 68


class Forwarder:
    """A network, as `Nodes` wants it, that has bad links. The forwarding is done by another process."""

    kind = "a forwarder"

    def __init__(self) -> None:
        command = [sys.executable, "-m", "failures.forwarder"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # where this one has found its modules
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self._ports: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def host_of(self, name: str) -> str:
        return LOOPBACK

    def url_for_nodes(self, name: str, port: int) -> str:
        if (name, port) not in self._ports:
            self._ports[name, port] = self._order({"listen": [name, port]})
        return f"http://{LOOPBACK}:{self._ports[name, port]}"

    def command(self, name: str) -> list[str]:
        return []

    def started(self, name: str, pid: int) -> None:
        self._order({"started": [name, pid]})

    def set(self, links: dict[Link, LinkState | None]) -> None:
        """Change the states of links; None: whole again."""
        self._order({"links": [[*link, state] for link, state in links.items()]})

    def _order(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the forwarder has ended"
        return json.loads(answer)


class _Forwarding:
    """What the process does."""

    def __init__(self) -> None:
        self._links: dict[Link, LinkState] = {}
        self._changed = asyncio.Event()
        self._pids: dict[str, int] = {}
        self._open: dict[asyncio.StreamWriter, Link] = {}
        self._servers: list[asyncio.Server] = []  # kept from being collected

    async def carry_out(self, order: dict[str, Any]) -> Any:
        if "listen" in order:
            return await self._listen(*order["listen"])
        if "started" in order:
            name, pid = order["started"]
            self._pids[name] = pid
        for of, to, state in order.get("links", ()):
            if state is None:
                self._links.pop((of, to), None)
            else:
                self._links[of, to] = state
        self._changed.set()
        self._changed = asyncio.Event()
        for writer, (of, to) in list(self._open.items()):
            if "refused" in (self._links.get((of, to)), self._links.get((to, of))):
                _reset(writer)
        return None

    async def _listen(self, name: str, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await self._relay(name, port, reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, LOOPBACK, 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _relay(self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = _name_of(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1], self._pids)
        if caller is None or "refused" in (self._links.get((caller, name)), self._links.get((name, caller))):
            _reset(writer)
            return
        self._open[writer] = (caller, name)
        try:
            for link in ((caller, name), (name, caller)):  # a connection takes packets both ways
                await self._passed(link)
            upper, lower = await asyncio.open_connection(LOOPBACK, port)
            self._open[lower] = (caller, name)
            try:
                await _first(self._copy(reader, lower, (caller, name)), self._copy(upper, writer, (name, caller)))
            finally:
                del self._open[lower]
                lower.close()
        finally:
            del self._open[writer]

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link) -> None:
        while piece := await reader.read(_PIECE):
            await self._passed(link)
            writer.write(piece)
            await writer.drain()
        await self._passed(link)

    async def _passed(self, link: Link) -> None:
        """Wait for as long as a packet takes."""
        state = self._links.get(link)
        if state == "slow":
            await asyncio.sleep(SLOW_S)
        while self._links.get(link) == "held":
            try:
                await asyncio.wait_for(self._changed.wait(), _HELD_S_MAX)
            except TimeoutError as error:
                raise OSError("nothing has passed for too long") from error


async def _first(*works: Any) -> None:
    """Until the first of them ends: a connection is at its end when one of its sides is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _name_of(port: int, server_port: int, pids: dict[str, int]) -> str | None:
    """Which node has the end of a connection at `port` whose other end is at `server_port`."""
    wanted = f"socket:[{_inode_of(port, server_port)}]"
    return next((name for name, pid in pids.items() if wanted in _files_of(pid)), None)


def _inode_of(port: int, server_port: int) -> int:
    """What the kernel knows a socket by; 0 if there is none such. It is asked for this one (sock_diag(7)): the table in
    /proc/net/tcp has a line for every connection that any program has ended within a minute, and takes 100 ms to read then."""
    host = socket.inet_aton(LOOPBACK)
    ends = struct.pack("!HH16s16s", port, server_port, host, host) + struct.pack("=IQ", 0, _ANY_COOKIE)
    request = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(10)
        kernel.send(struct.pack("=IHHII", _HEADER_SIZE + len(request), _SOCK_DIAG_BY_FAMILY, 1, 0, 0) + request)
        answer = kernel.recv(_PIECE)
    (kind,) = struct.unpack_from("=H", answer, 4)
    return int(struct.unpack_from("=I", answer, _INODE_AT)[0]) if kind == _SOCK_DIAG_BY_FAMILY else 0


def _files_of(pid: int) -> Iterable[str]:
    with suppress(OSError):
        for each in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{each}")


async def _main() -> None:
    forwarding, loop = _Forwarding(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await forwarding.carry_out(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
