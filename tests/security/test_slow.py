"""Clients that are slow on purpose: heads that never end, readers that stop reading, more connections than are allowed."""

from __future__ import annotations

import gzip
import os
import threading
import time

import pytest
from harness import wait_for
from job_shards import tar_of
from security.conftest import BIG, CONNECTIONS_MAX, HEADER_TIMEOUT_S, MIB, READ_STALL_S, Nodes
from security.wire import Wire, ask

READERS = 3  # of each kind, through each node: 9 a target of what transfer threads send


def test_heads_that_do_not_end_are_408(unchanged: Nodes, name: str) -> None:
    begun = {
        "nothing": b"",
        "a line": b"GET /b/x HTTP/1.1\r\n",
        "half a line": b"GET /b/x",
        "fields": b"GET /b/x HTTP/1.1\r\nHost: a\r\nX-A: b\r\n",
        "half a field": b"PUT /b/x HTTP/1.1\r\nHost: a\r\nContent-Le",
        "the second": b"GET /b/x HTTP/1.1\r\nHost: a\r\n\r\n",
    }
    wires = {(via, what): Wire(unchanged.url(via, name)) for via in ("owner", "proxy") for what in begun}
    dripping, stopping = [wire for (_, what), wire in wires.items() if what == "fields"], threading.Event()

    def drip() -> None:
        """These go on sending a byte now and then: the deadline is that of the whole head."""
        while not stopping.wait(0.2):
            for wire in dripping:
                wire.send_while_open(b"x")

    started = time.monotonic()
    for (_, what), wire in wires.items():
        wire.send(begun[what])
        if what == "the second":  # after one that was answered
            assert wire.answer().status == 404
            wire.send(b"GET /b/x HT")
    dripper = threading.Thread(target=drip)
    dripper.start()
    try:
        for key, wire in wires.items():
            reply = wire.answer()
            assert (reply.status, reply.code, reply.headers["connection"]) == (408, "header_timeout", "close"), key
            wire.assert_ended()
        assert HEADER_TIMEOUT_S <= time.monotonic() - started < HEADER_TIMEOUT_S * 10
    finally:
        stopping.set()
        dripper.join()
        for wire in wires.values():
            wire.close()


@pytest.fixture(scope="module")
def stored(hasty: Nodes) -> dict[str, str]:
    """Paths of large answers of each kind: a file, a range of one, a stream that a thread makes."""
    hasty.put("big", os.urandom(BIG))
    shard = tar_of([("first.bin", bytes(1000)), ("second.bin", os.urandom(BIG - 8192))])
    hasty.put("big.tar", shard)
    hasty.put("big.tar.gz", gzip.compress(shard, 1))
    return {
        "object": "big",
        "member": "big.tar?member=second.bin",
        "sample": "big.tar?sample=second",
        "compressed member": "big.tar.gz?member=second.bin",
        "compressed sample": "big.tar.gz?sample=second",
    }


def test_readers_that_stall_are_cut_off_and_hold_no_thread(nodes: Nodes, stored: dict[str, str], name: str) -> None:
    """Far more than there are threads stop reading; what others want is served meanwhile as ever."""
    nodes.put(name, os.urandom(2 * MIB))
    readers = []
    for via in ("owner", "proxy", "other"):
        for target in stored.values():
            url = nodes.url(via, target.partition("?")[0])
            readers += [(f"{via} {target}", Wire(url, receive_buffer_bytes=8192)) for _ in range(READERS)]
            for _, reader in readers[-READERS:]:
                reader.head("GET", f"/b/{target}")
    nodes.census.spare += len(readers)  # the relays open as many connections to the next node, and keep some of them
    try:
        for what, reader in readers:
            assert reader.socket.recv(12) == b"HTTP/1.1 200", what
        started = time.monotonic()
        for via in ("owner", "proxy"):
            url = nodes.url(via, name)
            assert len(ask(url, "GET", f"/b/{name}").body) == len(nodes.get(name).body)
            assert ask(url, "PUT", f"/b/{name}", body=bytes(MIB)).status == 200
            assert len(ask(nodes.url(via, "big"), "GET", "/b/big", {"Range": "bytes=0-999999"}).body) == 1_000_000
        assert time.monotonic() - started < READ_STALL_S * 2
        nodes.census.assert_settled(with_clients=False)
        wait_for(nodes.census.has_no_clients, "the readers to be cut off", timeout_s=READ_STALL_S * 6)
        for what, reader in readers:
            received = 12
            try:
                while piece := reader.socket.recv(1 << 20):
                    received += len(piece)
            except ConnectionResetError:
                pass
            assert received < BIG, what  # nobody could take it for the whole
    finally:
        for _, reader in readers:
            reader.close()
    nodes.census.assert_settled()


def test_readers_that_are_slow_but_steady_get_everything(nodes: Nodes, stored: dict[str, str]) -> None:
    """Slower than the stall timeout as a whole, never idle for that long."""
    wires = [Wire(nodes.url(via, "big"), receive_buffer_bytes=1 << 16) for via in ("owner", "proxy", "other")]
    received = dict.fromkeys(wires, 0)
    steps, pause = 10, threading.Event()
    for wire in wires:
        wire.head("GET", "/b/big")
    for step in range(steps):
        pause.wait(READ_STALL_S * 1.4 / steps)  # the pace of these readers
        for wire in wires:
            while received[wire] < BIG * (step + 1) // steps:
                piece = wire.socket.recv(1 << 16)
                assert piece, "cut off"
                received[wire] += len(piece)
    for wire in wires:
        with wire:
            while received[wire] <= BIG and (piece := wire.socket.recv(1 << 16)):
                received[wire] += len(piece)
            assert received[wire] > BIG


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_readers_that_vanish_leave_nothing_open(nodes: Nodes, stored: dict[str, str], via: str) -> None:
    """Before the first byte, and in the middle; what is left open each time shows after so many."""
    targets = [*(f"/b/{target}" for target in stored.values()), "/b/big.tar?list=members"]
    if via == "proxy":
        targets += ["/b/", "/v1/buckets/b/samples"]
    for target in targets:
        url = nodes.url(via, target.removeprefix("/b/").partition("?")[0])
        for number in range(10):
            wire = Wire(url, receive_buffer_bytes=8192)
            wire.head("GET", target)
            if number % 2:
                assert (start := wire.socket.recv(400))[:12] == b"HTTP/1.1 200", start
            if number % 3:
                wire.reset()
            else:
                wire.close()
            if via == "proxy":  # one after the other, or the pools between the nodes would have to grow
                wait_for(nodes.census.has_no_clients, f"the end of a reader of {target}")
        nodes.census.assert_settled()


# --- the number of connections


def fill(url: str) -> list[Wire]:
    """Connections to a node, some of which it has refused: it has no room for more."""
    wires = [Wire(url) for _ in range(5)]
    wait_for(lambda: not all(wire.is_silent() for wire in wires), "the node to be full")
    return wires


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_connections_over_the_cap_are_503_and_others_go_on(strict: Nodes, name: str, via: str) -> None:
    url = strict.url(via, name)
    strict.put(name, b"abc")
    strict.census.assert_settled()
    idle = [Wire(url) for _ in range(CONNECTIONS_MAX + 20)]
    wait_for(lambda: sum(not wire.is_silent() for wire in idle) >= 20, "refusals")
    refused = [wire for wire in idle if not wire.is_silent()]
    assert len(refused) <= 35  # the other nodes have a few connections as well
    for wire in refused:
        assert wire.answer().status == 503
        wire.assert_ended()
    stored = b"abc"
    for body in (None, b"z" * 10, b"z" * 3_000_000):
        length = {} if body is None else {"Content-Length": str(len(body))}
        for _ in range(5):
            with Wire(url) as wire:
                wire.head("GET" if body is None else "PUT", f"/b/{name}", {**strict.headers, **length})
                wire.send_while_open(body or b"")
                reply = wire.answer()
                if reply.status == 503:
                    wire.assert_ended()
                    break
            stored = body or stored  # another node has ended one of its connections: there was room
            idle += fill(url)
        assert (reply.status, reply.code, reply.headers.get("retry-after")) == (503, "unavailable", "1"), reply
    served = next(wire for wire in idle if wire not in refused)
    served.head("GET", f"/b/{name}")
    assert served.answer().body == stored  # one that was let in is served
    for wire in idle:
        wire.close()
    wait_for(lambda: ask(url, "GET", f"/b/{name}").status == 200, "connections to be free again")
    strict.census.assert_settled()


def test_a_storm_of_connections_over_the_cap_leaves_nothing(strict: Nodes) -> None:
    wires = [Wire(strict.proxy) for _ in range(300)]
    for wire in wires[::2]:
        wire.reset()
    for wire in wires[1::2]:
        wire.close()
    wait_for(lambda: ask(strict.proxy, "GET", "/v1/health").status == 200, "connections to be free again")
    strict.census.assert_settled()
