"""Bearer tokens: what wants one, with and without `token_for_reads`; and settings that change what a node accepts."""

from __future__ import annotations

import os
import re

import httpx
import pytest

from dfc.api.node.copies import CompareHandlers, CopyHandlers
from dfc.api.node.proxy import ProxyNodeHandlers
from dfc.api.node.target import HoldingHandlers, JobInputHandlers, OwnBatchHandlers, OwnSearchHandlers, StagingHandlers
from dfc.api.shared import FigureHandlers
from dfc.http.faces import Handlers

TOKEN = "s3cret-token"
OWN = {"Authorization": f"Bearer {TOKEN}"}
WRITES = (
    ("PUT", "/b/x"),
    ("PUT", "/x"),
    ("DELETE", "/b/x"),
    ("PUT", "/v1/objects/b/x"),
    ("PUT", "/v1/objects/b/x?relay=1"),
    ("DELETE", "/v1/objects/b/x"),
    ("PUT", "/v1/buckets/b"),
    ("PATCH", "/v1/buckets/b"),
    ("DELETE", "/v1/buckets/b?force=1"),
    ("POST", "/v1/cluster/rebalance"),
    ("POST", "/v1/cluster/check"),
    ("POST", "/v1/cluster/scrub"),
    ("POST", "/v1/jobs"),
    ("DELETE", "/v1/jobs/0"),
)
READS = (
    "/", "/b/", "/b/x", "/b/s.tar?member=a.txt", "/b/s.tar?list=samples", "/v1/objects/b/x?relay=1",
    "/v1/buckets", "/v1/buckets/b", "/v1/buckets/b/objects", "/v1/buckets/b/samples",
    "/v1/cluster", "/v1/cluster/stats", "/v1/cluster/rebalance", "/v1/cluster/check", "/v1/cluster/scrub",
    "/v1/jobs", "/metrics",
)  # fmt: skip


def _asked(*handlers: type[Handlers]) -> list[tuple[str, str]]:
    """Method and path for each of their routes."""
    endpoints = (endpoint for each in handlers for endpoint in each.ENDPOINTS)
    return [(method, re.sub("{[^}]+}", "b", endpoint.pattern)) for endpoint in endpoints for method in endpoint.methods]


INTERNAL_OF_PROXIES = _asked(ProxyNodeHandlers, FigureHandlers)
INTERNAL_OF_TARGETS = _asked(
    HoldingHandlers, StagingHandlers, JobInputHandlers, OwnBatchHandlers, OwnSearchHandlers, CopyHandlers, CompareHandlers,
    FigureHandlers,
)  # fmt: skip
WRONG = (
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer wrong"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"bearer {TOKEN}"},
    {"Authorization": TOKEN},
    {"Authorization": "Basic czNjcmV0LXRva2Vu"},
    {"Authorization": b"Bearer \xff\xfe"},
)


class Guarded:
    """A cluster with a token, with an object and a shard in it."""

    def __init__(self, cluster, client: httpx.Client, make_tar) -> None:
        self.client = client
        answer = client.put(f"{cluster.url}/v1/buckets/b", headers=OWN)
        assert answer.status_code == 201, answer.text
        assert client.put(f"{cluster.url}/b/x", content=b"abc", headers=OWN).status_code == 201
        assert client.put(f"{cluster.url}/b/s.tar", content=make_tar([("a.txt", b"1")]), headers=OWN).status_code == 201
        nodes = client.get(f"{cluster.url}/v1/cluster", headers=OWN).json()["nodes"]
        self.targets = [node["url"] for node in nodes]
        self.urls = [cluster.url, *self.targets]
        self.proxy = cluster.url


@pytest.fixture(scope="module")
def guarded(start_cluster, http, make_tar):
    """Writes want the token."""
    return Guarded(start_cluster(targets=2, environment={"DFC_TOKEN": TOKEN}), http, make_tar)


@pytest.fixture(scope="module")
def closed(start_cluster, http, make_tar):
    """Everything wants the token; buckets are not created by uploads; objects have at most 100,000 bytes."""
    environment = {
        "DFC_TOKEN": TOKEN,
        "DFC_TOKEN_FOR_READS": "true",
        "DFC_AUTO_CREATE": "false",
        "DFC_OBJECT_SIZE_MAX_BYTES": "100000",
    }
    return Guarded(start_cluster(targets=2, environment=environment), http, make_tar)


def refused(answer, error_of):
    error_of(answer, 401, "unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


def test_writes_want_the_token(guarded, http, error_of):
    for url in guarded.urls:
        for method, path in WRITES:
            for headers in WRONG:
                refused(http.request(method, url + path, headers=headers, content=b"{}"), error_of)
        assert http.get(f"{url}/b/x").content == b"abc"
        assert http.put(f"{url}/b/y", content=b"abc", headers=OWN).status_code in (200, 201)
        assert http.delete(f"{url}/b/y", headers=OWN).status_code == 204
        assert http.patch(f"{url}/v1/buckets/b", json={}, headers=OWN).status_code == 200
        assert http.post(f"{url}/v1/cluster/scrub", headers=OWN).status_code == 202


def test_large_uploads_without_a_token_get_the_answer(guarded, http, error_of):
    for url in guarded.urls:
        refused(http.put(f"{url}/b/z", content=os.urandom(900_000)), error_of)
        error_of(http.get(f"{url}/b/z"), 404, "object_not_found")


def test_reads_want_none(guarded, http):
    for url in guarded.urls:
        for path in (*READS, "/v1/health"):
            for headers in ({}, OWN, {"Authorization": "Bearer wrong"}):
                assert http.get(url + path, headers=headers).status_code == 200


def test_calls_between_nodes_want_the_token(guarded, http, error_of):
    for method, path in INTERNAL_OF_PROXIES:
        refused(http.request(method, guarded.proxy + path), error_of)
        assert http.request(method, guarded.proxy + path, headers=OWN).status_code != 401
    for url in guarded.targets:
        for method, path in INTERNAL_OF_TARGETS:
            refused(http.request(method, url + path), error_of)
    assert len(INTERNAL_OF_PROXIES) > 10
    assert len(INTERNAL_OF_TARGETS) > 30
    assert http.get(f"{guarded.targets[0]}/v1/node/buckets", headers=OWN).status_code == 200


def test_reads_want_the_token_where_they_are_told_to(closed, http, error_of):
    for url in closed.urls:
        for path in READS:
            refused(http.get(url + path), error_of)
            refused(http.get(url + path, headers={"Authorization": "Bearer wrong"}), error_of)
            assert http.head(url + path).status_code == 401
            assert http.get(url + path, headers=OWN).status_code == 200
        assert http.get(f"{url}/v1/health").status_code == 200


def test_a_redirect_wants_the_token_too(closed, guarded, http, error_of):
    refused(http.get(f"{closed.proxy}/v1/objects/b/x"), error_of)
    assert http.get(f"{closed.proxy}/v1/objects/b/x", headers=OWN).status_code == 307
    assert http.get(f"{guarded.proxy}/v1/objects/b/x").status_code == 307


def test_curl_with_a_token(guarded, curl, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(os.urandom(300_000))
    header = ["-H", f"Authorization: Bearer {TOKEN}"]
    assert curl("-f", "-T", str(path), f"{guarded.proxy}/b/c").returncode == 22
    assert curl("-f", *header, "-T", str(path), f"{guarded.proxy}/b/c").returncode == 0
    assert curl("-f", "-L", "--location-trusted", *header, "-T", str(path), f"{guarded.proxy}/v1/objects/b/c").returncode == 0


# --- other settings of the closed cluster


def test_without_auto_create_a_bucket_is_made_on_purpose(closed, http, error_of):
    for url in closed.urls:
        for path in ("/new/x", "/v1/objects/new/x", "/x"):
            for size in (10, 90_000):
                error_of(http.put(url + path, content=os.urandom(size), headers=OWN), 404, "bucket_not_found")
    error_of(http.get(f"{closed.proxy}/v1/buckets/new", headers=OWN), 404, "bucket_not_found")
    assert http.put(f"{closed.proxy}/v1/buckets/new", headers=OWN).status_code == 201
    for url in closed.urls:
        assert http.put(f"{url}/new/x", content=b"abc", headers=OWN).status_code in (200, 201)


def test_objects_over_the_size_limit(closed, http, error_of):
    for url in closed.urls:
        assert http.put(f"{url}/b/limit", content=b"x" * 100_000, headers=OWN).status_code in (200, 201)
        error_of(http.put(f"{url}/b/limit", content=b"y" * 100_001, headers=OWN), 413, "too_large")
        chunks = (b"y" * 10_000 for _ in range(11))
        error_of(http.put(f"{url}/b/limit", content=chunks, headers=OWN), 413, "too_large")
        assert http.get(f"{url}/b/limit", headers=OWN).content == b"x" * 100_000


# --- jobs


def test_a_job_has_the_token_wherever_it_goes(guarded, closed, http):
    """Workers, staging, publishing and lineage, also where reads want the token."""
    for number, cluster in enumerate((guarded, closed)):
        spec = {
            "operation": "stats",
            "input": {"bucket": "b", "shards": "s.tar"},
            "output": {"bucket": "b", "pattern": f"report-{number}.json"},
        }
        with http.stream("POST", f"{cluster.targets[0]}/v1/jobs", json=spec, headers=OWN) as answer:
            assert answer.status_code == 202, answer.read()
            path = answer.headers["Location"]
        # The stream ends with the job.
        assert http.get(f"{cluster.proxy}{path}/events", headers=OWN).status_code == 200
        job = http.get(cluster.proxy + path, headers=OWN).json()
        assert job["state"] == "succeeded", job
        assert http.get(f"{cluster.proxy}/b/report-{number}.json", headers=OWN).status_code == 200
        assert http.get(f"{cluster.proxy}/b/.dfc{path.removeprefix('/v1')}.json", headers=OWN).status_code == 200
