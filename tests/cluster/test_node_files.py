"""Files that nodes keep are lost or damaged: real nodes take back what is certain, and say what to do about the rest."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from harness import Cluster, get, put, try_get, wait_for


def nodes(cluster: Cluster) -> dict[str, tuple[int, list[str]]]:
    """Number and disks of each node by its id."""
    return {node["id"]: (node["number"], [disk["id"] for disk in node["disks"]]) for node in cluster.map()["nodes"]}


def refusal(directory: Path, *arguments: str) -> str:
    """What `dfc serve` says when it does not start."""
    return stopped("serve", "--dir", str(directory), "--port", "0", *arguments)


def test_ids_that_are_lost_come_back(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, disks=2)
    for number in range(20):
        put(f"{cluster.url}/keep/{number}", b"%d" % number * 100)
    before = nodes(cluster)
    assert cluster.stop() == 0
    (cluster.directory / "target-0" / "dfc-node-id").write_bytes(b"")
    (cluster.directory / "target-1" / "dfc-node-id").unlink()
    (cluster.directory / "proxy" / "dfc-node-id").write_bytes(b"\0" * 15)
    (cluster.directory / "ports.json").write_bytes(b"")
    cluster.start()
    assert nodes(cluster) == before
    assert all(get(f"{cluster.url}/keep/{number}") == b"%d" % number * 100 for number in range(20))
    kept = {(cluster.directory / f"target-{number}" / "dfc-node-id").read_text().strip() for number in range(2)}
    assert kept == set(before)


def test_other_formats_are_refused_and_left_as_they_are(tmp_path: Path, start_cluster) -> None:
    """What versions before 0.1.0 wrote, whose numbers went further, and what later ones will."""
    cluster: Cluster = start_cluster(targets=1)
    put(f"{cluster.url}/b/x", b"x")
    assert cluster.stop() == 0
    old = tmp_path / "old"
    shutil.copytree(cluster.directory, old)
    disk = old / "target-0" / "disk-0"
    for path, number in ((old / "cluster.json", 2), (disk / "dfc-disk.json", 4)):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number}))
    with closing(sqlite3.connect(old / "proxy" / "registry.sqlite")) as registry:
        registry.executescript("PRAGMA application_id = 0; PRAGMA user_version = 6")

    def state() -> dict[str, tuple[int, bytes]]:
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in old.rglob("*")}

    before = state()
    said = refusal(old)
    assert f"{old} holds a cluster in format 2, and this version of DFC reads format 1" in said
    assert "Nothing was changed. Run the version of DFC that wrote it, or start in another directory" in said
    proxy = stopped("proxy", "--dir", str(old / "proxy"), "--port", "0")
    assert "registry.sqlite is not a registry: it is of another program, or of DFC before 0.1.0" in proxy
    cluster.start()
    target = stopped("target", "--dir", str(old / "target-0"), "--disks", str(disk), "--proxy-url", cluster.url, "--port", "0")
    assert f"{disk} is a disk in format 4, and this version of DFC reads format 1. Nothing was changed" in target
    for command in ("check", "rebuild", "release"):
        assert "in format 4, and this version of DFC reads format 1" in stopped("disk", command, str(disk))
    assert state() == before


def stopped(*arguments: str) -> str:
    """What a command says that refuses to do its work."""
    done = subprocess.run([sys.executable, "-m", "dfc", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


def test_a_disk_that_was_moved_must_be_let_go_of_first(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, disks=2)
    put(f"{cluster.url}/keep/a", b"kept" * 100)
    before = nodes(cluster)
    ids = [(cluster.directory / f"target-{number}" / "dfc-node-id").read_text().strip() for number in range(2)]
    assert cluster.stop() == 0
    here, there = (cluster.directory / f"target-{number}" / "disk-0" for number in range(2))
    here.rename(cluster.directory / "aside")
    there.rename(here)
    (cluster.directory / "aside").rename(there)
    said = refusal(cluster.directory)
    place, own, other = (here, *ids) if f"{here} belongs to" in said else (there, *reversed(ids))  # whose target was first
    assert f"{place} belongs to node {other}, but this is {own}" in said
    assert f"dfc disk release {place}" in said
    for path in (here, there):
        done = subprocess.run([sys.executable, "-m", "dfc", "disk", "release", str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert "belonged to target-" in done.stdout
    cluster.start()  # with targets that may have been marked down while it refused to start
    wait_for(lambda: try_get(f"{cluster.url}/keep/a") == b"kept" * 100, "the target that has it")
    after = nodes(cluster)
    assert after.keys() == before.keys()
    assert {disk for _, disks in after.values() for disk in disks} == {disk for _, disks in before.values() for disk in disks}
    assert after != before


@pytest.mark.parametrize("left", [None, b"", b'{"targets": 2', b'{"targets": 2}'])
def test_the_shape_of_the_cluster_is_not_guessed(tmp_path: Path, left: bytes | None) -> None:
    (tmp_path / "target-0").mkdir()
    if left is not None:
        (tmp_path / "cluster.json").write_bytes(left)
    said = refusal(tmp_path)
    assert str(tmp_path / "cluster.json") in said
    assert ("--targets N --disks M" if left is None else '{"format": 1, "targets": 2, "disks": 1}') in said
    assert not (tmp_path / "proxy").exists()


def test_the_shape_can_be_said_again(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, disks=1)
    put(f"{cluster.url}/keep/a", b"kept")
    assert cluster.stop() == 0
    (cluster.directory / "cluster.json").unlink()
    cluster.start()  # with --targets 2 --disks 1
    assert get(f"{cluster.url}/keep/a") == b"kept"


def test_a_registry_that_is_gone_stops_the_start(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=1, disks=1)
    put(f"{cluster.url}/keep/a", b"kept")
    assert cluster.stop() == 0
    registry = cluster.directory / "proxy" / "registry.sqlite"
    copy = registry.read_bytes()
    registry.unlink()
    assert "registry.sqlite is missing. Restore a copy of it" in refusal(cluster.directory)
    registry.write_bytes(b"")
    assert "registry.sqlite is not a registry: it is empty. Restore a copy of it" in refusal(cluster.directory)
    registry.write_bytes(copy)
    cluster.start()
    assert get(f"{cluster.url}/keep/a") == b"kept"
