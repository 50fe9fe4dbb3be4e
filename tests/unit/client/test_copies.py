"""The client and objects with two copies: what one node does not serve, the other does, from the byte on where it broke off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import BlackHole
from fake_node import WAYS, FakeCopies, FakeNode, abort_a_read, failing, fake_copies, quicken

from dfc.checksum import checksum_of
from dfc.client import Client
from dfc.errors import Misdirected, ObjectNotFound, PreconditionFailed, Unavailable, Unreachable

MORE_WAYS = WAYS | {
    "503": failing(status=503, headers={"Retry-After": "9"}),
    "500": failing(status=500, code="object_corrupt"),
    "hangs up": failing(hang_up=True),
}


@pytest.fixture
def copies(make_node: Callable[..., FakeNode]) -> FakeCopies:
    return fake_copies(make_node(), *(make_node("target") for _ in range(3)))


@pytest.fixture
def client(copies: FakeCopies) -> Iterator[Client]:
    with Client(copies.url, "secret") as made:
        quicken(made)
        yield made


def ranges(node: FakeNode) -> list[tuple[str, str]]:
    """Range and If-Range of the reads that a node was asked for."""
    return [(headers.get("range", ""), headers.get("if-range", "")) for _, headers in node.requests("GET", "objects")]


def test_the_first_copy_alone_is_asked_while_it_serves(copies: FakeCopies, client: Client, body: bytes) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    for _ in range(3):
        assert client.get("b", "x") == body
        assert client.stat("b", "x").size == len(body)
    assert len(first.log) == 6
    assert second.log == []


@pytest.mark.parametrize("way", MORE_WAYS)
def test_a_read_goes_on_at_the_other_copy_at_once(copies: FakeCopies, client: Client, way: str, body: bytes) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    assert client.get("b", "x") == body
    for method in ("GET", "HEAD"):
        MORE_WAYS[way](first, method)
    begun_s = time.monotonic()
    assert client.get("b", "x") == body
    assert client.get("b", "x", start=5, length=7) == body[5:12]
    assert client.stat("b", "x").etag == checksum_of(body)
    assert time.monotonic() - begun_s < 2
    assert len(second.log) == 3
    assert copies.proxy.requests("GET", "objects") == []


@pytest.mark.parametrize("cut", [0, 1, 100_000, 3_000_000])
def test_a_body_that_breaks_off_goes_on_at_the_other_copy(copies: FakeCopies, client: Client, cut: int, body: bytes) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    first.fail("GET", cut_after=cut)
    assert client.get("b", "x") == body
    assert ranges(first) == [("", "")]
    (asked,) = ranges(second)
    at = int(asked[0].removeprefix("bytes=").partition("-")[0])
    assert 0 <= at <= cut
    assert asked == (f"bytes={at}-{len(body) - 1}", f'"{checksum_of(body)}"')


def test_who_breaks_off_again_and_again_is_left_behind(copies: FakeCopies, client: Client, body: bytes) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    for _ in range(50):
        first.fail("GET", cut_after=0)
    second.fail("GET", cut_after=1_000_000)
    second.fail("GET", cut_after=1_000_000)
    assert client.get("b", "x") == body
    assert len(ranges(second)) == 3
    assert len(ranges(first)) <= 6


def test_both_break_off_for_ever(copies: FakeCopies, client: Client, body: bytes) -> None:
    copies.objects["b", "x"] = body
    for node in copies.readers("x"):
        for _ in range(50):
            node.fail("GET", cut_after=0)
    with pytest.raises(Unreachable):
        client.get("b", "x")
    assert [len(ranges(node)) for node in copies.readers("x")] == [8, 8]


def test_a_node_that_dies_in_the_middle_of_a_download(copies: FakeCopies, client: Client, body: bytes, tmp_path: Path) -> None:
    copies.objects["b", "x"] = body * 8
    first, second = copies.readers("x")
    came = []

    def progress(count: int) -> None:
        came.append(count)
        if sum(came) > 4_000_000 and first.thread.is_alive():
            first.kill()

    begun_s = time.monotonic()
    client.get_to_file("b", "x", tmp_path / "x", progress=progress)
    assert time.monotonic() - begun_s < 10
    assert (tmp_path / "x").read_bytes() == body * 8
    assert sum(came) == len(body) * 8
    (asked,) = ranges(second)
    assert int(asked[0].removeprefix("bytes=").partition("-")[0]) > 4_000_000


def test_a_reader_that_is_open_goes_on(copies: FakeCopies, client: Client, body: bytes) -> None:
    copies.objects["b", "x"] = whole = body * 8
    first, second = copies.readers("x")
    with client.open("b", "x") as reader:
        assert reader.read(1000) == body[:1000]
        first.kill()
        assert reader.read(len(whole)) == whole[1000:]
        assert reader.seek(7) == 7
        assert reader.read(3) == body[7:10]
    assert len(ranges(second)) == 2


def test_two_versions_are_not_mixed(copies: FakeCopies, client: Client, body: bytes) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    second.objects = {("b", "x"): body[::-1]}
    first.fail("GET", cut_after=1_000_000)
    with pytest.raises(PreconditionFailed, match="replaced"):
        client.get("b", "x")


def test_if_neither_serves_it_the_relay_is_asked_and_then_all_once_more(copies: FakeCopies, client: Client) -> None:
    copies.objects["b", "x"] = copies.proxy.objects["b", "x"] = b"1"
    first, second = copies.readers("x")
    for node in (first, second, copies.proxy):
        node.fail("GET", status=503, headers={"Retry-After": "0"})
    second.fail("GET", hang_up=True)
    first.fail("GET", hang_up=True)
    assert client.get("b", "x") == b"1"
    paths = [path for path, _ in copies.proxy.requests("GET", "objects")]
    assert paths == ["/v1/objects/b/x?relay=1"] * 2


def test_if_neither_can_be_reached_the_relay_is_asked(copies: FakeCopies, client: Client) -> None:
    copies.proxy.objects["b", "x"] = b"1"
    for node in copies.readers("x"):
        node.kill()
    assert client.get("b", "x") == b"1"
    assert client.get("b", "x") == b"1"
    assert [path for path, _ in copies.proxy.requests("GET", "objects")] == ["/v1/objects/b/x?relay=1"] * 2


def test_a_machine_that_is_gone_costs_a_second_once(copies: FakeCopies, client: Client) -> None:
    copies.objects["b", "x"] = b"1"
    first, second = copies.readers("x")
    with BlackHole() as hole:
        first.advertise_url = hole.url
        begun_s = time.monotonic()
        for _ in range(5):
            assert client.get("b", "x") == b"1"
        assert time.monotonic() - begun_s < 2
    assert len(second.log) == 5


def test_what_is_final_is_nobody_elses(copies: FakeCopies, client: Client) -> None:
    first, second = copies.readers("x")
    with pytest.raises(ObjectNotFound):
        client.get("b", "x")
    first.fail("GET", status=421, code="misdirected")
    with pytest.raises(Misdirected):
        client.get("b", "x")
    assert second.log == []


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_writes_are_for_the_first_alone(copies: FakeCopies, client: Client, method: str) -> None:
    object.__setattr__(client._calls.policy, "retries", 0)
    copies.objects["b", "x"] = b"1"
    first, second = copies.readers("x")

    def write() -> object:
        return client.put("b", "x", b"2") if method == "PUT" else client.delete("b", "x")

    first.fail(method, status=503)
    with pytest.raises(Unavailable):
        write()
    first.kill()
    copies.proxy.fail(method, status=503)
    with pytest.raises(Unavailable):
        write()
    assert len(first.requests(method)) == 1
    assert len(copies.proxy.requests(method, "relay=1")) == 1
    assert second.log == []


def test_a_batch_is_asked_of_the_other_node(copies: FakeCopies, client: Client) -> None:
    first, second = copies.readers("x")
    for node in (first, second):
        node.replies["/v1/batch"] = b"what a batch would be"
    items: list[Any] = [{"bucket": "b", "object": "x"}]
    first.fail("POST", status=503)
    with client.open_batch(items) as reader:
        assert reader.read() == b"what a batch would be"
    first.kill()
    with client.open_batch(items) as reader:
        assert reader.read() == b"what a batch would be"
    assert len(second.requests("POST", "/v1/batch")) == 2


def test_cancelling_does_not_lead_to_the_other_copy(copies: FakeCopies, client: Client, body: bytes) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    assert len(abort_a_read(client, first)) == 1
    assert second.log == []


def test_a_copy_that_breaks_off_while_the_other_refuses_is_not_asked_for_ever(
    copies: FakeCopies, client: Client, body: bytes
) -> None:
    copies.objects["b", "x"] = body
    first, second = copies.readers("x")
    for _ in range(500):
        first.fail("GET", status=503)
        second.fail("GET", cut_after=0)
    with pytest.raises((Unreachable, Unavailable)):
        client.get("b", "x")
    assert len(second.requests("GET", "objects")) < 100
