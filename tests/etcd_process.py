"""A real etcd for tests: one member or several, in a directory that is given."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_S = 30.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class EtcdMember:
    """One process. `url` is for clients."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.url, self.peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._directory = directory / name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        program = shutil.which("etcd")
        assert program is not None, "the tests of many proxies need etcd: apt-get install etcd-server"
        self._process = subprocess.Popen(
            [
                program,
                *("--name", self.name, "--data-dir", str(self._directory)),
                *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
                *("--initial-cluster", cluster, "--log-level", "error"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait(10)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(10)

    @property
    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class Etcd:
    """The members of one etcd."""

    def __init__(self, members: int, directory: Path) -> None:
        self.members = [EtcdMember(f"m{number}", directory) for number in range(members)]
        self._cluster = ",".join(f"{each.name}={each.peer_url}" for each in self.members)

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self.members]

    def start(self, *members: EtcdMember) -> None:
        """Start these members, or all, and wait until they are healthy."""
        some = members or tuple(self.members)
        for each in some:
            each.start(self._cluster)
        deadline_s = time.monotonic() + READY_S
        while not all(each.is_healthy for each in some):
            assert time.monotonic() < deadline_s, "etcd did not start"
            time.sleep(0.05)

    def end(self) -> None:
        for each in self.members:
            each.end()


@contextmanager
def etcd(members: int, directory: Path) -> Iterator[Etcd]:
    """An etcd that is ready; it is ended afterwards."""
    started = Etcd(members, directory)
    try:
        started.start()
        yield started
    finally:
        started.end()
