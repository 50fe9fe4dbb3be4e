"""Buckets: created, counted, changed, deleted and made anew, through the proxy and through a target."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import wait_for

LARGE = 300_000
DESCRIPTION = {"name", "created", "objects", "bytes", "exact", "copies", "copies_wanted", "min_copies", "durability"}


def test_create(http, url, bucket, error_of):
    path = f"{url}/v1/buckets/{bucket}"
    error_of(http.get(path), 404, "bucket_not_found")
    made = http.put(path, json={"copies": 1, "durability": "relaxed"})
    assert made.status_code == 201
    assert made.json().keys() == DESCRIPTION
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made.json()["created"])
    assert (made.json()["name"], made.json()["objects"], made.json()["bytes"]) == (bucket, 0, 0)
    assert http.put(path, json={"copies": 1, "durability": "relaxed"}).status_code == 200
    error_of(http.put(path, json={"durability": "fsync"}), 409, "bucket_conflict")
    error_of(http.put(path), 409, "bucket_conflict")  # the defaults are other settings
    assert http.get(path).json() == made.json()


def test_create_with_defaults(http, url, bucket):
    path = f"{url}/v1/buckets/{bucket}"
    for body in (b"", b"{}"):
        made = http.put(path, content=body)
        assert made.status_code in (200, 201)
        assert (made.json()["copies"], made.json()["durability"]) == (1, "fsync")


def test_a_first_put_creates_the_bucket_with_defaults(http, url, bucket):
    assert http.put(f"{url}/{bucket}/x", content=b"abc").status_code == 201
    described = http.get(f"{url}/v1/buckets/{bucket}").json()
    assert (described["copies"], described["durability"]) == (1, "fsync")
    assert http.put(f"{url}/v1/buckets/{bucket}", json={"copies": 1, "durability": "fsync"}).status_code == 200


def test_counts(http, url, bucket):
    path = f"{url}/v1/buckets/{bucket}"
    for number in range(20):
        http.put(f"/{bucket}/{number}", content=b"x" * number)
    assert (http.get(path).json()["objects"], http.get(path).json()["bytes"]) == (20, 190)
    http.put(f"/{bucket}/0", content=b"x" * 1000)
    http.delete(f"/{bucket}/19")
    assert (http.get(path).json()["objects"], http.get(path).json()["bytes"]) == (19, 1171)


def test_list(http, url, bucket):
    http.put(f"/{bucket}-b/x", content=b"abc")
    http.put(f"/v1/buckets/{bucket}-a", json={"durability": "relaxed"})
    answer = http.get(f"{url}/v1/buckets")
    assert answer.status_code == 200
    assert answer.json().keys() == {"buckets"}
    buckets = answer.json()["buckets"]
    assert all(entry.keys() == DESCRIPTION for entry in buckets)
    assert [entry["name"] for entry in buckets] == sorted(entry["name"] for entry in buckets)
    mine = {entry["name"]: entry for entry in buckets if entry["name"].startswith(bucket)}
    assert (mine[f"{bucket}-a"]["objects"], mine[f"{bucket}-a"]["durability"]) == (0, "relaxed")
    assert (mine[f"{bucket}-b"]["objects"], mine[f"{bucket}-b"]["bytes"]) == (1, 3)


def test_change(http, url, bucket, error_of):
    path = f"{url}/v1/buckets/{bucket}"
    error_of(http.patch(path, json={"durability": "relaxed"}), 404, "bucket_not_found")
    http.put(f"/{bucket}/x", content=b"abc")
    changed = http.patch(path, json={"durability": "relaxed"})
    assert changed.status_code == 200
    assert (changed.json()["durability"], changed.json()["objects"]) == ("relaxed", 1)
    assert http.get(path).json() == changed.json()
    assert http.patch(path, json={}).json() == changed.json()
    assert http.patch(path, json={"copies": 1, "durability": "fsync"}).json()["durability"] == "fsync"
    assert http.get(f"/{bucket}/x").content == b"abc"


def test_min_copies(http, url, bucket, error_of):
    """With how many copies a write may count: at most as many as there are to be."""
    path = f"{url}/v1/buckets/{bucket}"
    error_of(http.put(path, json={"copies": 2, "min_copies": 3}), 400, "bad_request")
    error_of(http.get(path), 404, "bucket_not_found")
    made = http.put(path, json={"copies": 3})
    assert (made.status_code, made.json()["min_copies"]) == (201, 2)
    error_of(http.put(path, json={"copies": 3, "min_copies": 1}), 409, "bucket_conflict")
    changed = http.patch(path, json={"min_copies": 3})
    assert (changed.status_code, changed.json()["min_copies"]) == (200, 3)
    error_of(http.patch(path, json={"min_copies": 4}), 400, "bad_request")
    error_of(http.patch(path, json={"copies": 2}), 400, "bad_request")
    changed = http.patch(path, json={"copies": 2, "min_copies": 1}).json()
    assert (changed["copies_wanted"], changed["min_copies"]) == (2, 1)
    assert http.put(f"/{bucket}/x", content=b"abc").status_code == 201


def test_more_copies_than_domains(http, url, bucket, error_of):
    answer = http.put(f"{url}/v1/buckets/{bucket}", json={"copies": 8})
    error_of(answer, 409, "too_few_domains")
    assert "this cluster has" in answer.json()["error"]["message"]
    error_of(http.get(f"{url}/v1/buckets/{bucket}"), 404, "bucket_not_found")


@pytest.mark.parametrize("durability", ["fsync", "relaxed"])
def test_objects_of_either_durability(http, bucket, durability):
    http.put(f"/v1/buckets/{bucket}", json={"durability": durability})
    for size in (10, LARGE):
        body = os.urandom(size)
        assert http.put(f"/{bucket}/x", content=body).status_code in (200, 201)
        assert http.get(f"/{bucket}/x").content == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"copies": 9}',
        b'{"copies": 0}',
        b'{"copies": -1}',
        b'{"copies": "1"}',
        b'{"copies": 1.5}',
        b'{"min_copies": 0}',
        b'{"min_copies": 9}',
        b'{"copies": 1, "min_copies": 2}',
        b'{"durability": "none"}',
        b'{"durability": null, "copies": null, "x": 1}',
        b'{"unknown": 1}',
        b"[]",
        b"1",
        b"{",
        b"\xff",
        b"null",
    ],
)
def test_bad_settings(http, url, bucket, error_of, body):
    error_of(http.put(f"{url}/v1/buckets/{bucket}", content=body), 400, "bad_request")
    error_of(http.get(f"{url}/v1/buckets/{bucket}"), 404, "bucket_not_found")
    http.put(f"/v1/buckets/{bucket}")
    error_of(http.patch(f"{url}/v1/buckets/{bucket}", content=body), 400, "bad_request")
    assert http.get(f"/v1/buckets/{bucket}").json()["copies"] == 1


def test_a_body_that_is_too_large(http, url, bucket, error_of):
    body = b'{"durability": "' + b"x" * (1 << 20) + b'"}'
    error_of(http.put(f"{url}/v1/buckets/{bucket}", content=body), 413, "too_large")


@pytest.mark.parametrize(
    "name", ["_a", "-a", ".a", "a" * 64, "a%20b", "%C3%A9", "v1", "s3", "ui", "metrics", "health", "robots.txt"]
)
def test_bad_names(http, url, error_of, name):
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        error_of(http.request(method, f"{url}/v1/buckets/{name}"), 400, "bad_name")


def test_good_names(http, bucket):
    for name in (f"{bucket}.x", f"{bucket}_", f"{bucket}-", f"B{bucket}", "0" + "a" * 62, "v1.0", "Metrics"):
        assert http.put(f"/v1/buckets/{name}").status_code in (200, 201)
        assert http.put(f"/{name}/x", content=b"abc").status_code in (200, 201)
        assert http.delete(f"/v1/buckets/{name}?force=1").status_code == 204


# --- deletion


def test_delete(http, url, bucket, error_of):
    path = f"{url}/v1/buckets/{bucket}"
    error_of(http.delete(path), 404, "bucket_not_found")
    http.put(f"/{bucket}/x", content=b"abc")
    error_of(http.delete(path), 409, "bucket_not_empty")
    assert http.get(f"/{bucket}/x").content == b"abc"
    assert http.put(f"/{bucket}/y", content=b"abc").status_code == 201  # it works on as before
    http.delete(f"/{bucket}/x")
    http.delete(f"/{bucket}/y")
    gone = http.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    error_of(http.get(path), 404, "bucket_not_found")
    error_of(http.get(f"/{bucket}/x"), 404, "bucket_not_found")
    assert bucket not in [entry["name"] for entry in http.get("/v1/buckets").json()["buckets"]]


def test_delete_by_force(http, url, bucket, cluster, error_of):
    for number in range(30):
        http.put(f"/{bucket}/forced-{bucket}-{number}", content=os.urandom(100 if number % 2 else LARGE))
    assert http.delete(f"{url}/v1/buckets/{bucket}?force=1").status_code == 204
    error_of(http.get(f"/{bucket}/forced-{bucket}-1"), 404, "bucket_not_found")
    wait_for(lambda: not list(cluster.directory.glob(f"target-*/disk-*/objects/*/*/forced-{bucket}-*")), "the blobs to go")


def test_force_is_0_or_1(http, bucket, error_of):
    http.put(f"/v1/buckets/{bucket}")
    for query in ("force=yes", "force=", "force=2"):
        error_of(http.delete(f"/v1/buckets/{bucket}?{query}"), 400, "bad_request")
    assert http.delete(f"/v1/buckets/{bucket}?force=0").status_code == 204


def test_force_goes_with_delete_only(http, url, bucket, error_of):
    http.put(f"/v1/buckets/{bucket}")
    for method in ("GET", "PUT", "PATCH"):
        error_of(http.request(method, f"{url}/v1/buckets/{bucket}?force=1"), 400, "bad_request")


def test_deletions_at_once_leave_no_bucket_half_deleted(http, bucket):
    """One by force and some without: the bucket goes, or all of them are refused and it works on."""
    for _ in range(5):
        for number in range(20):
            http.put(f"/{bucket}/{number}", content=b"abc")
        queries = ["?force=1", "", "?force=0", "?force=1", ""]
        with ThreadPoolExecutor(5) as threads:
            answers = list(threads.map(lambda query: http.delete(f"/v1/buckets/{bucket}{query}"), queries))
        assert {answer.status_code for answer in answers} <= {204, 404, 409}
        if 204 in [answer.status_code for answer in answers]:
            assert http.get(f"/v1/buckets/{bucket}").status_code == 404
        assert http.put(f"/{bucket}/x", content=b"abc").status_code in (200, 201)
        assert http.delete(f"/v1/buckets/{bucket}?force=1").status_code == 204


def bucket_id(http, bucket):
    return next(entry["id"] for entry in http.get("/v1/cluster").json()["buckets"] if entry["name"] == bucket)


def test_a_bucket_made_anew_is_another_one(http, nodes, bucket, error_of):
    names = [str(number) for number in range(16)]
    for name in names:
        http.put(f"/{bucket}/{name}", content=b"old")
    old = bucket_id(http, bucket)
    assert http.delete(f"/v1/buckets/{bucket}?force=1").status_code == 204
    assert http.put(f"/v1/buckets/{bucket}").status_code == 201
    assert bucket_id(http, bucket) != old
    for name in names:
        for via in ("proxy", "owner", "other"):
            error_of(http.get(f"{nodes.url(via, bucket, name)}/{bucket}/{name}"), 404, "object_not_found")
    assert http.get(f"/v1/buckets/{bucket}/objects").json()["objects"] == []
    assert http.get(f"/v1/buckets/{bucket}").json()["objects"] == 0
    http.put(f"/{bucket}/0", content=b"new")
    assert http.get(f"/{bucket}/").text == "0\n"


@pytest.mark.parametrize("via", ["proxy", "owner"])
@pytest.mark.parametrize("anew", [False, True])
def test_an_upload_that_outlives_its_bucket_is_refused(http, nodes, connect, bucket, error_of, via, anew):
    body = os.urandom(LARGE)
    http.put(f"/v1/buckets/{bucket}")
    connection = connect(nodes.url(via, bucket, "x"))
    connection.request("PUT", f"/{bucket}/x", {"Content-Length": str(LARGE), "Expect": "100-continue"})
    assert connection.head()[0] == 100
    connection.send(body[:-1])
    assert http.delete(f"/v1/buckets/{bucket}").status_code == 204
    if anew:
        assert http.put(f"/v1/buckets/{bucket}").status_code == 201
    connection.send(body[-1:])
    error_of(connection.answer(), 409, "bucket_deleting")
    if anew:
        assert http.get(f"/v1/buckets/{bucket}/objects").json()["objects"] == []
    else:
        error_of(http.get(f"/v1/buckets/{bucket}"), 404, "bucket_not_found")


def test_creators_at_once_get_one_bucket(http, bucket):
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: http.put(f"/v1/buckets/{bucket}").status_code, range(8)))
    assert sorted(answers) == [200] * 7 + [201]


def test_first_puts_at_once_through_all_nodes_get_one_bucket(http, nodes, bucket):
    urls = [nodes.proxy, *(node.url for node in nodes.map.targets())] * 3

    def put(number: int) -> int:
        return http.put(f"{urls[number]}/{bucket}/{number}", content=b"abc").status_code

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(put, range(len(urls)))) == {201}
    assert http.get(f"/v1/buckets/{bucket}").json()["objects"] == len(urls)


def test_uploads_beside_a_deletion_are_stored_or_refused(http, bucket):
    """What is acknowledged before the deletion is gone, what comes after it is refused or in the bucket made anew."""
    http.put(f"/v1/buckets/{bucket}")
    with ThreadPoolExecutor(5) as threads:
        puts = [threads.submit(http.put, f"/{bucket}/{number}", content=b"abc") for number in range(40)]
        deleted = threads.submit(http.delete, f"/v1/buckets/{bucket}?force=1")
        answers = [put.result() for put in puts]
        assert deleted.result().status_code == 204
    assert {answer.status_code for answer in answers} <= {200, 201, 409, 503}
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["error"]["code"] == "bucket_deleting"
        elif answer.status_code == 503:  # just when it was looked whether the bucket may go
            assert "Retry-After" in answer.headers
    left = http.get(f"/v1/buckets/{bucket}/objects").json().get("objects", [])
    stored = {answer.json()["object"] for answer in answers if answer.status_code == 201}
    assert {entry["name"] for entry in left} <= stored
