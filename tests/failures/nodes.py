"""A cluster whose nodes are started, killed and paused one by one: no supervisor starts them again."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from harness import QUICK, starting
from ports import Loopback, Network, free_ports

PROXY = "proxy"
ROOT = Path(__file__).parents[2]
FORGETFUL = ROOT / "tests/forgetful"  # what makes nodes forget tombstones soon


class CatalogRow(NamedTuple):
    """An object on a disk; `rank` 255: its disk is no replica of it."""

    disk: str
    bucket_id: str
    name: str
    version: tuple[int, int]
    checksum: str
    rank: int


class Nodes:
    """Some proxies and targets, each a process on a port of its own, with `settings` as environment variables. At the end of a
    `with` block they are killed. What a node keeps is in `directory`, below its name, unless `places` has another directory for
    it. Targets are started without the disks that are in `left_out`. `forget_s`: nodes keep tombstones for so many seconds
    only. With several `proxies` the settings say where etcd is; `url` is that of the one that is asked."""

    def __init__(
        self,
        directory: Path,
        targets: int,
        disks: int,
        *,
        proxies: int = 1,
        network: Network | None = None,
        places: Mapping[str, Path] | None = None,
        forget_s: float | None = None,
        **settings: object,
    ) -> None:
        self.directory = directory
        self._network: Network = network or Loopback()
        self._places = dict(places or {})
        self._settings = {f"DFC_{name.upper()}": str(value) for name, value in settings.items()}
        if forget_s is not None:
            self._settings |= {"PYTHONPATH": f"{FORGETFUL}:{ROOT}", "KEEP_S": str(forget_s), "DFC_SYNC_RELAXED_S": "1"}
        self.left_out: set[Path] = set()
        self.code: dict[str, Path] = {}  # of nodes that run another version: where it is imported from
        self.targets = [f"target-{number}" for number in range(targets)]
        self._disks = disks
        self.proxies = [PROXY, *(f"{PROXY}-{number}" for number in range(1, proxies))]
        self._ports = dict(zip((*self.proxies, *self.targets), free_ports(targets + proxies), strict=True))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = self.url_of(PROXY)
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def set(self, **settings: object) -> None:
        """Change settings of nodes that are started from now on."""
        self._settings |= {f"DFC_{name.upper()}": str(value) for name, value in settings.items()}

    def add_proxy(self) -> str:
        """A further proxy, which is not started yet; its name."""
        name = f"{PROXY}-{len(self.proxies)}"
        self.proxies.append(name)
        (port,) = free_ports(1)
        self._ports.setdefault(name, port)
        return name

    def start_all(self) -> None:
        """Start every node that does not run, and wait until all serve."""
        started = [name for name in (*self.proxies, *self.targets) if name not in self.processes]
        with starting():
            for name in started:
                self.start(name)
            # A target that was down for a moment only is still up in the map before it has registered: it is asked itself.
            self.until(lambda: all(self.is_ready(name) for name in started), "all nodes to have started")
            self.until(lambda: self.is_serving(self.targets), "all nodes to serve")

    def start(self, name: str) -> None:
        """Start a node; it serves some time later."""
        host, port = self._network.host_of(name), self._ports[name]
        command = [*self._network.command(name), sys.executable, "-m", "dfc", name.partition("-")[0]]
        command += ["--host", host, "--port", str(port), "--dir", str(self.place_of(name))]
        command += ["--url", self._network.url_for_nodes(name, port), "--advertise-url", self.url_of(name)]
        if name not in self.proxies:
            proxy_url = ",".join(self._network.url_for_nodes(each, self._ports[each]) for each in self.proxies)
            disks = [str(disk) for disk in self.disks_of(name) if disk not in self.left_out]
            command += ["--disks", ",".join(disks), "--proxy-url", proxy_url]
        environment = {**os.environ, **QUICK, "DFC_EXPECTED_TARGETS": str(len(self.targets)), **self._settings}
        if name in self.code:
            environment["PYTHONPATH"] = str(self.code[name])
        with open(self.log_of(name), "ab") as log:
            # `python -m` imports from the working directory first, which must not hold the code of this version then.
            elsewhere = self.directory if name in self.code else None
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=elsewhere)
        self._network.started(name, self.processes[name].pid)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a node by a signal, and wait for its end."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        process.wait(60)

    def signal(self, name: str, number: int) -> None:
        """Send a running node a signal."""
        self.processes[name].send_signal(number)

    def stop_all(self) -> None:
        """End all nodes in good order, the proxies last."""
        for name in (*self.targets, *self.proxies):
            if name in self.processes:
                self.kill(name, signal.SIGTERM)

    def kill_all(self) -> None:
        """End all nodes, whatever they do."""
        for name in list(self.processes):
            self.kill(name)

    def place_of(self, name: str) -> Path:
        """The directory of all that a node keeps."""
        return self._places.get(name, self.directory / name)

    def disks_of(self, name: str) -> list[Path]:
        """The directories of a target's disks."""
        return [self.place_of(name) / f"disk-{number}" for number in range(self._disks)]

    def log_of(self, name: str) -> Path:
        """The file of a node's output."""
        return self.directory / f"{name}.log"

    def port_of(self, name: str) -> int:
        """The port of a node."""
        return self._ports[name]

    def url_of(self, name: str) -> str:
        """By what clients reach a node."""
        return f"http://{self._network.host_of(name)}:{self._ports[name]}"

    # --- questions

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, timeout_s: float = 30.0) -> Any:
        """The JSON that the proxy answers; OSError."""
        request = urllib.request.Request(self.url + path, body, method=method)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content = answer.read()
            return json.loads(content) if content else None

    def map(self) -> dict[str, Any]:
        """The cluster map."""
        found: dict[str, Any] = self.ask("/v1/cluster")
        return found

    def bucket_id(self, name: str) -> str:
        """The id of a bucket that exists."""
        return next(str(bucket["id"]) for bucket in self.map()["buckets"] if bucket["name"] == name)

    def is_ready(self, name: str) -> bool:
        """Whether a node itself says that it is ready."""
        with suppress(OSError, ValueError), urllib.request.urlopen(f"{self.url_of(name)}/v1/health", timeout=5) as told:
            return bool(json.load(told)["ready"])
        return False

    def is_serving(self, names: Iterable[str]) -> bool:
        """Whether the proxy is ready, and these targets are up with disks that are."""
        with suppress(OSError, ValueError):
            if self.ask("/v1/health")["ready"]:
                up = {node["advertise_url"] for node in self.map()["nodes"] if node["state"] == "up"}
                return {self.url_of(name) for name in names} <= up
        return False

    def until_calm(self, seconds: float = 20.0) -> None:
        """Wait until all is calm, and still is a moment later: what a node has just reported may be about to take effect."""
        begun_s = time.monotonic()
        self.until(self.is_calm, "all disks to have caught up", seconds)
        time.sleep(0.3)
        while not self.is_calm():
            self.until(self.is_calm, "all disks to have caught up", begun_s + seconds - time.monotonic())
            time.sleep(0.3)

    def is_calm(self) -> bool:
        """Whether all disks are up and in sync, and nothing is pending or hints on them."""
        with suppress(OSError, ValueError):
            disks = [disk for node in self.map()["nodes"] for disk in node["disks"]]
            states_are_calm = all(
                disk["state"] == "up" and not disk["down_step"] and not disk["out_of_sync_with"] for disk in disks
            )
            return states_are_calm and not any(self.count("pending")) and not any(self.count("hints"))
        return False

    def until(self, holds: Callable[[], bool], what: str, seconds: float = 90.0) -> float:
        """Wait; returns for how long. AssertionError."""
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            if holds():
                return time.monotonic() - begun
            time.sleep(0.1)
        raise AssertionError(f"waited {seconds:.0f} s in vain for {what}:\n{self._state()}")

    def _state(self) -> str:
        """What can be said of every node."""
        lines = []
        with suppress(OSError, ValueError):
            found = self.map()
            lines += [f"{node['id']}: {node['state']} {node['disks']}" for node in found["nodes"]]
            lines.append(f"moving: {[run for run in found['slices'] if run.get('to') is not None][:20]}")
            lines.append(f"jobs: {[(job['id'], job['state']) for job in self.ask('/v1/jobs')['jobs']][-5:]}")
        with suppress(sqlite3.Error):
            lines.append(f"pending {self.count('pending')}, hints {self.count('hints')}")
        for name, process in self.processes.items():
            said = self.log_of(name).read_bytes()[-2_000:].decode(errors="replace").splitlines()[-4:]
            lines += [f"{name}: exit code {process.poll()}, ready: {self.is_ready(name)}", *said]
        return "\n".join(lines)

    # --- catalogs

    def rows(self, since_us: int = 0) -> list[CatalogRow]:
        """Every object in every catalog, read past the targets; `since_us`: only those that were written since."""
        query = (
            "SELECT id, CAST(name AS TEXT), us, node, checksum, rank FROM objects JOIN buckets ON number = bucket"
            f" WHERE name NOT LIKE '.dfc/%' AND us >= {since_us}"
        )
        return [
            CatalogRow(self._label(disk), bucket, name, (us, node), checksum, rank)
            for disk in self._all_disks()
            for bucket, name, us, node, checksum, rank in _query(disk, query)
        ]

    def count(self, table: str) -> list[int]:
        """The number of rows of a table in each catalog."""
        return [_query(disk, f"SELECT count(*) FROM {table}")[0][0] for disk in self._all_disks()]

    def count_of(self, table: str, bucket_id: str) -> int:
        """The number of rows of a bucket in a table of all catalogs."""
        query = f"SELECT count(*) FROM {table} JOIN buckets ON number = bucket WHERE id = '{bucket_id}'"
        return sum(_query(disk, query)[0][0] for disk in self._all_disks())

    def totals(self) -> list[tuple[int, int]]:
        """How many objects are of each rank, in all catalogs: ranks in order, with the numbers."""
        found: Counter[int] = Counter()
        for disk in self._all_disks():
            found.update(dict(_query(disk, "SELECT rank, count(*) FROM objects GROUP BY rank")))
        return sorted(found.items())

    def handoffs(self) -> set[tuple[str, str, int]]:
        """The rows on disks that are no replicas of them: disk, name and version."""
        return {
            (str(disk), name, us)
            for disk in self._all_disks()
            for name, us in _query(disk, "SELECT CAST(name AS TEXT), us FROM objects WHERE rank = 255")
        }

    def sizes(self) -> dict[tuple[str, str, str, int, int], int]:
        """The size of each object on each disk: by disk, bucket id, name and version."""
        query = "SELECT id, CAST(name AS TEXT), us, node, size FROM objects JOIN buckets ON number = bucket"
        return {(str(disk), *row[:4]): row[4] for disk in self._all_disks() for row in _query(disk, query)}

    def _label(self, disk: Path) -> str:
        return next(f"{name}/{disk.name}" for name in self.targets if disk in self.disks_of(name))

    def _all_disks(self) -> list[Path]:
        return [disk for name in self.targets for disk in self.disks_of(name)]


def _query(disk: Path, query: str) -> list[Any]:
    path = disk / "catalog.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
        return database.execute(query).fetchall()
