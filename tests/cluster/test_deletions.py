"""Deletions of buckets that are refused, or killed on their way: the bucket stays as writable as it was, or goes."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import IMPATIENT, Cluster, wait_for

OBJECTS = 1000  # enough that their removal is met under way
ATTEMPTS = 6


def ask(cluster: Cluster, method: str, path: str, body: bytes | None = None, timeout_s: float = 60) -> tuple[int, str]:
    """Status and the code of an error; 0 when nobody answered."""
    request = urllib.request.Request(cluster.url + path, data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read()
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]["code"]
    except OSError:
        return 0, ""


def state(cluster: Cluster, bucket: str) -> str | None:
    try:
        return next((found["state"] for found in cluster.map()["buckets"] if found["name"] == bucket), None)
    except OSError:
        return "unknown"


@contextmanager
def deleting(cluster: Cluster, bucket: str) -> Iterator[list[Any]]:
    """A deletion by force under way; its answer is in the list at the end."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask(cluster, "DELETE", f"/v1/buckets/{bucket}?force=1")))
    thread.start()
    yield answers
    thread.join()


def test_a_refused_deletion_disturbs_no_upload(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(targets=2, disks=1)
    assert ask(cluster, "PUT", "/busy/first", b"1")[0] == 201
    stopping = threading.Event()
    answers: list[tuple[int, str]] = []

    def upload(number: int) -> None:
        for attempt in range(10_000):
            if stopping.is_set():
                return
            answers.append(ask(cluster, "PUT", f"/busy/{number}-{attempt}", b"x" * (100, 100_000)[attempt % 2]))

    with ThreadPoolExecutor(4) as threads:
        uploads = [threads.submit(upload, number) for number in range(4)]
        try:
            for _ in range(40):
                assert ask(cluster, "DELETE", "/v1/buckets/busy") == (409, "bucket_not_empty")
        finally:
            stopping.set()
        for done in uploads:
            done.result()
    assert len(answers) > 10
    assert set(answers) == {(201, "")}


def test_a_deletion_killed_before_it_was_decided_leaves_the_bucket_writable(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(targets=2, disks=1)
    assert ask(cluster, "PUT", "/kept/first", b"1")[0] == 201
    stopped = cluster.children()["target-1"]
    os.kill(stopped, signal.SIGSTOP)  # it takes no map, so nothing can be decided
    try:
        with deleting(cluster, "kept") as answers:
            wait_for(lambda: state(cluster, "kept") == "checking", "the deletion to be on its way")
            os.kill(cluster.children()["proxy"], signal.SIGKILL)
        assert answers == [(0, "")]
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_for(cluster.is_healthy, "the proxy to be back")
    wait_for(lambda: ask(cluster, "PUT", "/kept/second", b"2")[0] == 201, "the bucket to take an upload")
    assert ask(cluster, "GET", "/kept/first") == (200, "")
    assert ask(cluster, "DELETE", "/v1/buckets/kept") == (409, "bucket_not_empty")
    # The target that was stopped may have the map of before the kill, until its next heartbeat.
    wait_for(lambda: ask(cluster, "PUT", "/kept/third", b"3")[0] == 201, "the bucket to take another one")


def test_a_deletion_that_meets_a_stopped_target_leaves_the_bucket_writable(start_cluster: Callable[..., Cluster]) -> None:
    """Nobody is killed: the target is marked down, and the deletion gives up."""
    cluster = start_cluster(targets=2, disks=1, environment={"DFC_PEER_TIMEOUT_S": "2", **IMPATIENT})
    wait_for(lambda: ask(cluster, "PUT", "/kept/first", b"1")[0] in (200, 201), "the bucket to take an upload")
    stopped = cluster.children()["target-1"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with deleting(cluster, "kept") as answers:
            pass
        assert answers == [(503, "unavailable")]
        assert state(cluster, "kept") == "active"
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_for(cluster.is_healthy, "the target to be back")
    wait_for(lambda: ask(cluster, "GET", "/kept/first") == (200, ""), "what was stored")
    wait_for(lambda: ask(cluster, "PUT", "/kept/second", b"2")[0] == 201, "the bucket to take an upload")


@pytest.mark.parametrize("victim", ["proxy", "target-0"])
def test_a_deletion_killed_after_it_was_decided_is_finished(start_cluster: Callable[..., Cluster], victim: str) -> None:
    cluster = start_cluster(targets=2, disks=1)
    for attempt in range(ATTEMPTS):
        bucket = f"gone-{attempt}"
        ask(cluster, "PUT", f"/v1/buckets/{bucket}", b'{"durability": "relaxed"}')
        with ThreadPoolExecutor(8) as threads:
            put = lambda number, b=bucket: ask(cluster, "PUT", f"/{b}/{number}", b"x")  # noqa: E731
            assert set(threads.map(put, range(OBJECTS * (1 + attempt)))) == {(201, "")}  # slower each time to delete
        with deleting(cluster, bucket) as answers:
            wait_for(lambda b=bucket: state(cluster, b) in ("deleting", None), "the deletion to be decided")
            os.kill(cluster.children()[victim], signal.SIGKILL)
        wait_for(cluster.is_healthy, "all nodes to be back")
        if answers != [(204, "")] and state(cluster, bucket) != "active":
            break
    else:
        pytest.fail(f"{ATTEMPTS} deletions were over before they could be killed, or killed before all targets knew of them")
    wait_for(lambda: state(cluster, bucket) is None, "the deletion to be finished")
    wait_for(lambda: ask(cluster, "PUT", f"/{bucket}/0", b"new")[0] == 201, "a bucket made anew")
    assert ask(cluster, "GET", f"/{bucket}/1") == (404, "object_not_found")
    identity = cluster.bucket_id(bucket)
    folders = {path.name for path in Path(cluster.directory).glob("target-*/disk-*/objects/*")}
    assert identity in folders
