"""Listings, shards, buckets and the cluster through the client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from job_shards import tar_of

import dfc.client
from dfc.client import Client, Extent, KeyInfo, MemberInfo, SampleInfo
from dfc.client.control import Control
from dfc.errors import BadName, BucketConflict, BucketNotFound, NotFound, ObjectCorrupt, Unavailable, Unreachable
from dfc.http.retry import Cancellation, RetryPolicy


def ndjson(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


class TestListings:
    def test_pages_follow_each_other(self, fake: Any, client: Client) -> None:
        names = [f"d{at % 3}/{at:03d}" for at in range(25)]
        for name in names:
            fake.proxy.objects["b", name] = name.encode()
        fake.proxy.page_size = 10
        assert [info.name for info in client.list("b")] == sorted(names)
        assert len(fake.proxy.requests("GET", "/v1/buckets/b/objects")) == 3
        assert [info.name for info in client.list("b", prefix="d1/")] == sorted(n for n in names if n.startswith("d1/"))
        assert [info.size for info in client.list("b", start_after="d2/020")] == [6]
        pages = list(client.list_pages("b", delimiter="/"))
        assert [page.prefixes for page in pages] == [("d0/", "d1/", "d2/")]

    def test_a_page_that_cannot_be_made_now_is_asked_for_again(self, fake: Any, client: Client) -> None:
        fake.proxy.objects["b", "x"] = b""
        for _ in range(2):
            fake.proxy.fail("GET", status=503, headers={"Retry-After": "0"})
        assert [info.name for info in client.list("b")] == ["x"]

    def test_never_short(self, fake: Any, client: Client) -> None:
        object.__setattr__(client._control._policy, "retries", 1)
        for _ in range(3):
            fake.proxy.fail("GET", status=503)
        with pytest.raises(Unavailable):
            list(client.list("b"))

    def test_bucket_names_are_checked(self, client: Client) -> None:
        with pytest.raises(BadName):
            list(client.list("../x"))


class TestShards:
    def test_members_and_samples(self, fake: Any, client: Client) -> None:
        member = {"name": "d/a.jpg", "key": "d/a", "ext": "jpg", "offset": 512, "size": 3, "type": "file"}
        fake.target.replies["/v1/objects/b/x.tar?list=members"] = ndjson(member, {**member, "key": None, "ext": None})
        sample = {"key": "d/a", "members": {"jpg": {"offset": 512, "size": 3}}}
        fake.target.replies["/v1/objects/b/x.tar?list=samples"] = ndjson(sample)
        assert next(client.members("b", "x.tar")) == MemberInfo(name="d/a.jpg", key="d/a", ext="jpg", offset=512, size=3)
        assert [info.key for info in client.members("b", "x.tar")] == ["d/a", None]
        assert list(client.samples("b", "x.tar")) == [SampleInfo(key="d/a", members={"jpg": Extent(offset=512, size=3)})]

    def test_many_lines(self, fake: Any, client: Client) -> None:
        lines = ndjson(*({"key": "k" * (at % 3000) + str(at), "members": {}} for at in range(500)))
        fake.target.replies["/v1/objects/b/x.tar?list=samples"] = lines
        assert [info.key[-3:] for info in client.samples("b", "x.tar")][-1] == "499"

    def test_a_list_that_breaks_off_is_never_short(self, fake: Any, client: Client) -> None:
        lines = ndjson(*({"key": f"{at:05d}", "members": {}} for at in range(1000)))
        fake.target.replies["/v1/objects/b/x.tar?list=samples"] = lines
        client._router.map()
        fake.target.fail("GET", cut_after=len(lines) // 2)
        with pytest.raises(Unreachable):
            list(client.samples("b", "x.tar"))
        fake.target.replies["/v1/objects/b/y.tar?list=samples"] = lines[:-3]
        with pytest.raises(Unreachable):
            list(client.samples("b", "y.tar"))

    def test_parts_of_a_shard(self, fake: Any, client: Client) -> None:
        replies = fake.target.replies
        replies["/v1/objects/b/x.tar?member=d/a%20b.jpg".replace("/a%20b", "%2Fa%20b")] = b"member"
        replies["/v1/objects/b/x.tar?sample=k&ext=jpg"] = b"by key"
        replies["/v1/objects/b/x.tar?sample=k"] = tar_of([("k.jpg", b"1"), ("k.Seg.PNG", b"22"), ("._k.jpg", b"no")])
        replies["/v1/objects/b/y.tar?sample=k"] = b"no tar" * 200
        assert client.read_member("b", "x.tar", "d/a b.jpg") == b"member"
        with client.open_member("b", "x.tar", "d/a b.jpg") as reader:
            assert reader.read(3) == b"mem"
        assert client.read_sample_member("b", "x.tar", "k", "jpg") == b"by key"
        assert client.read_sample("b", "x.tar", "k") == {"jpg": b"1", "seg.png": b"22"}
        with pytest.raises(ObjectCorrupt):
            client.read_sample("b", "y.tar", "k")

    def test_keys(self, fake: Any, client: Client) -> None:
        fake.proxy.replies["/v1/buckets/b/samples"] = ndjson({"shard": "x.tar", "key": "k", "members": {"jpg": 3}})
        assert list(client.keys("b", "x-@2.tar")) == [KeyInfo(shard="x.tar", key="k", members={"jpg": 3})]
        fake.proxy.replies["/v1/buckets/b/samples"] = ndjson({"shard": "x.tar", "key": "k"})
        assert list(client.keys("b", "x/", fields="key")) == [KeyInfo(shard="x.tar", key="k")]
        queries = [dict(parse_qsl(urlsplit(path).query)) for path, _ in fake.proxy.requests("GET", "samples")]
        assert queries == [{"shards": "x-@2.tar"}, {"shards": "x/", "fields": "key"}]

    def test_keys_of_a_long_list_are_asked_for_in_groups(self, fake: Any, client: Client) -> None:
        fake.proxy.replies["/v1/buckets/b/samples"] = ndjson({"shard": "x.tar", "key": "k"})
        names = [f"a{{{at}}},\u00fc/{'x' * 50}.tar" for at in range(300)]
        assert len(list(client.keys("b", names))) > 1
        asked = [path for path, _ in fake.proxy.requests("GET", "samples")]
        assert max(map(len, asked)) < 16_000
        specs = [json.loads(dict(parse_qsl(urlsplit(path).query))["shards"]) for path in asked]
        assert [name for spec in specs for name in spec] == names


class TestBuckets:
    def test_calls(self, fake: Any, client: Client) -> None:
        shown = {"name": "b", "created": "2026-11-01T00:00:00Z", "objects": 1, "bytes": 2, "copies": 1, "durability": "relaxed"}
        fake.proxy.replies["/v1/buckets"] = json.dumps({"buckets": [shown]}).encode()
        fake.proxy.replies["/v1/buckets/b"] = json.dumps(shown).encode()
        assert [bucket.durability for bucket in client.list_buckets()] == ["relaxed"]
        assert client.bucket("b").objects == 1
        client.create_bucket("b", durability="relaxed")
        client.change_bucket("b", durability="fsync")
        client.delete_bucket("b", force=True)
        seen = [(method, path) for method, path, _ in fake.proxy.log if method != "GET"]
        assert seen == [("PUT", "/v1/buckets/b"), ("PATCH", "/v1/buckets/b"), ("DELETE", "/v1/buckets/b?force=1")]

    def test_errors_are_those_of_the_node(self, fake: Any, client: Client) -> None:
        fake.proxy.fail("PUT", status=409, code="bucket_conflict")
        with pytest.raises(BucketConflict, match="said bucket_conflict"):
            client.create_bucket("b")

    def test_cluster(self, fake: Any, client: Client) -> None:
        assert [node.role for node in client.cluster_map().nodes] == ["proxy", "target"]
        fake.proxy.replies["/v1/health"] = b'{"ready": true}'
        fake.proxy.replies["/v1/cluster/scrub"] = b'{"disks": []}'
        assert client.health() == {"ready": True}
        client.start_scrub()
        assert client.scrub_status() == {"disks": []}
        disk = {"disk": "d1", "node": "t1", "state": "done", "new": 1}
        fake.proxy.replies["/v1/cluster/check"] = ndjson({"check": "c1", "state": "done", "disks": [disk]})
        assert client.start_check(["b"]) == "c1"
        found = client.check_status()
        assert (found.check, found.disks[0].disk, found.not_compared) == ("c1", "d1", ())

    def test_something_else_answers(self, fake: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fake.proxy, "map", lambda: b"<html>")
        with pytest.raises(NotFound, match="does not answer like"):
            client.get("b", "x")


def test_a_bucket_whose_deletion_lost_its_answer_is_deleted(client: Client, fake: Any) -> None:
    fake.proxy.fail("DELETE", hang_up=True)
    fake.proxy.fail("DELETE", status=404, code="bucket_not_found")
    client.delete_bucket("b")
    fake.proxy.fail("DELETE", status=404, code="bucket_not_found")
    with pytest.raises(BucketNotFound):
        client.delete_bucket("b")


def test_httpx_is_known_to_one_module() -> None:
    package = Path(dfc.client.__file__).parent
    assert [path.name for path in package.rglob("*.py") if "import httpx" in path.read_text()] == ["control.py"]


def test_control_refuses_a_url_that_is_none() -> None:
    control = Control("http://127.0.0.1:1", None, RetryPolicy(retries=0), Cancellation())
    with pytest.raises(Unreachable):
        control.call("GET", "/v1/cluster")
    control.close()
