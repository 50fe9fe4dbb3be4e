"""Names that are refused, whatever way they come in, and strange ones that are allowed and stay inside their directory."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from security.conftest import Nodes
from security.wire import ask

OBJECTS = [
    b"..", b".", b"a/..", b"a/../c", b"../c", b"a/./c", b"./c", b"a//c", b"/c", b"a/", b"a/b/",
    b"%2e%2e", b"%2E", b".%2e/c", b"..%2fc", b"a%2f..%2fc", b"a%2f%2fc", b"a%2f",
    b"%252e%252e", b"%252e%252e%252fetc%252fpasswd", b"a/%252e%252e/c", b"a%252f%252fc", b"a/%2500", b"%25ff", b"%250a",
    b"a%00c", b"%00", b"a%0ac", b"a%0dc", b"a%09c", b"a%1fc", b"a%7fc", b"a%c2%85c", b"a%e2%80%a8c", b"a%e2%80%a9c",
    b"%ff%fe", b"a%c0%ae%c0%ae", b"a%c0%afc", b"%ed%a0%80", b"%f4%90%80%80", b"a%80",
    b"%", b"%4", b"a%zzc", b"a%u002e",
    b"x" * 1025, b"%41" * 1025, b"%c3%a9" * 513, b"x/" * 512 + b"xx",
    b"\xff\xfe", b"a\x01c", b"a\x7fc", b"a\x00c", b"a\tc",
]  # fmt: skip
BUCKETS = [b"-b", b".b", b"_b", b"b%20c", b"b" * 64, b"%c3%a9", b"..", b"b%00", b"b%252f", b"b:c", b"b%0a", b"~root"]
RESERVED = [b"s3", b"ui", b"datasets", b"views", b"webdav", b"favicon.ico", b"robots.txt", b"%76%31", b"%73%33", b"health"]


@pytest.mark.parametrize("via", ["proxy", "target"])
@pytest.mark.parametrize("prefix", [b"/b/", b"/v1/objects/b/"], ids=["web", "v1"])
def test_bad_object_names_are_400_and_store_nothing(unchanged: Nodes, via: str, prefix: bytes) -> None:
    url = unchanged.proxy if via == "proxy" else unchanged.map.targets()[0].url
    for bad in OBJECTS:
        for method, body in (("PUT", b"x"), ("GET", None), ("DELETE", None), ("HEAD", None)):
            reply = ask(url, method, prefix + bad, body=body)
            assert reply.status == 400, (method, bad, reply)
            assert method == "HEAD" or reply.code in ("bad_name", "bad_request"), (method, bad, reply)


@pytest.mark.parametrize("via", ["proxy", "target"])
def test_bad_and_reserved_buckets_are_400_and_make_no_bucket(unchanged: Nodes, via: str) -> None:
    url = unchanged.proxy if via == "proxy" else unchanged.map.targets()[0].url
    for bad in BUCKETS + RESERVED:
        for path in (b"/%b/x" % bad, b"/v1/objects/%b/x" % bad):
            for method, body in (("PUT", b"x"), ("GET", None), ("DELETE", None)):
                reply = ask(url, method, path, body=body)
                if path == b"/ui/x" and method == "GET":  # the pages are there
                    assert reply.status in (307, 404), (method, path, reply)
                else:
                    assert (reply.status, reply.code) == (400, "bad_name"), (method, path, reply)
        for method, body in (("PUT", b"{}"), ("GET", None), ("DELETE", None)):
            reply = ask(url, method, b"/v1/buckets/" + bad, body=body)
            assert (reply.status, reply.code) == (400, "bad_name"), (method, bad, reply)
    for bad in RESERVED:
        # The short form of the bucket `default`.
        there = {b"v1": 404, b"metrics": 405, b"ui": 405, b"favicon.ico": 405 if via == "proxy" else 400}
        assert ask(url, "PUT", b"/" + bad, body=b"x").status == there.get(bad, 400), bad
    assert ask(url, "PUT", "/v1/x", body=b"x").status == 404
    assert [bucket["name"] for bucket in ask(unchanged.proxy, "GET", "/v1/buckets").json()["buckets"]] == ["b"]


STRANGE = [
    "a b", "a+b", "%2520", "%25zz", "%23", "%3F", "a@0123456789abcdef01", "a@0123456789abcdef01.idx", "%40", "%5c..%5c", "..a",
    "a..", "...", "~", "-rf", "$(id)", "'%3b DROP TABLE objects%3b--", "%22", "<script>alert(1)</script>", "CON", "%e2%80%ae",
    "%f0%9f%92%a5", "%23" + "0" * 32, "x" * 1024, "%e6%97%a5" * 341, "/".join("y" * 511), "lost%2bfound", "dfc-disk.json",
    "catalog.sqlite", ".hidden", "a%2fb", "%c3%a9%cc%81", "%2A%3F%5B",
]  # fmt: skip


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_strange_names_are_kept_apart_and_inside_their_bucket(nodes: Nodes, via: str) -> None:
    before = nodes.census.kept()
    bodies = {}
    for number, name in enumerate(STRANGE):
        target = name.replace(" ", "%20")
        bodies[target] = b"%d %s" % (number, os.urandom(8))
        url = nodes.proxy if via == "proxy" else nodes.owner(unquote(target))
        assert ask(url, "PUT", f"/b/{target}", body=bodies[target]).status == 201, target
    for target, body in bodies.items():
        assert ask(nodes.proxy, "GET", f"/b/{target}").body == body
    listed = ask(nodes.proxy, "GET", "/v1/buckets/b/objects?limit=1000").json()["objects"]
    assert {unquote(target) for target in bodies} <= {entry["name"] for entry in listed}
    new = nodes.census.stored() - before
    assert len(new) == len(STRANGE)
    for path in new:
        objects, bucket, fan, _ = Path(path).parts[-4:]
        assert (objects, bucket, len(fan)) == ("objects", nodes.map.bucket("b").id, 2)
    for target in bodies:
        assert ask(nodes.proxy, "DELETE", f"/b/{target}").status == 204
