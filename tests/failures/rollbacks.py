"""A disk or the registry is put back to an earlier state, a log or a schema is damaged, or a copy of a target runs beside it:
nothing wrong is answered unmarked, and what has copies comes back by itself, or by the command that is said."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from harness import running

from failures.found import Found, looked_into
from failures.nodes import PROXY, Nodes

NAMES: Final = 12  # of each kind: overwritten, deleted and new since the snapshot
TOLD_S: Final = 1.5  # longer than between two heartbeats
DOWN_AFTER_S: Final = 3
SAYS_S: Final = 60.0  # in which a target has started and its problem is in the status, on any machine
TARGET: Final = "target-0"
Wanted = dict[str, bytes | None]


@dataclass(frozen=True)
class Plan:
    """How often, with how many copies, and what is looked at for how long after each start."""

    rounds: int = 100
    kinds: tuple[str, ...] = ()  # none: all
    copies: int = 2
    looks_s: float = 8.0
    stands_still_s: tuple[float, float] = (0.5, 6.0)  # a target beside which a copy of it is started


class Read(NamedTuple):
    """The answer to a GET; `body` is None unless it is 200."""

    status: int
    body: bytes | None
    is_marked: bool


def describe(plan: Plan) -> str:
    """For the title of the row."""
    what = ", ".join(plan.kinds or KINDS)
    return f"a disk or a registry is old, damaged, or runs twice: {what}; {plan.rounds} times, copies {plan.copies}"


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """A cluster of its own for each time."""
    found, draw = Found(), random.Random(seed)
    for number in range(plan.rounds):
        nodes = Nodes(directory / str(number), targets=3, disks=1, down_after_s=DOWN_AFTER_S, default_copies=plan.copies)
        before = len(found.problems)
        with looked_into(nodes, found):
            KINDS[draw.choice(plan.kinds or tuple(KINDS))](nodes, plan, draw, found)
        if len(found.problems) > before:
            say(f"round {number}: {found.problems[-1]}")
        else:
            shutil.rmtree(nodes.directory, ignore_errors=True)
    return found


def _look_at_put_back(nodes: Nodes, plan: Plan, draw: random.Random, found: Found) -> None:
    ends_by, runs = draw.choice((signal.SIGTERM, signal.SIGKILL)), draw.random() < 0.5
    found.counts[f"put back, {'while it ran' if runs else 'stopped'}, {ends_by.name}"] += 1
    wanted = go_back(nodes, ends_by=ends_by, runs=runs)
    if "disk_rolled_back" not in seen_meanwhile(nodes, lambda: _note_wrong(nodes, wanted, found), plan.looks_s):
        found.problems.append(f"{nodes.directory}: nobody has said that the disk was put back")
    if plan.copies == 1:
        return
    nodes.until_calm(60)
    _note_wrong(nodes, wanted, found, exact=True)


def _look_at_flip(nodes: Nodes, plan: Plan, draw: random.Random, found: Found) -> None:
    found.counts["bits of logs flipped"] += 1
    wanted = fill(nodes)
    nodes.kill(TARGET, signal.SIGKILL)
    log = nodes.disks_of(TARGET)[0] / "catalog.sqlite-wal"
    with open(log, "r+b") as file:
        file.seek(draw.randrange(os.path.getsize(log) * 8 // 10))
        [byte] = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1 << draw.randrange(8)]))
    _note_refused(nodes, plan, wanted, found, TARGET, "in its log is damaged")
    _dfc("disk", "rebuild", nodes.disks_of(TARGET)[0])
    nodes.start_all()
    nodes.until_calm(60)
    # What only tombstones in the log said that was deleted has no blob either, so it does not come back.
    _note_wrong(nodes, wanted, found, exact=True)


def _note_refused(nodes: Nodes, plan: Plan, wanted: Wanted, found: Found, name: str, word: str) -> None:
    """Start a node that is to end with this word; the others go on meanwhile."""
    nodes.start(name)
    ended, said = nodes.processes.pop(name).wait(60), nodes.log_of(name).read_text()
    if ended != 2 or word not in said or "Traceback" in said:
        found.problems.append(f"{nodes.directory}: {name} ended with {ended}: {said[-300:]}")
    until_s = time.monotonic() + plan.looks_s / 2
    while time.monotonic() < until_s:
        _note_wrong(nodes, wanted, found)


def _dfc(*arguments: object, status: int = 0) -> str:
    """What a command says. AssertionError where it ends with another status."""
    command = [sys.executable, "-m", "dfc", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == status, f"{arguments} ended with {ran.returncode}: {ran.stdout[-300:]} {ran.stderr[-300:]}"
    return ran.stdout + ran.stderr


def _look_at_schema(nodes: Nodes, plan: Plan, draw: random.Random, found: Found) -> None:
    """One bit of the schema of a database flips, so that it is no text any more."""
    wanted, place, disk = fill(nodes), nodes.place_of(PROXY), nodes.disks_of(TARGET)[0]
    file = draw.choice((disk / "catalog.sqlite", disk / "catalog.sqlite", place / "registry.sqlite", place / "jobs.sqlite"))
    name = TARGET if file.parent == disk else PROXY
    found.counts[f"bits of schemas flipped, {file.name}"] += 1
    nodes.kill(name, draw.choice((signal.SIGTERM, signal.SIGKILL)))
    data = bytearray(file.read_bytes())
    begin = draw.choice([match.start() for match in re.finditer(rb"CREATE (?:TABLE|INDEX)", data)])
    data[begin + draw.randrange(30)] ^= 0x80
    file.write_bytes(data)
    _note_refused(nodes, plan, wanted, found, name, "malformed database schema")
    if name == TARGET:
        _dfc("disk", "check", disk, status=1)
        _dfc("disk", "rebuild", disk)
    else:
        file.rename(file.with_suffix(".damaged"))
        if file.name == "registry.sqlite":
            _dfc("registry", "recover", nodes.url_of(TARGET), "--dir", place)
    _note_whole(nodes, wanted, found)


def _look_at_registry(nodes: Nodes, plan: Plan, draw: random.Random, found: Found) -> None:
    """Everything ends, and is started with the registry as it was before the bucket."""
    place, kept = nodes.place_of(PROXY), nodes.directory / "kept"
    nodes.start_all()
    nodes.ask("/early/e", "PUT", b"early")
    nodes.kill(PROXY, signal.SIGTERM)
    shutil.copytree(place, kept)
    wanted = fill(nodes)
    ends_by, order = draw.choice((signal.SIGTERM, signal.SIGKILL)), [PROXY, *nodes.targets]
    for name in draw.sample(order, len(order)):
        nodes.kill(name, ends_by)
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    draw.shuffle(order)
    found.counts[f"old registries after {ends_by.name}"] += 1
    for name in order:
        nodes.start(name)
        time.sleep(draw.choice((0, 1, 3, 12)))  # a proxy may be alone for longer than it waits for targets
    until_s, seen = time.monotonic() + plan.looks_s, dict[str, str]()
    while time.monotonic() < until_s + (0 if "registry_old" in seen else SAYS_S):
        _note_wrong(nodes, wanted, found)
        with suppress(OSError):
            seen |= problems(nodes)
            status = write(nodes, "over-0", b"never")
            if status != 503:
                found.problems.append(f"{nodes.directory}: a write was answered {status} by an old registry")
    if "registry_old" not in seen:
        found.problems.append(f"{nodes.directory}: nobody has said that the registry is old")
    nodes.kill(PROXY, signal.SIGTERM)
    _dfc("registry", "recover", nodes.url_of(TARGET), "--replace", "--dir", place)
    _note_whole(nodes, wanted, found)


def _note_whole(nodes: Nodes, wanted: Wanted, found: Found) -> None:
    """Start what does not run; whoever had no lease meanwhile soon denies again what there is not."""
    nodes.start_all()
    nodes.until_calm(60)
    _note_wrong(nodes, wanted, found)
    nodes.until(lambda: not wrong(nodes, wanted, exact=True), "everything to be answered as it is")


def _look_at_copy(nodes: Nodes, plan: Plan, draw: random.Random, found: Found) -> None:
    """As of a machine that was cloned: the same ids on the same disks, at another address."""
    place, copy = nodes.place_of(TARGET), nodes.directory / "copy"
    wanted = fill(nodes, lambda: (time.sleep(TOLD_S), shutil.copytree(place, copy)))
    meanwhile = draw.choice(("runs", "runs", "stands still", "was killed"))
    found.counts[f"copies beside one that {meanwhile}"] += 1
    goes_on_s, stopped = time.monotonic() + draw.uniform(*plan.stands_still_s), set[str]()
    if meanwhile == "stands still":
        nodes.signal(TARGET, signal.SIGSTOP)
        stopped.add(TARGET)
    elif meanwhile == "was killed":
        nodes.kill(TARGET)
    command = [sys.executable, "-m", "dfc", "target", "--dir", str(copy), "--disks", str(copy / "disk-0"), "--port", "0"]
    seen, until_s, number = dict[str, str](), time.monotonic() + plan.looks_s, 0
    with open(nodes.directory / "copy.log", "wb") as log:
        process = subprocess.Popen([*command, "--proxy-url", nodes.url], stdout=log, stderr=log)

    def is_awaited() -> bool:
        return meanwhile == "runs" and (process.poll() is None or "id_in_use" not in seen)

    try:
        while time.monotonic() < until_s or (is_awaited() and time.monotonic() < until_s + SAYS_S):
            number += 1
            for name in [f"over-{number % NAMES}", f"new-{number % NAMES}"]:
                body = b"%d" % number
                # Whether what is refused has happened is not known: it is nobody's fault then, until the name is written again.
                wanted.pop(name, None)
                if write(nodes, name, body) in (200, 201):
                    wanted[name] = body
                    found.counts["written beside a copy"] += 1
            if stopped and time.monotonic() > goes_on_s:
                nodes.signal(stopped.pop(), signal.SIGCONT)
            _note_wrong(nodes, wanted, found, stopped=stopped)
            seen |= problems(nodes)
        if meanwhile == "runs" and (process.poll() != 2 or "id_in_use" not in seen):
            found.problems.append(f"{nodes.directory}: a copy beside one that runs: it ended with {process.poll()}; {seen}")
        # With copies it may have had everything again before the status was looked at.
        was_told = "was put back to an earlier state" in (nodes.directory / "copy.log").read_text()
        if meanwhile != "runs" and not was_told and not seen.keys() & {"disk_rolled_back", "id_in_use"}:
            found.problems.append(f"{nodes.directory}: nobody has said that a copy runs; {seen}")
    finally:
        process.kill()
        process.wait()
    if TARGET in nodes.processes:
        nodes.kill(TARGET)
    nodes.start_all()
    if plan.copies == 1 and meanwhile != "runs":
        time.sleep(TOLD_S)
        if "disk_rolled_back" in problems(nodes):  # the copy was heard last: only an operator knows what is the newest state
            found.counts["accepted"] += 1
            nodes.kill(TARGET, signal.SIGTERM)
            _dfc("disk", "accept", nodes.disks_of(TARGET)[0])
            nodes.start_all()
    nodes.until_calm(60)
    _note_wrong(nodes, wanted, found, exact=True)


def _note_wrong(nodes: Nodes, wanted: Wanted, found: Found, *, exact: bool = False, stopped: Collection[str] = ()) -> None:
    for what, count in wrong(nodes, wanted, exact=exact, stopped=stopped).items():
        found.problems.append(f"{nodes.directory}: {count} answers: {what}")
    found.counts["answers looked at"] += len(wanted) * (1 + len(nodes.targets))


KINDS: Final = {
    "put back": _look_at_put_back,
    "damaged log": _look_at_flip,
    "copy": _look_at_copy,
    "damaged schema": _look_at_schema,
    "old registry": _look_at_registry,
}


# --- what is done, and what is seen


def read(url: str, name: str) -> Read:
    """GET an object of the bucket. OSError."""
    try:
        with urllib.request.urlopen(f"{url}/b/{name}", timeout=20) as answer:
            return Read(200, answer.read(), "X-DFC-Possibly-Stale" in answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return Read(error.code, None, is_marked=False)


def write(nodes: Nodes, name: str, body: bytes | None) -> int:
    """PUT an object into the bucket, or delete it; the status."""
    method = "DELETE" if body is None else "PUT"
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{nodes.url}/b/{name}", body, method=method), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def fill(nodes: Nodes, between: Callable[[], object] = lambda: None) -> Wanted:
    """Start everything, and write; after `between` some of it is overwritten or deleted, and more written. What there is."""
    nodes.start_all()
    for number in range(NAMES):
        assert write(nodes, f"over-{number}", b"old") == 201
        assert write(nodes, f"gone-{number}", b"old") == 201
    between()
    for number in range(NAMES):
        assert write(nodes, f"over-{number}", b"new") == 200
        assert write(nodes, f"gone-{number}", None) == 204
        assert write(nodes, f"new-{number}", b"new") == 201
    time.sleep(TOLD_S)
    wanted: Wanted = {f"{kind}-{number}": b"new" for kind in ("over", "new") for number in range(NAMES)}
    return wanted | {f"gone-{number}": None for number in range(NAMES)}


def go_back(nodes: Nodes, *, ends_by: int, runs: bool) -> Wanted:
    """Put a target's disk back to what it had before some writes, and start it: what each name has by now. `runs`: the snapshot
    is of a target that runs. The newest state is kept in "newest"."""
    kept, place = nodes.directory / "snapshot", nodes.place_of(TARGET)

    def snapshot() -> None:
        time.sleep(TOLD_S)
        if not runs:
            nodes.kill(TARGET, signal.SIGTERM)
        shutil.copytree(place, kept)
        nodes.start_all()
        nodes.until_calm()

    wanted = fill(nodes, snapshot)
    nodes.kill(TARGET, ends_by)
    place.rename(nodes.directory / "newest")
    shutil.copytree(kept, place)
    nodes.start(TARGET)
    return wanted


def wrong(nodes: Nodes, wanted: Wanted, *, exact: bool = False, stopped: Collection[str] = ()) -> Counter[str]:
    """What is answered wrong and unmarked, by the proxy and by each target that answers, but those that are `stopped`. `exact`:
    neither 503 nor marks."""
    found = Counter[str]()
    for url in (nodes.url, *(nodes.url_of(name) for name in nodes.targets if name not in stopped)):
        for name, body in wanted.items():
            try:
                answer = read(url, name)
            except OSError:
                continue
            if answer.status == (200 if body is not None else 404) and answer.body == body:
                continue
            if exact or (answer.status != 503 and not answer.is_marked):
                found[f"{name.partition('-')[0]}: {answer.status} {answer.body!r}"] += 1
    return found


def seen_meanwhile(nodes: Nodes, look: Callable[[], object], looks_s: float) -> set[str]:
    """Look again and again for so long, and until the status has said that a disk was put back, which it may do for a second
    only: the codes of all problems meanwhile."""
    seen, ending, until_s = set[str](), threading.Event(), time.monotonic() + looks_s

    def ask() -> None:
        while not ending.wait(0.1):
            seen.update(problems(nodes))

    with running([threading.Thread(target=ask)], ending):
        while time.monotonic() < until_s + (0 if "disk_rolled_back" in seen else SAYS_S):
            look()
    return seen


def problems(nodes: Nodes) -> dict[str, str]:
    """The codes of all problems, with a subject of each."""
    return {each["code"]: each["subject"] for each in nodes.ask("/v1/cluster/problems")["problems"]}
