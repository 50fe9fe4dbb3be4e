"""The engine of a cluster: `dfc scheduler` and workers beside targets, as processes of their own, with mutual TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cluster.test_engine import PROBE, task
from harness import Cluster, wait_for
from ports import free_port

from dfc.config import Settings
from dfc.engine.base import EngineLost
from dfc.engine.link import LinkedEngine, WorkersBeside, open_engine
from dfc.jobs.tasks import TaskResult


async def facts(engine: LinkedEngine, payload: Any = None, near: str | None = None) -> Any:
    """What a task of `tests/probe` has said; lost ones run again, as the service does it."""
    for _ in range(5):
        try:
            answer = await engine.run(task("who", payload), near)
            return msgspec.msgpack.decode(msgspec.msgpack.decode(answer, type=TaskResult).data)
        except EngineLost as error:
            lost = error
    raise lost


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The three `jobs_tls_` settings: an authority made for this test and a certificate signed by it."""
    place = tmp_path_factory.mktemp("tls")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]
    sign = ["openssl", "x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    for command in (
        [*new, "/CN=authority", "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2"],
        [*new, "/CN=node", "-keyout", "node.key", "-out", "node.csr"],
        [*sign, "-out", "node.pem"],
    ):
        subprocess.run(command, cwd=place, check=True, capture_output=True)
    return {
        f"jobs_tls_{name}": str(place / file) for name, file in (("ca", "ca.pem"), ("cert", "node.pem"), ("key", "node.key"))
    }


class Scheduler:
    """A `dfc scheduler` process on a fixed port."""

    def __init__(self, settings: dict[str, str], scratch: Path) -> None:
        self.settings = settings
        self.scratch = scratch
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> bool:
        """Start it; False if it cannot, since somebody else has its port by now."""
        variables = {f"DFC_{name.upper()}": value for name, value in self.settings.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dfc", "scheduler"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "TMPDIR": str(self.scratch)},
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().startswith("The scheduler of jobs listens at "):
            return True
        self.process.stdout.close()
        self.process.wait(60)
        return False

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(60)


@pytest.fixture
def scheduler(certificates: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scheduler]:
    monkeypatch.setenv("PYTHONPATH", PROBE)
    scratch = tmp_path / "scheduler"
    scratch.mkdir()
    for _ in range(5):
        found = Scheduler({"jobs_scheduler": f"tls://127.0.0.1:{free_port()}", **certificates}, scratch)
        if found.start():
            break
    else:
        pytest.fail("the scheduler does not start")
    yield found
    assert found.process is not None
    if found.process.poll() is None:
        assert found.end() == 0


Start = Callable[[str], WorkersBeside]


@pytest.fixture
async def beside(scheduler: Scheduler, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a worker beside a node of that name."""
    started = []

    def start(name: str) -> WorkersBeside:
        settings = Settings(jobs_workers=1, **scheduler.settings)  # type: ignore[arg-type]
        workers = WorkersBeside(settings, str(tmp_path / name), name)
        workers.start()
        started.append(workers)
        return workers

    yield start
    await asyncio.gather(*(workers.stop() for workers in started))
    assert [workers.pid for workers in started] == [None] * len(started)
    assert not list(tmp_path.glob("t*/engine/run-*"))


@pytest.fixture
async def engine(scheduler: Scheduler, tmp_path: Path) -> AsyncIterator[LinkedEngine]:
    opened = open_engine(Settings(**scheduler.settings), str(tmp_path / "proxy"), "http://127.0.0.1:9")  # type: ignore[arg-type]
    assert isinstance(opened, LinkedEngine)
    yield opened
    await opened.close()


async def both(engine: LinkedEngine) -> None:
    while engine.slots < 2:
        await facts(engine)


async def test_tasks_run_beside_the_disks_that_they_want(engine, beside):
    beside("t1")
    beside("t2")
    await both(engine)
    for near in ("t1", "t2", "t1"):
        assert (await facts(engine, near=near))["worker"] == f"{near}/0"
    assert (await facts(engine, near="t9"))["worker"] in ("t1/0", "t2/0")
    # A busy worker's tasks do not wait for ever while another one is idle.
    slow = [asyncio.create_task(facts(engine, {"sleep_s": 0.5}, near="t1")) for _ in range(4)]
    assert {said["worker"] for said in await asyncio.gather(*slow)} == {"t1/0", "t2/0"}


async def test_a_killed_worker_comes_back_under_its_name(engine, beside):
    beside("t1")
    first = await facts(engine)
    with pytest.raises(EngineLost):
        await engine.run(task("die"), None)
    again = await facts(engine, near="t1")
    assert again["worker"] == first["worker"] == "t1/0"
    assert again["pid"] != first["pid"]


async def test_killed_workers_beside_a_target_are_started_again_all_of_them(engine, beside):
    workers = beside("t1")
    first = await facts(engine)
    assert workers.pid is not None
    os.killpg(workers.pid, signal.SIGKILL)
    assert (await facts(engine, near="t1"))["pid"] != first["pid"]


async def test_a_killed_scheduler_loses_what_runs_and_no_more(engine, beside, scheduler):
    beside("t1")
    await facts(engine)
    running = asyncio.create_task(engine.run(task("who", {"sleep_s": 60.0}), None))
    await asyncio.sleep(0.5)
    assert scheduler.end(signal.SIGKILL) == -signal.SIGKILL
    assert not list(scheduler.scratch.iterdir())
    with pytest.raises(EngineLost):
        await running
    assert scheduler.start()
    assert (await facts(engine))["worker"] == "t1/0"


async def test_who_has_no_certificate_is_turned_away(scheduler, certificates):
    host, port = scheduler.settings["jobs_scheduler"].removeprefix("tls://").split(":")

    def knock(wrap: Callable[[socket.socket], socket.socket]) -> bytes:
        with socket.create_connection((host, int(port)), timeout=10) as plain, wrap(plain) as connection:
            connection.sendall(b"\0" * 64)
            return connection.recv(1)

    stranger = ssl.create_default_context(cafile=certificates["jobs_tls_ca"])
    stranger.check_hostname = False
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(knock, stranger.wrap_socket)
    try:
        assert await asyncio.to_thread(knock, lambda plain: plain) == b""
    except ConnectionError:
        pass
    member = ssl.create_default_context(cafile=certificates["jobs_tls_ca"])
    member.check_hostname = False
    member.load_cert_chain(certificates["jobs_tls_cert"], certificates["jobs_tls_key"])
    assert len(await asyncio.to_thread(knock, member.wrap_socket)) == 1, "who has one is greeted"


async def test_workers_wait_for_a_scheduler_that_is_not_there_yet(engine, beside, scheduler):
    scheduler.end()
    beside("t1")
    running = asyncio.create_task(facts(engine))
    await asyncio.sleep(1.0)
    assert scheduler.start()
    assert (await running)["worker"] == "t1/0"


def test_it_refuses_to_listen_without_certificates(tmp_path):
    for address, said in (
        ("tcp://0.0.0.0:8786", "must use tls://"),
        ("tls://127.0.0.1:8786", "jobs_tls_ca is missing"),
        ("8786", "tls://HOST:PORT"),
        ("", "set jobs_scheduler to the address to listen on"),
        ("coordinator", "with jobs_scheduler = coordinator a proxy runs it"),
    ):
        arguments = [sys.executable, "-m", "dfc", "scheduler", "--jobs-scheduler", address]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_cluster_runs_its_jobs_beside_its_targets(scheduler, start_cluster, data):
    environment = {f"DFC_{name.upper()}": value for name, value in scheduler.settings.items()}
    cluster: Cluster = start_cluster(targets=2, environment={**environment, "DFC_JOBS_WORKERS": "1"})
    curl = ["curl", "-sS", "--fail"]
    subprocess.run([*curl, "-T", data / "mpdata.tar", f"{cluster.url}/in/a.tar"], check=True, capture_output=True)
    spec = {
        "operation": "reshuffle",
        "input": {"bucket": "in", "shards": "a.tar"},
        "output": {"bucket": "out", "pattern": "b-%03d.tar"},
        "options": {"samples_per_shard": 2},
    }
    body = msgspec.json.encode(spec).decode()
    said = subprocess.run([*curl, "-d", body, f"{cluster.url}/v1/jobs"], check=True, capture_output=True).stdout
    job = msgspec.json.decode(said)

    def ended() -> Any:
        url = f"{cluster.url}/v1/jobs/{job['id']}"
        found = msgspec.json.decode(subprocess.run([*curl, url], check=True, capture_output=True).stdout)
        return found if found["state"] in ("succeeded", "failed", "cancelled") else None

    found = wait_for(ended, "the end of the job", 60)
    assert found["state"] == "succeeded", found
    assert found["output"]["shards"] > 0


# --- the scheduler that the coordinator runs


@pytest.mark.parametrize("secured", [True, False])
async def test_an_engine_runs_the_scheduler_for_workers_elsewhere(certificates, tmp_path, monkeypatch, secured):
    """Workers are there while it is, and follow it to another address."""
    monkeypatch.setenv("PYTHONPATH", PROBE)
    settings = Settings(jobs_scheduler="coordinator", jobs_workers=1, **(certificates if secured else {}))
    workers = WorkersBeside(settings, str(tmp_path / "t1"), "t1")
    workers.start()
    pids = []
    for name in ("proxy", "other"):
        assert workers.pid is None
        opened = open_engine(settings, str(tmp_path / name), "http://127.0.0.1:9")
        running = asyncio.create_task(facts(opened))
        async with asyncio.timeout(60):
            await asyncio.to_thread(wait_for, lambda engine=opened: engine.address, "a scheduler")
            assert opened.address.startswith("tls://127.0.0.1:" if secured else "tcp://127.0.0.1:")
            workers.follow(opened.address)
            assert (await running)["worker"] == "t1/0"
        pids.append(workers.pid)
        await opened.close()
        assert opened.address == ""
        workers.follow("")
        await asyncio.to_thread(wait_for, lambda: workers.pid is None, "the end of the workers")
    assert None not in pids
    assert len(set(pids)) == 2
    await workers.stop()


async def test_workers_take_no_tasks_from_just_anybody(certificates, tmp_path, caplog):
    for given, address in (
        ({}, "tcp://10.0.0.1:8786"),
        ({}, "tls://127.0.0.1:8786"),
        (certificates, "tcp://127.0.0.1:8786"),
        (certificates, "127.0.0.1:8786"),
    ):
        caplog.clear()
        workers = WorkersBeside(Settings(jobs_scheduler="coordinator", **given), str(tmp_path / "t1"), "t1")
        workers.start()
        for _ in range(3):
            workers.follow(address)
            await asyncio.sleep(0.05)
        assert workers.pid is None
        assert [record.message for record in caplog.records] == [
            f"no workers for the scheduler at {address}: that needs jobs_tls_ca, jobs_tls_cert and jobs_tls_key"
        ]
        await workers.stop()
