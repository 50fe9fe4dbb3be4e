"""SIGTERM to real nodes with something under way: the drain ends by itself, also when the disk hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from harness import get, put, try_get, wait_for

from dfc.limits import STOP_EXTRA_S

HANGING = Path(__file__).parents[1] / "hanging"
DRAIN_S = 4.0
Start = Callable[..., "Node"]


class Node:
    """A node as a process of its own, without a supervisor."""

    def __init__(self, role: str, directory: Path, *flags: str, drain_s: float = DRAIN_S, hang: Path | None = None) -> None:
        command = [sys.executable, "-m", f"dfc.servers.{role}", "--dir", str(directory), "--port", "0"]
        command += ["--drain-timeout-s", str(drain_s), *flags]
        environment = dict(os.environ)
        if hang is not None:
            environment |= {"PYTHONPATH": str(HANGING), "HANG_FILE": str(hang)}
        self.log = directory.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self.process.stdout is not None
        self.url = str(json.loads(self.process.stdout.readline())["url"])

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    nodes = []

    def start_node(role: str, *flags: str, **more: object) -> Node:
        nodes.append(Node(role, tmp_path / role, *flags, **more))  # type: ignore[arg-type]
        return nodes[-1]

    yield start_node
    for node in nodes:
        node.end()


def start_target(start: Start, tmp_path: Path, proxy: Node, **more: object) -> Node:
    return start("target", "--disks", str(tmp_path / "disk"), "--proxy-url", proxy.url, **more)


class SlowUpload:
    """An upload of 100 MB that sends a little now and then, until it is cut off."""

    def __init__(self, node: Node, path: str) -> None:
        self._socket = socket.create_connection(node.address)
        self._socket.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n".encode())
        self.sent = 0
        self.cut = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._socket.sendall(bytes(100_000))
                self.sent += 100_000
                time.sleep(0.02)  # what makes it slow
        except OSError:
            self.cut.set()
        finally:
            self._socket.close()

    def join(self) -> None:
        self._thread.join()


def test_slow_uploads_are_cut_off_when_the_drain_is_over(start: Start, tmp_path: Path) -> None:
    """At the target and through the proxy; the old object stays. Twice the drain would be too late for who supervises them."""
    proxy = start("proxy")
    target = start_target(start, tmp_path, proxy)
    put(f"{target.url}/slow/straight.bin", b"old")
    put(f"{proxy.url}/slow/relayed.bin", b"old")
    uploads = [SlowUpload(target, "/slow/straight.bin"), SlowUpload(proxy, "/slow/relayed.bin")]
    wait_for(lambda: all(upload.sent > 5_000_000 for upload in uploads), "the uploads to be under way")
    begun = time.monotonic()
    for node in (proxy, target):
        node.process.send_signal(signal.SIGTERM)
    statuses = [node.process.wait(30) for node in (proxy, target)]
    took_s = time.monotonic() - begun
    for upload in uploads:
        upload.join()
    assert statuses == [0, 0], proxy.log.read_text() + target.log.read_text()
    assert DRAIN_S - 0.1 < took_s < 2 * DRAIN_S
    assert "did not finish within 4 s and were cut off" in target.log.read_text()
    proxy = start("proxy")
    target = start_target(start, tmp_path, proxy)
    wait_for(lambda: _is_healthy(proxy), "the cluster to be healthy")
    assert [get(f"{proxy.url}/slow/{name}.bin") for name in ("straight", "relayed")] == [b"old", b"old"]


def test_an_upload_outlives_the_leases_while_its_proxy_drains(start: Start, tmp_path: Path) -> None:
    """The only proxy goes on answering heartbeats: without a lease, the target could not commit what it has received."""
    proxy = start("proxy", "--down-after-s", "4", drain_s=30)
    target = start_target(start, tmp_path, proxy)
    put(f"{proxy.url}/b/before", b"1")
    body, sent = os.urandom(3_000_000), threading.Event()

    def pieces() -> Iterator[bytes]:
        for begin in range(0, len(body), 50_000):
            yield body[begin : begin + 50_000]
            sent.set()
            time.sleep(0.15)  # nine seconds in all: what makes it slow

    with ThreadPoolExecutor(1) as pool:
        url = f"{proxy.url}/b/slow"
        uploading = pool.submit(httpx.put, url, content=pieces(), headers={"Content-Length": str(len(body))}, timeout=60)
        assert sent.wait(10)
        proxy.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        wait_for(lambda: not _is_healthy(proxy), "the proxy to be gone for others")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{proxy.url}/v1/health")
        answer = uploading.result()
    assert answer.status_code == 201, answer.text
    assert proxy.process.wait(60) == 0
    assert time.monotonic() - begun < 25  # it waits for nothing else
    assert get(f"{target.url}/b/slow") == body


def _is_healthy(proxy: Node) -> bool:
    return bool(try_get(f"{proxy.url}/v1/health"))


def test_a_target_whose_disk_hangs_ends_by_itself(start: Start, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    proxy = start("proxy")
    target = start_target(start, tmp_path, proxy, drain_s=1.0, hang=hang)
    put(f"{target.url}/hang/a.bin", b"x" * 1_000_000)
    hang.touch()
    upload = socket.create_connection(target.address)
    upload.sendall(b"PUT /hang/a.bin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000))
    wait_for(lambda: hang.with_suffix(".hung").exists(), "the disk to hang")
    begun = time.monotonic()
    target.process.send_signal(signal.SIGTERM)
    status = target.process.wait(60)
    assert time.monotonic() - begun < 1.0 + STOP_EXTRA_S + 2  # for a busy machine
    upload.close()
    assert status == 1
    assert "this node did not stop in time and exits now; threads still running" in target.log.read_text()
    hang.unlink()
    target = start_target(start, tmp_path, proxy)
    assert wait_for(lambda: try_get(f"{target.url}/hang/a.bin"), "the object") == b"x" * 1_000_000
