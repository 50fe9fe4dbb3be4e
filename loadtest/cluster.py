"""A DFC cluster of our own for a benchmark or demo: `dfc serve` in a child process, and what its map says."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.addresses import Address, parse_base_url
from loadtest.connection import TIMEOUT_S, Connection
from loadtest.processes import Child, listener_pid, running
from loadtest.scenarios import expect

READY_S = 60.0
READY_LINE = re.compile(rb"DFC is ready at (http://[^\s/]+)")


@dataclass(slots=True)
class Cluster:
    """A running `dfc serve`: `url` is the proxy's, `targets` the base URLs of the targets, in the order of their names."""

    url: str
    child: Child
    directory: Path
    targets: list[str] = field(default_factory=list)

    @property
    def address(self) -> Address:
        return parse_base_url(self.url, allow_remote=False)

    def connect(self, url: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Connection:
        """A connection to the proxy, or to the node with this base URL."""
        return Connection(parse_base_url(url or self.url, allow_remote=False), timeout_s=timeout_s)

    def map(self) -> dict[str, Any]:
        """`GET /v1/cluster`, decoded."""
        return dict(self.ask("GET", "/v1/cluster"))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the proxy, and decode its answer; HttpFailure if it is an error."""
        sent = None if body is None else json.dumps(body).encode()
        with contextlib.closing(self.connect()) as connection:
            return expect(connection.request(method, path, body=sent), 200, 201, 202).json()

    def make_bucket(self, name: str, durability: str, copies: int | None = None) -> None:
        """Create a bucket; HttpFailure when it exists with other settings. `copies`: by default what the cluster gives."""
        self.ask("PUT", f"/v1/buckets/{name}", {"durability": durability} | ({} if copies is None else {"copies": copies}))

    def pid_of(self, url: str) -> int:
        """The process that serves this base URL."""
        return listener_pid(parse_base_url(url, allow_remote=False).port, self.child.pid)


def dfc_command(*arguments: str) -> list[str]:
    """The `dfc` of this interpreter's environment, or its module when the script is not installed."""
    script = Path(sys.executable).with_name("dfc")
    return [str(script), *arguments] if script.exists() else [sys.executable, "-m", "dfc.cli.main", *arguments]


def serve_command(directory: Path, targets: int, disks: int) -> list[str]:
    return dfc_command("serve", "--dir", str(directory), "--port", "0", "--targets", str(targets), "--disks", str(disks))


@contextlib.contextmanager
def cluster(
    directory: Path,
    *,
    targets: int = 1,
    disks: int = 1,
    settings: Mapping[str, str] | None = None,
    source: Path | None = None,
) -> Iterator[Cluster]:
    """Run `dfc serve` on a free port for the length of a `with` block.

    `settings` are environment variables for its nodes. `source` is the source tree whose code they run, by default our own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    argv = serve_command(directory, targets, disks)
    env = {"PYTHONUNBUFFERED": "1", **({"PYTHONPATH": str(source)} if source else {}), **(settings or {})}
    with running(argv, directory.with_suffix(".log"), env=env, cwd=source, quiet_stdout=False) as child:
        found = Cluster(_wait_for_url(child), child, directory)
        nodes = sorted(found.map()["nodes"], key=lambda node: str(node["id"]))
        found.targets = [node["url"] for node in nodes if node["role"] == "target"]
        if len(found.targets) != targets:
            raise child.failure(f"{len(found.targets)} of {targets} targets in the map")
        yield found


def _wait_for_url(child: Child) -> str:
    """The URL in the line that `dfc serve` prints when all its nodes are ready. Later output is read and dropped."""
    found: list[str] = []
    ready = threading.Event()

    def read() -> None:
        with child.log.open("ab") as log, contextlib.suppress(ValueError):
            for line in child.stdout:
                log.write(line)
                log.flush()
                if not found and (match := READY_LINE.search(line)):
                    found.append(match[1].decode())
                    ready.set()

    threading.Thread(target=read, name="dfc-output", daemon=True).start()
    child.wait_until(ready.is_set, READY_S, "the ready line of dfc serve")
    return found[0]
