"""The largest requests of each kind do not hold a node's event loop up: the next one gets its turn, and heartbeats pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from harness import Cluster
from job_shards import tar_of
from security.wire import ask, store_many

from dfc.limits import BATCH_BODY_BYTES_MAX, JOB_SPEC_BYTES_MAX, JSON_BODY_BYTES_MAX, LIST_PAGE_MAX

STOP_MS = 20.0
SLACK = 2.0  # processors differ
PADDING = "x" * 180
PACKED = {"Content-Type": "application/msgpack"}


def name(number: int) -> str:
    return f"{PADDING}-{number:06d}.tar"


@pytest.fixture(scope="module")
def watched(start_cluster: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> tuple[Cluster, Path]:
    """Two targets with as many shards as a page has rows, and the folder in which their loops tell what took long."""
    notes = tmp_path_factory.mktemp("loop")
    environment = {"PYTHONPATH": str(Path(__file__).parent / "watched"), "LOOP_DIR": str(notes)}
    cluster = start_cluster(targets=2, disks=1, environment=environment)
    shard = tar_of([(f"k{number}.txt", b"") for number in range(10)])
    store_many(cluster.url, "many", [name(number) for number in range(LIST_PAGE_MAX)], shard)
    return cluster, notes


def items() -> list[dict[str, object]]:
    return [{"bucket": "many", "object": name(number % LIST_PAGE_MAX), "number": number % 10} for number in range(100_000)]


def long_list(size: int) -> bytes:
    """A JSON list of strings of so many bytes."""
    return json.dumps(["x" * 30] * (size // 34 - 1)).encode()


def job() -> bytes:
    """Names that are as short as can be: the most there is to decode."""
    shards = [f"{number:07d}.tar" for number in range((JOB_SPEC_BYTES_MAX - 1000) // 15)]
    source, sink = {"bucket": "many", "shards": shards}, {"bucket": "many", "pattern": "out-%03d.txt"}
    return json.dumps({"operation": "list_keys", "input": source, "output": sink}, separators=(",", ":")).encode()


ASKED: dict[str, tuple[str, str, dict[str, str], Callable[[], bytes] | None]] = {
    "listing": ("GET", f"/v1/buckets/many/objects?limit={LIST_PAGE_MAX}", {}, None),
    "listing in msgpack": ("GET", f"/v1/buckets/many/objects?limit={LIST_PAGE_MAX}", {"Accept": PACKED["Content-Type"]}, None),
    "listing as a page": ("GET", f"/many/?limit={LIST_PAGE_MAX}", {"Accept": "text/html"}, None),
    "listing as text": ("GET", "/many/", {}, None),
    "listing by folders": ("GET", f"/v1/buckets/many/objects?limit={LIST_PAGE_MAX}&delimiter=-", {}, None),
    "datasets": ("GET", "/v1/buckets/many/datasets", {}, None),
    "keys": ("GET", "/v1/buckets/many/samples", {}, None),
    "search": ("GET", f"/v1/buckets/many/samples?key_contains=k&limit={LIST_PAGE_MAX}", {}, None),
    "look-up of a key": ("GET", f"/v1/buckets/many/samples?key=k1&limit={LIST_PAGE_MAX}", {}, None),
    "page of a bucket": ("GET", "/ui/buckets/many", {}, None),
    "page of datasets": ("GET", "/ui/buckets/many/datasets", {}, None),
    "page of a dataset": ("GET", f"/ui/dataset?bucket=many&shards={PADDING}-%7B000000..009999%7D.tar", {}, None),
    "page of a search": ("GET", "/ui/search?bucket=many&how=contains&key=k", {}, None),
    "batch": ("POST", "/v1/batch", {}, lambda: json.dumps({"items": items()}).encode()[:BATCH_BODY_BYTES_MAX]),
    "batch in msgpack": ("POST", "/v1/batch", PACKED, lambda: msgspec.msgpack.encode({"items": items()})),
    "JSON": ("PUT", "/v1/buckets/new", {}, lambda: long_list(JSON_BODY_BYTES_MAX)),
    "job": ("POST", "/v1/jobs", {}, job),
}


@pytest.mark.parametrize("what", ASKED)
def test_the_longest_stop_of_an_event_loop(watched: tuple[Cluster, Path], what: str) -> None:
    cluster, notes = watched
    method, path, headers, body = ASKED[what]
    content = None if body is None else body()
    before = {file: file.stat().st_size for file in notes.iterdir()}
    answer = ask(cluster.url, method, path, dict(headers), content)
    assert answer.status in ((200, 303) if content is None or what.startswith("batch") else (400, 404)), answer.body[:300]
    stops = [line for file in notes.iterdir() for line in file.read_text()[before.get(file, 0) :].splitlines()]
    longest = max(stops, key=lambda line: float(line.split()[0]), default="0 nothing")
    print(f"{what}: {longest[:300]}")
    assert float(longest.split()[0]) < STOP_MS * SLACK, longest
