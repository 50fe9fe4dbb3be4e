"""The Python client against real nodes: routes, shards, listings, and nodes that die under it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Cluster, owner_of, running, wait_for

from dfc.checksum import checksum_of
from dfc.client import AsyncClient, Client
from dfc.errors import (
    BucketConflict,
    BucketNotEmpty,
    BucketNotFound,
    ChecksumMismatch,
    MemberNotFound,
    NotAShard,
    NotSeekable,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    SampleNotFound,
    Unauthorized,
)
from dfc.limits import MIB


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.url) as made:
        yield made


def test_objects_of_every_size_by_every_way(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    for size in (0, 1, 65_535, 65_537, 3 * MIB + 1, 20 * MIB):
        body = os.urandom(size)
        path = tmp_path / "file"
        path.write_bytes(body)
        name = f"sizes/{size}"
        for given in (body, path, iter([body[: size // 2], body[size // 2 :]])):
            stored = client.put("client", name, given)
            assert (stored.size, stored.checksum) == (size, checksum_of(body))
        assert client.get("client", name) == body
        assert client.stat("client", name).etag == checksum_of(body)
        client.get_to_file("client", name, tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == body
        with client.open("client", name) as reader:
            assert b"".join(iter(lambda opened=reader: opened.read(100_000), b"")) == body


def test_requests_go_to_the_owner(cluster: Cluster, client: Client) -> None:
    """A name of each target: requests for it go there, and not through the proxy."""
    client.put("client", "first", b"")
    chosen: dict[str, str] = {}  # by node one name: which target has how many of some names is chance
    for at in range(1000):
        owner = owner_of(client.cluster_map(), "client", f"spread/{at}")
        chosen.setdefault(owner.node.id, f"spread/{at}")
    assert len(chosen) == 4
    for name in chosen.values():
        client.put("client", name, name.encode())
    asked = [route.url for route in (client._router.route("client", name, ()) for name in chosen.values())]
    assert {url.split("/v1/")[0] for url in asked} == set(cluster.target_urls())
    assert [client.get("client", name) for name in chosen.values()] == [name.encode() for name in chosen.values()]


def test_a_client_of_a_target_works_too(cluster: Cluster) -> None:
    with Client(cluster.target_urls()[0]) as client:
        for at in range(8):
            client.put("client", f"by-target/{at}", b"%d" % at)
            assert client.get("client", f"by-target/{at}") == b"%d" % at
        assert [info.name for info in client.list("client", prefix="by-target/")] == [f"by-target/{at}" for at in range(8)]


def test_the_relay_takes_over_when_targets_cannot_be_reached(cluster: Cluster, client: Client) -> None:
    client._router.map()
    for url in cluster.target_urls():
        client._router.mark_unreachable(url)
    body = os.urandom(5 * MIB)
    client.put("client", "relayed", body)
    assert client.get("client", "relayed") == body
    assert client.get("client", "relayed", start=MIB, length=7) == body[MIB : MIB + 7]
    client.delete("client", "relayed")
    with pytest.raises(ObjectNotFound):
        client.stat("client", "relayed")


def test_conditions_checksums_and_ranges(client: Client) -> None:
    client.put("client", "x", b"0123456789")
    with pytest.raises(PreconditionFailed):
        client.put("client", "x", b"new", if_none_match="*")
    with pytest.raises(PreconditionFailed):
        client.put("client", "x", b"new", if_match="0" * 32)
    with pytest.raises(ChecksumMismatch):
        client.put("client", "x", b"new", checksum="0" * 32)
    with pytest.raises(ChecksumMismatch):
        client.put("client", "x", bytes(3 * MIB), checksum="0" * 32)
    assert client.get("client", "x", start=3, length=4) == b"3456"
    with pytest.raises(RangeNotSatisfiable):
        client.get("client", "x", start=10)
    client.put("client", "x", b"new", if_match=checksum_of(b"0123456789"))
    with pytest.raises(PreconditionFailed):
        client.delete("client", "x", if_match="0" * 32)
    client.delete("client", "x")
    for call in (client.get, client.stat, client.delete):
        with pytest.raises(ObjectNotFound):
            call("client", "x")


def test_shards(client: Client, data: Path) -> None:
    stored = client.put("shards", "tendata.tar", data / "tendata.tar")
    client.put("shards", "sample.tgz", data / "sample.tgz")
    client.put("shards", "plain", b"no shard")
    assert (stored.samples, stored.warnings) == (100, ())
    body = (data / "tendata.tar").read_bytes()
    for member in client.members("shards", "tendata.tar"):
        assert client.read_member("shards", "tendata.tar", member.name) == body[member.offset : member.offset + member.size]
    samples = list(client.samples("shards", "tendata.tar"))
    assert len(samples) == 100
    extent = samples[5].members["ten"]
    expected = body[extent.offset : extent.offset + extent.size]
    assert client.read_sample("shards", "tendata.tar", samples[5].key) == {"ten": expected}
    assert client.read_sample_member("shards", "tendata.tar", samples[5].key, "ten") == expected
    assert client.read_member("shards", "tendata.tar", f"{samples[5].key}.ten", start=10, length=5) == expected[10:15]
    first = next(client.samples("shards", "sample.tgz"))
    assert set(client.read_sample("shards", "sample.tgz", first.key)) == set(first.members)
    member = next(iter(client.members("shards", "sample.tgz")))
    offsets = client.sample_offsets("shards", "tendata.tar", etag=stored.checksum).tolist()
    assert len(offsets) == 101
    assert all(
        start < sample.members["ten"].offset < end for start, sample, end in zip(offsets, samples, offsets[1:], strict=False)
    )
    with pytest.raises(PreconditionFailed):
        client.sample_offsets("shards", "tendata.tar", etag="0" * 32)
    with pytest.raises(NotAShard):
        client.sample_offsets("shards", "plain")
    assert [client.stat("shards", name).samples for name in ("tendata.tar", "sample.tgz", "plain")] == [100, 90, None]
    with pytest.raises(NotSeekable):
        client.read_member("shards", "sample.tgz", member.name, start=1, length=1)
    with pytest.raises(MemberNotFound):
        client.read_member("shards", "tendata.tar", "none")
    with pytest.raises(SampleNotFound):
        client.read_sample("shards", "tendata.tar", "none")
    with pytest.raises(NotAShard):
        list(client.samples("shards", "plain"))


def test_keys(client: Client, data: Path) -> None:
    names = [f"keys/{at} {{x}},[y].tar" for at in range(6)]
    for name in names:
        client.put("client-keys", name, data / "mpdata.tar")
    expected = sorted((name, sample.key) for name in names for sample in client.samples("client-keys", name))
    for spec in ("keys/", "keys/*.tar", names):
        assert sorted((found.shard, found.key) for found in client.keys("client-keys", spec, fields="key")) == expected
    full = next(iter(client.keys("client-keys", [names[3]])))
    assert full.shard == names[3]
    assert full.members
    with pytest.raises(BucketNotFound):
        list(client.keys("no-bucket", "x/"))


def test_listings_in_byte_order_over_all_targets(client: Client) -> None:
    names = [f"{folder}/{at:03d}" for folder in ("a", "b", "ä", "z-") for at in range(30)]
    for name in names:
        client.put("listing", name, b"x")
    expected = sorted(names, key=str.encode)
    assert [info.name for info in client.list("listing")] == expected
    assert [info.name for info in client.list("listing", prefix="ä/")] == [f"ä/{at:03d}" for at in range(30)]
    assert [info.name for info in client.list("listing", start_after="z-/027")] == ["z-/028", "z-/029", "ä/000"][:2] + [
        name for name in expected if name.encode() > b"z-/029"
    ]
    page = client.list_page("listing", limit=50)
    seen = list(page.objects)
    while page.next_token is not None:
        page = client.list_page("listing", limit=50, token=page.next_token)
        seen += page.objects
    assert [info.name for info in seen] == expected
    assert [page.prefixes for page in client.list_pages("listing", delimiter="/")] == [("a/", "b/", "z-/", "ä/")]
    with pytest.raises(BucketNotFound):
        list(client.list("no-bucket"))


def test_buckets(client: Client) -> None:
    client.create_bucket("made", durability="relaxed")
    client.create_bucket("made", durability="relaxed")
    with pytest.raises(BucketConflict):
        client.create_bucket("made", durability="fsync")
    client.put("made", "x", b"12")
    assert client.change_bucket("made", durability="fsync").durability == "fsync"
    assert (client.bucket("made").objects, client.bucket("made").bytes) == (1, 2)
    assert "made" in {bucket.name for bucket in client.list_buckets()}
    with pytest.raises(BucketNotEmpty):
        client.delete_bucket("made")
    client.delete_bucket("made", force=True)
    with pytest.raises(BucketNotFound):
        client.bucket("made")


def test_scrub_and_health(client: Client) -> None:
    assert client.health()["ready"]
    client.start_scrub()
    assert len(client.scrub_status()["disks"]) == 8


async def test_the_asynchronous_client(cluster: Cluster, tmp_path: Path) -> None:
    body = os.urandom(8 * MIB)
    async with AsyncClient(cluster.url) as client:
        await asyncio.gather(*(client.put("aio", f"{at}", body[: at * MIB]) for at in range(8)))
        assert await asyncio.gather(*(client.get("aio", f"{at}") for at in range(8))) == [body[: at * MIB] for at in range(8)]
        assert [info.name async for info in client.list("aio")] == [f"{at}" for at in range(8)]
        buffer = bytearray(MIB)
        async with await client.open("aio", "7") as reader:
            read = 0
            while count := await reader.readinto(buffer):
                assert buffer[:count] == body[read : read + count]
                read += count
        assert read == 7 * MIB


def test_a_target_that_dies_under_load_is_waited_for(start_cluster: Callable[..., Cluster]) -> None:
    """kill -9 of every target in turn: uploads and downloads of a client with its usual patience all succeed."""
    cluster = start_cluster(targets=2)
    stop = threading.Event()
    failures: list[BaseException] = []
    written: dict[str, bytes] = {}

    def work(number: int) -> None:
        with Client(cluster.url) as client:
            at = 0
            while not stop.is_set():
                body = os.urandom(1000 if at % 4 else 4 * MIB)
                name = f"{number}/{at}"
                try:
                    client.put("killed", name, body)
                    if client.get("killed", name) != body:
                        raise AssertionError(f"{name} came back changed")
                except BaseException as error:
                    failures.append(error)
                    return
                written[name] = body
                at += 1

    with running([threading.Thread(target=work, args=(number,)) for number in range(3)], stop):
        for name in ("target-0", "target-1"):
            before = len(written)
            wait_for(lambda before=before: len(written) > before + 5 or failures, "some uploads")
            os.kill(cluster.children()[name], signal.SIGKILL)
            wait_for(cluster.is_healthy, "the target to come back")
    assert failures == []
    with Client(cluster.url) as client:
        assert {info.name for info in client.list("killed")} == set(written)
        assert all(client.get("killed", name) == body for name, body in written.items())


def test_a_token(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(targets=1, environment={"DFC_TOKEN": "secret"})
    with Client(cluster.url) as stranger, Client(cluster.url, "secret") as client:
        for body in (b"small", bytes(5 * MIB)):
            with pytest.raises(Unauthorized):
                stranger.put("b", "x", body)
            client.put("b", "x", body)
            assert stranger.get("b", "x") == body
        with pytest.raises(Unauthorized):
            stranger.create_bucket("c")
        with pytest.raises(Unauthorized):
            stranger.delete("b", "x")
        client.delete("b", "x")
