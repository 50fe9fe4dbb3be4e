"""Objects over HTTP: PUT, GET, HEAD and DELETE in the web namespace, through every kind of node and at every size."""

from __future__ import annotations

import http.client
import os
import re
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import pytest

from dfc.checksum import checksum_of

# Around the borders between the ways of moving bytes: the event loop up to 64 KiB, then 256 KiB buffers, sendfile, splice.
SIZES = (0, 1, 1000, 65_535, 65_536, 65_537, 262_145, 3_000_001)
VIA = ("proxy", "owner", "other")


@pytest.mark.parametrize("via", VIA)
def test_what_is_put_comes_back(http, nodes, bucket, via):
    for size in SIZES:
        name, body = f"size/{size}.bin", os.urandom(size)
        url = f"{nodes.url(via, bucket, name)}/{bucket}/{name}"
        stored = http.put(url, content=body)
        assert stored.status_code == 201
        assert stored.json() == {
            "bucket": bucket,
            "object": name,
            "size": size,
            "checksum": checksum_of(body),
            "version": stored.json()["version"],
            "samples": None,
            "members": None,
            "copies": 1,
            "copies_wanted": 1,
            "warnings": [],
        }
        assert re.fullmatch(r"[0-9a-f]{18}", stored.json()["version"])
        assert stored.headers["ETag"] == f'"{checksum_of(body)}"'
        read = http.get(url)
        assert read.status_code == 200
        assert read.content == body
        head = http.head(url)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["Content-Length"] == read.headers["Content-Length"] == str(size)


@pytest.mark.parametrize("via", VIA)
def test_headers_of_an_object(http, nodes, bucket, via):
    for name, size in (("small.json", 100), ("large.json", 100_000)):
        body = b"x" * size
        url = f"{nodes.url(via, bucket, name)}/{bucket}/{name}"
        stored = http.put(url, content=body).json()
        for answer in (http.get(url), http.head(url)):
            headers = answer.headers
            assert headers["X-DFC-Version"] == stored["version"]
            assert headers["ETag"] == f'"{checksum_of(body)}"'
            assert headers["X-DFC-Checksum"] == f"xxh3-128={checksum_of(body)}"
            assert headers["Accept-Ranges"] == "bytes"
            assert headers["Content-Type"] == "application/json"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Content-Security-Policy"] == "sandbox"
            modified = parsedate_to_datetime(headers["Last-Modified"])
            assert abs((parsedate_to_datetime(headers["Date"]) - modified).total_seconds()) < 60
        assert http.put(url, content=body).json()["version"] > stored["version"] < http.head(url).headers["X-DFC-Version"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tar", "application/x-tar"),
        ("a.TAR", "application/x-tar"),
        ("a.tgz", "application/gzip"),
        ("a.tar.gz", "application/gzip"),
        ("a.tar.zst", "application/zstd"),
        ("a.jpg", "image/jpeg"),
        ("a.png", "image/png"),
        ("a.txt", "text/plain; charset=utf-8"),
        ("a.html", "text/html; charset=utf-8"),
        ("a.cls", "text/plain; charset=utf-8"),
        ("a.unheard-of", "application/octet-stream"),
        ("jpg", "application/octet-stream"),
        ("folder.jpg/a", "application/octet-stream"),
    ],
)
def test_content_type_follows_the_extension(http, bucket, name, kind):
    http.put(f"/{bucket}/{name}", content=b"x")
    assert http.get(f"/{bucket}/{name}").headers["Content-Type"] == kind


def test_a_single_segment_is_an_object_of_the_default_bucket(http, bucket):
    name = f"{bucket}.tar"
    stored = http.put(f"/{name}", content=b"abc")
    assert (stored.status_code, stored.json()["bucket"], stored.json()["object"]) == (201, "default", name)
    assert http.get(f"/default/{name}").content == b"abc"
    assert http.get(f"/{name}").content == b"abc"
    assert http.delete(f"/{name}").status_code == 204


@pytest.mark.parametrize("sizes", [(10, 20), (200_000, 300_000), (10, 300_000), (300_000, 10)])
def test_a_second_put_replaces(http, bucket, sizes):
    first, second = (os.urandom(size) for size in sizes)
    before = http.put(f"/{bucket}/x", content=first)
    after = http.put(f"/{bucket}/x", content=second)
    assert (before.status_code, after.status_code) == (201, 200)
    assert after.json()["version"] > before.json()["version"]
    assert http.get(f"/{bucket}/x").content == second


@pytest.mark.parametrize("via", VIA)
def test_delete(http, nodes, bucket, error_of, via):
    url = f"{nodes.url(via, bucket, 'x')}/{bucket}/x"
    http.put(url, content=b"abc")
    gone = http.delete(url)
    assert (gone.status_code, gone.content) == (204, b"")
    assert "Content-Length" not in gone.headers
    error_of(http.get(url), 404, "object_not_found")
    error_of(http.delete(url), 404, "object_not_found")
    assert http.head(url).status_code == 404
    assert http.put(url, content=b"again").status_code == 201


@pytest.mark.parametrize("via", VIA)
def test_a_missing_object_and_a_missing_bucket(http, nodes, bucket, error_of, via):
    url = nodes.url(via, bucket, "x")
    error_of(http.get(f"{url}/{bucket}-none/x"), 404, "bucket_not_found")
    error_of(http.delete(f"{url}/{bucket}-none/x"), 404, "bucket_not_found")
    http.put(f"{url}/{bucket}/y", content=b"")
    error_of(http.get(f"{url}/{bucket}/x"), 404, "object_not_found")
    missing = http.head(f"{url}/{bucket}/x")
    assert (missing.status_code, missing.content) == (404, b"")


@pytest.mark.parametrize("size", [10, 300_000])
def test_any_node_may_be_the_first_to_hear_of_a_bucket(http, nodes, bucket, size):
    """Where an object lies follows from the id of its bucket, and whoever is asked first has the bucket made."""
    for number, url in enumerate((nodes.proxy, *(node.url for node in nodes.map.targets()))):
        path, body = f"/{bucket}-{number}/x", os.urandom(size)
        assert http.put(f"{url}{path}", content=body).status_code == 201
        assert http.get(path).content == http.get(f"{url}{path}").content == body


@pytest.mark.parametrize("namespace", ["", "/v1/objects"])
def test_both_namespaces_name_the_same_objects(http, nodes, bucket, namespace):
    owner = nodes.owner(bucket, "a/b")
    assert http.put(f"{owner}{namespace}/{bucket}/a/b", content=b"abc").status_code == 201
    for other in ("", "/v1/objects"):
        assert http.get(f"{owner}{other}/{bucket}/a/b").content == b"abc"


# --- names

GOOD_NAMES = (
    "a b.txt",
    "a+b&c=d;e,f@g:h!$'()*~",
    "größe/straße.jpg",
    "日本/語.png",
    "🙂.tar",
    "100%",
    "a%2Fb",
    "#?",
    '"quoted"',
    "back\\slash",
    "-dash",
    "...",
    "a/.../b",
    ".hidden",
    "v1/metrics",
    "x" * 1024,
    "é" * 512,
)


def test_names_are_decoded_exactly_once(http, nodes, bucket):
    for name in GOOD_NAMES:
        for via in VIA:
            url = f"{nodes.url(via, bucket, name)}/{bucket}/{quote(name)}"
            stored = http.put(url, content=name.encode())
            assert stored.status_code in (200, 201), name
            assert stored.json()["object"] == name
            assert http.get(url).content == name.encode()
    listed = http.get(f"/v1/buckets/{bucket}/objects").json()["objects"]
    assert [entry["name"] for entry in listed] == sorted(GOOD_NAMES, key=str.encode)


def test_raw_bytes_in_a_path_are_refused(connect, bucket, http, error_of):
    """Names that are not ASCII are sent percent-encoded; other bytes are no HTTP."""
    for path in ("größe", "a b", "a\x01", "a\x7f"):
        for method in ("GET", "PUT"):
            connection = connect()
            connection.request(method, f"/{bucket}/{path}", body=b"x" if method == "PUT" else b"")
            reply = connection.answer()
            error_of(reply, 400, "bad_request")
            assert reply.headers["Connection"] == "close"
            assert connection.is_closed()
    error_of(http.get(f"/v1/buckets/{bucket}"), 404, "bucket_not_found")


BAD_PATHS = (
    "/{b}/..",
    "/{b}/../x",
    "/{b}/x/..",
    "/{b}/.",
    "/{b}/a/./b",
    "/{b}//x",
    "/{b}/a//b",
    "/{b}/a/",
    "//x",
    "/../x",
    "/{b}/%2e%2e/x",
    "/{b}/%2E",
    "/{b}/a%2f%2e%2e%2fx",
    "/{b}/%252e%252e/x",
    "/{b}/a%252f%252fb",
    "/{b}/a%00b",
    "/{b}/a%2500b",
    "/{b}/a%0ab",
    "/{b}/a%7f",
    "/{b}/a%c2%80",
    "/{b}/a%ff",
    "/{b}/a%ed%a0%80",
    "/{b}/a%c0%af",
    "/{b}/a%2",
    "/{b}/a%zz",
    "/{b}/a%",
    "/{b}/" + "x" * 1025,
    "/{b}/" + "%C3%A9" * 513,
    "/_bucket/x",
    "/.bucket/x",
    "/bu%20cket/x",
    "/" + "b" * 64 + "/x",
    "/metrics/x",
    "/health",
    "/s3/x",
    "/datasets/x",
    "/views/x",
    "/webdav/x",
    "/robots.txt",
    "/robots.txt",
    "/%76%31/objects",
)


@pytest.mark.parametrize("via", ["proxy", "target"])
def test_bad_names_are_refused_and_nothing_is_stored(connect, nodes, bucket, http, error_of, via):
    http.put(f"/v1/buckets/{bucket}")
    url = nodes.proxy if via == "proxy" else nodes.map.targets()[0].url
    connection = connect(url)
    for path in BAD_PATHS:
        for method in ("GET", "PUT", "DELETE"):
            connection.request(method, path.format(b=bucket), body=b"x" if method == "PUT" else b"")
            reply = connection.answer()
            error_of(reply, 400, "bad_name")
            if reply.headers["Connection"] == "close":
                connection = connect(url)
    assert http.get(f"/v1/buckets/{bucket}/objects").json()["objects"] == []


def test_bad_names_under_v1_objects(connect, http, bucket, error_of):
    connection = connect()
    for path in ("..", "a/../b", "%252e%252e", "a%00", "a//b", "a/", "%zz", "x" * 1025):
        connection.request("GET", f"/v1/objects/{bucket}/{path}")
        error_of(connection.answer(), 400, "bad_name")
    for path in ("_b/x", "ui/x", "v1/x"):
        connection.request("GET", f"/v1/objects/{path}")
        error_of(connection.answer(), 400, "bad_name")


# --- connections


def test_one_connection_serves_many_requests(nodes, bucket, http):
    small, large = os.urandom(1000), os.urandom(500_000)
    http.put(f"/{bucket}/small", content=small)
    http.put(f"/{bucket}/large", content=large)
    for url in (nodes.proxy, nodes.owner(bucket, "large"), nodes.other(bucket, "large")):
        connection = http_client(url)
        connection.connect()
        connection.auto_open = 0
        for _ in range(3):
            for method, path, body, status, expected in (
                ("GET", f"/{bucket}/small", None, 200, small),
                ("HEAD", f"/{bucket}/large", None, 200, b""),
                ("GET", f"/{bucket}/large", None, 200, large),
                ("GET", f"/{bucket}/missing", None, 404, None),
                ("PUT", f"/{bucket}/put", small, None, None),
                ("GET", f"/{bucket}/put", None, 200, small),
                ("DELETE", f"/{bucket}/put", None, 204, b""),
                ("GET", f"/{bucket}/", None, 200, b"large\nsmall\n"),
                ("GET", "/v1/health", None, 200, None),
            ):
                connection.request(method, path, body)
                answer = connection.getresponse()
                content = answer.read()
                assert status is None or answer.status == status
                assert expected is None or content == expected
        connection.close()


def http_client(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)


def test_pipelined_requests_are_answered_in_order(connect, nodes, http, bucket):
    large = os.urandom(2_000_000)
    http.put(f"/{bucket}/large", content=large)
    for url in (nodes.proxy, nodes.owner(bucket, "large")):
        connection = connect(url)
        for target in (f"/{bucket}/large", "/v1/health", f"/{bucket}/missing", f"/{bucket}/large"):
            connection.request("GET", target)
        statuses = [connection.answer() for _ in range(4)]
        assert [reply.status for reply in statuses] == [200, 200, 404, 200]
        assert statuses[0].body == statuses[3].body == large


def test_http_1_0_and_connection_close(connect, nodes, http, bucket):
    body = os.urandom(300_000)
    http.put(f"/{bucket}/x", content=body)
    for url in (nodes.proxy, nodes.owner(bucket, "x")):
        connection = connect(url)
        connection.send(f"GET /{bucket}/x HTTP/1.0\r\n\r\n".encode())
        reply = connection.answer()
        assert (reply.status, reply.body, reply.headers["Connection"]) == (200, body, "close")
        assert connection.is_closed()
        connection = connect(url)
        connection.request("GET", f"/{bucket}/x", {"Connection": "close"})
        reply = connection.answer()
        assert (reply.body, reply.headers["Connection"]) == (body, "close")
        assert connection.is_closed()
        connection = connect(url)
        connection.send(f"GET /{bucket}/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
        assert connection.answer().headers["Connection"] == "keep-alive"
        connection.send(f"GET /{bucket}/ HTTP/1.0\r\n\r\n".encode())  # a stream: its end is the connection's
        status, headers = connection.head()
        assert (status, headers["Transfer-Encoding"]) == (200, None)


def test_an_open_read_finishes_while_the_object_is_replaced_and_deleted(connect, nodes, http, bucket):
    body = os.urandom(20_000_000)  # more than fits into the sockets' buffers
    http.put(f"/{bucket}/x", content=body)
    for url in (nodes.proxy, nodes.owner(bucket, "x")):
        http.put(f"/{bucket}/x", content=body)
        connection = connect(url)
        connection.request("GET", f"/{bucket}/x")
        status, headers = connection.head()
        assert (status, headers["Content-Length"]) == (200, str(len(body)))
        assert http.put(f"/{bucket}/x", content=b"new").status_code == 200
        assert http.delete(f"/{bucket}/x").status_code == 204
        assert connection._file.read(len(body)) == body
