"""Many at once who ask for what costs much, and take nothing of the answers: others are served, memory and leases are kept."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from harness import wait_for
from job_shards import tar_of
from security.census import resident_mib
from security.conftest import READ_STALL_S, Nodes
from security.wire import Wire, ask, store_many

from dfc.limits import LISTINGS_BYTES_MAX, LISTINGS_MAX, SEARCHES_BYTES_MAX, SEARCHES_MAX

SHARDS = 2000
READERS = 40
GROWTH_MIB = 300
BESIDE_S = 4.0
LONG = "x" * 780  # in each name
ASKED = {
    "listing": ("/v1/buckets/many/objects?limit=10000", "listings"),
    "listing as text": ("/many/", "listings"),
    "datasets": ("/v1/buckets/many/datasets", "listings"),
    "keys": ("/v1/buckets/many/samples", "listings"),
    "search": ("/v1/buckets/many/samples?key_contains=k&limit=10000", "searches"),
    "page of datasets": ("/ui/buckets/many/datasets", "listings"),
}
ROOM = {"listings": (LISTINGS_MAX, LISTINGS_BYTES_MAX), "searches": (SEARCHES_MAX, SEARCHES_BYTES_MAX)}


@pytest.fixture(scope="module")
def many(hasty: Nodes) -> Iterator[Nodes]:
    """A bucket of small shards with long names."""
    names = [f"{LONG}-{number:06d}.tar" for number in range(SHARDS)]
    store_many(hasty.proxy, "many", names, tar_of([("k.txt", b"")]))
    yield hasty
    assert ask(hasty.proxy, "DELETE", "/v1/buckets/many?force=1").status == 204
    wait_for(hasty.census.has_no_clients, "all clients to be gone")
    wait_for(lambda: not hasty.census.excess(), "nodes to close the connections that they needed", 90)


def held(nodes: Nodes, kind: str) -> tuple[int, int]:
    """How many requests have a place at the proxy, and how many bytes."""
    text = ask(nodes.proxy, "GET", "/metrics").body.decode()
    figures = [
        re.search(rf'^{name}{{kind="{kind}"}} (\S+)$', text, re.MULTILINE)
        for name in ("dfc_budget_requests", "dfc_budget_bytes")
    ]
    return tuple(int(float(each[1])) for each in figures if each)  # type: ignore[return-value]


@pytest.mark.parametrize("what", ASKED)
def test_readers_that_take_nothing_keep_nobody_out(many: Nodes, what: str) -> None:
    path, kind = ASKED[what]
    before, name = resident_mib(many.pid("proxy", "")), "warm-0"
    many.put(name, b"small")
    step = ask(many.proxy, "GET", "/v1/cluster").json()["step"]
    beside = Counter[int]()
    with ExitStack() as opened:
        for wire in [opened.enter_context(Wire(many.proxy, receive_buffer_bytes=8192)) for _ in range(READERS)]:
            wire.head("GET", path)
        until = time.monotonic() + BESIDE_S
        while time.monotonic() < until:
            beside[ask(many.proxy, "GET", f"/b/{name}").status] += 1
            requests, size = held(many, kind)
            assert requests <= ROOM[kind][0]
            assert size <= ROOM[kind][1]
        assert resident_mib(many.pid("proxy", "")) < before + GROWTH_MIB
        assert set(beside) == {200}
        assert ask(many.proxy, "GET", "/v1/cluster").json()["step"] == step, "a target was taken for down"
    wait_for(lambda: held(many, kind) == (0, 0), "the places of those that went", READ_STALL_S * 6)
    assert ask(many.proxy, "GET", path).status == 200
