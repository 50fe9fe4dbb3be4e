"""Where one request ends and the next begins: everything that two parsers could read differently is refused with 400 and the
connection ends, so that nothing can be smuggled past a proxy; and what was pipelined fairly is answered in order.
"""

from __future__ import annotations

import os

import pytest
from security.census import resident_mib
from security.conftest import Nodes
from security.wire import Wire, ask, chunked

HOST = b"Host: dfc\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
# What follows the head's first lines; `%(victim)s` in a body is a request that must not be carried out.
SMUGGLING = {
    "length and chunked": b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n%(victim)b",
    "chunked and length": CHUNKED + b"Content-Length: 99\r\n\r\n0\r\n\r\n%(victim)b",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello%(victim)b",
    "the same length twice": b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello%(victim)b",
    "a list of lengths": b"Content-Length: 5, 5\r\n\r\nhello%(victim)b",
    "length +5": b"Content-Length: +5\r\n\r\nhello%(victim)b",
    "length -5": b"Content-Length: -5\r\n\r\nhello%(victim)b",
    "length 0x5": b"Content-Length: 0x5\r\n\r\nhello%(victim)b",
    "length 5_0": b"Content-Length: 5_0\r\n\r\nhello%(victim)b",
    "length 5 5": b"Content-Length: 5 5\r\n\r\nhello%(victim)b",
    "length 1e1": b"Content-Length: 1e1\r\n\r\nhello%(victim)b",
    "no length": b"Content-Length: \r\n\r\nhello%(victim)b",
    "arabic length": b"Content-Length: \xd9\xa5\r\n\r\nhello%(victim)b",
    "length of 63 bits": b"Content-Length: 9223372036854775808\r\n\r\nhello%(victim)b",
    "length of 64 bits": b"Content-Length: 18446744073709551615\r\n\r\nhello%(victim)b",
    "length over 64 bits": b"Content-Length: 18446744073709551621\r\n\r\nhello%(victim)b",
    "space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + HELLO + b"%(victim)b",
    "length with space before the colon": b"Content-Length : 5\r\n\r\nhello%(victim)b",
    "folded header": b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "folded coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + HELLO + b"%(victim)b",
    "chunked twice": CHUNKED + CHUNKED + b"\r\n" + HELLO + b"%(victim)b",
    "chunked, chunked": b"Transfer-Encoding: chunked, chunked\r\n\r\n" + HELLO + b"%(victim)b",
    "chunked, gzip": b"Transfer-Encoding: chunked, gzip\r\n\r\n" + HELLO + b"%(victim)b",
    "gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + HELLO + b"%(victim)b",
    "gzip and chunked": b"Transfer-Encoding: gzip\r\n" + CHUNKED + b"\r\n" + HELLO + b"%(victim)b",
    "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n" + HELLO + b"%(victim)b",
    "identity": b"Transfer-Encoding: identity\r\n\r\n" + HELLO + b"%(victim)b",
    "quoted": b'Transfer-Encoding: "chunked"\r\n\r\n' + HELLO + b"%(victim)b",
    "with a parameter": b"Transfer-Encoding: chunked;x=1\r\n\r\n" + HELLO + b"%(victim)b",
    "vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + HELLO + b"%(victim)b",
    "vertical tab after": b"Transfer-Encoding: chunked\x0b\r\n\r\n" + HELLO + b"%(victim)b",
    "bare CR in a header": b"X: a\rb\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "bare LF in a header": b"X: a\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "NUL in a header": b"X: a\x00b\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "control in a header": b"X: a\x01b\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "DEL in a header": b"X: a\x7fb\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "header without a name": b": x\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "header without a colon": b"Content-Length\r\n\r\n%(victim)b",
    "two hosts": b"Host: evil\r\nContent-Length: 0\r\n\r\n%(victim)b",
    "chunk size -5": CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk size +5": CHUNKED + b"\r\n+5\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk size 0x5": CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk size with a space": CHUNKED + b"\r\n5 \r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk size after a space": CHUNKED + b"\r\n 5\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk size over 64 bits": CHUNKED + b"\r\n10000000000000005\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk size g": CHUNKED + b"\r\ng\r\nhello\r\n0\r\n\r\n%(victim)b",
    "no chunk size": CHUNKED + b"\r\n\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk ends in LF": CHUNKED + b"\r\n5\nhello\r\n0\r\n\r\n%(victim)b",
    "LF in a chunk extension": CHUNKED + b"\r\n5;a=b\n\r\nhello\r\n0\r\n\r\n%(victim)b",
    "chunk without its end": CHUNKED + b"\r\n5\r\nhelloXX0\r\n\r\n%(victim)b",
    "chunk longer than it says": CHUNKED + b"\r\n3\r\nhello\r\n0\r\n\r\n%(victim)b",
    "length in a trailer": CHUNKED + b"\r\n5\r\nhello\r\n0\r\nContent-Length: 6\r\n\r\n%(victim)b",
}


@pytest.mark.parametrize("via", ["proxy", "owner", "other"])
def test_what_could_be_read_in_two_ways_is_refused(nodes: Nodes, name: str, via: str) -> None:
    nodes.put("victim", b"precious")
    before = nodes.census.kept()
    url = nodes.url(via, name)
    for what, rest in SMUGGLING.items():
        victim = b"DELETE /b/victim HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n"
        with Wire(url) as wire:
            wire.send(b"PUT /b/%b HTTP/1.1\r\n" % name.encode() + HOST + rest.replace(b"%(victim)b", victim))
            reply = wire.answer()
            assert (reply.status, reply.headers["connection"]) == (400, "close"), (what, reply)
            assert reply.code in ("bad_request", "length_mismatch"), (what, reply)
            assert wire.rest() == b"", what
    assert nodes.get("victim").body == b"precious"
    assert nodes.get(name).status == 404
    assert nodes.census.stored() == before


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_request_lines_that_are_none(unchanged: Nodes, via: str) -> None:
    url = unchanged.url(via, "warm")
    for line in (
        b"GET /b/x HTTP/1.2", b"GET /b/x HTTP/3.7", b"GET /b/x HTTP/1.1 x", b"GET /b/a x HTTP/1.1",
        b"G\x00T /b/x HTTP/1.1", b"get /b/x HTTP/1.1", b"PUTX /b/x HTTP/1.1", b"A" * 5000 + b" /b/x HTTP/1.1", b"/b/x",
        b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET b/x HTTP/1.1", b"GET * HTTP/1.1",
    ):  # fmt: skip
        with Wire(url) as wire:
            wire.send(line + b"\r\n" + HOST + b"\r\n")
            reply = wire.answer()
            assert (reply.status, reply.code, reply.headers.get("connection")) == (400, "bad_request", "close"), (line, reply)
            wire.assert_ended()
    for head in (b"GET /b/x HTTP/1.1\n" + HOST + b"\r\n", b"GET /b/x HTTP/1.1\r\n\r\n"):  # a bare line feed; no Host
        with Wire(url) as wire:
            wire.send(head)
            assert wire.answer().status == 400
            wire.assert_ended()


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_this_is_no_proxy_for_others(unchanged: Nodes, via: str) -> None:
    url = unchanged.url(via, "warm")
    for target in (
        "http://evil.example/b/x", "http://evil.example:80/", "https://127.0.0.1/b/x", "ftp://127.0.0.1/b/x", "http:///b/x",
        "http://[::1/x", "http://127.0.0.1.evil.example/b/x", "http://127.0.0.1@evil.example/b/x", "file:///etc/passwd",
        "http://@/b/x", "http://a@/b/x",
    ):  # fmt: skip
        for method, body in (("GET", None), ("PUT", b"x")):
            reply = ask(url, method, target, body=body)
            expected = (421, "misdirected") if "evil.example" in target else (400, "bad_request")
            assert (reply.status, reply.code) == expected, (method, target, reply)
            assert reply.headers["connection"] == "close"
    for target in (b"evil.example:443", b"127.0.0.1:22", b"/b/x"):
        with Wire(url) as wire:
            wire.send(b"CONNECT %b HTTP/1.1\r\n" % target + HOST + b"\r\nGET /b/ HTTP/1.1\r\n" + HOST + b"\r\n")
            reply = wire.answer()
            assert reply.status in (400, 405), (target, reply)
            assert b"200" not in wire.rest()[:20] or target == b"/b/x"  # nothing speaks through a tunnel
    for target in (f"{url}/b/nothing", "http://localhost/b/nothing"):
        assert ask(url, "GET", target).code == "object_not_found", target


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_an_offer_to_upgrade_is_declined_and_its_body_is_a_body(nodes: Nodes, name: str, via: str) -> None:
    for body in (b"hello", os.urandom(200_000)):
        with Wire(nodes.url(via, name)) as wire:
            headers = {"Connection": "upgrade", "Upgrade": "h2c", "Content-Length": str(len(body))}
            wire.head("PUT", f"/b/{name}", headers)
            wire.send(body)
            reply = wire.answer()
            assert (reply.status, reply.headers["connection"]) == (200 if len(body) > 5 else 201, "close")
            wire.assert_ended()
        assert nodes.get(name).body == body
    assert ask(nodes.proxy, "DELETE", f"/b/{name}").status == 204


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_pipelined_requests_are_answered_in_order(nodes: Nodes, name: str, via: str) -> None:
    body = os.urandom(5000)
    head = b"/b/%b HTTP/1.1\r\n" % name.encode() + HOST
    with Wire(nodes.url(via, name)) as wire:
        wire.send(
            b"PUT " + head + b"Content-Length: 5000\r\n\r\n" + body
            + b"".join(b"GET " + head + b"Range: bytes=%d-%d\r\n\r\n" % (at, at) for at in range(20))
            + b"PUT " + head + CHUNKED + b"\r\n" + chunked(b"new")
            + b"GET " + head + b"\r\n" + b"DELETE " + head + b"\r\n"
            + b"GET " + head + b"Connection: close\r\n\r\n"
        )  # fmt: skip
        assert wire.answer().status == 201
        assert b"".join(wire.answer().body for _ in range(20)) == body[:20]
        assert wire.answer().status == 200
        assert wire.answer().body == b"new"
        assert wire.answer("DELETE").status == 204
        reply = wire.answer()
        assert (reply.status, reply.headers["connection"]) == (404, "close")
        wire.assert_ended()


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_what_follows_a_large_upload_does_not_reset_its_answer(nodes: Nodes, name: str, via: str) -> None:
    for extra in (b"GET /b/x HTTP/1.1\r\n" + HOST + b"\r\n", b"z" * 300_000):
        with Wire(nodes.url(via, name)) as wire:
            wire.head("PUT", f"/b/{name}", {"Content-Length": "1000000"})
            wire.send(b"a" * 1_000_000 + extra)
            reply = wire.answer()
            assert reply.status in (200, 201)
            if reply.headers.get("connection") == "close":
                wire.assert_ended()
    assert nodes.get(name).body == b"a" * 1_000_000


def test_pipelining_without_reading_takes_no_memory(nodes: Nodes, name: str) -> None:
    nodes.put(name, b"x" * 60_000)
    pid = nodes.pid("owner", name)
    before = resident_mib(pid)
    one = b"GET /b/%b HTTP/1.1\r\n" % name.encode() + HOST + b"\r\n"
    with Wire(nodes.owner(name), receive_buffer_bytes=4096) as wire:
        wire.socket.settimeout(0.5)
        sent = wire.send_while_open(one * 500_000)
        assert sent < len(one) * 400_000  # the node stopped reading
        assert resident_mib(pid) < before + 30
    assert nodes.get(name).status == 200


@pytest.mark.parametrize("via", ["proxy", "owner"])
@pytest.mark.parametrize(
    "fields",
    [
        b"".join(b"X-%d: a\r\n" % number for number in range(2000)),
        b"X: " + b"a" * 20_000 + b"\r\n",
        b"X: " + b"a" * 500_000 + b"\r\n",
        b"a" * 300_000 + b": x\r\n",
        b"".join(b"X-%d: %b\r\n" % (number, b"a" * 9000) for number in range(60)),
        b"Cookie: " + b"a=b; " * 100_000 + b"\r\n",
    ],
    ids=["many", "long", "very long", "long name", "many long", "cookies"],
)
def test_floods_of_headers_are_refused_and_the_answer_arrives(unchanged: Nodes, via: str, fields: bytes) -> None:
    with Wire(unchanged.url(via, "warm")) as wire:
        wire.send(b"GET /b/x HTTP/1.1\r\n" + HOST + fields + b"\r\n")
        reply = wire.answer()
        assert (reply.status, reply.code, reply.headers["connection"]) == (400, "bad_request", "close")
        wire.assert_ended()


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_long_request_lines_are_refused(unchanged: Nodes, via: str) -> None:
    for target in (b"/b/" + b"x" * 20_000, b"/b/x?member=" + b"y" * 400_000):
        with Wire(unchanged.url(via, "warm")) as wire:
            wire.send(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            reply = wire.answer()
            assert (reply.status, reply.code) == (400, "bad_request")
            wire.assert_ended()


def test_heads_that_never_end_take_no_memory(nodes: Nodes) -> None:
    """Each may be of 64 KiB; 100 fields of 16 KiB would be let through by the parser."""
    pid = nodes.cluster.children()["proxy"]
    before = resident_mib(pid)
    wires = [Wire(nodes.proxy) for _ in range(60)]
    for wire in wires:
        fields = b"".join(b"X-%d: %b\r\n" % (n, b"a" * 15_000) for n in range(30))
        wire.send_while_open(b"GET /b/x HTTP/1.1\r\n" + HOST + fields)
    for wire in wires:
        reply = wire.answer()
        assert (reply.status, reply.code) == (400, "bad_request")
        wire.close()
    assert resident_mib(pid) < before + 40
