"""What somebody finds who can write into a disk's directory, or who asks between nodes for paths: no way out of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wait_for
from job_shards import tar_of
from security.conftest import MIB, Nodes
from security.wire import ask

SECRET = b"root:x:0:0:the contents of some file of this machine\n" * 40
SHARD = tar_of([("a.txt", b"a" * 400), ("b.bin", bytes(200_000))])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def blobs(nodes: Nodes, name: str) -> Iterator[dict[str, Path]]:
    """A small object, a large one and a shard, and where they lie."""
    before = nodes.census.kept()
    for ending, body in ((".txt", b"x" * 1000), (".bin", bytes(MIB)), (".tar", SHARD)):
        nodes.put(name + ending, body)
    new = [Path(path) for path in nodes.census.stored() - before]
    yield {path.name.partition("@")[0]: path for path in new if path.suffix != ".idx"}
    for ending in (".txt", ".bin", ".tar"):
        assert ask(nodes.proxy, "DELETE", f"/b/{name}{ending}").status == 204
    wait_for(lambda: nodes.census.stored() == before, "the blobs to be removed")


def test_links_in_place_of_blobs_are_not_followed(nodes: Nodes, name: str, blobs: dict[str, Path], secret: Path) -> None:
    for blob, path in blobs.items():
        original = path.read_bytes()
        secret.write_bytes((SECRET * (len(original) // len(SECRET) + 1))[: len(original)])  # the length is right
        path.unlink()
        path.symlink_to(secret)
        for query in ("", "?member=a.txt", "?member=b.bin", "?sample=a", "?sample=b", "?list=members"):
            if query and not blob.endswith(".tar"):
                continue
            reply = ask(nodes.proxy, "GET", f"/b/{blob}{query}")
            assert b"the contents" not in reply.body, (blob, query, reply)
            assert reply.status >= 500 or query == "?list=members", (blob, query, reply)
        path.unlink()
        path.write_bytes(original)


def test_a_link_in_place_of_an_index_is_not_followed(nodes: Nodes, name: str, secret: Path) -> None:
    before = nodes.census.kept()
    other, mine = f"{name}-a.tar", f"{name}-b.tar"
    nodes.put(other, SHARD)
    nodes.put(mine, SHARD)
    index = {Path(path).name.partition("@")[0]: Path(path) for path in nodes.census.stored() - before if path.endswith(".idx")}
    index[mine].unlink()
    index[mine].symlink_to(secret)
    reply = ask(nodes.proxy, "GET", f"/b/{mine}?member=a.txt")
    assert reply.status >= 500 or reply.body == b"a" * 400
    assert secret.read_bytes() == SECRET  # the index was not written anew through the link
    index[mine].unlink()
    index[mine].symlink_to(index[other])  # an index of equal bytes, but of another object
    assert ask(nodes.proxy, "GET", f"/b/{mine}?member=a.txt").body == b"a" * 400
    for shard_name in (mine, other):
        assert ask(nodes.proxy, "DELETE", f"/b/{shard_name}").status == 204
    wait_for(lambda: nodes.census.stored() == before, "the blobs to be removed")


def test_a_link_in_place_of_a_directory_takes_no_blob(nodes: Nodes, tmp_path: Path) -> None:
    """New blobs go to a directory that is a link only if an operator made it one; nothing is removed through it."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious@0123456789abcdef01").write_bytes(b"precious")
    target = nodes.map.targets()[0]
    disks = nodes.cluster.directory.glob("target-*/disk-*")
    disk = next(disk for disk in disks if target.disks[0].id in (disk / "dfc-disk.json").read_text())
    fake = disk / "objects" / "0123456789abcdef"
    fake.symlink_to(victim.parent)
    reply = ask(target.url, "DELETE", "/v1/node/buckets/0123456789abcdef")
    assert (reply.status, reply.json()["removed"]) == (200, 0)
    assert (victim / "precious@0123456789abcdef01").read_bytes() == b"precious"
    fake.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "bucket_id", ["..", "%2e%2e", "..%2f..", "%2fetc", ".", "a%2fb", "%00", "x" * 5000, "%0a", "-", "*", "0123%20", "%ff"]
)
def test_ids_of_buckets_are_no_paths(unchanged: Nodes, bucket_id: str) -> None:
    marker = unchanged.cluster.directory / "target-0" / "disk-0" / "dfc-disk.json"
    for target in unchanged.map.targets():
        reply = ask(target.url, "DELETE", f"/v1/node/buckets/{bucket_id}")
        assert (reply.status, reply.code) == (400, "bad_name"), reply
        for query in (f"bucket_id={bucket_id}", f"bucket_id={bucket_id}&prefix=..%2f", "bucket_id=&start_after=%00"):
            assert ask(target.url, "GET", f"/v1/node/objects?{query}").status in (200, 400)
        assert ask(target.url, "GET", f"/v1/node/samples?bucket={bucket_id}&shards=**").status in (400, 404)
    assert marker.exists()


def test_a_bucket_in_use_is_not_removed_by_its_id(nodes: Nodes, name: str) -> None:
    nodes.put(name, b"kept")
    bucket = nodes.map.bucket("b")
    assert bucket is not None
    for target in nodes.map.targets():
        reply = ask(target.url, "DELETE", f"/v1/node/buckets/{bucket.id}")
        assert (reply.status, reply.code) == (409, "conflict")
    assert nodes.get(name).body == b"kept"


def test_files_of_the_node_are_no_objects(nodes: Nodes) -> None:
    """What lies beside the blobs cannot be reached by any path."""
    for target in (
        "/b/dfc-disk.json", "/objects/x", "/catalog.sqlite", "/b/catalog.sqlite-wal", "/orphans/x", "/temporary/x",
        "/dfc-node-id", "/b/..%5c..%5cdfc-disk.json", f"/{os.getpid()}/maps",
    ):  # fmt: skip
        for url in (nodes.proxy, nodes.map.targets()[0].url):
            assert ask(url, "GET", target).status in (400, 404), target
