"""The row about several proxies: many clients create buckets through two of them at once, with the registry in etcd."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from loadtest.addresses import parse_base_url
from loadtest.bench.context import Bench
from loadtest.bench.row import Row
from loadtest.cluster import dfc_command
from loadtest.connection import Connection, HttpFailure
from loadtest.processes import ProcessFailed, find_program, running
from loadtest.scenarios import expect

CLIENTS: Final = 200
BUCKETS: Final = 100  # each is wanted by two clients, at one proxy each
MEMBERS: Final = 3
READY_S: Final = 60.0
WANTED_S: Final = 2.0


def buckets(bench: Bench) -> list[Row]:
    """How long the slowest of the clients waits for its answer."""
    directory = bench.directory / "proxies"
    try:
        with _nodes(directory) as urls:
            waits_s, ids = _create(urls)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if len(ids) != BUCKETS or any(len(found) != 1 for found in ids.values()):
        raise ProcessFailed(f"not every bucket has one id: {ids}")
    what = f"{CLIENTS} clients create {BUCKETS} buckets through two proxies at once, etcd with {MEMBERS} members: the slowest"
    worst, note = max(waits_s), f"half of them within {1000 * statistics.median(waits_s):.0f} ms"
    return [Row("buckets", what, f"{worst:.2f} s", "", worst, WANTED_S, "s", at_most=True, note=note)]


def _create(urls: list[str]) -> tuple[list[float], dict[str, set[str]]]:
    """Have all clients ask at once; how long each has waited, and the times at which each bucket was created, by what they were
    told: one for each if all were told of the same."""
    ready, waits_s, told = threading.Barrier(CLIENTS), [0.0] * CLIENTS, dict[str, set[str]]()
    failed: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            with contextlib.closing(Connection(parse_base_url(urls[number % 2], allow_remote=False))) as connection:
                expect(connection.request("GET", "/v1/health"), 200)  # the connection is open
                ready.wait(READY_S)
                name, begin_s = f"b{number // 2}", time.monotonic()
                answer = expect(connection.request("PUT", f"/v1/buckets/{name}", body=b"{}"), 200, 201)
                waits_s[number] = time.monotonic() - begin_s
                told.setdefault(name, set()).add(json.loads(answer.body)["created"])
        except BaseException as error:
            failed.append(error)
            ready.abort()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise ProcessFailed(f"{len(failed)} clients failed: {failed[0]!r}")
    return waits_s, told


@contextlib.contextmanager
def _nodes(directory: Path) -> Iterator[list[str]]:
    """Etcd, two proxies and a target; the URLs of the proxies."""
    program = find_program("etcd")
    if program is None:
        raise ProcessFailed("etcd is missing: apt-get install etcd-server")
    directory.mkdir(parents=True)
    ports = _free_ports(2 * MEMBERS + 3)
    clients, peers, (one, two, target) = ports[:MEMBERS], ports[MEMBERS : 2 * MEMBERS], ports[2 * MEMBERS :]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
    urls = [f"http://127.0.0.1:{port}" for port in (one, two)]
    settings = {"DFC_ETCD_URLS": ",".join(f"http://127.0.0.1:{port}" for port in clients)}
    with contextlib.ExitStack() as stack:
        for number in range(MEMBERS):
            own, peer = f"http://127.0.0.1:{clients[number]}", f"http://127.0.0.1:{peers[number]}"
            command = [program, "--name", f"m{number}", "--data-dir", str(directory / f"m{number}"), "--log-level", "error"]
            command += ["--listen-client-urls", own, "--advertise-client-urls", own, "--initial-cluster", cluster]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            stack.enter_context(running(command, directory / f"m{number}.log"))
        for number, port in enumerate((one, two)):
            command = dfc_command("proxy", "--port", str(port), "--dir", str(directory / f"proxy-{number}"))
            stack.enter_context(running(command, directory / f"proxy-{number}.log", env=settings))
        command = dfc_command("target", "--port", str(target), "--dir", str(directory / "target"))
        command += ["--disks", str(directory / "disk"), "--proxy-url", ",".join(urls)]
        stack.enter_context(running(command, directory / "target.log"))
        for url in urls:
            _until_ready(url)
        yield urls


def _until_ready(url: str) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError, HttpFailure):
            with contextlib.closing(Connection(parse_base_url(url, allow_remote=False))) as connection:
                if connection.request("GET", "/v1/health").status == 200:
                    return
        time.sleep(0.1)
    raise ProcessFailed(f"{url} is not ready after {READY_S:.0f} s")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]
