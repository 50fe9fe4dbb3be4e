"""Objects that nobody changes: they are listed and read all the time, and in the end are what they were."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from failures.found import Found
from failures.kills import check_replicas
from failures.nodes import Nodes
from failures.writers import Writer, final_check


@dataclass(frozen=True)
class Rounds:
    """How often something happens, under how much."""

    rounds: int = 20
    objects: int = 1000
    size: int = 5_000
    writers: int = 6
    sizes: tuple[int, int] = (1_000, 300_000)
    targets: int = 3
    down_after_s: float = 4.0


def fill(nodes: Nodes, bucket: str, objects: int, size: int, seed: int) -> dict[str, bytes]:
    """Objects that nobody changes."""
    bodies = {f"f{number:05}": random.Random(f"{seed} {number}").randbytes(size) for number in range(objects)}
    with httpx.Client(timeout=60, params={"relay": "1"}, verify=False) as http, ThreadPoolExecutor(8) as threads:

        def put(name: str) -> None:
            answer = http.put(f"{nodes.url}/v1/objects/{bucket}/{name}", content=bodies[name])
            assert answer.status_code == 201, answer.text

        list(threads.map(put, bodies))
    return bodies


class Lister(threading.Thread):
    """Lists what nobody changes, and reads some of it, until `stopping` is set."""

    def __init__(self, url: str, bucket: str, names: list[str]) -> None:
        super().__init__(name="lister", daemon=True)
        self.stopping = threading.Event()
        self.listings = self.refused = 0
        self.problems: list[str] = []
        self._url, self._names = f"{url}/v1/buckets/{bucket}/objects", names

    def run(self) -> None:
        with httpx.Client(timeout=60, verify=False) as http:
            while not self.stopping.is_set():
                found = self._list(http)
                if found is None:
                    self.refused += 1
                    time.sleep(0.2)
                    continue
                self.listings += 1
                if found != self._names:
                    lost, more = set(self._names) - set(found), len(found) - len(set(found))
                    self.problems.append(f"a listing lacks {len(lost)} names, such as {sorted(lost)[:3]}, and doubles {more}")

    def _list(self, http: httpx.Client) -> list[str] | None:
        """All names, page by page; None: not answered now."""
        names: list[str] = []
        after = ""
        while True:
            try:
                answer = http.get(self._url, params={"prefix": "f", "limit": 300, "start_after": after})
            except httpx.HTTPError:
                return None
            if answer.status_code != 200:
                return None
            page = [each["name"] for each in answer.json()["objects"]]
            names += page
            if len(page) < 300:
                return names
            after = page[-1]


@contextmanager
def under_load(nodes: Nodes, bucket: str, names: list[str], writers: list[Writer], found: Found) -> Iterator[None]:
    """Have them write, and list these names, for so long; what that came to."""
    lister = Lister(nodes.url, bucket, names)
    threads: list[Writer | Lister] = [*writers, lister]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.stopping.set()
    for thread in threads:
        thread.join(60)
    for writer in writers:
        found.counts.update(writer.counts)
        found.problems += writer.problems
    found.problems += lister.problems
    found.counts["listings"], found.counts["listings refused"] = lister.listings, lister.refused


def under_rounds(
    nodes: Nodes,
    bucket: str,
    plan: Rounds,
    seed: int,
    found: Found,
    say: Callable[[str], None],
    one: Callable[[], None],
    copies: int = 2,
) -> tuple[list[Writer], dict[str, bytes]]:
    """Start all, fill a bucket, and go through all rounds of a plan under load; its writers, and what nobody has changed."""
    nodes.start_all()
    nodes.ask(f"/v1/buckets/{bucket}", "PUT", b'{"copies": %d}' % copies)
    fixed = fill(nodes, bucket, plan.objects, plan.size, seed)
    writers = [Writer(nodes.url, bucket, number, seed, plan.sizes) for number in range(plan.writers)]
    with under_load(nodes, bucket, sorted(fixed), writers, found):
        for number in range(plan.rounds):
            one()
            if (number + 1) % 5 == 0:
                say(f"{number + 1} of {plan.rounds} rounds, {len(found.problems)} problems")
    return writers, fixed


def check_all(nodes: Nodes, bucket: str, writers: list[Writer], fixed: dict[str, bytes], copies: int = 2) -> list[str]:
    """What is wrong in the end with what was written, with what nobody has changed, and with copies."""
    return [*final_check(nodes.url, bucket, writers), *check_fixed(nodes, bucket, fixed), *check_replicas(nodes, copies)]


def check_fixed(nodes: Nodes, bucket: str, bodies: dict[str, bytes]) -> list[str]:
    """What nobody has changed is as it was."""
    with httpx.Client(timeout=60, params={"relay": "1"}, verify=False) as http, ThreadPoolExecutor(4) as threads:

        def read(name: str) -> Any:
            answer = http.get(f"{nodes.url}/v1/objects/{bucket}/{name}")
            return answer.content if answer.status_code == 200 else answer.status_code

        found = dict(zip(bodies, threads.map(read, bodies), strict=True))
    return [f"{name} is not what it was" for name in bodies if found[name] != bodies[name]]


def stored_bytes(nodes: Nodes, without: str = "") -> int:
    """The bytes of objects that the running targets have stored since they were started."""
    return int(sum(metrics(nodes, "dfc_disk_put_bytes_total", without)))


def metrics(nodes: Nodes, name: str, without: str = "") -> list[float]:
    """A metric of each disk."""
    return [
        float(line.rpartition(" ")[2])
        for target in nodes.targets
        if target != without
        for line in httpx.get(f"{nodes.url_of(target)}/metrics", timeout=60).text.splitlines()
        if line.startswith(name + "{")
    ]
