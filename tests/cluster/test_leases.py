"""A target that the coordinator does not hear, or that was stopped meanwhile, writes nothing and denies nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness import Cluster, wait_for

from dfc.wire import STALE_HEADER

LEASE = {"DFC_DOWN_AFTER_S": "5", "DFC_HOLD_S": "0.1", "DFC_DRAIN_TIMEOUT_S": "20"}  # so a lease is 4 s


class Answer:
    def __init__(self, answer: http.client.HTTPResponse | urllib.error.HTTPError) -> None:
        self.status = int(answer.status or 0)
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def code(self) -> str:
        """The status, or the code of the error."""
        return str(json.loads(self.body)["error"]["code"]) if self.status >= 400 else str(self.status)

    @property
    def is_marked(self) -> bool:
        return self.headers[STALE_HEADER] is not None


def ask(url: str, method: str = "GET", body: bytes | None = None) -> Answer:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=30) as answer:
            return Answer(answer)
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error)


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def nodes(start_cluster: Callable[..., Cluster]) -> Cluster:
    found: Cluster = start_cluster(targets=1, disks=1, environment=LEASE)
    assert ask(f"{found.url}/b/there.bin", "PUT", b"x").code == "201"
    assert ask(f"{found.url}/b/large.bin", "PUT", bytes(3_000_000)).code == "201"
    return found


def only(nodes: Cluster) -> str:
    (url,) = nodes.target_urls()
    return url


def leased(url: str) -> bool:
    return not ask(f"{url}/b/there.bin").is_marked


def test_a_target_that_is_cut_off_writes_and_denies_nothing(nodes: Cluster) -> None:
    url = only(nodes)
    with stopped(nodes.children()["proxy"]):
        wait_for(lambda: not leased(url), "the lease to end")
        assert ask(f"{url}/b/new.bin", "PUT", b"y").code == "no_lease"
        assert ask(f"{url}/b/new.bin", "PUT", bytes(3_000_000)).code == "no_lease"
        assert ask(f"{url}/b/there.bin", "DELETE").code == "no_lease"
        assert ask(f"{url}/b/none.bin", "DELETE").code == "no_lease"
        for question in ("b/none.bin", "v1/node/objects?bucket_id=x", "v1/node/buckets", "v1/node/samples?bucket=b&shards=**",
                         "v1/node/locate?bucket=b&object=none.bin", "v1/node/shards?bucket=b&shards=**"):  # fmt: skip
            found = ask(f"{url}/{question}")
            assert (found.code, found.headers["Retry-After"]) == ("no_lease", "1"), question
        missing = {"items": [{"bucket": "b", "object": "none.bin"}], "on_missing": "empty"}
        assert ask(f"{url}/v1/batch", "POST", json.dumps(missing).encode()).code == "no_lease"
        present = json.dumps({"items": [{"bucket": "b", "object": "there.bin"}]}).encode()
        assert [ask(f"{url}/v1/{path}", "POST", present).headers[STALE_HEADER] for path in ("batch", "node/batch")] == ["1"] * 2
        for name, size in (("there.bin", 1), ("large.bin", 3_000_000)):
            found = ask(f"{url}/b/{name}")
            assert (found.code, len(found.body), found.headers[STALE_HEADER]) == ("200", size, "1")
            assert ask(f"{url}/b/{name}", "HEAD").is_marked
    wait_for(lambda: leased(url), "a new lease")
    assert ask(f"{url}/b/none.bin").code == "object_not_found"
    assert ask(f"{url}/b/new.bin").code == "object_not_found", "what was answered 503 was not done either"
    assert ask(f"{url}/b/there.bin").code == "200"
    assert not ask(f"{url}/v1/batch", "POST", present).is_marked
    assert ask(f"{nodes.url}/b/new.bin", "PUT", b"y").code == "201"


def half_of_an_upload(url: str, name: str) -> http.client.HTTPConnection:
    """A connection on which the first of two megabytes was sent."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.putrequest("PUT", f"/b/{name}")
    connection.putheader("Content-Length", "2000000")
    connection.endheaders()
    connection.send(bytes(1_000_000))
    return connection


def test_a_target_that_sleeps_in_an_upload_commits_nothing_after_its_lease(nodes: Cluster) -> None:
    url, children = only(nodes), nodes.children()
    connection = half_of_an_upload(url, "asleep.bin")
    with stopped(children["proxy"]):
        with stopped(children["target-0"]):
            wait_for_lease_to_end()
        connection.send(bytes(1_000_000))
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "no_lease")
    connection.close()
    wait_for(lambda: leased(url), "a new lease")
    assert ask(f"{url}/b/asleep.bin").code == "object_not_found"


def test_a_target_that_stops_keeps_its_lease_while_it_drains(nodes: Cluster) -> None:
    connection = half_of_an_upload(only(nodes), "drained.bin")
    os.kill(nodes.children()["target-0"], signal.SIGTERM)
    wait_for_lease_to_end()
    time.sleep(1.5)  # and until it would be marked down
    assert [node["state"] for node in nodes.map()["nodes"]] == ["up"]
    connection.send(bytes(1_000_000))
    assert connection.getresponse().status == 201
    connection.close()
    wait_for(lambda: ask(f"{nodes.url}/b/drained.bin").code == "200", "the target to be started again")


def wait_for_lease_to_end() -> None:
    """Nobody can ask a process that is stopped."""
    signal.sigtimedwait((), 4.5)


def test_a_proxy_that_starts_again_grants_leases_at_once(nodes: Cluster) -> None:
    url = only(nodes)
    os.kill(nodes.children()["proxy"], signal.SIGKILL)
    wait_for(nodes.is_healthy, "the proxy to be back")
    wait_for(lambda: ask(f"{nodes.url}/b/again.bin", "PUT", b"z").code in ("200", "201"), "writes to go on")
    assert leased(url)


def test_a_write_is_held_until_there_is_a_lease(start_cluster: Callable[..., Cluster]) -> None:
    nodes: Cluster = start_cluster(targets=1, disks=1, environment={"DFC_DOWN_AFTER_S": "5"})
    for name in ("there", "kept"):
        assert ask(f"{nodes.url}/b/{name}.bin", "PUT", b"x").code == "201"
    url = only(nodes)
    with ThreadPoolExecutor(2) as threads:
        with stopped(nodes.children()["proxy"]):
            wait_for(lambda: not leased(url), "the lease to end")
            put = threads.submit(ask, f"{url}/b/held.bin", "PUT", b"y" * 3_000_000)
            deletion = threads.submit(ask, f"{url}/b/there.bin", "DELETE")
            with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as gone:
                gone.sendall(b"DELETE /b/kept.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
            done, _ = wait((put, deletion), timeout=1.5)
            assert not done
        assert (put.result(20).code, deletion.result(20).code) == ("201", "204")
    assert ask(f"{url}/b/kept.bin").code == "200", "its client has left"


def test_requests_are_held_while_a_target_restarts(start_cluster: Callable[..., Cluster]) -> None:
    nodes: Cluster = start_cluster(targets=2, disks=1)
    names = [f"{nodes.url}/b/{number}.bin" for number in range(24)]
    assert {ask(name, "PUT", b"x").code for name in names} == {"201"}
    with ThreadPoolExecutor(8) as threads:
        for _ in range(3):
            os.kill(nodes.children()["target-0"], signal.SIGKILL)  # `dfc serve` starts it again
            time.sleep(0.2)
            assert {answer.code for answer in threads.map(lambda name: ask(name, "PUT", b"y" * 2_000_000), names)} == {"200"}
            os.kill(nodes.children()["target-1"], signal.SIGKILL)
            time.sleep(0.2)
            assert {answer.code for answer in threads.map(ask, names)} == {"200"}


def test_reads_can_be_refused(start_cluster: Callable[..., Cluster]) -> None:
    nodes: Cluster = start_cluster(targets=1, disks=1, environment={**LEASE, "DFC_READS_WITHOUT_LEASE": "refuse"})
    assert ask(f"{nodes.url}/b/there.bin", "PUT", b"x").code == "201"
    url = only(nodes)
    with stopped(nodes.children()["proxy"]):
        wait_for(lambda: ask(f"{url}/b/there.bin").code == "no_lease", "the lease to end")
        assert ask(f"{url}/b/there.bin", "HEAD").status == 503
        batch = json.dumps({"items": [{"bucket": "b", "object": "there.bin"}]}).encode()
        assert ask(f"{url}/v1/batch", "POST", batch).code == "no_lease"
    wait_for(lambda: ask(f"{url}/b/there.bin").code == "200", "a new lease")


def test_a_target_starts_and_serves_reads_while_no_proxy_answers(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    nodes: Cluster = start_cluster(targets=1, disks=2, environment=LEASE)
    for number in range(10):
        assert ask(f"{nodes.url}/b/{number}.bin", "PUT", b"x" * number).code == "201"
    number = nodes.map()["nodes"][0]["number"]
    kept = [nodes.directory / "target-0" / f"disk-{disk}" / "dfc-map.json" for disk in range(2)]
    wait_for(lambda: all(path.exists() and b'"b"' in path.read_bytes() for path in kept), "the map to be kept")
    assert nodes.stop() == 0
    proxy_port = urlsplit(nodes.url).port
    target = node("target", nodes, "--port", "0", "--disks", ",".join(str(path.parent) for path in kept),
                  "--proxy-url", f"http://127.0.0.1:{proxy_port}")  # fmt: skip
    with ended(target):
        url = started(target)
        for size in range(10):
            found = ask(f"{url}/b/{size}.bin")
            assert (found.code, found.body, found.is_marked) == ("200", b"x" * size, True)
        assert ask(f"{url}/b/none.bin").code == "no_lease"
        assert ask(f"{url}/b/3.bin", "PUT", b"y").code == "no_lease"
        with ended(node("proxy", nodes, "--port", str(proxy_port))) as proxy:
            assert started(proxy) == nodes.url
            wait_for(lambda: not ask(f"{url}/b/1.bin").is_marked, "a lease")
            assert ask(f"{nodes.url}/b/3.bin", "PUT", b"y").code == "200"
            assert ask(f"{url}/b/none.bin").code == "object_not_found"
            found = nodes.map()["nodes"][0]
            assert (found["number"], found["advertise_url"]) == (number, url)


def node(role: str, nodes: Cluster, *arguments: str) -> subprocess.Popen[str]:
    directory = nodes.directory / ("proxy" if role == "proxy" else "target-0")
    command = [sys.executable, "-m", "dfc", role, "--dir", str(directory), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def started(process: subprocess.Popen[str]) -> str:
    """The URL that a node prints when it serves."""
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["url"])


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)
