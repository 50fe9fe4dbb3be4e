"""Attacks with batch reads: lists that are none, or too long, and readers that stall, vanish or are too many."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pytest
from harness import wait_for
from job_shards import tar_of
from security.census import resident_mib
from security.conftest import MIB, READ_STALL_S, Nodes
from security.wire import Reply, Wire, ask, chunked

from dfc.limits import BATCH_ITEMS_MAX, BATCHES_MAX

VIAS = ["owner", "proxy", "other"]
PACKED: dict[str, str | bytes] = {"Content-Type": "application/msgpack"}
SAMPLES = 16


@pytest.fixture(scope="module")
def shards(hasty: Nodes) -> list[str]:
    """Shards of 8 MiB, at least one on each target."""
    content = tar_of([(f"{number:04d}.bin", os.urandom(MIB // 2)) for number in range(SAMPLES)])
    names, owners = [], set()
    for number in range(20):
        name = f"batch-{number}.tar"
        if hasty.owner(name) not in owners:
            owners.add(hasty.owner(name))
            names.append(name)
            hasty.put(name, content)
            # Its index is mapped from here on, and the nodes know each other.
            assert batch(hasty.proxy, [{"bucket": "b", "object": name, "number": 0}]).status == 200
    assert len(owners) == 2
    return names


def batch(url: str, items: object, **more: object) -> Reply:
    return ask(url, "POST", "/v1/batch", body=json.dumps({"items": items, **more}).encode())


def many(shards: list[str], rounds: int) -> bytes:
    """A list of 16 MiB a round, from all targets in turn."""
    items = [{"bucket": "b", "object": name, "number": number} for number in range(SAMPLES) for name in shards]
    return json.dumps({"items": items * rounds}).encode()


def begin(url: str, body: bytes, headers: Mapping[str, str | bytes] | None = None, *, buffer_bytes: int = 8192) -> Wire:
    """A batch read whose answer the kernel takes little of."""
    wire = Wire(url, receive_buffer_bytes=buffer_bytes)
    wire.head("POST", "/v1/batch", {**(headers or {}), "Content-Length": str(len(body))})
    wire.send(body)
    return wire


BAD: dict[str, tuple[bytes, bool]] = {
    "nothing": (b"", False),
    "no list": (b'{"items": {}}', False),
    "deep": (b'{"items": ' + b"[" * 500_000, False),
    "deep item": (b'{"items": [{"bucket": ' + b'{"a":' * 200_000, False),
    "huge number": (b'{"items": [{"bucket": "b", "object": "x", "number": ' + b"9" * 1_000_000 + b"}]}", False),
    "float": (b'{"items": [{"bucket": "b", "object": "x", "number": 1e400}]}', False),
    "not utf-8": (b'{"items": [{"bucket": "b", "object": "\xff"}]}', False),
    "surrogate": (b'{"items": [{"bucket": "b", "object": "\\ud800"}]}', False),
    "array of 4 billion": (b"\x81\xa5items\xdd\xff\xff\xff\xff", True),
    "map of 4 billion": (b"\x81\xa5items\x91\xdf\xff\xff\xff\xff", True),
    "text of 4 GB": (b"\x81\xa5items\x91\x81\xa6bucket\xdb\xff\xff\xff\xff", True),
    "deep msgpack": (b"\x81\xa5items" + b"\x91" * 500_000, True),
    "extension": (b"\x81\xa5items\x91\xc7\x05\x01aaaaa", True),
    "pickle": (b"\x80\x04\x95\x00", True),
    "json as msgpack": (b'{"items": []}', True),
}


@pytest.mark.parametrize("via", VIAS)
def test_lists_that_are_none(unchanged: Nodes, via: str) -> None:
    for what, (body, packed) in BAD.items():
        started = time.monotonic()
        reply = ask(unchanged.url(via, "x"), "POST", "/v1/batch", PACKED if packed else {}, body)
        assert (reply.status, reply.code) == (400, "bad_request"), (what, reply)
        assert time.monotonic() - started < 30, what
    for names in ({"object": "../x"}, {"object": "a\0b"}, {"bucket": "v1"}, {"object": "a%2e%2e/b/%2e%2e"}):
        reply = batch(unchanged.url(via, "x"), [{"bucket": "b", "object": "x"} | names])
        assert reply.status in (400, 404), names
    for path in ("/v1/batch?x=1", "/v1/node/batch?x=1"):
        assert ask(unchanged.owner("x"), "POST", path, body=b"{}").status == 400


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_lists_that_are_too_long(unchanged: Nodes, via: str) -> None:
    url = unchanged.url(via, "x")
    items = [{"bucket": "b", "object": "x"}] * (BATCH_ITEMS_MAX + 1)
    assert ask(url, "POST", "/v1/batch", PACKED, msgspec.msgpack.encode({"items": items})).code == "too_large"
    with Wire(url) as wire:
        wire.head("POST", "/v1/batch", {"Content-Length": str(1 << 40)})
        assert wire.answer().code == "too_large"
    with Wire(url) as wire:
        wire.head("POST", "/v1/batch", {"Transfer-Encoding": "chunked"})
        piece = chunked(b" " * 65536)[: -len(b"0\r\n\r\n")]
        for _ in range(600):
            wire.send_while_open(piece)
        assert wire.answer().code == "too_large"


def test_a_hundred_thousand_things_that_are_not_there(nodes: Nodes, shards: list[str]) -> None:
    """Other requests are answered meanwhile."""
    items = [{"bucket": "b", "object": f"none-{number}", "number": number} for number in range(BATCH_ITEMS_MAX)]
    body = msgspec.msgpack.encode({"items": items, "on_missing": "skip"})
    before = max(resident_mib(pid) for pid in nodes.cluster.children().values())
    slowest, wires = 0.0, [begin(nodes.proxy, body, PACKED, buffer_bytes=0) for _ in range(2)]
    while any(wire.is_silent() for wire in wires):
        started = time.monotonic()
        assert all(ask(url, "GET", "/v1/health").status == 200 for url in (nodes.proxy, nodes.owner("x")))
        slowest = max(slowest, time.monotonic() - started)
    for wire in wires:
        assert wire.answer().body == bytes(1024)
        wire.close()
    assert slowest < 20
    assert max(resident_mib(pid) for pid in nodes.cluster.children().values()) < before + 300


@pytest.mark.parametrize("via", VIAS)
def test_readers_that_stall_are_cut_off_and_hold_no_thread(nodes: Nodes, shards: list[str], via: str) -> None:
    body = many(shards, 4)
    with ExitStack() as opened:
        wires = [opened.enter_context(begin(nodes.url(via, shards[0]), body)) for _ in range(12)]
        for wire in wires:
            wait_for(lambda wire=wire: not wire.is_silent(), "the answer to begin")
        for name in shards:  # there are four threads for transfers a node
            assert len(nodes.get(name).body) > SAMPLES * MIB // 2
        wait_for(lambda: not nodes.census.excess(), "the stalled readers to be cut off", READ_STALL_S * 6)


@pytest.mark.parametrize("via", VIAS)
def test_readers_that_vanish(nodes: Nodes, shards: list[str], via: str) -> None:
    body = many(shards, 4)
    for number in range(20):
        wire = begin(nodes.url(via, shards[0]), body)
        if number % 2:
            wait_for(lambda wire=wire: not wire.is_silent(), "the answer to begin")
        wire.reset()


def test_more_readers_than_there_is_room_for(nodes: Nodes, shards: list[str]) -> None:
    """One more is told to come again; nobody else is disturbed; there is room again when the others go."""
    url = nodes.owner(shards[0])
    body = json.dumps({"items": [{"bucket": "b", "object": shards[0], "number": number} for number in range(SAMPLES)]}).encode()
    before = resident_mib(nodes.pid("owner", shards[0]))
    with ExitStack() as opened:
        wires = [opened.enter_context(begin(url, body)) for _ in range(BATCHES_MAX * 3 // 4)]  # all that one client gets
        for wire in wires:
            wait_for(lambda wire=wire: not wire.is_silent(), "the answer to begin")
        refused = ask(url, "POST", "/v1/batch", body=body)
        if refused.status != 200:  # the first may have been cut off by now
            assert (refused.status, refused.code) == (503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        assert resident_mib(nodes.pid("owner", shards[0])) < before + 2 * BATCHES_MAX + 100
        assert len(nodes.get(shards[1]).body) > 0
    wait_for(lambda: ask(url, "POST", "/v1/batch", body=body).status == 200, "room for another")


def test_many_at_once_are_whole(nodes: Nodes, shards: list[str]) -> None:
    body = many(shards, 1)
    whole = ask(nodes.proxy, "POST", "/v1/batch", body=body).body
    urls = [nodes.url(via, shards[0]) for via in VIAS] * 4
    with ThreadPoolExecutor(len(urls)) as pool:
        answers = pool.map(lambda url: ask(url, "POST", "/v1/batch", body=body).body, urls)
        assert [url for url, answer in zip(urls, answers, strict=True) if answer != whole] == []
