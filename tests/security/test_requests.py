"""Requests whose parts make no sense: ranges, conditions, queries, JSON, shard specs. Named answers, no 500, no long wait."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from urllib.parse import quote

import pytest
from harness import wait_for
from security.census import resident_mib
from security.conftest import Nodes
from security.wire import Reply, Wire, ask

VIAS = ["owner", "proxy", "other"]


@pytest.fixture
def ten(nodes: Nodes, name: str) -> str:
    """The name of an object of ten bytes."""
    nodes.put(name, b"0123456789")
    return name


@pytest.mark.parametrize("via", VIAS)
def test_bad_ranges_are_416(nodes: Nodes, ten: str, via: str) -> None:
    for value in (
        "bytes=10-", "bytes=11-20", "bytes=5-2", "bytes=-0", "bytes=-", "bytes=", "bytes", "bytes=a-b", "bytes=0x0-0x1",
        "bytes=--5", "bytes=1-2-3", "bytes=+1-2", "bytes=1.0-2", "bytes=18446744073709551615-",
        "bytes=99999999999999999999999999-", "bytes=9223372036854775807-9223372036854775808", "bytes=" + "9" * 5000 + "-",
        "bytes=-" + "9" * 5000, "bytes=0 -1",
        "bytes=٠-١".encode(), b"bytes=\xff-\xff",
    ):  # fmt: skip
        reply = ask(nodes.url(via, ten), "GET", f"/b/{ten}", {"Range": value})
        assert (reply.status, reply.code, reply.headers["content-range"]) == (416, "range_not_satisfiable", "bytes */10"), value
    for value in ("bytes=0-0,2-3", "lines=0-1", "bytes=0-0," * 1000 + "1-1"):  # other than one range of bytes: ignored
        assert ask(nodes.url(via, ten), "GET", f"/b/{ten}", {"Range": value}).body == b"0123456789", value
    for value, body in (("bytes=0-9223372036854775807", b"0123456789"), ("bytes=-9223372036854775807", b"0123456789")):
        assert ask(nodes.url(via, ten), "GET", f"/b/{ten}", {"Range": value}).body == body


@pytest.mark.parametrize("via", VIAS)
def test_conditions_that_are_none(nodes: Nodes, ten: str, via: str) -> None:
    for header in ("If-Match", "If-None-Match"):
        for value in ("", "'a'", 'W/"', "," * 5000, '"', "\xff", "a b", '"a" "' + "b" * 5000):
            reply = ask(nodes.url(via, ten), "GET", f"/b/{ten}", {header: value.encode("latin-1")})
            assert reply.status in (200, 400, 412), (header, value, reply)
    many = ", ".join(f'"{n}"' for n in range(2000))
    assert ask(nodes.url(via, ten), "GET", f"/b/{ten}", {"If-Match": many}).code == "precondition_failed"
    assert ask(nodes.url(via, ten), "DELETE", f"/b/{ten}", {"If-Match": many}).status == 400
    for value in (
        "yesterday", "0", "Thu, 99 Foo 2026 99:99:99 GMT", "Mon, 01 Jan 0000 00:00:00 GMT", "Mon, 01 Jan 99999 00:00:00 GMT",
        "Wed, 3 Apr 2002 12.34.56.78+9999999", "1 2 3 4 5 6 7 8", "Mon, 01 Jan 2024 00:00:00 +" + "9" * 30, ":" * 3000, "\xff",
        "Mon, 01 Jan 2024 00:00:00 -0000 " * 100, "-1 Jan 2024", "1 Jan 2024 1:2:3:4:5 GMT", "(" * 2000,
    ):  # fmt: skip
        for header in ("If-Modified-Since", "If-Unmodified-Since", "If-Range"):
            headers = {header: value.encode("latin-1"), "Range": "bytes=0-1"}
            assert ask(nodes.url(via, ten), "GET", f"/b/{ten}", headers).status in (200, 206, 304, 412), (header, value)


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_unknown_repeated_and_broken_query_parameters_are_400(unchanged: Nodes, via: str) -> None:
    name = "warm-0"
    url = unchanged.url(via, name)
    for target in (
        f"/v1/objects/b/{name}?foo=1", f"/v1/objects/b/{name}?member=a&member=b", f"/v1/objects/b/{name}?%ff=1",
        f"/v1/objects/b/{name}?member=%ff", "/v1/objects/b/x?" + "&".join(f"a{n}=1" for n in range(2000)), "/v1/buckets?x",
        "/v1/buckets/b?foo", "/v1/buckets/b/objects?foo=1", "/v1/buckets/b/objects?limit=0", "/v1/buckets/b/objects?limit=-1",
        "/v1/buckets/b/objects?limit=10001", "/v1/buckets/b/objects?limit=1e3", "/v1/buckets/b/objects?limit=%D9%A3",
        "/v1/buckets/b/objects?limit=" + "1" * 5000, "/v1/buckets/b/objects?limit=1&limit=2",
        "/v1/buckets/b/objects?prefix=%ff",
        "/v1/buckets/b/objects?delimiter=ab", "/v1/buckets/b/objects?prefix=%ed%a0%80", "/v1/buckets/b/samples?foo=1",
        "/v1/buckets/b/samples?fields=x", "/v1/cluster?x=1", "/v1/health?x=1", "/metrics?x=1",
        f"/v1/objects/b/{name}?list=all&list=x",
        "/v1/buckets/b/objects?" + "x" * 15_000,
    ):  # fmt: skip
        for method in ("GET", "HEAD"):
            reply = ask(url, method, target)
            assert reply.status == 400, (method, target[:100], reply)
    for target in (b"/b/?prefix=\xff", b"/v1/buckets/b/objects?token=\xfe", b"/b/warm-0?member=\xff"):
        assert ask(url, "GET", target).status == 400
    reply = ask(url, "PUT", "/v1/objects/b/new?foo=1", body=b"x")
    assert (reply.status, reply.code) == (400, "bad_request")


JSON = {
    "not json": b"{", "a list": b"[]", "a number": b"1", "text": b'"x"', "two": b"{}{}", "true": b'{"copies": true}',
    "float": b'{"copies": 1.5}', "huge float": b'{"copies": 1e400}', "nan": b'{"copies": NaN}', "negative": b'{"copies": -1}',
    "zero": b'{"copies": 0}', "nine copies": b'{"copies": 9}', "huge": b'{"copies": ' + b"9" * 100_000 + b"}",
    "unknown": b'{"copies": 1, "x": 1}', "durability": b'{"durability": "none"}',
    "null": b'{"durability": null, "copies": null}',
    "deep": b'{"copies": ' + b"[" * 400_000, "deep unknown": b'{"x": ' + b"[" * 400_000, "deep objects": b'{"x":' * 100_000,
    "not utf-8": b'{"durability": "\xff"}', "half a surrogate": b'{"durability": "\\ud800"}',
    "nul": b'{"durability": "\\u0000"}',
    "bom": b"\xef\xbb\xbf{}", "utf-16": '{"copies": 1}'.encode("utf-16"), "pickle": b"\x80\x04\x95\x00",
    "one key twice": b'{"copies": "x", "copies": 1}',
}  # fmt: skip


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_bad_json_is_400_and_makes_nothing(unchanged: Nodes, via: str) -> None:
    url = unchanged.url(via, "warm")
    for what, body in JSON.items():
        for method, path in (("PUT", "/v1/buckets/made"), ("PATCH", "/v1/buckets/b")):
            if method == "PATCH" and what == "null":
                continue  # nothing to change
            reply = ask(url, method, path, body=body)
            assert (reply.status, reply.code) == (400, "bad_request"), (what, method, reply)
    reply = ask(url, "PUT", "/v1/buckets/made", body=b" " * (1 << 21))
    assert (reply.status, reply.code) == (413, "too_large")
    with Wire(url) as wire:
        wire.head("PUT", "/v1/buckets/made", {"Transfer-Encoding": "chunked"})
        for _ in range(40):
            wire.send_while_open(b"10000\r\n" + b" " * 65536 + b"\r\n")
        assert wire.answer().code == "too_large"
    assert [bucket["name"] for bucket in ask(unchanged.proxy, "GET", "/v1/buckets").json()["buckets"]] == ["b"]


def test_bad_json_between_nodes_is_400(nodes: Nodes) -> None:
    target = nodes.map.targets()[0].url
    for url, path in ((nodes.proxy, "/v1/node/registration"), (target, "/v1/node/map")):
        for what, body in JSON.items():
            reply = ask(url, "POST", path, body=body)
            assert (reply.status, reply.code) == (400, "bad_request"), (path, what, reply)
    assert ask(target, "GET", "/v1/cluster").json()["version"] == ask(nodes.proxy, "GET", "/v1/cluster").json()["version"]


# --- shard specs


def ask_keys(nodes: Nodes, spec: str, bucket: str = "b") -> Reply:
    return ask(nodes.proxy, "GET", f"/v1/buckets/{bucket}/samples?shards={quote(spec, safe='{},.@*?[]/')}")


BOMBS = {
    "a count": "train-@999999999999999999.tar",
    "a range": "{0..1000000}",
    "a huge range": "{0..999999999999999999}",
    "a product": "{0..999}{0..999}{0..999}",
    "choices of ranges": "{" + ",".join(["{1..999999}"] * 1000) + "}",
    "choices of products": "{" + ",".join(["{1..99}{1..99}{1..99}"] * 500) + "}",
    "deep braces": "{" * 4000 + "a" + "}" * 4000,
    "deep choices": "{a," * 3000 + "b" + "}" * 3000,
    "many pairs": "{a,b}" * 2000,
    "never closed": "{" * 10_000,
    "steps of zero": "{1..5..0}",
    "long numbers": "{1.." + "9" * 5000 + "}",
    "many globs": "{" + ",".join(f"{n}*" for n in range(2000)) + "}",
    "deep list": '["a",' + "[" * 5000,
    "half a list": '["' + "x" * 5000,
}


@pytest.mark.parametrize("what", BOMBS)
def test_bombs_in_shard_specs_are_400_at_once(nodes: Nodes, what: str) -> None:
    before = resident_mib(nodes.cluster.children()["proxy"])
    started = time.monotonic()
    reply = ask_keys(nodes, BOMBS[what])
    assert (reply.status, reply.code) == (400, "bad_shard_spec"), reply
    assert time.monotonic() - started < 30
    assert resident_mib(nodes.cluster.children()["proxy"]) < before + 30


def test_the_longest_specs_do_not_stop_the_cluster(nodes: Nodes) -> None:
    """Several at once, of very many names: other requests are answered meanwhile, and no target is taken for dead."""
    wires = [Wire(nodes.proxy) for _ in range(3)]
    for wire, count in zip(wires, ("999999", "200000", "200000"), strict=True):
        wire.head("GET", f"/v1/buckets/b/samples?shards=x-@{count}.tar")
    slowest = 0.0
    while any(wire.is_silent() for wire in wires):
        started = time.monotonic()
        assert ask(nodes.proxy, "GET", "/v1/health").status == 200
        assert all(ask(node.url, "GET", "/v1/health").status == 200 for node in nodes.map.targets())
        slowest = max(slowest, time.monotonic() - started)
    for wire in wires:
        assert wire.answer().code == "object_not_found"
        wire.close()
    assert slowest < 20
    assert nodes.cluster.is_healthy()


def test_strange_globs_match_nothing_and_take_no_time(nodes: Nodes) -> None:
    name = "a" * 500 + "/" + "b" * 500
    # It is alone there: some of these match every plain name.
    assert ask(nodes.proxy, "PUT", f"/globs/{name}", body=b"x").status == 201
    for spec in (
        "*a" * 2000 + "*", "**/" * 3000 + "x", "*" * 8000, "?" * 8000, "[a-", "[]-a]", "[!", "[z-a]*", "[[:alpha:]&&a--b||~~]*",
        "[\\]*",
        "[^]]*", "a*" * 500 + "/" + "b*" * 500 + "c", "(a+)+*", "*\\", "../*", "/*", "//", "*%00",
    ):  # fmt: skip
        started = time.monotonic()
        reply = ask_keys(nodes, spec, "globs")
        assert (reply.status, reply.body) == (200, b"") or reply.status == 400, (spec[:50], reply)
        assert time.monotonic() - started < 30, spec[:50]
    assert ask(nodes.proxy, "DELETE", "/v1/buckets/globs?force=1").status == 204


def test_named_shards_that_are_no_names(nodes: Nodes) -> None:
    for spec in (["../../etc/passwd"], ["\0"], ["/"], ["a\n"], ["x" * 9000]):
        reply = ask_keys(nodes, json.dumps(spec))
        assert reply.status in (400, 404, 409), (spec, reply)


# --- many at once


def test_hundreds_of_requests_at_once_end(nodes: Nodes, ten: str) -> None:
    nodes.census.spare += 200
    with ExitStack() as opened:
        wires = []
        for number in range(300):  # each asks at once: a connection that says nothing is soon closed
            wire = opened.enter_context(Wire(nodes.url(("owner", "proxy", "other")[number % 3], ten)))
            wires.append(wire)
            wire.head(("GET", "PUT")[number % 2], f"/b/{ten}", {"Content-Length": "10"} if number % 2 else {})
            if number % 2:
                wire.send(b"0123456789")
        for number, wire in enumerate(wires):
            reply = wire.answer()
            # A reader that meets another replacement each time it looks gives up, and says so.
            assert reply.status == 200 or (number % 2 == 0 and b"replaced faster" in reply.body), (number, reply)
    wait_for(nodes.census.has_no_clients, "the connections to end")
