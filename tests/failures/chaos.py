"""Everything at once: any node or member of etcd is killed, stopped for a while or told to end, while objects with one copy and
with two are written and read through all nodes, targets are drained and taken in again, and jobs run, some of them cancelled.

Nothing acknowledged is lost, torn, stale or back; all outputs of a job that has succeeded are there as it would have written
them undisturbed, and none of one that was cancelled.
"""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import xxhash
from etcd_process import Etcd, etcd

from failures.found import Found, looked_into
from failures.kills import check_replicas
from failures.nodes import Nodes
from failures.publishing import OUTPUTS, SAMPLE_BYTES, UNFINISHED, fill, job_of
from failures.writers import Writer, final_check

COPIES = (1, 2)  # of the buckets, each with writers of its own
AWAY_MAX = 2  # nodes and members of etcd at a time
CALM_S = 240.0
LEAST_A_MINUTE = {"put": 500, "get": 200, "outputs there": 12, "draining: begun": 0.1}
"""What must have happened for a run to mean anything."""
LOOK_S = 0.2


@dataclass(frozen=True)
class Plan:
    """How long, how many of everything, and for how long a victim is away or stands still."""

    seconds: float = 1200.0
    targets: int = 4
    proxies: int = 2
    members: int = 3
    writers: int = 4  # of each bucket
    sizes: tuple[int, int] = (200, 1_500_000)
    pause_s: tuple[float, float] = (0.5, 3.0)
    killed_s: tuple[float, float] = (0.0, 12.0)
    stopped_s: tuple[float, float] = (1.0, 20.0)
    down_after_s: float = 4.0
    job_s_max: float = 400.0
    cancel_share: float = 0.2
    least_a_minute: Mapping[str, float] = field(default_factory=lambda: LEAST_A_MINUTE)


class Roaming(Writer):
    """A writer that asks any node each time."""

    def __init__(self, urls: Sequence[str], bucket: str, number: int, seed: int, sizes: tuple[int, int]) -> None:
        super().__init__(urls[0], bucket, number, seed, sizes)
        self._urls = [f"{url}/v1/objects/{bucket}" for url in urls]

    def _ask(self, client: httpx.Client, method: str, name: str, content: bytes | None = None) -> httpx.Response:
        self._url = self._chance.choice(self._urls)
        return super()._ask(client, method, name, content)


class Asking:
    """Questions to whichever proxy answers."""

    def __init__(self, nodes: Nodes, chance: random.Random) -> None:
        self._nodes = nodes
        self._chance = chance

    def ask(self, path: str, method: str = "GET", body: object = None, timeout_s: float = 15.0) -> Any:
        """The answer of one of the proxies; OSError."""
        url = self._nodes.url_of(self._chance.choice(self._nodes.proxies))
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, content, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return json.loads(answer.read() or b"null")
        except http.client.HTTPException as error:
            raise OSError(f"an answer that was broken off: {error!r}") from error

    def until(self, holds: Callable[[], bool], seconds: float, stopping: threading.Event) -> bool:
        """Whether this comes true in time; what cannot be asked now may be so later."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stopping.is_set():
            with suppress(OSError, ValueError):
                if holds():
                    return True
            stopping.wait(LOOK_S)
        return False


class Beside(threading.Thread):
    """Something that goes on beside the writers, until `stopping` is set."""

    def __init__(self, name: str, nodes: Nodes, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._chance = random.Random(f"{name} {seed}")
        self._asking = Asking(nodes, self._chance)


class Jobs(Beside):
    """Runs one job after the other, and remembers how each ended."""

    def __init__(self, nodes: Nodes, plan: Plan, seed: int) -> None:
        super().__init__("jobs", nodes, seed)
        self.ended: list[tuple[str, str, int, str]] = []  # bucket, prefix of the outputs, size of samples, state
        self._plan = plan

    def run(self) -> None:
        for number in range(1_000_000):
            if self.stopping.is_set():
                return
            try:
                self._one(number)
            except OSError:  # whether there is a job now is not known, nor is it asked
                self.counts["jobs that were not answered"] += 1
                self.stopping.wait(1.0)

    def _one(self, number: int) -> None:
        copies, size = COPIES[number % len(COPIES)], self._chance.choice(SAMPLE_BYTES)
        bucket, prefix = f"out-{copies}", f"j{number}"
        job = str(self._asking.ask("/v1/jobs", "POST", job_of(bucket, f"{prefix}-%03d.tar", size))["id"])
        begun, state = time.monotonic(), ["unknown"]
        if self._chance.random() < self._plan.cancel_share:
            time.sleep(self._chance.uniform(0.0, 3.0))
            with suppress(OSError):
                self._asking.ask(f"/v1/jobs/{job}", "DELETE")
                self.counts["jobs that were to be cancelled"] += 1

        def is_over() -> bool:
            state[0] = str(self._asking.ask(f"/v1/jobs/{job}")["state"])
            return state[0] not in UNFINISHED

        if not self._asking.until(is_over, self._plan.job_s_max, threading.Event()):
            self.problems.append(f"job {job} ({prefix}) is {state[0]} after {time.monotonic() - begun:.0f} s")
        self.counts[f"jobs {state[0]} of {copies} copies"] += 1
        self.ended.append((bucket, prefix, size, state[0]))


class Moves(Beside):
    """Drains a target, and takes it in again; never two at once."""

    def run(self) -> None:
        while not self.stopping.wait(self._chance.uniform(0.0, 5.0)):
            with suppress(OSError, ValueError):
                node = self._chance.choice(self._asking.ask("/v1/cluster")["nodes"])
                for state in ("draining", "active"):
                    self._move(str(node["id"]), {str(disk["id"]) for disk in node["disks"]}, state)

    def _move(self, node: str, disks: set[str], state: str) -> None:
        """Told until it is so: a target that stays drained would be missing in all that follows."""
        never = threading.Event()

        def is_told() -> bool:
            self._asking.ask(f"/v1/cluster/nodes/{node}", "PATCH", {"state": state})
            return True

        def is_so() -> bool:
            known = self._asking.ask("/v1/cluster")
            in_use = {disk for layout in known["layouts"] for disk in layout["disks"]}
            is_moving = any(run.get("to") is not None for run in known["slices"])
            return not is_moving and bool(disks & in_use) == (state == "active")

        told = self._asking.until(is_told, CALM_S, never)
        moved = told and self._asking.until(is_so, 60.0, self.stopping)
        self.counts[f"{state}: begun"] += told
        self.counts[f"{state}: moved"] += moved


class Victims:
    """The nodes and members of etcd, and which of them are away."""

    def __init__(self, nodes: Nodes, members: Etcd) -> None:
        self._nodes = nodes
        self._etcd = members
        self._members = {each.name: each for each in members.members}
        self._back: dict[str, tuple[float, Callable[[], None]]] = {}  # by name: when it goes on, and how

    def strike(self, chance: random.Random, plan: Plan) -> str:
        """End or stop one of those that run; what was done to what."""
        names = [*self._nodes.proxies, *self._nodes.targets, *self._members]
        name = chance.choice([each for each in names if each not in self._back])
        now, dice = time.monotonic(), chance.random()
        is_stopped = dice < 0.45
        how = signal.SIGSTOP if is_stopped else signal.SIGKILL if dice < 0.85 or name in self._members else signal.SIGTERM
        go_on: Callable[[], None]
        if name in self._members:
            member = self._members[name]
            member.signal(how)
            go_on = partial(member.signal, signal.SIGCONT) if is_stopped else partial(self._etcd.start_one, member)
        elif is_stopped:
            self._nodes.signal(name, how)
            go_on = partial(self._nodes.signal, name, signal.SIGCONT)
        else:
            self._nodes.kill(name, how)
            go_on = partial(self._nodes.start, name)
        self._back[name] = now + chance.uniform(*(plan.stopped_s if is_stopped else plan.killed_s)), go_on
        return f"{how.name} of {'etcd' if name in self._members else name.partition('-')[0]}"

    @property
    def away(self) -> int:
        """How many of them are away."""
        return len(self._back)

    def let_go_on(self, *, all_of_them: bool = False) -> None:
        """Those whose time has come go on."""
        for name, (at, go_on) in list(self._back.items()):
            if all_of_them or at <= time.monotonic():
                del self._back[name]
                go_on()


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Run a cluster through all of that, then let it heal, and check everything."""
    found, chance = Found(), random.Random(seed)
    with etcd(plan.members, directory / "etcd") as members:
        settings: dict[str, Any] = {"down_after_s": plan.down_after_s, "hold_s": 15, "join_wait_s": 0.5, "jobs_workers": 1}
        settings |= {"drain_timeout_s": 3, "etcd_urls": ",".join(members.urls)}
        nodes = Nodes(directory, plan.targets, 1, proxies=plan.proxies, **settings)
        with looked_into(nodes, found):
            nodes.start_all()
            fill(nodes, chance, COPIES, ("own", "out"))
            wanted = {size: _reference(nodes, size) for size in SAMPLE_BYTES}
            writers = {copies: _writers(nodes, plan, copies, seed) for copies in COPIES}
            everybody = [writer for some in writers.values() for writer in some]
            jobs, moves = Jobs(nodes, plan, seed), Moves("moves", nodes, seed)
            for thread in (*everybody, jobs, moves):
                thread.start()
            _disturb(Victims(nodes, members), plan, chance, found)
            say(f"disturbed for {plan.seconds:.0f} s: {dict(found.counts)}")
            _end([jobs, moves], plan, found)  # moves and jobs end under writers
            _end(everybody, plan, found)
            found.counts["seconds until calm"] = round(nodes.until(lambda: _is_calm(nodes), "everything to be calm", CALM_S))
            for copies in COPIES:
                found.problems += final_check(nodes.url, f"own-{copies}", writers[copies])
            found.problems += _check_outputs(nodes, jobs, wanted, found)
            nodes.until(lambda: not _misplaced(nodes), "all objects to be at their replicas and nowhere else", CALM_S)
            for what, least in plan.least_a_minute.items():
                if found.counts[what] < int(least * plan.seconds / 60):
                    found.problems.append(f"it does not count: {what}: {found.counts[what]}")
    return found


def _is_calm(nodes: Nodes) -> bool:
    """Whether nothing moves, no job runs, and all disks have everything."""
    with suppress(OSError, ValueError):
        if any(run.get("to") is not None for run in nodes.map()["slices"]):
            return False
        jobs = nodes.ask("/v1/jobs")["jobs"]
        return not any(job["state"] in UNFINISHED for job in jobs) and nodes.is_calm()
    return False


def _misplaced(nodes: Nodes) -> list[str]:
    ids = {bucket["name"]: bucket["id"] for bucket in nodes.map()["buckets"]}
    names = (f"{what}-{copies}" for what in ("own", "out") for copies in COPIES)
    return [problem for name in names for problem in check_replicas(nodes, int(name[-1]), ids[name])]


def _writers(nodes: Nodes, plan: Plan, copies: int, seed: int) -> list[Roaming]:
    urls = [nodes.url_of(name) for name in (*nodes.proxies, *nodes.targets)]
    return [Roaming(urls, f"own-{copies}", number, 10 * seed + copies, plan.sizes) for number in range(plan.writers)]


def _end(some: Sequence[Roaming] | Sequence[Beside], plan: Plan, found: Found) -> None:
    for each in some:
        each.stopping.set()
    for each in some:
        each.join(CALM_S + plan.job_s_max)
        if each.is_alive():
            found.problems.append(f"{each.name} does not end")
        found.counts.update(each.counts)
        found.problems += each.problems


def _reference(nodes: Nodes, size: int) -> list[str]:
    """What an undisturbed job writes: the checksums of its outputs."""
    job = nodes.ask("/v1/jobs", "POST", json.dumps(job_of("out-2", f"undisturbed-{size}-%03d.tar", size)).encode())["id"]
    nodes.until(lambda: nodes.ask(f"/v1/jobs/{job}")["state"] == "succeeded", "a job in peace")
    found = [_checksum(nodes, "out-2", f"undisturbed-{size}-{number:03d}.tar") for number in range(OUTPUTS)]
    return [each for each in found if each is not None]


def _checksum(nodes: Nodes, bucket: str, name: str) -> str | None:
    """Of what is read; None: 404. OSError for any other answer."""
    try:
        with urllib.request.urlopen(f"{nodes.url}/v1/objects/{bucket}/{name}?relay=1", timeout=30) as answer:
            return xxhash.xxh3_128_hexdigest(answer.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def _disturb(victims: Victims, plan: Plan, chance: random.Random, found: Found) -> None:
    end = time.monotonic() + plan.seconds
    while time.monotonic() < end:
        if victims.away < (AWAY_MAX if chance.random() < 0.3 else 1):
            found.counts[victims.strike(chance, plan)] += 1
        time.sleep(chance.uniform(*plan.pause_s))
        victims.let_go_on()
    victims.let_go_on(all_of_them=True)


def _check_outputs(nodes: Nodes, jobs: Jobs, wanted: dict[int, list[str]], found: Found) -> list[str]:
    """Outputs of jobs that have succeeded are there, and those of others are not."""
    problems = []
    for bucket, prefix, size, state in jobs.ended:
        there = [_checksum(nodes, bucket, f"{prefix}-{number:03d}.tar") for number in range(OUTPUTS)]
        if there != (wanted[size] if state == "succeeded" else [None] * OUTPUTS):
            kinds = "".join("-" if each is None else "+" if each in wanted[size] else "?" for each in there)
            problems.append(f"the job of {bucket}/{prefix} has {state}, and its outputs are {kinds}")
        found.counts["outputs there"] += sum(each is not None for each in there)
    return problems
