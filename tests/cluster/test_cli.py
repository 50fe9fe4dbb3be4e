"""`dfc` as people run it: real processes against a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, wait_for, was_interrupted

from dfc.checksum import checksum_of
from dfc.limits import MIB

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def dfc(cluster: Cluster) -> Run:
    """Run `dfc` with arguments and bytes on standard input; `check` is the exit code it must end with."""

    def run(*arguments: object, check: int = 0, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "dfc", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=90,
            check=False,
            env={**os.environ, "DFC_URL": cluster.url, **environment},
        )
        assert done.returncode == check, (arguments, done)
        assert b"Traceback" not in done.stderr
        return done

    return run


def lines(done: subprocess.CompletedProcess[bytes]) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_folder_goes_up_and_comes_back(dfc: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for at in range(30):
        path = source / f"{at % 3}/{at}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(at * at * 3000))
    first = lines(dfc("put", "-r", "-j", 8, source, "cli/set/", "--json"))
    assert {line["status"] for line in first} == {"stored"}
    (source / "0/0.bin").write_bytes(b"changed")
    again = lines(dfc("put", "-r", source, "cli/set/", "--json"))
    assert sorted(line["object"] for line in again if line["status"] == "stored") == ["set/0/0.bin"]
    dfc("get", "-r", "cli/set/", tmp_path / "back")
    assert subprocess.run(["diff", "-r", source, tmp_path / "back"], check=False).returncode == 0
    assert {line["status"] for line in lines(dfc("get", "-r", "cli/set/", tmp_path / "back", "--json"))} == {"skipped"}
    assert dfc("ls", "cli/set/").stdout == b"set/0/\nset/1/\nset/2/\n"
    dfc("get", "cli/set/1/*.bin", f"{tmp_path}/some/")
    assert len(list((tmp_path / "some").iterdir())) == 10
    dfc("rm", "-r", "cli/set/")
    dfc("ls", "cli/set/", check=3)


def test_real_shards(dfc: Run, cluster: Cluster, data: Path) -> None:
    dfc("put", data / "tendata.tar", data / "mpdata.tar", data / "sample.tgz", "cli-shards/")
    facts = lines(dfc("stat", "cli-shards/sample.tgz", f"{cluster.url}/cli-shards/tendata.tar", "--json"))
    assert [(fact["name"], fact["samples"], fact["members"]) for fact in facts] == [
        ("sample.tgz", 90, 180),
        ("tendata.tar", 100, 100),
    ]
    assert dfc("cat", "cli-shards/tendata.tar").stdout == (data / "tendata.tar").read_bytes()
    assert len(dfc("keys", "cli-shards/*").stdout.splitlines()) == 290
    found = lines(dfc("keys", "-m", "--json", "cli-shards/{tendata,mpdata}.tar"))
    assert len(found) == 200
    key, (ext, size) = found[0]["key"], next(iter(found[0]["members"].items()))
    shard = f"cli-shards/{found[0]['shard']}"
    part = dfc("cat", shard, "--sample", key, "--ext", ext).stdout
    assert len(part) == size
    assert dfc("cat", shard, "--member", f"{key}.{ext}").stdout == part
    assert dfc("cat", shard, "--member", f"{key}.{ext}", "--range", "2-5").stdout == part[2:6]
    listed = subprocess.run(
        ["tar", "-tf", "-"], input=dfc("cat", shard, "--sample", key).stdout, capture_output=True, check=True
    )
    assert listed.stdout.decode().split() == [f"{key}.{ext}"]


def test_standard_input_and_output(dfc: Run) -> None:
    body = os.urandom(3 * MIB)
    dfc("put", "-", "piped.bin", stdin=body)
    assert dfc("cat", "piped.bin").stdout == body
    assert dfc("cat", "default/piped.bin", "--range=-5").stdout == body[-5:]


def test_buckets_and_cluster(dfc: Run, cluster: Cluster) -> None:
    dfc("bucket", "create", "cli-bucket", "--durability", "relaxed")
    dfc("put", "-", "cli-bucket/x", stdin=b"1")
    shown = lines(dfc("bucket", "show", "cli-bucket", "--json"))[0]
    assert (shown["objects"], shown["bytes"], shown["durability"]) == (1, 1, "relaxed")
    assert lines(dfc("bucket", "set", "cli-bucket", "--durability", "fsync", "--json"))[0]["durability"] == "fsync"
    assert b"cli-bucket" in dfc("bucket", "ls").stdout
    assert b"holds 1 objects" in dfc("bucket", "rm", "cli-bucket", check=1).stderr
    dfc("bucket", "rm", "--force", "cli-bucket")
    dfc("bucket", "show", "cli-bucket", check=3)
    status = lines(dfc("cluster", "status", "--json"))[0]
    assert (status["healthy"], status["health"], status["problems"]) == (True, "ok", [])
    assert sum(len(node["disks"]) for node in status["nodes"]) == 8
    assert b"healthy" in dfc("cluster", "status").stdout
    assert len(json.loads(dfc("cluster", "map").stdout)["nodes"]) >= 4


def test_scrub(dfc: Run) -> None:
    dfc("scrub", "start")
    wait_for(lambda: all(disk["state"] == "idle" for disk in lines(dfc("scrub", "status", "--json"))), "the scrub to end", 60)


def test_mistakes_have_their_exit_codes(dfc: Run, tmp_path: Path) -> None:
    assert dfc("get", "none.tar", f"{tmp_path}/", check=3).stderr.startswith(b"dfc: ")
    dfc("ls", "no-bucket", check=3)
    dfc("get", "a/../b", check=2)
    dfc("nonsense", check=2)
    dfc("ls", check=4, DFC_URL="http://127.0.0.1:9")
    assert json.loads(dfc("ls", "--json", "no-bucket", check=3).stderr)["error"]["code"] == "bucket_not_found"


def test_disk_check_and_rebuild(start_cluster: Callable[..., Cluster], dfc: Run, tmp_path: Path) -> None:
    """The catalog of a disk is made anew from its blobs, and all is as before."""
    own = start_cluster(targets=1, directory=tmp_path / "own")
    dfc("put", "-", "b/x", stdin=b"kept", DFC_URL=own.url)
    disk = next(path.parent for path in (tmp_path / "own").rglob("dfc-disk.json"))
    own.stop()
    dfc("disk", "check", disk)
    (disk / "catalog.sqlite").unlink()
    dfc("disk", "rebuild", disk)
    own.start()
    assert dfc("cat", "b/x", DFC_URL=own.url).stdout == b"kept"


def has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def test_an_interrupted_download_goes_on_later(dfc: Run, cluster: Cluster, tmp_path: Path) -> None:
    body = os.urandom(64 * MIB)
    dfc("put", "-", "large.bin", stdin=body)
    target = tmp_path / "large.bin"
    part = tmp_path / f"large.bin.{checksum_of(body)}.part"
    running = subprocess.Popen(
        [sys.executable, "-m", "dfc", "get", "large.bin", str(target)],
        stderr=subprocess.PIPE,
        env={**os.environ, "DFC_URL": cluster.url},
    )
    wait_for(lambda: target.exists() or has_bytes(part), "the first bytes")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    if not target.exists():  # it may have been quicker than the signal
        assert b"Traceback" not in err
        assert (was_interrupted(running.returncode), err) == (True, b"dfc: interrupted\n")
        assert part.exists()
    dfc("get", "large.bin", target)
    assert target.read_bytes() == body
    assert [path.name for path in tmp_path.iterdir()] == ["large.bin"]
