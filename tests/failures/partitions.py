"""Links between nodes are cut, one way or both, refused and slowed, under clients that share hot names and reach all nodes.

Every name's history must be linearizable, where a read that is marked possibly stale does not count and is no 404. No two maps
have one version. When the links are whole again, every object is on all its replicas.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from etcd_process import etcd

from failures import links, namespaces
from failures.forwarder import Forwarder
from failures.found import Found, looked_into
from failures.hot import Client, Game, judge
from failures.kills import check_replicas
from failures.links import Cut, Link, LinkState, changed, schedule, states_of
from failures.maps import MapWatch
from failures.namespaces import Namespaces
from failures.nodes import PROXY, Nodes

TICK_S = 0.05
TIMES_MAX = 10  # that a schedule begins
HEALED_S_MAX = 20.0  # from when links are whole to when every name can be read
HOLD_S = 6  # for clients' sake below the timeout of theirs


@dataclass(frozen=True)
class Plan:
    """How many schedules, and how long each at least. `names`: of each schedule."""

    schedules: int = 30
    seconds: float = 25.0
    operations: int = 0  # until clients have done so many, a schedule begins again, though not for ever
    pause_s: tuple[float, float] = (1.0, 3.5)
    names: int = 34
    clients: int = 20
    copies: int = 2
    targets: int = 3
    down_after_s: float = 3.0
    by: str = "auto"  # "namespaces", "forwarder"
    proxies: int = 1
    members: int = 0  # of etcd


def run(directory: Path, plan: Plan, seed: int, say: Callable[[str], None] = print) -> Found:
    """Run one cluster through all schedules."""
    found = Found()
    with closing(_network(plan, say)) as network, _registry(directory, plan, network) as settings:
        settings |= {"down_after_s": plan.down_after_s, "hold_s": HOLD_S, "drain_timeout_s": 5}
        nodes = Nodes(directory, plan.targets, 1, network=network, proxies=plan.proxies, **settings)
        with looked_into(nodes, found):
            nodes.start_all()
            for number in range(plan.schedules):
                begun, said = time.monotonic(), Found()
                _play(nodes, network, plan, number, f"{seed}.{number}", said)
                found.counts.update(said.counts)
                found.problems += [f"schedule {seed}.{number}: {problem}" for problem in said.problems]
                operations, bad = said.counts["operations"], len(said.problems)
                say(f"schedule {seed}.{number}: {operations} operations, {bad} problems, {time.monotonic() - begun:.0f} s")
            nodes.until(lambda: not nodes.handoffs(), "surplus rows to go", 60.0)
            found.problems += check_replicas(nodes, plan.copies)
    return found


@contextmanager
def _registry(directory: Path, plan: Plan, network: Namespaces | Forwarder) -> Iterator[dict[str, object]]:
    """The settings that say where it is."""
    if not plan.members:
        yield {}
        return
    with etcd(plan.members, directory / "etcd", network) as started:
        yield {"etcd_urls": ",".join(started.urls)}


def _names(plan: Plan) -> links.Nodes:
    proxies = [PROXY, *(f"{PROXY}-{number}" for number in range(1, plan.proxies))]
    targets = [f"target-{number}" for number in range(plan.targets)]
    return links.Nodes(proxies, targets, [f"etcd-{number}" for number in range(plan.members)])


def _network(plan: Plan, say: Callable[[str], None]) -> Namespaces | Forwarder:
    reason = "asked for" if plan.by == "forwarder" else namespaces.why_not()
    if not reason:
        say("links are cut by network namespaces")
        return Namespaces(_names(plan).all)
    if plan.by == "namespaces":
        raise OSError(reason)
    say(f"links are cut by a forwarder ({reason})")
    return Forwarder()


def _play(nodes: Nodes, network: Namespaces | Forwarder, plan: Plan, number: int, seed: str, found: Found) -> None:
    """One schedule, on names of its own."""
    chance, bucket = random.Random(seed), f"cut-{number}"
    nodes.ask(f"/v1/buckets/{bucket}", "PUT", b'{"copies": %d}' % plan.copies)
    urls = [nodes.url_of(name) for name in (*nodes.proxies, *nodes.targets)]
    names = [f"s{number}/{each}" for each in range(plan.names)]
    game, maps = Game(urls, bucket, names, time.monotonic()), MapWatch(urls)
    clients = [Client(game, each, seed) for each in range(plan.clients)]
    for thread in (maps, *clients):
        thread.start()
    cuts = schedule(chance, _names(plan), plan.seconds, plan.pause_s)
    try:
        for _ in range(TIMES_MAX):
            _cut(network, cuts, plan.seconds)
            if sum(len(client.history) for client in clients) >= plan.operations:
                break
    finally:
        game.stopping.set()
        for client in clients:
            client.join(60)
    found.counts["ms until calm"] += int(1000 * nodes.until(nodes.is_calm, f"calm after schedule {seed}"))
    last = Client(game, plan.clients, seed)
    # A node that was cut off may say that it is up before it has heard from the coordinator again.
    end = time.monotonic() + HEALED_S_MAX
    with httpx.Client(timeout=30, params={"relay": "1"}, verify=False) as http:
        for name in names:
            while not last.get(http, name, nodes.url):
                if time.monotonic() > end:
                    found.problems.append(f"{name} cannot be read at the end")
                    break
                time.sleep(TICK_S)
    maps.stopping.set()
    maps.join(30)
    _judge(clients, last, maps, cuts, found)


def _cut(network: Namespaces | Forwarder, cuts: list[Cut], seconds: float) -> None:
    """Let links be bad as planned; in the end all are whole."""
    begun = time.monotonic()
    now: dict[Link, LinkState] = {}
    try:
        while (at_s := time.monotonic() - begun) < seconds:
            wanted = states_of(cuts, at_s)
            if wanted != now:
                network.set(changed(now, wanted))
                now = wanted
            time.sleep(TICK_S)
    finally:
        network.set(changed(now, {}))


def _judge(clients: list[Client], last: Client, maps: MapWatch, cuts: list[Cut], found: Found) -> None:
    problems, counts = judge(client.history for client in (*clients, last))
    found.problems += [*maps.problems, *problems]
    for client in (*clients, last):
        found.problems += client.problems
        found.counts.update(client.counts)
    found.counts.update(counts)
    found.counts.update(f"cuts: {cut.state}, {cut.kind}" for cut in cuts)
    found.counts["versions of the map"] += len(maps.by_version)
    found.counts["maps looked at"] += maps.looks
