"""Where a request goes: redirects and relays of a proxy, targets that own nothing of it, absolute URIs."""

from __future__ import annotations

import os

import msgspec
import pytest

from dfc.client import Client

LARGE = 300_000


def test_v1_objects_redirects_to_the_owner(http, nodes, bucket):
    http.put(f"/{bucket}/a b/ü", content=b"abc")
    path = f"/v1/objects/{bucket}/a%20b/%C3%BC"
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        answer = http.request(method, f"{path}?member=x%20y&ext=z" if method == "GET" else path)
        assert (answer.status_code, answer.content) == (307, b"")
        query = "?member=x%20y&ext=z" if method == "GET" else ""
        assert answer.headers["Location"] == f"{nodes.owner(bucket, 'a b/ü')}{path}{query}"
        assert answer.headers["Cache-Control"] == "no-store"
    assert http.get(path, follow_redirects=True).content == b"abc"


def test_a_redirected_put_has_created_the_bucket(http, bucket):
    assert http.put(f"/v1/objects/{bucket}/x", content=b"abc").status_code == 307
    assert http.get(f"/v1/buckets/{bucket}").status_code == 200


def test_missing_buckets_are_no_redirect(http, bucket, error_of):
    for method in ("GET", "DELETE"):
        error_of(http.request(method, f"/v1/objects/{bucket}/x"), 404, "bucket_not_found")


def test_redirect_and_relay_on_demand(http, nodes, bucket, error_of):
    for size in (10, LARGE):
        body = os.urandom(size)
        for method, status in (("PUT", (200, 201)), ("GET", (200,)), ("HEAD", (200,)), ("DELETE", (204,))):
            content = body if method == "PUT" else None
            relayed = http.request(method, f"/v1/objects/{bucket}/x?relay=1", content=content)
            assert relayed.status_code in status
            if method == "GET":
                assert relayed.content == body
        http.put(f"/{bucket}/x", content=body)
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            moved = http.request(method, f"/{bucket}/x?redirect=1", content=body if method == "PUT" else None)
            assert moved.status_code == 307
            assert moved.headers["Location"] == f"{nodes.owner(bucket, 'x')}/{bucket}/x?redirect=1"
        assert http.get(f"/{bucket}/x?redirect=1", follow_redirects=True).content == body
        assert http.get(f"/{bucket}/x?redirect=0").content == body
        assert http.get(f"/v1/objects/{bucket}/x?relay=0").status_code == 307
    for path in (f"/{bucket}/x?redirect=yes", f"/v1/objects/{bucket}/x?relay=yes"):
        error_of(http.get(path), 400, "bad_request")


def test_the_owner_answers_itself(http, nodes, bucket):
    owner = nodes.owner(bucket, "x")
    for path in (f"/{bucket}/x?redirect=1", f"/v1/objects/{bucket}/x", f"/v1/objects/{bucket}/x?relay=1"):
        assert http.put(f"{owner}{path}", content=b"abc").status_code in (200, 201)
        assert http.get(f"{owner}{path}").content == b"abc"
        assert http.delete(f"{owner}{path}").status_code == 204


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_target_that_does_not_own_the_object(http, nodes, bucket, size, error_of):
    body = os.urandom(size)
    other, owner = nodes.other(bucket, "x"), nodes.owner(bucket, "x")
    path = f"/v1/objects/{bucket}/x"
    moved = http.put(f"{other}{path}", content=body)
    assert (moved.status_code, moved.headers["Location"]) == (307, f"{owner}{path}")
    assert http.put(moved.headers["Location"], content=body).status_code == 201
    assert http.get(f"{other}{path}").headers["Location"] == f"{owner}{path}"
    for relayed in (f"{path}?relay=1", f"/{bucket}/x"):
        assert http.get(other + relayed).content == body
        assert http.put(other + relayed, content=body).status_code == 200
        assert http.get(other + relayed, headers={"Range": "bytes=1-3"}).content == body[1:4]
    assert http.delete(f"{other}/{bucket}/x").status_code == 204
    error_of(http.get(f"{other}/{bucket}/x"), 404, "object_not_found")


def test_every_node_answers_every_path(http, nodes, make_tar, bucket):
    tar = make_tar([("a.txt", b"1"), ("b.txt", b"2")])
    for url in (nodes.proxy, *(node.url for node in nodes.map.targets())):
        name = f"{bucket}-{url[-5:]}"
        statuses = {
            f"PUT /v1/buckets/{name}": 201,
            f"PATCH /v1/buckets/{name}": 200,
            f"PUT /{name}/s.tar": 201,
            f"GET /{name}/s.tar": 200,
            f"HEAD /{name}/s.tar": 200,
            f"GET /{name}/s.tar?member=a.txt": 200,
            f"GET /{name}/s.tar?sample=b": 200,
            f"GET /{name}/s.tar?list=samples": 200,
            f"GET /{name}/": 200,
            "GET /": 200,
            f"GET /v1/objects/{name}/s.tar?relay=1": 200,
            "GET /v1/buckets": 200,
            f"GET /v1/buckets/{name}": 200,
            f"GET /v1/buckets/{name}/objects": 200,
            f"GET /v1/buckets/{name}/samples": 200,
            "GET /v1/health": 200,
            "GET /v1/cluster": 200,
            "GET /v1/cluster/scrub": 200,
            "GET /metrics": 200,
            f"DELETE /{name}/s.tar": 204,
            f"DELETE /v1/buckets/{name}": 204,
            "GET /v1/nothing": 404,
        }
        for request, status in statuses.items():
            method, path = request.split()
            content = tar if method == "PUT" and path.startswith(f"/{name}") else None
            answer = http.request(method, url + path, content=content)
            assert answer.status_code == status, (request, answer.text)


def test_absolute_uris(connect, http, nodes, bucket, error_of):
    http.put(f"/{bucket}/x", content=b"abc")
    for url in (nodes.proxy, nodes.owner(bucket, "x"), nodes.other(bucket, "x")):
        host = url.partition("//")[2]
        port = host.rpartition(":")[2]
        connection = connect(url)
        for authority in (host, f"localhost:{port}", f"LOCALHOST:{port}", "127.0.0.1"):
            connection.request("GET", f"http://{authority}/{bucket}/x")
            assert connection.answer().body == b"abc"
            connection.request("GET", f"http://{authority}/v1/buckets/{bucket}/objects?limit=1")
            assert b'"name":"x"' in connection.answer().body
        for target, status, code in (
            ("http://example.com/x", 421, "misdirected"),
            (f"http://example.com:{port}/{bucket}/x", 421, "misdirected"),
            (f"https://{host}/{bucket}/x", 400, "bad_request"),
            ("ftp://a/b", 400, "bad_request"),
        ):
            connection = connect(url)
            connection.request("GET", target)
            error_of(connection.answer(), status, code)
            assert connection.is_closed()


def test_a_redirect_from_an_absolute_uri(connect, nodes, http, bucket):
    http.put(f"/{bucket}/x", content=b"abc")
    connection = connect()
    connection.request("GET", f"{nodes.proxy}/v1/objects/{bucket}/x?member=a")
    assert connection.answer().headers["Location"] == f"{nodes.owner(bucket, 'x')}/v1/objects/{bucket}/x?member=a"


def test_a_request_takes_one_hop_only(http, nodes, bucket, error_of):
    http.put(f"/{bucket}/x", content=b"abc")
    answer = http.get(f"{nodes.other(bucket, 'x')}/{bucket}/x", headers={"X-DFC-Hop": "1"})
    error_of(answer, 503, "unavailable")
    assert int(answer.headers["Retry-After"]) >= 1


def test_request_ids_go_through_relays(http, nodes, bucket):
    for via in ("proxy", "owner", "other"):
        url = nodes.url(via, bucket, "x")
        assert (
            http.put(f"{url}/{bucket}/x", content=b"abc", headers={"X-Request-Id": "my-id.1"}).headers["X-Request-Id"]
            == "my-id.1"
        )
        missing = http.get(f"{url}/{bucket}/missing", headers={"X-Request-Id": "my-id.2"})
        assert missing.headers.get_list("X-Request-Id") == ["my-id.2"]
        assert missing.json()["error"]["request_id"] == "my-id.2"
        assert http.get(f"{url}/{bucket}/x").headers.get_list("Date", split_commas=False) != []
        assert len(http.get(f"{url}/{bucket}/x").headers.get_list("Server")) == 1


# --- clients that say which map they use


def test_who_sends_its_map_to_another_than_the_owner_is_told_so(http, nodes, bucket, error_of):
    http.put(f"/{bucket}/x", content=b"abc")
    owner, other = nodes.owner(bucket, "x"), nodes.other(bucket, "x")
    version = http.get(f"{other}/v1/cluster").json()["version"]
    for path in (f"/{bucket}/x", f"/v1/objects/{bucket}/x", f"/v1/objects/{bucket}/x?relay=1"):
        for asked in (version, version - 1, version + 1000):
            headers = {"X-DFC-Map": str(asked)}
            for method in ("GET", "PUT", "DELETE"):
                answer = http.request(method, other + path, headers=headers, content=b"new" if method == "PUT" else None)
                error_of(answer, 421, "not_the_primary")
                assert answer.headers["X-DFC-Map"] == str(version)
            answer = http.head(other + path, headers=headers)
            assert (answer.status_code, answer.headers["X-DFC-Map"]) == (421, str(version))
            assert http.get(owner + path, headers=headers).content == b"abc"
        error_of(http.get(other + path, headers={"X-DFC-Map": "-1"}), 400, "bad_request")
    # Listings and other hosts' requests are passed on as ever.
    assert http.get(f"{other}/{bucket}/", headers={"X-DFC-Map": "1"}).status_code == 200
    assert http.get(f"{http.base_url}/{bucket}/x", headers={"X-DFC-Map": "1"}).content == b"abc"


def test_our_client_learns_from_it(http, nodes, bucket):
    with Client(str(http.base_url)) as client:
        client.put(bucket, "x", b"abc")
        router, right = client._router, client._router.map(at_once=True)  # with the bucket in it
        urls = [node.advertise_url for node in right.nodes]
        moved = zip(right.nodes, urls[1:] + urls[:1], strict=True)
        turned = tuple(msgspec.structs.replace(node, advertise_url=url) for node, url in moved)
        wrong = msgspec.structs.replace(right, nodes=turned)
        for method in (client.get, client.stat, lambda *at: client.put(*at, b"abc"), lambda *at: client.open(*at).read()):
            router._map = wrong
            method(bucket, "x")
            assert [node.advertise_url for node in router.map().nodes] == urls
        # What cannot be sent twice is passed on by the node.
        router._map = wrong
        client.put(bucket, "x", iter([b"new", b"er"]))
        assert router._map is wrong
        assert client.get(bucket, "x") == b"newer"
        # A node whose map is the older one is not asked again and again.
        router._map, router._fetch = wrong, lambda _: wrong.encode()
        assert client.get(bucket, "x") == b"newer"
