"""Shards grouped into datasets, by every way to ask for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dfc.client import Client


@pytest.fixture(scope="module")
def names(http, make_tar):
    shard = make_tar([("a.txt", b"1"), ("b.txt", b"2")])
    found = [*(f"train/x-{number:03d}.tar" for number in range(8) if number != 5), "train/notes.txt", "val.tar"]
    for name in found:
        assert http.put(f"/datasets-b/{name}", content=b"no shard" if name.endswith("txt") else shard).status_code == 201
    return found


def test_datasets_of_a_bucket(http, nodes, names, error_of):
    size = int(http.head("/datasets-b/val.tar").headers["content-length"])
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        found = http.get(f"{url}/v1/buckets/datasets-b/datasets").json()["datasets"]
        assert [each.pop("modified")[:2] for each in found] == ["20", "20"]
        assert found == [
            {
                "pattern": "train/x-{000..007}.tar", "shards": 7, "samples": 14, "bytes": 7 * size,
                "missing": ["005"], "missing_count": 1,
            },
            {"pattern": "val.tar", "shards": 1, "samples": 2, "bytes": size, "missing": [], "missing_count": 0},
        ]  # fmt: skip
    assert len(http.get("/v1/buckets/datasets-b/datasets?prefix=val").json()["datasets"]) == 1
    assert http.get("/v1/buckets/datasets-b/datasets?prefix=none").json() == {"datasets": []}
    error_of(http.get("/v1/buckets/no-such/datasets"), 404, "bucket_not_found")
    error_of(http.get("/v1/buckets/datasets-b/datasets?limit=1"), 400, "bad_request")


def test_by_the_client_and_the_command(nodes, names):
    with Client(nodes.proxy) as client:
        (first, second) = client.datasets("datasets-b")
        assert (first.pattern, first.missing, second.shards) == ("train/x-{000..007}.tar", ["005"], 1)
        (found,) = client.datasets("datasets-b", prefix="val")
        assert found.pattern == "val.tar"

    def run(*arguments):
        command = [sys.executable, "-m", "dfc", "ls", "--datasets", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"DFC_URL": nodes.proxy}, check=True).stdout

    lines = run("datasets-b").splitlines()
    assert lines[0].split() == ["7", "14", *lines[0].split()[2:4], "datasets-b/train/x-{000..007}.tar", "missing:", "005"]
    assert [json.loads(line)["shards"] for line in run("datasets-b/train/", "--json").splitlines()] == [7]
