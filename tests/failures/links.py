"""What may befall the links between nodes, and when: a schedule that follows from a seed, and the states of links by it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

# `slow`: everything takes longer. `held`: what is sent arrives when the link is whole again, if somebody still waits for it.
# `refused`: connections are reset.
LinkState = Literal["slow", "held", "refused"]
Link = tuple[str, str]  # from, to
SLOW_S: Final = 0.4
_WORST_LAST: Final = ("slow", "held", "refused")


@dataclass(frozen=True)
class Cut:
    """Links that are bad for a while, in seconds since the begin of a schedule."""

    begin_s: float
    end_s: float
    state: LinkState
    links: tuple[Link, ...]
    kind: str


class Nodes(NamedTuple):
    """Who has links. `members`: of etcd, if there are several proxies."""

    proxies: Sequence[str]
    targets: Sequence[str]
    members: Sequence[str] = ()

    @property
    def all(self) -> list[str]:
        return [*self.proxies, *self.targets, *self.members]


def schedule(chance: random.Random, nodes: Nodes, seconds: float, pause_s: tuple[float, float]) -> list[Cut]:
    """Cuts that begin one after the other and overlap."""
    cuts, now_s = [], chance.uniform(0.5, 1.5)
    while now_s < seconds - 1.0:
        kind, links = _links_with_etcd(chance, nodes) if nodes.members else _links(chance, nodes.proxies[0], nodes.targets)
        state: LinkState = chance.choices(("held", "refused", "slow"), (6, 3, 2))[0]  # type: ignore[assignment]
        long = chance.random() < 0.4
        lasts_s = chance.uniform(4.0, 10.0) if long else chance.uniform(0.3, 3.0)
        cuts.append(Cut(now_s, min(now_s + lasts_s, seconds), state, links, kind))
        now_s += chance.uniform(*pause_s)
    return cuts


def _links(chance: random.Random, proxy: str, targets: Sequence[str]) -> tuple[str, tuple[Link, ...]]:
    """Between whom, and which way."""
    node, other = chance.sample(list(targets), 2)
    all_others = [each for each in (proxy, *targets) if each != node]
    dice = chance.random()
    if dice < 0.30:
        what, pairs = "target and proxy", [(node, proxy)]
    elif dice < 0.65:
        what, pairs = "two targets", [(node, other)]
    elif dice < 0.90:
        what, pairs = "a target and all others", [(node, each) for each in all_others]
    else:
        what, pairs = "the proxy and all others", [(proxy, each) for each in targets]
    return _either_way(chance, what, pairs)


def _links_with_etcd(chance: random.Random, nodes: Nodes) -> tuple[str, tuple[Link, ...]]:
    target, other = chance.sample(list(nodes.targets), 2)
    proxy, member = chance.choice(list(nodes.proxies)), chance.choice(list(nodes.members))

    def others(node: str) -> list[Link]:
        return [(node, each) for each in nodes.all if each != node]

    between = [(of, to) for of in nodes.proxies for to in nodes.proxies if of < to]
    what, pairs = chance.choices(
        (
            ("target and a proxy", [(target, proxy)]),
            ("two targets", [(target, other)]),
            ("a target and all others", others(target)),
            ("the proxies", between),
            ("a proxy and all others", others(proxy)),
            ("a proxy and etcd", [(proxy, each) for each in nodes.members]),
            ("a member of etcd and all others", others(member)),
        ),
        (15, 15, 15, 10, 20, 10, 15),
    )[0]
    return _either_way(chance, what, pairs)


def _either_way(chance: random.Random, what: str, pairs: list[Link]) -> tuple[str, tuple[Link, ...]]:
    back = [(to, of) for of, to in pairs]
    which = chance.choice(("both ways", "to", "from"))
    links = {"both ways": pairs + back, "to": pairs, "from": back}[which]
    return f"{what}, {'both ways' if which == 'both ways' else 'one way'}", tuple(links)


def states_of(cuts: Iterable[Cut], at_s: float) -> dict[Link, LinkState]:
    """What is wrong with links at a time; of several things the worst."""
    found: dict[Link, LinkState] = {}
    for cut in cuts:
        if cut.begin_s <= at_s < cut.end_s:
            for link in cut.links:
                found[link] = max(found.get(link, "slow"), cut.state, key=_WORST_LAST.index)
    return found


def changed(old: Mapping[Link, LinkState], new: Mapping[Link, LinkState]) -> dict[Link, LinkState | None]:
    """The links whose states differ, with the new ones."""
    return {link: new.get(link) for link in sorted({*old, *new}) if old.get(link) != new.get(link)}
