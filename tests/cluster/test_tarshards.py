"""`tar | tarshards` against a real cluster: every sample whole, every byte back."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from harness import Cluster, wait_for, was_interrupted

from dfc.client import Client

TARSHARDS = [sys.executable, "-m", "dfc.cli.tarshards"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 samples of three files in five folders."""
    root = tmp_path_factory.mktemp("data") / "dataset"
    draw = random.Random(7)
    for at in range(500):
        folder = root / f"class{at % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        for ext in ("jpg", "seg.png", "cls"):
            (folder / f"{at:05d}.{ext}").write_bytes(draw.randbytes(draw.randrange(6000)))
    return root


def pipe(dataset: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    tar = subprocess.Popen(["tar", "--sort=name", "-cf", "-", dataset.name], cwd=dataset.parent, stdout=subprocess.PIPE)
    done = subprocess.run([*TARSHARDS, *arguments], stdin=tar.stdout, capture_output=True, check=False, timeout=90)
    assert tar.stdout is not None
    tar.stdout.close()
    tar.wait()
    return done


def whole_tar(dataset: Path) -> bytes:
    command = ["tar", "--sort=name", "-cf", "-", dataset.name]
    return subprocess.run(command, cwd=dataset.parent, capture_output=True, check=True).stdout


def members_of(client: Client, bucket: str, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for info in client.list(bucket, prefix=prefix):
        with tarfile.open(fileobj=io.BytesIO(client.get(bucket, info.name))) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None:
                    found.append((member.name, file.read()))
    return found


def expected_members(dataset: Path) -> list[tuple[str, bytes]]:
    files = sorted(path for path in dataset.rglob("*") if path.is_file())
    return [(str(path.relative_to(dataset.parent)), path.read_bytes()) for path in files]


def test_a_tar_on_standard_input(cluster: Cluster, dataset: Path) -> None:
    done = pipe(dataset, "-s", "1M", f"{cluster.url}/dataset-%06d.tar")
    assert done.returncode == 0, done.stderr
    assert b"WARNING" not in done.stderr
    with Client(cluster.url) as client:
        shards = list(client.list("default", prefix="dataset-"))
        assert len(shards) == len(done.stdout.splitlines()) > 3
        assert sum(info.samples or 0 for info in shards) == 500
        assert all(info.size <= 1_000_000 for info in shards)
        assert members_of(client, "default", "dataset-") == expected_members(dataset)
        keys = [sample.key for sample in client.keys("default", "dataset-*.tar", fields="key")]
        assert len(keys) == len(set(keys)) == 500


def test_a_file_list(cluster: Cluster, dataset: Path) -> None:
    names = sorted(str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file())
    for flags, listed in (((), "\n".join(names)), (("-0",), "\0".join(names))):
        done = subprocess.run(
            [*TARSHARDS, "-T", "-", *flags, "-C", str(dataset), "-n", "120", f"{cluster.url}/lists/set{len(flags)}/part"],
            input=listed.encode(),
            capture_output=True,
            check=False,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        with Client(cluster.url) as client:
            assert [info.samples for info in client.list("lists", prefix=f"set{len(flags)}/")] == [120, 120, 120, 120, 20]
            found = members_of(client, "lists", f"set{len(flags)}/")
            assert found == [(name.removeprefix("dataset/"), data) for name, data in expected_members(dataset)]


def test_a_truncated_tar(cluster: Cluster, dataset: Path) -> None:
    whole = whole_tar(dataset)
    done = subprocess.run(
        [*TARSHARDS, "-s", "1M", f"{cluster.url}/cut/x-%06d.tar"],
        input=whole[:2_500_000],
        capture_output=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 1
    assert b"at byte 2500000" in done.stderr
    with Client(cluster.url) as client:
        stored = members_of(client, "cut", "x-")
        assert stored == expected_members(dataset)[: len(stored)]
        assert len(stored) % 3 == 0
        assert all(info.samples is not None for info in client.list("cut"))


def test_interrupted(cluster: Cluster, dataset: Path) -> None:
    """Ctrl-C while it waits for more input: no traceback, no half shard."""
    whole = whole_tar(dataset)
    running = subprocess.Popen(
        [*TARSHARDS, "-s", "1M", f"{cluster.url}/interrupted/x-%06d.tar"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write(whole[:2_500_000])
    running.stdin.flush()
    first = running.stdout.readline()
    assert b"x-00000" in first
    os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert was_interrupted(running.returncode), running.returncode
    assert b"Traceback" not in err
    assert err.splitlines()[-1] == b"tarshards: interrupted"
    with Client(cluster.url) as client:
        assert all(info.samples for info in client.list("interrupted"))


def test_a_target_that_dies_meanwhile(start_cluster, dataset: Path) -> None:  # type: ignore[no-untyped-def]
    """Uploads that break off are sent again from the spooled shard."""
    cluster = start_cluster(targets=2)
    running = subprocess.Popen(
        [*TARSHARDS, "--retries", "30", "-n", "5", f"{cluster.url}/d-%06d.tar"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    whole = whole_tar(dataset)
    assert running.stdin is not None
    running.stdin.write(whole[:2_000_000])
    running.stdin.flush()
    os.kill(cluster.children()["target-0"], signal.SIGKILL)
    _, err = running.communicate(whole[2_000_000:], timeout=90)
    assert running.returncode == 0, err
    wait_for(cluster.is_healthy, "the target to come back")
    with Client(cluster.url) as client:
        assert members_of(client, "default", "d-") == expected_members(dataset)
