"""Listings: complete and in byte order over all nodes, in every format, whatever the page, prefix and delimiter."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote, unquote

import msgspec
import pytest

from dfc.checksum import checksum_of

BUCKET = "listings"
NAMES = sorted(
    {
        *(f"train/{number:04d}.tar" for number in range(60)),
        *(f"val/{letter}/{number}.tar" for letter in "abc" for number in range(5)),
        *(f"deep/a/b/{number}" for number in range(3)),
        "deep/a",
        "deep/a/",  # refused, see below
        "a",
        "a.b",
        "a-b",
        "a0",
        "a/b",
        "Z",
        "~",
        "train",
        "train.tar",
        "val/",
        "é/1",
        "é/2",
        "ét",
        "z̈",
        "日本/語",
        "日本語",
        "🙂/x",
        "🙂",
        "\ufffd",
        "\U0010ffff",
    }
    - {"deep/a/", "val/"},
    key=str.encode,
)


@pytest.fixture(scope="module", autouse=True)
def listed(http):
    for name in NAMES:
        assert http.put(f"/{BUCKET}/{quote(name)}", content=name.encode()).status_code in (200, 201)


def expected(prefix="", start_after="", delimiter=""):
    """What a listing shows, all pages together, made by hand: entries in order, prefixes end in the delimiter."""
    entries: list[str] = []
    for name in NAMES:
        if not name.startswith(prefix):
            continue
        at = name.find(delimiter, len(prefix)) if delimiter else -1
        entry = name if at < 0 else name[: at + 1]
        if entry.encode() > start_after.encode() and entry not in entries:
            entries.append(entry)
    return entries


def pages(http, url, **parameters):
    """All pages of a JSON listing, by token."""
    token = None
    for _ in range(len(NAMES) + 2):
        page = http.get(
            url, params={**parameters, **({"token": token} if token else {})}, headers={"Accept": "application/json"}
        )
        assert page.status_code == 200, page.text
        yield page.json()
        token = page.json()["next_token"]
        if token is None:
            return
    raise AssertionError("the listing does not end")


def entries_of(page):
    return sorted([entry["name"] for entry in page["objects"]] + page["prefixes"], key=str.encode)


QUERIES = [
    {},
    {"prefix": "train/"},
    {"prefix": "train"},
    {"prefix": "train/00"},
    {"prefix": "nothing"},
    {"prefix": "é"},
    {"delimiter": "/"},
    {"delimiter": "/", "prefix": "val/"},
    {"delimiter": "/", "prefix": "val"},
    {"delimiter": "/", "prefix": "deep/a"},
    {"delimiter": "/", "prefix": "deep/a/"},
    {"delimiter": "a"},
    {"delimiter": "本"},
    {"start_after": "train/0030.tar"},
    {"start_after": "train/0030"},
    {"start_after": "🙂"},
    {"start_after": "\U0010ffff"},
    {"delimiter": "/", "start_after": "train"},
    {"delimiter": "/", "start_after": "train/"},
    {"delimiter": "/", "start_after": "val/a/"},
    {"delimiter": "/", "prefix": "val/", "start_after": "val/a/"},
    {"delimiter": "/", "prefix": "val/", "start_after": "a"},
    {"prefix": "train/", "start_after": "val"},
]


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("limit", [None, 3, 10_000])
def test_pages_are_complete_and_in_byte_order(http, nodes, query, limit):
    wanted = expected(**query)
    if limit is not None:
        query = {**query, "limit": limit}
    urls = [f"{nodes.proxy}/v1/buckets/{BUCKET}/objects", f"{nodes.proxy}/{BUCKET}/"]
    if limit == 3:
        urls = [f"{nodes.proxy}/{BUCKET}/", f"{nodes.map.targets()[0].url}/v1/buckets/{BUCKET}/objects"]
    for url in urls:
        found = []
        for page in pages(http, url, **query):
            entries = entries_of(page)
            assert len(entries) <= (limit or 1000)
            assert [entry["name"] for entry in page["objects"]] == [e for e in entries if e not in page["prefixes"]]
            assert page["prefixes"] == [e for e in entries if e in page["prefixes"]]
            found += entries
        assert found == wanted


def test_the_token_is_good_at_any_node(http, nodes):
    urls = [nodes.proxy, *(node.url for node in nodes.map.targets())]
    found, token, turn = [], None, 0
    while True:
        query = {"limit": 9, **({"token": token} if token else {})}
        page = http.get(f"{urls[turn % len(urls)]}/v1/buckets/{BUCKET}/objects", params=query).json()
        found += entries_of(page)
        token, turn = page["next_token"], turn + 1
        if token is None:
            break
    assert found == NAMES


def test_an_entry_tells_what_the_object_is(http, make_tar):
    tar = make_tar([("a.txt", b"1"), ("b.txt", b"2"), ("b.json", b"{}"), ("README", b"")])
    http.put("/listings-entry/s.tar", content=tar)
    plain = http.put("/listings-entry/plain", content=b"abc")
    page = http.get("/v1/buckets/listings-entry/objects").json()
    assert page["prefixes"] == []
    assert page["next_token"] is None
    first, second = page["objects"]
    assert first.keys() == second.keys() == {"name", "size", "etag", "modified", "samples", "members"}
    assert (first["name"], first["size"], first["etag"]) == ("plain", 3, checksum_of(b"abc"))
    assert (first["samples"], first["members"]) == (None, None)
    assert (second["name"], second["samples"], second["members"]) == ("s.tar", 2, 4)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["modified"])
    assert plain.json()["checksum"] == first["etag"]


def test_msgpack_is_the_same_page(http, nodes):
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        for path in (f"/v1/buckets/{BUCKET}/objects", f"/{BUCKET}/"):
            query = {"limit": 20, "delimiter": "/", "start_after": "a"}
            packed = http.get(url + path, params=query, headers={"Accept": "application/msgpack"})
            assert packed.headers["Content-Type"] == "application/msgpack"
            plain = http.get(url + path, params=query, headers={"Accept": "application/json"})
            assert plain.headers["Content-Type"] == "application/json"
            assert msgspec.msgpack.decode(packed.content) == plain.json()


def test_the_listing_under_v1_is_json_whatever_is_accepted(http):
    for accept in ("*/*", "text/html", "text/plain", ""):
        answer = http.get(f"/v1/buckets/{BUCKET}/objects", headers={"Accept": accept})
        assert answer.headers["Content-Type"] == "application/json"


# --- the web namespace


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_text_has_a_name_a_line(http, nodes, query):
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        answer = http.get(f"{url}/{BUCKET}/", params=query)
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.content.decode() == "".join(f"{name}\n" for name in expected(**query))


def test_text_in_pages(http):
    found, token = [], ""
    while True:
        answer = http.get(f"/{BUCKET}/", params={"limit": 11, "delimiter": "/", "token": token})
        found += answer.text.splitlines()
        if "X-DFC-Next-Token" not in answer.headers:
            break
        token = unquote(answer.headers["X-DFC-Next-Token"])
    assert found == expected(delimiter="/")


def test_curl_lists(curl, cluster):
    assert curl("-f", f"{cluster.url}/{BUCKET}/?prefix=train/&limit=2").stdout == b"train/0000.tar\ntrain/0001.tar\n"
    assert f"{BUCKET}/\n" in curl("-f", f"{cluster.url}/").stdout.decode()


def test_html_for_browsers(http, nodes):
    accept = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    hostile = '<script>alert("1")</script>&'
    http.put(f"/listings-html/{quote(hostile)}", content=b"abc")
    http.put(f"/listings-html/folder/{quote(hostile)}/x", content=b"abc")
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        page = http.get(f"{url}/listings-html/", headers=accept)
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert page.text.startswith("<!doctype html>")
        assert "<script" not in page.text
        assert "&lt;script&gt;" in page.text
        folders = http.get(f"{url}/listings-html/", params={"delimiter": "/", "prefix": "folder/"}, headers=accept)
        assert "<script" not in folders.text
        start = http.get(f"{url}/", headers=accept)
        assert (start.status_code, start.headers["Location"]) == (303, "/ui")
    links = re.findall(r'href="(/listings-html/[^"]+)"', http.get("/listings-html/", headers=accept).text)
    assert [http.get(unescape(link)).content for link in links] == [b"abc", b"abc"]


def test_html_pages_lead_to_the_end(http):
    url, seen = f"/{BUCKET}/?limit=10", []
    while url:
        page = http.get(url, headers={"Accept": "text/html"}).text
        seen += re.findall(rf'href="/{BUCKET}/([^"?]+)"', page)
        following = re.search(r'<a href="([^"]+)">next page', page)
        url = unescape(following[1]) if following else None
    assert [unquote(name) for name in seen] == NAMES


def test_buckets_of_the_start_page(http, nodes):
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        assert f"{BUCKET}/" in http.get(f"{url}/").text.splitlines()
        found = http.get(f"{url}/", headers={"Accept": "application/json"}).json()["buckets"]
        assert {"name": BUCKET, "objects": len(NAMES), "bytes": sum(len(n.encode()) for n in NAMES)} in found


def test_head_of_a_listing_has_no_body(connect, nodes):
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        connection = connect(url)
        for target in (f"/{BUCKET}/", f"/{BUCKET}/?limit=5", f"/v1/buckets/{BUCKET}/objects", "/"):
            for method in ("HEAD", "GET"):
                connection.request(method, target)
                reply = connection.answer(method)
                assert reply.status == 200
                if method == "HEAD":
                    head = reply.headers
            assert head["Content-Length"] == reply.headers["Content-Length"]
            assert head["Transfer-Encoding"] == reply.headers["Transfer-Encoding"]


# --- bad questions


@pytest.mark.parametrize("path", [f"/v1/buckets/{BUCKET}/objects", f"/{BUCKET}/"])
def test_bad_parameters(http, error_of, path):
    for query in ("limit=0", "limit=10001", "limit=-1", "limit=x", "limit=", "limit=1&limit=2", "delimiter=ab", "prefix=%ff"):
        error_of(http.get(f"{path}?{query}"), 400, "bad_request")
    if path.startswith("/v1"):
        error_of(http.get(f"{path}?unknown=1"), 400, "bad_request")


def test_an_empty_bucket_and_a_missing_one(http, bucket, error_of):
    for path in (f"/v1/buckets/{bucket}/objects", f"/{bucket}/"):
        error_of(http.get(path), 404, "bucket_not_found")
    http.put(f"/v1/buckets/{bucket}")
    assert http.get(f"/v1/buckets/{bucket}/objects").json() == {"objects": [], "prefixes": [], "next_token": None}
    assert http.get(f"/v1/buckets/{bucket}/objects?delimiter=/&prefix=a").json()["prefixes"] == []
    assert http.get(f"/{bucket}/").content == b""


def test_what_is_deleted_is_not_listed(http, bucket):
    for name in ("a", "b", "c"):
        http.put(f"/{bucket}/{name}", content=b"")
    http.delete(f"/{bucket}/b")
    assert http.get(f"/{bucket}/").text == "a\nc\n"
