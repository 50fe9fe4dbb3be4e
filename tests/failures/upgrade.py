"""The nodes of a cluster, which may be of an older version, are restarted under writers: the proxy first, then one target after
the other. Then it gets a second proxy, with the registry moved to etcd, and goes back to one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from etcd_process import etcd

from dfc.registry.gateway import EtcdPlace
from dfc.registry.offline import move_to_etcd, move_to_file
from failures.fixed import check_all, fill, under_load
from failures.found import Found, looked_into
from failures.kills import until_at_replica
from failures.nodes import PROXY, ROOT, Nodes
from failures.writers import Writer

BUCKET = "upgrade"
PREFIX = "/upgrade/"
CALM_S = 90.0


@dataclass(frozen=True)
class Plan:
    """From which revision of this repository, empty: from this one, and how much there is."""

    revision: str = ""
    objects: int = 500
    size: int = 5_000
    writers: int = 6
    sizes: tuple[int, int] = (1_000, 300_000)
    targets: int = 3
    down_after_s: float = 4.0


def why_not(revision: str) -> str:
    """Why there is no such revision here; empty if there is one."""
    if not revision:
        return ""
    done = subprocess.run(["git", "cat-file", "-e", f"{revision}:dfc"], cwd=ROOT, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"the code of {revision} is not here: {done.stderr.strip()}"


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Restart everything, then look at everything."""
    found, old = Found(), directory / "old"
    settings = {"down_after_s": plan.down_after_s, "hold_s": 15, "drain_timeout_s": 5}
    nodes = Nodes(directory / "nodes", plan.targets, 1, **settings)
    if plan.revision:
        _unpack(plan.revision, old)
        nodes.code = dict.fromkeys((*nodes.proxies, *nodes.targets), old)
    with etcd(1, directory / "etcd") as registry, looked_into(nodes, found):
        nodes.start_all()
        nodes.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": 2}')
        fixed = fill(nodes, BUCKET, plan.objects, plan.size, seed)
        writers = [Writer(nodes.url, BUCKET, number, seed, plan.sizes) for number in range(plan.writers)]
        with under_load(nodes, BUCKET, sorted(fixed), writers, found):
            for name in (PROXY, *nodes.targets):
                _restart(nodes, name, found)
                say(f"{name} is restarted, {len(found.problems)} problems")
            _to_etcd(nodes, registry.urls, found)
            say(f"the registry is in etcd, {len(found.problems)} problems")
            time.sleep(5)
            _back(nodes, registry.urls, found)
            say(f"the registry is in a file, {len(found.problems)} problems")
        nodes.until_calm(CALM_S)
        until_at_replica(nodes, 2, CALM_S)
        found.problems += check_all(nodes, BUCKET, writers, fixed)
    return found


def _unpack(revision: str, directory: Path) -> None:
    """The code of a revision as a directory to import it from."""
    archive = subprocess.run(["git", "archive", revision, "dfc"], cwd=ROOT, capture_output=True, check=True).stdout
    directory.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")


def _restart(nodes: Nodes, name: str, found: Found) -> None:
    begun = time.monotonic()
    nodes.kill(name, signal.SIGTERM)
    nodes.code.pop(name, None)
    nodes.start(name)
    nodes.until(lambda: nodes.is_ready(name) and nodes.is_serving(nodes.targets), f"{name} to serve again", CALM_S)
    nodes.until(lambda: _is_ok(nodes), f"all to be well after the restart of {name}", CALM_S)
    found.counts["ms of restarts"] += int(1000 * (time.monotonic() - begun))
    found.counts["nodes restarted"] += 1


def _is_ok(nodes: Nodes) -> bool:
    with suppress(OSError, ValueError):
        return bool(nodes.ask("/v1/cluster/status")["health"] == "ok")
    return False


def _to_etcd(nodes: Nodes, urls: list[str], found: Found) -> None:
    nodes.kill(PROXY, signal.SIGTERM)
    moved = asyncio.run(move_to_etcd(str(nodes.place_of(PROXY)), EtcdPlace(urls, PREFIX)))
    found.counts["buckets moved"] += moved.buckets
    nodes.set(etcd_urls=",".join(urls), etcd_prefix=PREFIX)
    nodes.start(PROXY)
    second = nodes.add_proxy()
    nodes.start(second)
    nodes.until(lambda: nodes.is_ready(second) and _is_ok(nodes), "two proxies to serve", CALM_S)


def _back(nodes: Nodes, urls: list[str], found: Found) -> None:
    for name in list(nodes.proxies):
        nodes.kill(name, signal.SIGTERM)
    moved = asyncio.run(move_to_file(str(nodes.place_of(PROXY)), EtcdPlace(urls, PREFIX)))
    found.counts["buckets moved"] += moved.buckets
    nodes.proxies = [PROXY]
    nodes.set(etcd_urls="")
    nodes.start(PROXY)
    nodes.until(lambda: _is_ok(nodes), "one proxy to serve", CALM_S)
