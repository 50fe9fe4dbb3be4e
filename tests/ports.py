"""Ports for nodes that are ended and started again: nobody else on this machine takes them in the meantime.

A port that the kernel chose (`bind` to 0) lies where it also takes the local ports of connections from. Whoever closes such a
port, be it until the node starts or while the node is down, may find it taken; the node then never starts.
"""

from __future__ import annotations

import socket
from itertools import cycle
from pathlib import Path
from typing import Protocol

LOOPBACK = "127.0.0.1"
FIRST = 14_000  # below what Linux gives to connections, which begins at 32768
BLOCK = 200  # ports for one process: a port comes back after so many others


class _Block:
    """Ports that one process of tests has for itself. The name of a socket is the lock: it goes with the process."""

    def __init__(self) -> None:
        end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for first in range(FIRST, end - BLOCK, BLOCK):
            try:
                self._lock.bind(f"\0dfc-tests-ports-{first}")
            except OSError:
                continue
            self._ports = cycle(range(first, first + BLOCK))
            return
        raise AssertionError(f"all blocks of ports from {FIRST} to {end} are taken")

    def next(self) -> int:
        for port, _ in zip(self._ports, range(BLOCK), strict=False):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((LOOPBACK, port))
                except OSError:
                    continue
            return port
        raise AssertionError("all ports of this process are in use")


_block: _Block | None = None


def free_ports(count: int) -> list[int]:
    """Different ports of this process that nobody uses now."""
    global _block
    _block = _block or _Block()
    return [_block.next() for _ in range(count)]


def free_port() -> int:
    """A port of this process that nobody uses now."""
    return free_ports(1)[0]


class Network(Protocol):
    """Where nodes are, and by what they reach each other."""

    def host_of(self, name: str) -> str:
        """The address that a node listens at."""

    def url_for_nodes(self, name: str, port: int) -> str:
        """By what other nodes reach one that listens at a port."""

    def command(self, name: str) -> list[str]:
        """What the command that starts a node begins with."""

    def started(self, name: str, pid: int) -> None:
        """A node was started."""


class Loopback:
    """Everything on one address."""

    def host_of(self, name: str) -> str:
        return LOOPBACK

    def url_for_nodes(self, name: str, port: int) -> str:
        return f"http://{LOOPBACK}:{port}"

    def command(self, name: str) -> list[str]:
        return []

    def started(self, name: str, pid: int) -> None:
        pass
