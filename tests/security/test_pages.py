"""What browsers and logs make of hostile names: nothing is run, nothing is guessed, and a line stays a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urlsplit

import pytest
from harness import wait_for
from security.conftest import Nodes
from security.wire import Wire, ask

NAMES = [
    "<script>alert(1)</script>", "\"onmouseover=alert(1) x=\"", "'><img src=x onerror=alert(1)>", "javascript:alert(1)",
    "a/<svg onload=alert(1)>/b", "&lt;b&gt;", "{{7*7}}", "${7*7}", "</title><script>x</script>", "\u202eexe.tar", "a\\\"b\\n",
    "--><script>", "%3Cscript%3E", "data:text/html,<script>x</script>",
]  # fmt: skip
HTML = {"Accept": "text/html,application/xhtml+xml"}


class Page(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def hostile(hasty: Nodes) -> Iterator[list[str]]:
    """Objects with hostile names, in a bucket of their own."""
    for name in NAMES:
        assert ask(hasty.proxy, "PUT", f"/xss/{quote(name, safe='/')}", body=b"<script>alert(1)</script>").status == 201
    yield NAMES
    assert ask(hasty.proxy, "DELETE", "/v1/buckets/xss?force=1").status == 204


def assert_page_is_tame(page: Page) -> None:
    assert page.tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "p", "a", "table", "tr", "th", "td",
    }  # fmt: skip
    assert page.attributes <= {"lang", "charset", "href", "class"}
    for link in page.links:
        assert re.fullmatch(r"/[A-Za-z0-9]?[^/\\\"'<>].*|/", link), link  # on this server, and no //host
        assert urlsplit(link).netloc == ""


def test_listings_escape_every_name(nodes: Nodes, hostile: list[str]) -> None:
    for target in ("/xss/", "/xss/?delimiter=/", "/xss/?prefix=a/", "/xss/?limit=2", "/xss/?delimiter=/&limit=3"):
        reply = ask(nodes.proxy, "GET", target, HTML)
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert_page_is_tame(Page(reply.body.decode()))
    page = Page(ask(nodes.proxy, "GET", "/xss/", HTML).body.decode())
    assert set(hostile) <= set(page.text)
    for name in hostile:
        link = next(link for link in page.links if unquote(link) == f"/xss/{name}")
        assert ask(nodes.proxy, "GET", link).body == b"<script>alert(1)</script>"


def test_pages_of_listings_link_on_through_hostile_names(nodes: Nodes, hostile: list[str]) -> None:
    seen, target = set(), "/xss/?limit=3"
    for _ in range(len(hostile)):
        page = Page(ask(nodes.proxy, "GET", target, HTML).body.decode())
        assert_page_is_tame(page)
        seen |= {unquote(link)[len("/xss/") :] for link in page.links if link.startswith("/xss/") and "?" not in link}
        following = [link for link in page.links if "token=" in link]
        if not following:
            break
        target = following[0]
    assert seen == set(hostile)


def test_hostile_parameters_are_not_echoed_as_markup(nodes: Nodes, hostile: list[str]) -> None:
    attack = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    for target in (
        f"/xss/?prefix={attack}", f"/xss/?token={attack}", f"/xss/?delimiter={attack}", f"/{attack}/", f"/xss/{attack}",
        f"/xss/x?member={attack}", f"/v1/objects/xss/{attack}", f"/v1/{attack}", f"/xss/?limit={attack}", f"/xss/?{attack}=1",
    ):  # fmt: skip
        reply = ask(nodes.proxy, "GET", target, HTML)
        if reply.headers.get("content-type", "").startswith("text/html"):
            assert_page_is_tame(Page(reply.body.decode()))
        elif reply.body:
            assert reply.headers["content-type"] in ("application/json", "text/plain; charset=utf-8"), reply


@pytest.mark.parametrize("via", ["owner", "proxy", "other"])
def test_stored_bytes_are_sandboxed_and_their_type_is_not_guessed(nodes: Nodes, name: str, via: str) -> None:
    body = b"<!doctype html><script>alert(document.cookie)</script>"
    for ending in ("html", "svg", "xhtml", "js", "pdf", "swf", "xml", "", "hta", "shtml", "txt", "jpg", "HTML"):
        object_name = f"{name}.{ending}" if ending else name
        nodes.put(object_name, body)
        url = nodes.url(via, object_name)
        for headers in ({}, {"Range": "bytes=0-3"}, {"If-None-Match": "*"}, HTML):
            reply = ask(url, "GET", f"/b/{object_name}", headers)
            assert reply.headers["x-content-type-options"] == "nosniff", (ending, headers)
            assert reply.headers["content-security-policy"] == "sandbox", (ending, headers)
        assert ask(nodes.proxy, "DELETE", f"/b/{object_name}").status == 204


def test_text_listings_of_hostile_names_are_text(nodes: Nodes, hostile: list[str]) -> None:
    reply = ask(nodes.proxy, "GET", "/xss/")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert sorted(reply.body.decode().splitlines()) == sorted(hostile)
    reply = ask(nodes.proxy, "GET", "/xss/?limit=1")
    assert "\n" not in reply.headers["x-dfc-next-token"]
    assert json.loads(ask(nodes.proxy, "GET", "/xss/", {"Accept": "application/json"}).body)["objects"]


# --- logs


def log_lines(nodes: Nodes, needle: str) -> list[str]:
    """Lines of all logs that mention something."""
    found = []
    for log in (nodes.cluster.directory / "logs").glob("*.log"):
        found += [line for line in log.read_text(errors="surrogateescape").split("\n") if needle in line]
    return found


def test_hostile_requests_leave_one_json_line_each(nodes: Nodes, name: str) -> None:
    lines_before = {log: log.stat().st_size for log in (nodes.cluster.directory / "logs").glob("*.log")}
    forged = quote('","status":200,"remote":"1.2.3.4"}\n{"forged":"')
    targets = [
        f'/b/{name}","status":200}}'.encode(), f"/b/{name}\\".encode(), f"/b/{name}/{forged}".encode(),
        f"/b/{name}%0a%0d".encode(), f"/b/{name}%22%5c".encode(), f"/b/{name}/\xc3\xa9".encode("latin-1"),
        f"/b/{name}/%e2%80%a8{{}}".encode(),
        f"/b/{name}'\"`".encode(), f"/b/{name}/\x1b[31m".encode(), f"http://[::1/{name}".encode(), f"/b/{name}?x=\"\\".encode(),
        f"/v1/{name}\"/x".encode(),
    ]  # fmt: skip
    identities: list[dict[str, str | bytes]] = [
        {"X-Request-Id": 'a","status":500,"x":"'}, {"X-Request-Id": "a" * 5000}, {"X-Request-Id": b"\xff\xfe"},
        {"X-Request-Id": "ok-1"}, {"User-Agent": '"}\t{"'}, {"Referer": '"'},
    ]  # fmt: skip
    for url in (nodes.proxy, nodes.owner(name), nodes.other(name)):
        for target in targets:
            for headers in identities:
                assert ask(url, "GET", target, headers).status in (400, 404)
        for line in (b'GET /"} HTTP/1.1\r\nX: \r\n\r\n', b"\x00\x01\x02\r\n\r\n", b'{"a": 1}\r\n\r\n', b"GET / HTTP/9\r\n\r\n"):
            with Wire(url) as wire:
                wire.send(line)
                assert wire.answer().status == 400
        assert ask(url, "GET", f"/b/{name}-last").status == 404
    wait_for(lambda: len(log_lines(nodes, f"{name}-last")) >= 4, "the access logs to be written")
    for log, size in lines_before.items():
        with log.open("rb") as file:
            file.seek(size)
            for line in file.read().splitlines():
                value = json.loads(line)
                assert "forged" not in value
                assert value.get("remote", "127.0.0.1") == "127.0.0.1"
                assert value.get("request_id", "") == "" or re.fullmatch(r"[A-Za-z0-9._-]{1,128}", value["request_id"])
                assert b"\x1b" not in line


def test_answers_echo_no_header_injection(nodes: Nodes, name: str) -> None:
    for value in ("a\r\nX-Evil: 1", "a\nX-Evil: 1", "a b", "é", "<script>", "x" * 129):
        with Wire(nodes.owner(name)) as wire:
            wire.send(f"GET /b/{name} HTTP/1.1\r\nHost: a\r\nX-Request-Id: ".encode() + value.encode() + b"\r\n\r\n")
            reply = wire.answer()
            assert "x-evil" not in reply.headers
            assert reply.headers["x-request-id"] != value
    reply = ask(nodes.proxy, "PUT", f"/v1/objects/b/{name}%0d%0aX-Evil:%201", body=b"x")
    assert reply.status == 400
    for target in (f"/v1/objects/b/{name}%E5%98%8A%E5%98%8DX-Evil:1", f"/b/{name}%E5%98%8D?redirect=1"):
        reply = ask(nodes.proxy, "GET", target)
        assert reply.status == 307
        assert "x-evil" not in reply.headers
        assert reply.headers["location"].endswith(target)
