"""What a node answers without a task is what its handlers answer: the same status, headers and bytes.

Of two requests in one packet none is answered at once, so each is sent alone and then twice together.
"""

from __future__ import annotations

import time
from urllib.parse import quote

import pytest
from harness import wait_for

MEMBERS = {"a/0001.txt": b"text", "a/0001.cls": b"7", "ä b.jpg": bytes(300), "large.bin": bytes(100_000), "empty": b""}


@pytest.fixture
def stored(http, nodes, bucket, make_tar):
    """Paths in a bucket of its own."""
    bodies = {"small": b"x" * 1000, "empty": b"", "large.bin": bytes(200_000), "ä/ö.txt": b"names"}
    bodies["shard.tar"] = make_tar(list(MEMBERS.items()))
    bodies["shard.tgz"] = b"no shard"
    for name, body in bodies.items():
        assert http.put(f"/{bucket}/{quote(name)}", content=body).status_code == 201
    targets = [(name, nodes.owner(bucket, name)) for name in bodies]
    for name, url in targets:  # now in the caches
        http.get(f"{url}/{bucket}/{quote(name)}")
        http.get(f"{url}/{bucket}/{quote(name)}?member=a/0001.txt")
    return targets


def same(connect, url, target, headers=None):
    """Asked for alone, and as the second of two in a packet."""
    found = []
    for count in (1, 2):
        connection = connect(url)
        head = "\r\n".join(
            [f"GET {target} HTTP/1.1", f"Host: {connection.host}", "X-Request-Id: same", *(headers or ()), "", ""]
        ).encode()
        connection.send(head * count)
        reply = [connection.answer() for _ in range(count)][-1]
        kept = sorted((name.lower(), value) for name, value in reply.headers.items() if name != "Date")
        found.append((reply.status, kept, reply.body))
    assert found[0] == found[1]
    return found[0][0]


QUERIES = [
    "", "?member=a/0001.txt", "?member=%C3%A4%20b.jpg", "?member=large.bin", "?member=empty", "?member=none",
    "?archpath=a/0001.cls", "?sample=a/0001", "?sample=a/0001&ext=txt", "?list=samples",
    "?member=a/0001.txt&list=samples", "?nothing=1", "?member=",
]  # fmt: skip
HEADERS = [
    [],
    ["Range: bytes=2-5"],
    ["If-None-Match: *"],
    ["If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT"],
    ["Origin: http://elsewhere"],
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: headers[0].split(":")[0] if headers else "none")
def test_objects_and_members(stored, bucket, connect, headers):
    statuses = set()
    for name, url in stored:
        for query in QUERIES:
            statuses.add(same(connect, url, f"/{bucket}/{quote(name)}{query}", headers))
        statuses.add(same(connect, url, f"/v1/objects/{bucket}/{quote(name)}", headers))
    assert {200, 400, 404} <= statuses or headers


def test_what_is_not_there(stored, bucket, nodes, connect):
    url = nodes.owner(bucket, "small")
    for target in (
        "/",
        f"/{bucket}/",
        f"/{bucket}/none",
        "/no-such-bucket/x",
        "/a//b",
        "/%ff",
        "/v1/nothing",
        f"/{bucket}/..%2fx",
    ):
        same(connect, url, target)
        same(connect, nodes.proxy, target)


def test_redirects(stored, bucket, nodes, connect):
    for name, _ in stored:
        assert same(connect, nodes.proxy, f"/v1/objects/{bucket}/{quote(name)}") == 307
        for query in ("?relay=1", "?relay=0", "?member=a/0001.txt", "?nothing=1"):
            same(connect, nodes.proxy, f"/v1/objects/{bucket}/{quote(name)}{query}")


def test_an_object_that_was_replaced_or_deleted_is_not_given_from_memory(stored, http, bucket, nodes, connect):
    url = nodes.owner(bucket, "small")
    connection = connect(url)
    for number in range(20):
        body = b"%d" % number * 50
        assert http.put(f"{url}/{bucket}/small", content=body).status_code in (200, 201)
        connection.request("GET", f"/{bucket}/small")
        assert connection.answer().body == body
    http.delete(f"{url}/{bucket}/small")
    connection.request("GET", f"/{bucket}/small")
    assert connection.answer().status == 404


def test_they_are_logged_like_all_others(stored, http, bucket, nodes, connect, cluster):
    number = time.time_ns()
    name = f"counted-{number}"
    url = nodes.owner(bucket, name)
    http.put(f"{url}/{bucket}/{name}", content=b"abc")
    connection = connect(url)
    for _ in range(3):
        connection.request("GET", f"/{bucket}/{name}", {"X-Request-Id": f"id-{number}"})
        assert connection.answer().headers["X-Request-Id"] == f"id-{number}"
    wanted = f'"request_id":"id-{number}"'
    wait_for(lambda: sum(log.read_text().count(wanted) for log in (cluster.directory / "logs").glob("*.log")) == 3, "the log")
