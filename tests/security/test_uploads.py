"""Uploads that go wrong: each gets its named answer, whole; nothing is stored and the old object stays; nothing is held."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Self

import pytest
from harness import wait_for
from security.conftest import GRACE_S, MIB, MIN_RATE_BYTES_PER_S, OBJECT_SIZE_MAX, Nodes
from security.wire import Reply, Wire, ask, chunked

from dfc.checksum import checksum_of

VIAS = ["owner", "proxy", "other"]
OLD = b"the old object"
# How much of how much is sent: read by the event loop; by a thread from its first byte; with most of it under way.
SIZES = {"small": (40_000, 1000), "large": (300_000, 100), "larger": (3 * MIB, 2 * MIB)}
ATTACKS = 10  # times each, so that a connection between nodes that is left each time shows


def begin(nodes: Nodes, via: str, name: str, announced: int, sent: bytes, *, is_chunked: bool) -> Wire:
    """A PUT whose body has only begun."""
    wire = Wire(nodes.url(via, name))
    if is_chunked:
        wire.head("PUT", f"/b/{name}", {"Transfer-Encoding": "chunked"})
        wire.send(b"%x\r\n" % announced + sent)
    else:
        wire.head("PUT", f"/b/{name}", {"Content-Length": str(announced)})
        wire.send(sent)
    return wire


def assert_still_old(nodes: Nodes, name: str) -> None:
    reply = nodes.get(name)
    assert (reply.status, reply.body) == (200, OLD)


def assert_unharmed(nodes: Nodes, name: str, before: set[str]) -> None:
    """The old object is there, and soon nothing else that was not there before."""
    assert_still_old(nodes, name)
    wait_for(lambda: nodes.census.stored() == before, "the blobs to be removed")


@pytest.fixture
def replaced(nodes: Nodes, name: str) -> str:
    """The name of an object that an attack tries to replace."""
    nodes.put(name, OLD)
    return name


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_client_that_ends_too_early_is_told_so(nodes: Nodes, replaced: str, via: str, size: str, is_chunked: bool) -> None:
    before = nodes.census.kept()
    announced, sent = SIZES[size]
    for _ in range(ATTACKS):
        with begin(nodes, via, replaced, announced, b"z" * sent, is_chunked=is_chunked) as wire:
            wire.end_sending()
            reply = wire.answer()
            assert (reply.status, reply.code) == (400, "length_mismatch"), reply
            wire.assert_ended()
    assert_unharmed(nodes, replaced, before)


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_client_that_vanishes_leaves_nothing(nodes: Nodes, replaced: str, via: str, size: str, is_chunked: bool) -> None:
    before = nodes.census.kept()
    announced, sent = SIZES[size]
    for number in range(ATTACKS):
        wire = begin(nodes, via, replaced, announced, b"z" * sent, is_chunked=is_chunked)
        if number % 2:
            wire.reset()
        else:
            wire.close()
    wait_for(lambda: nodes.census.stored() == before, "the blobs to be removed")
    nodes.census.assert_settled()
    assert_still_old(nodes, replaced)


@pytest.mark.parametrize("via", VIAS)
def test_a_client_that_vanishes_before_the_body_leaves_nothing(nodes: Nodes, replaced: str, via: str) -> None:
    before = nodes.census.kept()
    for headers in ({"Content-Length": "3000000"}, {"Transfer-Encoding": "chunked"}, {"Content-Length": "7"}):
        for _ in range(ATTACKS):
            wire = Wire(nodes.url(via, replaced))
            wire.head("PUT", f"/b/{replaced}", {**headers, "Expect": "100-continue"})
            assert wire.answer().status == 100
            wire.reset()
    wait_for(lambda: nodes.census.stored() == before, "the blobs to be removed")
    nodes.census.assert_settled()
    assert_still_old(nodes, replaced)


def bodies(wrong: bool) -> dict[str, tuple[bytes, dict[str, str]]]:
    """Bodies of all ways in, and headers that name their checksums, or another's."""
    found = {}
    for size in (0, 10, 40_000, 300_000, 2 * MIB):
        body = os.urandom(size)
        said = body + b"?" if wrong else body
        xxh3 = {"X-DFC-Checksum": f"xxh3-128={checksum_of(said)}"}
        md5 = {"Content-MD5": base64.b64encode(hashlib.md5(said).digest()).decode()}
        found[f"{size} xxh3"] = (body, xxh3)
        found[f"{size} md5"] = (body, md5)
    return found


@pytest.mark.parametrize("via", VIAS)
def test_wrong_checksums_are_422_and_nothing_is_stored(nodes: Nodes, replaced: str, via: str) -> None:
    before = nodes.census.kept()
    url = nodes.url(via, replaced)
    for what, (body, headers) in bodies(wrong=True).items():
        assert (reply := ask(url, "PUT", f"/b/{replaced}", headers, body)).code == "checksum_mismatch", (what, reply)
        assert reply.status == 422
        with Wire(url) as wire:
            wire.head("PUT", f"/b/{replaced}", {**headers, "Transfer-Encoding": "chunked"})
            wire.send(chunked(body) if body else b"0\r\n\r\n")
            assert (reply := wire.answer()).status == 422, (what, reply)
    for header, value in (
        ("X-DFC-Checksum", "xxh3-128=xyz"), ("X-DFC-Checksum", "md5=" + "0" * 32), ("X-DFC-Checksum", "0" * 32),
        ("Content-MD5", "!!"), ("Content-MD5", "AAAA"), ("X-DFC-Checksum", "xxh3-128=" + "0" * 33),
    ):  # fmt: skip
        assert ask(url, "PUT", f"/b/{replaced}", {header: value}, b"x" * 10).status == 400
        reply = ask(url, "PUT", f"/b/{replaced}", {header: value}, b"x" * 200_000)
        assert (reply.status, reply.code) == (400, "bad_request")
    assert_unharmed(nodes, replaced, before)


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_right_checksums_are_taken(nodes: Nodes, replaced: str, via: str) -> None:
    for body, headers in bodies(wrong=False).values():
        assert ask(nodes.url(via, replaced), "PUT", f"/b/{replaced}", headers, body).status == 200
        assert nodes.get(replaced).body == body


@pytest.mark.parametrize("via", VIAS)
def test_objects_over_the_limit_are_413(nodes: Nodes, replaced: str, via: str) -> None:
    before = nodes.census.kept()
    url = nodes.url(via, replaced)
    for announced in (OBJECT_SIZE_MAX + 1, 1 << 40, (1 << 63) - 1):
        with Wire(url) as wire:  # the body comes although nobody wants it, as curl without Expect sends it
            wire.head("PUT", f"/b/{replaced}", {"Content-Length": str(announced)})
            wire.send(b"z" * 500_000)
            reply = wire.answer()
            assert (reply.status, reply.code, reply.headers["connection"]) == (413, "too_large", "close")
            wire.assert_ended()
        with Wire(url) as wire:
            wire.head("PUT", f"/b/{replaced}", {"Content-Length": str(announced), "Expect": "100-continue"})
            assert wire.answer().status == 413  # and not 100 first
    with Wire(url) as wire:
        wire.head("PUT", f"/b/{replaced}", {"Transfer-Encoding": "chunked"})
        piece = b"100000\r\n" + b"z" * MIB + b"\r\n"
        for _ in range(OBJECT_SIZE_MAX // MIB + 2):  # a little over: what is sent after the answer is drained
            wire.send_while_open(piece)
        reply = wire.answer()
        assert (reply.status, reply.code) == (413, "too_large")
    assert_unharmed(nodes, replaced, before)


def test_an_object_of_just_the_limit_is_taken(nodes: Nodes, name: str) -> None:
    nodes.put(name, bytes(OBJECT_SIZE_MAX))
    assert ask(nodes.proxy, "DELETE", f"/b/{name}").status == 204


def test_a_client_that_only_sends_is_cut_off_after_the_answer(nodes: Nodes, name: str) -> None:
    """It never looks for the answer: the connection ends after LINGER_BYTES of what it still sends."""
    for via in VIAS:
        with Wire(nodes.url(via, name)) as wire:
            wire.head("PUT", f"/b/{name}", {"Content-Length": str(1 << 40)})
            assert wire.send_while_open(bytes(64 * MIB)) < 40 * MIB
    assert nodes.get(name).status == 404


# --- slow bodies


def all_ways(nodes: Nodes, name: str) -> list[tuple[str, Wire]]:
    """An upload that has just begun, for every size, framing and node."""
    found = []
    for via in VIAS:
        for size, (announced, sent) in SIZES.items():
            for is_chunked in (False, True):
                wire = begin(nodes, via, name, announced, b"z" * sent, is_chunked=is_chunked)
                found.append((f"{via} {size} {'chunked' if is_chunked else 'length'}", wire))
    return found


def test_stalled_bodies_are_408(nodes: Nodes, replaced: str) -> None:
    before = nodes.census.kept()
    started = time.monotonic()
    uploads = all_ways(nodes, replaced)
    for what, wire in uploads:
        with wire:
            reply = wire.answer()
            assert (reply.status, reply.code) == (408, "body_timeout"), (what, reply)
            wire.assert_ended()
    assert time.monotonic() - started < len(uploads) * GRACE_S / 2  # all at once, not one after the other
    assert_unharmed(nodes, replaced, before)


class Trickle(threading.Thread):
    """Sends a little on each of some connections, again and again, at `rate_bytes_per_s`; collects the answers. Within a
    `with` block."""

    def __init__(self, uploads: list[tuple[str, Wire]], rate_bytes_per_s: float, piece: int) -> None:
        super().__init__(daemon=True)
        self.uploads = dict(uploads)
        self.pause_s = piece / rate_bytes_per_s
        self.piece = b"z" * piece
        self.answers: dict[str, Reply] = {}
        self.stopping = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def run(self) -> None:
        while len(self.answers) < len(self.uploads) and not self.stopping.wait(self.pause_s):
            for what, wire in self.uploads.items():
                if what in self.answers:
                    continue
                if wire.is_silent():
                    wire.send_while_open(self.piece)
                else:
                    self.answers[what] = wire.answer()

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join()
        for wire in self.uploads.values():
            wire.close()


def test_bodies_below_the_minimum_rate_are_408(nodes: Nodes, replaced: str) -> None:
    before = nodes.census.kept()
    with Trickle(all_ways(nodes, replaced), MIN_RATE_BYTES_PER_S / 4, 200) as trickle:
        wait_for(lambda: len(trickle.answers) == len(trickle.uploads), "the uploads to be ended", timeout_s=4 * GRACE_S + 4)
        for what, reply in trickle.answers.items():
            assert (reply.status, reply.code) == (408, "body_timeout"), (what, reply)
    assert_unharmed(nodes, replaced, before)


def test_slow_bodies_above_the_minimum_rate_are_taken(nodes: Nodes, replaced: str) -> None:
    """Each goes on for longer than the window over which the rate is measured."""
    size = int(MIN_RATE_BYTES_PER_S * GRACE_S * 3)
    uploads = []
    for via in VIAS:
        for announced in (size, size * 2):  # below and above what the event loop reads by itself
            uploads.append((f"{via} {announced}", begin(nodes, via, replaced, announced, b"", is_chunked=False)))
    with Trickle(uploads, MIN_RATE_BYTES_PER_S * 4, 2000) as trickle:
        wait_for(lambda: len(trickle.answers) == len(uploads), "the uploads to end", timeout_s=20 * GRACE_S)
        assert {reply.status for reply in trickle.answers.values()} == {200}, trickle.answers
    assert nodes.get(replaced).body in (b"z" * size, b"z" * size * 2)


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_trickling_uploads_hold_no_threads(nodes: Nodes, name: str, via: str) -> None:
    """Four times as many as there are threads, each with some bytes every moment: others are served as if they were not."""
    nodes.put(name, os.urandom(8 * MIB))
    uploads = [(str(n), begin(nodes, via, name, 4 * MIB, b"z" * 1000, is_chunked=False)) for n in range(16)]
    with Trickle(uploads, 200_000, 800) as trickle:  # ten times what is asked for: the machine may be busy
        url = nodes.url(via, name)
        for _ in range(3):
            started = time.monotonic()
            assert len(ask(url, "GET", f"/b/{name}").body) == 8 * MIB
            assert ask(url, "PUT", f"/b/{name}", body=bytes(2 * MIB)).status == 200
            assert ask(url, "PUT", f"/b/{name}", body=bytes(8 * MIB)).status == 200
            assert time.monotonic() - started < 60
        assert len(trickle.answers) < len(uploads)
    nodes.census.assert_settled()


# --- conditions and rights are decided before the body is read


def _refusals(nodes: Nodes, name: str) -> list[tuple[str, dict[str, str | bytes], int, str]]:
    return [
        (f"/b/{name}", {"If-None-Match": "*"}, 412, "precondition_failed"),
        (f"/b/{name}", {"If-Match": '"0"'}, 412, "precondition_failed"),
        (f"/b/{name}", {"If-Match": '"a", "b"'}, 400, "bad_request"),
        (f"/b/{name}", {"If-Match": "'"}, 400, "bad_request"),
        (f"/b/{name}", {"Content-Range": "bytes 0-1/2"}, 400, "bad_request"),
        (f"/b/{name}", {"Origin": "http://evil.example"}, 403, "forbidden"),
        (f"/v1/objects/b/{name}?nonsense=1", {}, 400, "bad_request"),
        (f"/b/{name}/..", {}, 400, "bad_name"),
        ("/v1/nothing", {}, 404, "not_found"),
    ]


@pytest.mark.parametrize("via", VIAS)
@pytest.mark.parametrize("size", [100, 400_000, 1_000_000])
def test_refused_uploads_get_their_answer_and_no_reset(nodes: Nodes, replaced: str, via: str, size: int) -> None:
    before = nodes.census.kept()
    for path, headers, status, code in _refusals(nodes, replaced):
        for framing, body in (
            ({"Content-Length": str(size)}, b"z" * size),
            ({"Transfer-Encoding": "chunked"}, chunked(b"z" * size)),
        ):
            with Wire(nodes.url(via, replaced)) as wire:
                wire.head("PUT", path, {**headers, **framing})
                wire.send(body)
                reply = wire.answer()
                assert (reply.status, reply.code) == (status, code), (path, headers, framing, reply)
                if reply.headers.get("connection") == "close":
                    wire.assert_ended()
    assert_unharmed(nodes, replaced, before)


@pytest.mark.parametrize("via", VIAS)
def test_refused_uploads_that_expect_100_are_not_asked_for_the_body(nodes: Nodes, replaced: str, via: str) -> None:
    for path, headers, status, code in _refusals(nodes, replaced):
        for length in ("10", "1000000"):
            with Wire(nodes.url(via, replaced)) as wire:
                wire.head("PUT", path, {**headers, "Content-Length": length, "Expect": "100-continue"})
                reply = wire.answer()
                if reply.status == 100 and length == "10" and via != "owner":
                    wire.send(b"z" * 10)  # a relay takes small bodies before it asks the owner
                    reply = wire.answer()
                assert (reply.status, reply.code) == (status, code), (path, headers, reply)
    assert_still_old(nodes, replaced)


def test_bodies_of_reads_and_deletes_are_no_requests(nodes: Nodes, replaced: str) -> None:
    """A body where none is expected is skipped or ends the connection; it is never taken for the next request."""
    smuggled = f"DELETE /b/{replaced} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()
    ways: list[Callable[[Wire, str], None]] = [
        lambda wire, method: wire.head(method, f"/b/{replaced}?x", {"Content-Length": str(len(smuggled))}),
        lambda wire, method: wire.head(method, "/b/nothing", {"Content-Length": str(len(smuggled) + 500_000)}),
        lambda wire, method: wire.head(method, "/b/nothing", {"Transfer-Encoding": "chunked"}),
    ]
    for via in VIAS:
        for method in ("GET", "DELETE", "HEAD", "OPTIONS", "POST"):
            if method == "DELETE":
                ways = ways[1:]
            for way in ways:
                with Wire(nodes.url(via, replaced)) as wire:
                    way(wire, method)
                    wire.send(smuggled)
                    wire.end_sending()
                    wire.rest()
    assert_still_old(nodes, replaced)
