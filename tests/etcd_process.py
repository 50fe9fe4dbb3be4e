"""A real etcd for tests: one member or several, in a directory that is given."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import Loopback, Network, free_port

from dfc.registry.etcd import EtcdPlace, EtcdRegistry, etcd_registry

READY_S = 30.0


class EtcdMember:
    """One process. `url` is for proxies, `peer_url` for other members."""

    def __init__(self, name: str, directory: Path, place: Network) -> None:
        self.name = name
        self._place = place
        client, peer = free_port(), free_port()
        host = place.host_of(name)
        self._listen, self._listen_peer = f"http://{host}:{client}", f"http://{host}:{peer}"
        self.url, self.peer_url = place.url_for_nodes(name, client), place.url_for_nodes(name, peer)
        self._directory = directory / name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        program = shutil.which("etcd")
        assert program is not None, "the tests of many proxies need etcd: apt-get install etcd-server"
        self._process = subprocess.Popen(
            [
                *self._place.command(self.name),
                program,
                *("--name", self.name, "--data-dir", str(self._directory)),
                *("--listen-client-urls", self._listen, "--advertise-client-urls", self.url),
                *("--listen-peer-urls", self._listen_peer, "--initial-advertise-peer-urls", self.peer_url),
                *("--initial-cluster", cluster, "--log-level", "error"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._place.started(self.name, self._process.pid)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait(60)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait(60)

    @property
    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._listen}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class Etcd:
    """The members of one etcd, `etcd-0`, `etcd-1` and so on."""

    def __init__(self, members: int, directory: Path, place: Network | None = None) -> None:
        self.members = [EtcdMember(f"etcd-{number}", directory, place or Loopback()) for number in range(members)]
        self._cluster = ",".join(f"{each.name}={each.peer_url}" for each in self.members)

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self.members]

    def start_one(self, member: EtcdMember) -> None:
        """Start a member; it is healthy some time later."""
        member.start(self._cluster)

    def start(self, *members: EtcdMember) -> None:
        """Start these members, or all, and wait until they are healthy."""
        some = members or tuple(self.members)
        for each in some:
            self.start_one(each)
        deadline_s = time.monotonic() + READY_S
        while not all(each.is_healthy for each in some):
            assert time.monotonic() < deadline_s, "etcd did not start"
            time.sleep(0.05)

    def leader(self) -> EtcdMember:
        """The member that leads the others."""
        for each in self.members:
            with suppress(OSError, KeyError):
                request = urllib.request.Request(f"{each.url}/v3/maintenance/status", b"{}", method="POST")
                with urllib.request.urlopen(request, timeout=2) as answer:
                    found = json.load(answer)
                if found["leader"] == found["header"]["member_id"]:
                    return each
        raise AssertionError("no member leads")

    def end(self) -> None:
        for each in self.members:
            each.end()


@contextmanager
def etcd(members: int, directory: Path, place: Network | None = None) -> Iterator[Etcd]:
    """An etcd that is ready; it is ended afterwards."""
    started = Etcd(members, directory, place)
    try:
        started.start()
        yield started
    finally:
        started.end()


async def open_etcd(place: EtcdPlace, owner: str) -> EtcdRegistry:
    """Open the registry that is there: see `etcd_registry`. OperatorError."""
    registry = etcd_registry(place, owner)
    try:
        await registry.open()
    except BaseException:
        await registry.close()
        raise
    return registry
