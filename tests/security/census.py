"""What a running cluster holds open and what lies on its disks: for tests that nothing is left behind.

A node's descriptors are told apart by what they are. Connections of clients, blobs, temporary files and pipes must be gone
after a test; connections between nodes are pooled, so there may be as many as were ever needed at the same time.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from harness import Cluster, open_files, wait_for

_LISTEN = "0A"


def _tcp_sockets() -> dict[str, tuple[int, int]]:
    """inode → (local port, remote port) of all TCP sockets that are not listening."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != _LISTEN:
                found[fields[9]] = (int(fields[1].rpartition(":")[2], 16), int(fields[2].rpartition(":")[2], 16))
    return found


@dataclass(frozen=True)
class Holding:
    """What one node holds. `clients`: connections of others than nodes; `files`: blobs and temporary files."""

    clients: int
    files: tuple[str, ...]
    pipes: int
    nodes: int
    rest: Counter[str]
    threads: int

    def excess(self, base: Holding, threads_max: int) -> str:
        """What is over the baseline; empty when nothing is."""
        over = []
        if self.clients:
            over.append(f"{self.clients} connections of clients")
        if self.files:
            over.append(f"files {self.files}")
        if self.pipes > base.pipes:
            over.append(f"{self.pipes} pipe ends instead of {base.pipes}")
        if self.nodes > base.nodes:
            over.append(f"{self.nodes} connections to nodes instead of {base.nodes}")
        if more := self.rest - base.rest:
            over.append(f"descriptors {dict(more)}")
        if self.threads > threads_max:
            over.append(f"{self.threads} threads instead of at most {threads_max}")
        return ", ".join(over)


@dataclass
class Census:
    """Of the nodes of a cluster. `pool_threads` may be made beyond those at the start, `spare` connections between nodes."""

    cluster: Cluster
    pool_threads: int
    spare: int = 8  # pooled: as many as tests need at the same time; attacks that could leave one are made more often
    base: dict[str, Holding] = field(default_factory=dict)
    base_threads: dict[str, int] = field(default_factory=dict)
    ports: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        urls = [self.cluster.url, *(node["url"] for node in self.cluster.map()["nodes"])]
        self.ports = frozenset(urlsplit(url).port or 0 for url in urls)
        self.base_threads = {name: holding.threads for name, holding in self.take().items()}

    def take(self) -> dict[str, Holding]:
        """What every node holds now."""
        tcp = _tcp_sockets()
        descriptors = {name: open_files(pid) for name, pid in self.cluster.children().items()}
        sockets = [_inode(target) for targets in descriptors.values() for target in targets if target.startswith("socket:")]
        of_nodes = {tcp[inode][0] for inode in sockets if inode in tcp}
        return {name: self._holding(name, targets, tcp, of_nodes) for name, targets in descriptors.items()}

    def _holding(self, name: str, targets: list[str], tcp: dict[str, tuple[int, int]], of_nodes: set[int]) -> Holding:
        clients = nodes = pipes = 0
        files, rest = [], Counter[str]()
        for target in targets:
            place = tcp.get(_inode(target)) if target.startswith("socket:") else None
            if place is not None:
                if place[0] in self.ports and place[1] not in of_nodes:
                    clients += 1
                else:
                    nodes += 1
            elif target.startswith("pipe:"):
                pipes += 1
            elif target.endswith((".idx", ".idx (deleted)")):
                pass  # kept open, as many as were needed; a file that was put in the place of one does not close it
            elif "/objects/" in target or "/temporary/" in target or "(deleted)" in target:
                files.append(target)
            elif not target.endswith(("/catalog.sqlite", "/catalog.sqlite-wal")):  # kept open, as many as were needed
                rest[target if target.startswith("/") else target.partition(":")[0]] += 1
        threads = len(os.listdir(f"/proc/{self.cluster.children()[name]}/task"))
        return Holding(clients, tuple(files), pipes, nodes, rest, threads)

    def set_base(self) -> None:
        """Remember what is held now, once no client is there."""
        try:
            self.base = wait_for(self._quiet, "a cluster without clients")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.take()}") from None

    def _quiet(self) -> dict[str, Holding]:
        now = self.take()
        return {} if any(holding.clients or holding.files for holding in now.values()) else now

    def excess(self, *, with_clients: bool = True) -> list[str]:
        found = []
        for name, holding in self.take().items():
            if not with_clients:
                holding = replace(holding, clients=0, files=(), pipes=0, nodes=0)
            limit = self.base_threads[name] + self.pool_threads
            base = self.base[name]
            allowed = Holding(0, (), base.pipes, base.nodes + self.spare, base.rest, base.threads)
            if over := holding.excess(allowed, limit):
                found.append(f"{name}: {over}")
        return found

    def has_no_clients(self) -> bool:
        return not any(holding.clients for holding in self.take().values())

    def assert_settled(self, *, with_clients: bool = True) -> None:
        """Everything that a test took is given back, now or a moment later; but for what clients hold that are still there."""
        over: list[str] = []

        def settled() -> bool:
            over[:] = self.excess(with_clients=with_clients)
            return not over

        try:
            # Nodes keep idle connections to each other for 30 s, and look at that every 30 s: as many as were needed at a time.
            wait_for(settled, "descriptors, connections and threads to be given back", timeout_s=75)
        except AssertionError as error:
            raise AssertionError(f"{error}: {over}") from None

    def kept(self) -> set[str]:
        """What is stored, once no earlier upload is under way: the blob of one that an earlier test gave up will go."""
        found: set[str] = set()

        def quiet() -> bool:
            found.clear()
            found.update(self.stored())
            return not any(holding.files for holding in self.take().values()) and self.stored() == found

        wait_for(quiet, "uploads of earlier tests to be over")
        return found

    def stored(self) -> set[str]:
        """Every file below objects/, temporary/, orphans/ and damaged/ of all disks."""
        return stored_files(self.cluster.directory)


def stored_files(directory: Path) -> set[str]:
    found = set()
    for disk in directory.glob("target-*/disk-*"):
        for folder in ("objects", "temporary", "orphans", "damaged"):
            for parent, _, names in os.walk(disk / folder):
                found.update(os.path.join(parent, name) for name in names)
    return found


def _inode(target: str) -> str:
    """Of `socket:[12345]`."""
    return target[8:-1]


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
