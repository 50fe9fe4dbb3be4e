"""Commands, loaders and the filesystem with several addresses of a real cluster, the first of them dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doors import BlackHole, Door, Knocks, NoDoor
from harness import Cluster
from job_shards import tar_of

from dfc.addresses import SILENT_S
from dfc.client import Client
from dfc.client.control import ANSWER_TIMEOUT_S
from dfc.errors import BadRequest
from dfc.inputs import gopen
from dfc.inputs.filesystem import DfcFileSystem
from dfc.inputs.loader import Loader
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.writers import TarWriter

SAMPLES = 30
SHARDS = 4
SPEC = "dfc://addresses/s-{000000..000003}.tar"
ENOUGH_S = 60.0  # a process that paid for the dead one with each of its requests would take longer


@pytest.fixture(scope="module")
def loaded(cluster: Cluster) -> Cluster:
    members = [(f"{number:02d}.bin", os.urandom(1000)) for number in range(SAMPLES)]
    with Client(cluster.url) as client:
        for shard in range(SHARDS):
            client.put("addresses", f"s-{shard:06d}.tar", tar_of(members))
    return cluster


@pytest.fixture
def addresses(loaded: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[BlackHole, Door, Door]]:
    """The value of DFC_URL: a black hole, and two doors to the proxy."""
    with BlackHole() as hole, Door(loaded.url) as first, Door(loaded.url) as second:
        monkeypatch.setenv("DFC_URL", f"{hole.url},{first.url},{second.url}")
        monkeypatch.delenv("DFC_TOKEN", raising=False)
        yield hole, first, second


@pytest.fixture
def one_hangs(loaded: Cluster) -> Iterator[str]:
    """Two addresses, of which the first is that of a process that was stopped: the kernel accepts connections for it."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        yield f"http://127.0.0.1:{hanging.getsockname()[1]},{loaded.url}"


@pytest.mark.parametrize("first", ["get", "put", "iterable", "list", "job"])
def test_an_address_that_hangs_costs_seconds_once(one_hangs: str, first: str) -> None:
    with Client(one_hangs) as client:
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: client.get("addresses", "s-000000.tar"),
            "put": lambda: client.put("addresses", "one-hangs", b"1"),
            "iterable": lambda: client.put("of-addresses", "one-hangs", iter([b"1", b"2"])),  # a bucket that is not there yet
            "list": lambda: list(client.list("addresses")),
            "job": lambda: client.jobs.submit({"operation": "keys", "input": {"bucket": "addresses", "shards": "s-*.tar"}}),
        }
        begun_s = time.monotonic()
        if first == "job":
            with pytest.raises(BadRequest):  # which is an answer
                calls[first]()
        else:
            calls[first]()
        assert time.monotonic() - begun_s < ANSWER_TIMEOUT_S / 4
        begun_s = time.monotonic()
        calls["get"]()
        assert time.monotonic() - begun_s < SILENT_S


def run(*command: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)], input=stdin, capture_output=True, check=False, timeout=ENOUGH_S
    )


def test_commands(addresses: tuple[BlackHole, Door, Door], tmp_path: Path) -> None:
    _, first, _ = addresses
    (tmp_path / "x.bin").write_bytes(b"data" * 1000)
    assert run("dfc", "put", tmp_path / "x.bin", "addresses/").returncode == 0
    first.shut()
    done = run("dfc", "cat", "addresses/x.bin")
    assert (done.returncode, done.stdout) == (0, b"data" * 1000), done
    done = run("dfc", "ls", "addresses/s-")
    assert done.stdout.count(b".tar") == SHARDS
    archive = tar_of([("a.txt", b"1"), ("b.txt", b"2")])
    done = run("dfc.cli.tarshards", "--samples", 10, "addresses/cut-%06d.tar", stdin=archive)
    assert done.returncode == 0, done
    assert run("dfc", "cat", "addresses/cut-000000.tar").stdout.count(b".txt") == 2


def test_a_command_that_reaches_nobody_names_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with NoDoor() as one, NoDoor() as two:
        monkeypatch.setenv("DFC_URL", f"{one.url},{two.url}")
        done = run("dfc", "ls", "addresses")
    assert done.returncode == 4
    for url in (one.url, two.url):
        assert url.encode() in done.stderr
    assert b"none of the 2 addresses answered" in done.stderr


def test_a_loader(addresses: tuple[BlackHole, Door, Door], monkeypatch: pytest.MonkeyPatch) -> None:
    hole, first, _ = addresses
    knocks = Knocks(monkeypatch)
    begun_s = time.monotonic()
    with Loader(SPEC, 8, decode=False, shuffle=False) as loader:
        batches = iter(loader)
        keys = list(next(batches)["__key__"])
        first.shut()
        keys += [key for batch in batches for key in batch["__key__"]]
    assert keys == [f"{number:02d}" for number in range(SAMPLES)] * SHARDS
    assert len(list(gopen.sharditerator_once(SPEC))) == SAMPLES * SHARDS
    with Loader(SPEC, 8, decode=False, shuffle=True) as loader:
        assert sum(len(batch["__key__"]) for batch in loader) == SAMPLES * SHARDS
    assert knocks.at(hole) == 1
    assert time.monotonic() - begun_s < ENOUGH_S


def test_children_of_a_fork_know_what_the_parent_knows(
    addresses: tuple[BlackHole, Door, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    hole, _, _ = addresses
    fs = DfcFileSystem()
    assert len(fs.ls("addresses", detail=False)) >= SHARDS
    child = os.fork()
    if child == 0:
        knocks = Knocks(monkeypatch)
        found = len(fs.cat_file("addresses/s-000000.tar"))
        os._exit(0 if found and knocks.at(hole) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_writer_and_the_filesystem(loaded: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with NoDoor() as dead:
        urls = f"{dead.url},{loaded.url}"
        with TarWriter("dfc://addresses/written.tar", options=StreamOptions(cluster=urls)) as writer:
            writer.write({"__key__": "a", "txt": "text"})
        fs = DfcFileSystem(url=urls)
        assert fs.url == urls
        assert fs.cat_file("addresses/written.tar//a.txt") == b"text"
        monkeypatch.setenv("DFC_URL", dead.url)  # another cluster than that of the options
        assert fs.exists("addresses/written.tar")
