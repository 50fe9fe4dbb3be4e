"""The figures of nodes: collected once for all who look, with little patience for silent ones, and shown side by side."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dfc.errors import BadRequest, DfcError, NotFound, Unavailable
from dfc.http.rates import DISK, NodeSeconds, SecondsRing
from dfc.http.retry import RemoteError
from dfc.proxy import rates
from dfc.proxy.rates import ClusterRates, NodeMirror, coarse, step_for
from dfc.wire.status import NodeFigures


class World:
    """Targets that answer as a test says, and a proxy that asks them."""

    def __init__(self, *names: str) -> None:
        self.now_s = 1000.0
        self.names = list(names)
        self.asked: list[str] = []
        self.boot = "00000001"
        self.fails: dict[str, Callable[[], Any]] = {}
        self.hangs: set[str] = set()
        self.going_on = asyncio.Event()
        self.rings = {name: SecondsRing() for name in (*names, "me")}
        cluster: Any = SimpleNamespace(control=self, map=SimpleNamespace(targets=self._targets))
        presence: Any = SimpleNamespace(proxies=lambda: [SimpleNamespace(holder="me", url="http://me")])
        self.rates = ClusterRates(
            cluster, presence, lambda boot, after: self._told("me", boot, after), "me",
            clock_s=lambda: self.now_s, wall_s=lambda: 0.0,
        )  # fmt: skip

    def _targets(self) -> list[Any]:
        return [SimpleNamespace(id=name, url=f"http://{name}") for name in self.names]

    def second(self, **values: float) -> None:
        """One second passes, in which nodes have received so many bytes."""
        self.now_s += 1
        for name, ring in self.rings.items():
            ring.put(ring.newest + 1, {"bytes_in": values.get(name, 0.0)})

    def _told(self, name: str, boot: str, after: int) -> NodeSeconds:
        ring = self.rings[name]
        first = ring.first_from(after + 1 if boot == self.boot else 0)
        return NodeSeconds(name, self.boot, first, ring.newest, 0.2, {"bytes_in": ring.values("bytes_in", first)})

    async def call(self, _method: str, url: str, _kind: type[NodeSeconds]) -> NodeSeconds:
        self.asked.append(url)
        name, _, since = url.removeprefix("http://").partition("/v1/node/seconds")
        if name in self.hangs:
            await self.going_on.wait()
        if name in self.fails:
            found = self.fails[name]()
            if isinstance(found, Exception):
                raise found
            return found
        boot, _, after = since.removeprefix("?since=").partition(".")
        return self._told(name, boot, int(after or -1))

    async def nodes(self, seconds: int = 3) -> dict[str, NodeFigures]:
        return {node.id: node for node in (await self.rates.series(seconds)).nodes}


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(rates, "WAIT_S", 0.05)
    monkeypatch.setattr(rates, "SILENT_WAIT_S", 0.02)
    made = World("a", "b")
    yield made
    await made.rates.stop()


async def test_nodes_side_by_side(world: World) -> None:
    world.second(a=5, me=1)
    world.second(a=7, b=9)
    found = await world.rates.series(3)
    assert (found.seconds, found.step_s, found.until) == (3, 1, "1970-01-01T00:00:00.000Z")
    assert [(node.id, node.kind) for node in found.nodes] == [("me", "proxy"), ("a", "target"), ("b", "target")]
    assert [node.bytes_in for node in found.nodes] == [[None, 1, 0], [None, 5, 7], [None, 0, 9]]
    assert [node.id for node in (await world.rates.series(3, "b")).nodes] == ["b"]
    with pytest.raises(NotFound, match="there is no node"):
        await world.rates.series(3, "c")


@pytest.mark.parametrize("seconds", [0, -1, 901, 10**9])
async def test_how_many_seconds(world: World, seconds: int) -> None:
    with pytest.raises(BadRequest, match="between 1 and 900"):
        await world.rates.series(seconds)
    assert world.asked == []


async def test_each_node_is_asked_once_a_second_however_many_look(world: World) -> None:
    world.second()
    await asyncio.gather(*(world.nodes() for _ in range(20)), *(world.rates.series(900, "a") for _ in range(20)))
    assert Counter(world.asked) == {"http://a/v1/node/seconds": 1, "http://b/v1/node/seconds": 1}
    world.second(a=3)
    assert (await world.nodes())["a"].bytes_in == [None, 0, 3]
    assert world.asked[2:] == [f"http://{name}/v1/node/seconds?since=00000001.0" for name in "ab"]


async def test_who_leaves_takes_nothing_from_the_others(world: World) -> None:
    world.second(a=5)
    first, second = asyncio.create_task(world.nodes()), asyncio.create_task(world.nodes())
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)["a"].bytes_in == [None, None, 5]
    assert len(world.asked) == 2


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Unavailable("cannot reach it"), "cannot reach it"),
        (RemoteError(404, b"", "http://a"), "404"),
        (RemoteError(500, b"", "http://a"), "500"),
        (NodeSeconds("x", "b", 0, 0, 0.0, {"bytes_in": [7.0]}), "another node answers"),
        (RuntimeError("a bug"), "failed"),
    ],
)
async def test_who_does_not_tell_is_silent_and_not_idle(world: World, error: Any, why: str) -> None:
    world.second(a=5, b=6)
    await world.nodes()
    world.fails["a"] = lambda: error
    world.second(a=5, b=6)
    world.now_s += 1
    found = await world.nodes(4)
    assert (found["a"].silent, found["a"].silent_s) == (True, 2.0)
    assert why in found["a"].why
    assert found["a"].bytes_in == [None, 5, None, None] or found["a"].bytes_in == [None, None, 5, None]
    assert (found["b"].silent, found["b"].why, found["b"].bytes_in[-1]) == (False, "", 6)
    del world.fails["a"]
    world.second(a=8)
    found = await world.nodes()
    assert (found["a"].silent, found["a"].bytes_in) == (False, [5, 5, 8])  # the node has remembered what nobody could ask


async def test_one_that_hangs_is_asked_once_and_holds_up_nobody(world: World) -> None:
    world.hangs.add("a")
    for _ in range(5):
        world.second(a=1, b=2)
        found = await world.nodes()
        assert (found["a"].silent, found["a"].bytes_in, found["b"].bytes_in[-1]) == (True, [None] * 3, 2)
        assert "no answer" in found["a"].why
    assert Counter(world.asked)["http://a/v1/node/seconds"] == 1
    world.hangs.clear()
    world.going_on.set()
    await asyncio.sleep(0.05)
    world.second(a=9)
    assert (await world.nodes())["a"].bytes_in[-1] == 9


async def test_one_that_was_started_anew_counts_from_the_beginning(world: World) -> None:
    for _ in range(5):
        world.second(a=4)
    await world.nodes()
    world.boot, world.rings["a"] = "00000002", SecondsRing()
    world.second(a=6)
    assert (await world.nodes())["a"].bytes_in == [None, None, 6]


async def test_nodes_that_have_left_are_not_shown(world: World) -> None:
    world.second()
    assert (await world.nodes()).keys() == {"me", "a", "b"}
    world.names.remove("b")
    world.second()
    assert (await world.nodes()).keys() == {"me", "a"}
    assert world.rates.url_of("a") == "http://a"
    for name in ("b", "me", "<b>"):
        with pytest.raises(NotFound):
            world.rates.url_of(name)


async def test_what_nobody_looks_at_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "FORGET_S", 0.01)
    world.second(a=5)
    await world.nodes()
    await asyncio.sleep(0.05)
    assert world.rates._mirrors == {}
    world.second(a=6)
    assert (await world.nodes())["a"].bytes_in == [None, 5, 6]


async def test_the_end_while_it_asks(world: World) -> None:
    world.hangs.update("ab")
    waiting = asyncio.create_task(world.nodes())
    await asyncio.sleep(0.01)
    await world.rates.stop()
    with pytest.raises(DfcError, match="stops"):
        await waiting
    assert not world.rates._asking


def mirror(values: list[float], *, answered_s: float = 100.0, age_s: float = 0.0) -> NodeMirror:
    made = NodeMirror("n", "target")
    made.ring.take(NodeSeconds("n", "b", 0, len(values) - 1, 0.0, {"bytes_in": list(values), DISK + "d": list(values)}))
    made.answered_s, made.age_s = answered_s, age_s
    return made


def test_the_last_seconds_are_those_before_now() -> None:
    assert mirror([1, 2, 3]).last("bytes_in", 5, 100.0) == [None, None, 1, 2, 3]
    assert mirror([1, 2, 3]).last("bytes_in", 2, 100.0) == [2, 3]


@pytest.mark.parametrize(("age_s", "shift"), [(0.0, 0), (0.99, 0), (1.4, 0), (1.6, 1), (2.4, 1), (2.6, 2), (90.0, 3)])
def test_nodes_are_aligned_by_age(age_s: float, shift: int) -> None:
    """The clocks of nodes differ, and a second of one ends when that of another begins."""
    expected = ([None] * 3 + [1, 2, 3] + [None] * shift)[-3:] if shift < 3 else [None] * 3
    assert mirror([1, 2, 3], age_s=age_s).last("bytes_in", 3, 100.0) == expected
    assert mirror([1, 2, 3]).last("bytes_in", 3, 100.0 + age_s) == expected


def test_what_is_not_known_is_never_zero() -> None:
    nobody = NodeMirror("n", "target")
    nobody.silent, nobody.why = True, "gone"
    stats = nobody.stats(4, 1, 100.0)
    assert stats.bytes_in == stats.errors == [None] * 4
    assert (stats.silent, stats.silent_s, stats.why, stats.disks) == (True, None, "gone", {})
    was_there = mirror([1, 2, 3])
    was_there.silent = True
    assert was_there.stats(4, 1, 103.0).silent_s == 3.0
    assert was_there.stats(6, 1, 103.0).bytes_in == [None, 1, 2, 3, None, None]
    assert was_there.stats(6, 1, 103.0).disks == {"d": [None, 1, 2, 3, None, None]}
    assert was_there.stats(6, 1, 103.0).bytes_out == [None] * 6


def test_points_are_means_of_what_is_known() -> None:
    assert coarse([1, 2, 3, 4, None, None, None, 5, 6], 3) == [2, 4, 5.5]
    assert coarse([None, None], 2) == [None]
    # Of 5 seconds in steps of 2, the first point begins a second earlier, and the last one ends now.
    assert mirror([1, 2, 3, 4, 5, 6]).stats(5, 2, 100.0).bytes_in == [1.5, 3.5, 5.5]


@pytest.mark.parametrize(
    ("seconds", "series", "step"),
    [(1, 0, 1), (60, 20, 1), (300, 20, 1), (301, 20, 2), (900, 20, 3), (900, 6000, 28), (900, 10**9, 900)],
)
def test_answers_are_bounded(seconds: int, series: int, step: int) -> None:
    assert step_for(seconds, series) == step
