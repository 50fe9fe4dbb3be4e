"""What holds for every path: the shape of errors, request ids, methods, unknown parameters, foreign pages, bad heads."""

from __future__ import annotations

import re

import pytest

PATHS = {
    "/": "DELETE, GET, HEAD, PUT",
    "/bucket/": "DELETE, GET, HEAD, PUT",
    "/bucket/object": "DELETE, GET, HEAD, PUT",
    "/v1/objects/bucket/object": "DELETE, GET, HEAD, PUT",
    "/v1/buckets": "GET, HEAD",
    "/v1/buckets/bucket": "DELETE, GET, HEAD, PATCH, PUT",
    "/v1/buckets/bucket/objects": "GET, HEAD",
    "/v1/buckets/bucket/samples": "GET, HEAD",
    "/v1/cluster": "GET, HEAD",
    "/v1/cluster/rebalance": "GET, HEAD, POST",
    "/v1/cluster/check": "GET, HEAD, POST",
    "/v1/cluster/scrub": "GET, HEAD, POST",
    "/v1/health": "GET, HEAD",
    "/metrics": "GET, HEAD",
}


def test_methods_that_a_path_does_not_have(http, url, error_of):
    for path, allowed in PATHS.items():
        for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} - set(allowed.split(", ")):
            answer = http.request(method, url + path)
            error_of(answer, 405, "method_not_allowed")
            assert answer.headers["Allow"] == allowed


def test_head_is_get_without_a_body(http, url):
    for path in PATHS:
        if "object" not in path and "bucket/" not in path and path != "/v1/buckets/bucket":
            assert http.head(url + path).status_code == http.get(url + path).status_code == 200
            assert http.head(url + path).content == b""


def test_unknown_query_parameters(http, url, error_of):
    for path in PATHS:
        if path.startswith(("/v1", "/metrics")):
            for query in ("unknown=1", "unknown", "limit2=1"):
                assert "unknown query parameter" in error_of(http.get(f"{url}{path}?{query}"), 400, "bad_request")
    for path in ("/v1/buckets/bucket?force=1&x=1", "/v1/objects/b/o?relay=1&prefix=3", "/v1/buckets/b/objects?fields=key"):
        error_of(http.get(url + path), 400, "bad_request")
    assert http.get(f"{url}/?utm_source=x").status_code == 200  # the web namespace does not mind


def test_bad_query_strings(http, url, error_of):
    for query in ("limit=1&limit=2", "prefix=%ff", "&".join(f"a{number}=1" for number in range(100))):
        error_of(http.get(f"{url}/v1/buckets/bucket/objects?{query}"), 400, "bad_request")


def test_paths_that_do_not_exist(http, url, error_of):
    for path in ("/v1", "/v1/", "/v1/nothing", "/v1/buckets/", "/v1/objects", "/v1/objects/b", "/v1/objects/b/", "/v1/node/x"):
        error_of(http.get(url + path), 404, "not_found")


def test_request_ids(http, url):
    for path, status in (("/v1/health", 200), ("/v1/nothing", 404)):
        given = http.get(url + path, headers={"X-Request-Id": "a.b-c_1"})
        assert (given.status_code, given.headers["X-Request-Id"]) == (status, "a.b-c_1")
        for strange in ("", "a b", "<script>", "x" * 129, 'a"b'):
            made = http.get(url + path, headers={"X-Request-Id": strange}).headers["X-Request-Id"]
            assert made != strange
            assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", made)
    made = {http.get(f"{url}/v1/health").headers["X-Request-Id"] for _ in range(20)}
    assert len(made) == 20


def test_unsafe_methods_of_foreign_pages(http, url, nodes, bucket, error_of):
    http.put(f"/{bucket}/x", content=b"abc")
    host = url.partition("//")[2]
    for origin in ("http://example.com", "null", f"http://{host}.example.com", "http://localhost:1", "file://", ""):
        for method, path in (
            ("PUT", f"/{bucket}/x"),
            ("DELETE", f"/{bucket}/x"),
            ("PUT", f"/v1/objects/{bucket}/x"),
            ("PUT", f"/v1/buckets/{bucket}"),
            ("PATCH", f"/v1/buckets/{bucket}"),
            ("DELETE", f"/v1/buckets/{bucket}?force=1"),
            ("POST", "/v1/cluster/rebalance"),
            ("POST", "/v1/cluster/scrub"),
        ):
            error_of(http.request(method, url + path, headers={"Origin": origin}), 403, "forbidden")
        assert http.get(f"{url}/{bucket}/x", headers={"Origin": origin}).content == b"abc"
    assert http.put(f"{url}/{bucket}/x", content=b"abc", headers={"Origin": f"http://{host}"}).status_code == 200


def test_no_answer_lets_other_origins_read(http, url, bucket):
    http.put(f"/{bucket}/x", content=b"abc")
    for path in (f"/{bucket}/x", "/v1/buckets", "/v1/health"):
        answer = http.get(url + path, headers={"Origin": "http://example.com"})
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "head",
    [
        "GET  /x HTTP/1.1",
        "GET x HTTP/1.1",
        "GET /x HTTP/9.9",
        "G@T /x HTTP/1.1",
        "\x01\x02\x03",
        "GET /x HTTP/1.1\r\nHost: a\r\nbad header",
        "GET /x HTTP/1.1\r\nHost: a\r\nName : value",
        "GET /x HTTP/1.1\r\nHost: a\r\n: value",
        "GET /x HTTP/1.1\r\nHost: a\r\nName: a\x00b",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: -1",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: +1",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        "PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip",
        f"GET /{'x' * 20_000} HTTP/1.1\r\nHost: a",
        f"GET /x HTTP/1.1\r\nHost: a\r\nLong: {'x' * 20_000}",
        "GET /x HTTP/1.1\r\nHost: a\r\n" + "\r\n".join(f"H{number}: x" for number in range(200)),
    ],
    ids=lambda head: repr(head[:60]),
)
def test_heads_that_cannot_be_read(connect, url, http, error_of, head):
    connection = connect(url)
    connection.send(head.encode("latin-1") + b"\r\n\r\n")
    reply = connection.answer()
    error_of(reply, 400, "bad_request")
    assert reply.headers["Connection"] == "close"
    assert connection.is_closed()


def test_bad_chunks(connect, url, bucket, http, error_of):
    for chunks in (b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"ffffffffffffffffff\r\nabc"):
        connection = connect(url)
        connection.request("PUT", f"/{bucket}/x", {"Transfer-Encoding": "chunked"})
        connection.send(chunks)
        reply = connection.answer()
        assert reply.status == 400
        assert reply.headers["Content-Type"] == "application/json"
        assert connection.is_closed()
    assert http.get(f"/{bucket}/x").status_code == 404
