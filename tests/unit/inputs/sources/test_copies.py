"""Shards with two copies in a cluster: a stream goes on at the other copy when the node that it reads from dies or refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fake_node import WAYS, FakeCopies, failing, two_copies_of
from job_shards import tar_of

from dfc.checksum import checksum_of
from dfc.inputs import gopen
from dfc.inputs.base import Counts, ShardChanged
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import MIB

BODY = tar_of([(f"{number:05d}.bin", number.to_bytes(4, "big") * 100_000) for number in range(100)])


@pytest.fixture
def copies() -> Iterator[FakeCopies]:
    yield from two_copies_of(BODY)


KINDS = {"cluster": "dfc://b/x.tar", "web": "{url}/b/x.tar"}
MORE_WAYS = WAYS | {"cut": failing(cut_after=1_000_000)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", MORE_WAYS)
def test_a_stream_begins_at_the_other_copy(copies: FakeCopies, kind: str, way: str) -> None:
    first, second = copies.readers("x.tar")
    MORE_WAYS[way](first, "GET")
    begun_s = time.monotonic()
    with open_stream(KINDS[kind].format(url=copies.url), options=StreamOptions(cluster=copies.url)) as stream:
        buffer = bytearray(len(BODY) + 1)
        assert stream.readinto(buffer) == len(BODY)
    assert bytes(buffer[: len(BODY)]) == BODY
    assert time.monotonic() - begun_s < 5
    assert len(second.requests("GET", "objects")) == 1


def test_a_stream_goes_on_where_its_node_died(copies: FakeCopies) -> None:
    first, second = copies.readers("x.tar")
    counts = Counts()
    pieces = []
    with open_stream("dfc://b/x.tar", options=StreamOptions(cluster=copies.url), counts=counts) as stream:
        buffer = bytearray(MIB)
        begun_s = time.monotonic()
        while count := stream.readinto(buffer):
            pieces.append(bytes(buffer[:count]))
            if len(pieces) == 3:
                first.kill()
        assert time.monotonic() - begun_s < 5
    assert b"".join(pieces) == BODY
    (asked,) = second.requests("GET", "objects")
    assert asked[1]["if-range"] == f'"{checksum_of(BODY)}"'
    assert counts.retries == 1


def test_another_version_at_the_other_copy_is_an_error(copies: FakeCopies) -> None:
    first, second = copies.readers("x.tar")
    second.objects = {("b", "x.tar"): BODY[::-1]}
    first.fail("GET", cut_after=1_000_000)
    with open_stream("dfc://b/x.tar", options=StreamOptions(cluster=copies.url)) as stream:
        assert stream.readinto(bytearray(500_000)) == 500_000
        with pytest.raises(ShardChanged):
            list(iter(lambda: stream.readinto(bytearray(MIB)), 0))


def test_samples_come_in_order_and_once_though_a_node_dies(copies: FakeCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_URL", copies.url)
    first, second = copies.readers("x.tar")
    keys = []
    for sample in gopen.sharditerator_once("dfc://b/x.tar"):
        number = int(sample["__key__"])
        assert sample["bin"] == number.to_bytes(4, "big") * 100_000
        keys.append(number)
        if number == 5:
            first.kill()
    assert keys == list(range(100))
    assert len(second.requests("GET", "objects")) == 1


def test_one_copy_waits_for_its_owner(copies: FakeCopies) -> None:
    copies.proxy.copies = 1
    (owner,) = copies.readers("x.tar")
    for _ in range(2):
        owner.fail("GET", status=503)
    owner.fail("GET", cut_after=1_000_000)
    with open_stream("dfc://b/x.tar", options=StreamOptions(cluster=copies.url)) as stream:
        buffer = bytearray(len(BODY))
        assert stream.readinto(buffer) == len(BODY)
    assert bytes(buffer) == BODY
    assert len(owner.requests("GET", "objects")) == 4
    assert all(node is owner or not node.log for node in copies.targets)
