"""A target is killed, or told to stop, and does not come back: how long reads and writes of its objects take then."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from dfc.client import Client
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles
from failures.found import Found, looked_into
from failures.kills import check_replicas
from failures.nodes import Nodes

BUCKET = "failover"
TIMEOUT_S = 60.0
WRITERS = 4
LARGE_EVERY, LARGE_BYTES, SMALL_BYTES = 4, 3_000_000, 2_000


@dataclass(frozen=True)
class Plan:
    """How many objects there are, how targets end, and how long a read and a write of an object may take then: (reads, writes),
    in seconds. `leave_s` means something only if it is below `down_after_s`: one that is told to stop says so, and nobody waits
    until it is silent for so long."""

    names: int = 120
    down_after_s: float = 4.0
    kill_s: tuple[float, float] = (1.0, 6.0)  # after SIGKILL; a write waits until the target is marked down
    leave_s: tuple[float, float] = (1.0, 1.0)  # after SIGTERM
    signals: tuple[signal.Signals, ...] = (signal.SIGKILL, signal.SIGTERM)
    targets: int = 3


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """End one target after the other, each by another signal, when all is calm again."""
    found = Found()
    nodes = Nodes(directory, plan.targets, 1, down_after_s=plan.down_after_s, hold_s=15, drain_timeout_s=5)
    with looked_into(nodes, found):
        nodes.start_all()
        nodes.ask(f"/v1/buckets/{BUCKET}", "PUT", b'{"copies": 2}')
        bodies = {f"n{number}": _body(seed, number) for number in range(plan.names)}
        with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as http:
            for name, body in bodies.items():
                _put(http, nodes, name, body, found)
        names = random.Random(seed).sample(nodes.targets, len(plan.signals))
        for name, number in zip(names, plan.signals, strict=True):
            nodes.until_calm(60.0)
            most_s = plan.kill_s if number == signal.SIGKILL else plan.leave_s
            _end(nodes, name, number, most_s, bodies, found)
            nodes.start(name)
            nodes.until(lambda name=name: nodes.is_serving([name]), "it to be back")  # type: ignore[misc]
        nodes.until_calm(60.0)
        nodes.until(lambda: not nodes.handoffs(), "surplus rows to go", 60.0)
        found.problems += check_replicas(nodes, 2)
    return found


def _body(seed: int, number: int) -> bytes:
    size = LARGE_BYTES if number % LARGE_EVERY == 0 else SMALL_BYTES
    return random.Random(f"{seed} {number}").randbytes(size)


def _end(nodes: Nodes, name: str, number: int, most_s: tuple[float, float], bodies: dict[str, bytes], found: Found) -> None:
    """End a target, then read half of its objects by curl and by the client, and write the others, at once."""
    own = _objects_of(nodes, name)
    assert len(own) >= 4, f"{name} is the primary of {len(own)} objects"
    reads, writes = own[::2], own[1::2]
    how = signal.Signals(number).name
    client = Client(nodes.url)
    client.get(BUCKET, reads[0])  # it knows the map from before
    nodes.kill(name, number)
    with ThreadPoolExecutor(WRITERS + 1) as threads:
        slow = threads.submit(_read_all, nodes, client, reads, bodies, most_s[0], found, how)
        with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as http:

            def write(each: str) -> None:
                bodies[each] = bodies[each][::-1]
                took_s = _put(http, nodes, each, bodies[each], found)
                _note(found, f"write after {how}", each, took_s, most_s[1])

            list(threads.map(write, writes))
        slow.result()
    client.close()
    for each in own:  # no copy of a write is where it cannot be read
        assert _by_curl(nodes, each)[0] == bodies[each], f"{each}: other bytes"


def _objects_of(nodes: Nodes, name: str) -> list[str]:
    """The objects of which a target is the primary."""
    found = ClusterMap.decode(msgspec.json.encode(nodes.map()))
    bucket, placement = found.bucket(BUCKET), placement_of(found)
    assert bucket is not None
    own = {disk.id for node in found.nodes if node.advertise_url == nodes.url_of(name) for disk in node.disks}
    rows = sorted({row.name for row in nodes.rows() if row.bucket_id == bucket.id})
    return [each for each in rows if roles(placement, bucket.id, each).primary in own]


def _read_all(
    nodes: Nodes, client: Client, names: list[str], bodies: dict[str, bytes], most_s: float, found: Found, how: str
) -> None:
    for name in names:
        body, took_s = _by_curl(nodes, name)
        _check(found, f"read by curl after {how}", name, body == bodies[name])
        _note(found, f"read by curl after {how}", name, took_s, most_s)
        found.counts["reads by curl"] += 1
        begun = time.monotonic()
        body = client.get(BUCKET, name)
        _note(found, f"read by the client after {how}", name, time.monotonic() - begun, most_s)
        _check(found, f"read by the client after {how}", name, body == bodies[name])
        found.counts["reads by the client"] += 1


def _by_curl(nodes: Nodes, name: str) -> tuple[bytes, float]:
    """What curl gets through the proxy, and for how long it took. No error is made good: it asks once."""
    command = ["curl", "-s", "-S", "-f", "--max-time", str(TIMEOUT_S), f"{nodes.url}/{BUCKET}/{name}"]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"{name}: curl: {done.stderr.decode()}"
    return done.stdout, time.monotonic() - begun


def _put(http: httpx.Client, nodes: Nodes, name: str, body: bytes, found: Found) -> float:
    begun = time.monotonic()
    answer = http.put(f"{nodes.url}/v1/objects/{BUCKET}/{name}", content=body)
    took_s = time.monotonic() - begun
    assert answer.status_code in (200, 201), f"{name}: {answer.status_code} {answer.text[:200]}"
    _check(found, "full copies of a write", name, answer.json()["copies"] == 2)
    found.counts["writes"] += 1
    return took_s


def _check(found: Found, what: str, name: str, holds: bool) -> None:
    if not holds:
        found.problems.append(f"{name}: {what}: not so")


def _note(found: Found, what: str, name: str, took_s: float, most_s: float) -> None:
    """Remember the longest time, and whether it is too long."""
    key = f"ms at most, {what}"
    found.counts[key] = max(found.counts[key], round(1000 * took_s))
    if took_s > most_s:
        found.problems.append(f"{name}: {what} took {took_s:.2f} s, instead of {most_s:g}")
