"""Writers against clusters and nginx: read back by curl and WebDataset, nodes killed in mid-upload, nothing stored by half."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import webdataset
from harness import Cluster, wait_for

from dfc.checksum import checksum_of
from dfc.client import Client
from dfc.errors import Unauthorized
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.writers import ShardWriter, TarWriter, open_upload
from dfc.limits import MIB
from loadtest.nginx import nginx

TOKEN = "a-secret-of-the-tests"


@pytest.fixture(scope="module")
def served(start_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = start_cluster(targets=2, disks=1, environment={"DFC_TOKEN": TOKEN})
    yield cluster
    cluster.stop()


@pytest.fixture
def mine(served: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("DFC_URL", served.url)
    monkeypatch.setenv("DFC_TOKEN", TOKEN)
    return served


def curl(url: str) -> bytes:
    return subprocess.run(["curl", "-fsS", url], check=True, capture_output=True).stdout


def sample(at: int, size: int = 10_000) -> dict[str, Any]:
    return {"__key__": f"{at:06d}", "bin": bytes([at % 256]) * size, "json": {"at": at}, "cls": at}


@pytest.mark.parametrize(
    "form", ["{url}/{bucket}/train-%06d.tar", "dfc:{bucket}/train-%06d.tar", "{url}/v1/objects/{bucket}/train-%06d.tar"]
)
def test_what_is_written_is_read_by_others(mine: Cluster, form: str) -> None:
    bucket = f"written-{len(form)}"
    with ShardWriter(form.format(url=mine.url, bucket=bucket), maxsize=100_000) as writer:
        for at in range(20):
            writer.write(sample(at))
    assert [shard.samples for shard in writer.shards] == [7, 7, 6]
    with Client(mine.url) as client:
        listed = list(client.list(bucket))
    assert [(info.name, info.size, info.samples) for info in listed] == [
        (f"train-{number:06d}.tar", shard.size, shard.samples) for number, shard in enumerate(writer.shards)
    ]
    assert all(info.size <= 100_000 for info in listed)
    lines = curl(f"{mine.url}/{bucket}/train-000001.tar?list=samples").splitlines()
    assert [json.loads(line)["key"] for line in lines] == [f"{at:06d}" for at in range(7, 14)]
    assert curl(f"{mine.url}/{bucket}/train-000002.tar?sample=000014&ext=json") == b'{"at": 14}'
    urls = [f"pipe:curl -fsS {mine.url}/{bucket}/{info.name}" for info in listed]
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode()
    assert [(found["__key__"], found["cls"], found["json"]) for found in dataset] == [
        (f"{at:06d}", at, {"at": at}) for at in range(20)
    ]


def test_the_same_samples_give_the_same_objects(mine: Cluster) -> None:
    etags = []
    for _ in range(2):
        with TarWriter(f"{mine.url}/same/one.tar.zst") as writer:
            for at in range(10):
                writer.write(sample(at))
        with Client(mine.url) as client:
            etags.append(client.stat("same", "one.tar.zst").etag)
            assert len(list(client.samples("same", "one.tar.zst"))) == 10
    assert etags[0] == etags[1]


def test_an_exception_stores_whole_shards_only(mine: Cluster) -> None:
    writer = ShardWriter("dfc://broken/s-%d.tar", maxcount=3)

    def fail() -> None:
        with writer:
            for at in range(8):
                writer.write(sample(at))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with Client(mine.url) as client:
        assert [info.name for info in client.list("broken")] == ["s-0.tar", "s-1.tar"]
        assert [info.samples for info in client.list("broken")] == [3, 3]


def test_an_interrupt_ends_uploads_and_leaves_the_old_object(mine: Cluster) -> None:
    """An upload of 256 MiB is under way when Ctrl-C comes: what was there stays, or the new one is there whole."""
    with open_upload("dfc://interrupted/s-0.tar") as file:
        file.write(b"old")
    program = """
import os, sys, threading
from dfc.inputs.writers import ShardWriter
with ShardWriter("dfc://interrupted/s-%d.tar", maxcount=4) as writer:
    for at in range(5):
        writer.write({"__key__": f"{at}", "bin": bytes(64 << 20)})
    print("under way", flush=True)
    threading.Event().wait()
"""
    with subprocess.Popen([os.sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"under way\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode != 0
    with Client(mine.url) as client:
        assert [(info.name, info.samples) for info in client.list("interrupted")] in ([("s-0.tar", None)], [("s-0.tar", 4)])


def test_nodes_killed_in_mid_upload_cost_time_only(mine: Cluster) -> None:
    before = mine.children()
    targets = {name: pid for name, pid in before.items() if name.startswith("target")}
    with ShardWriter("dfc://killed/s-%03d.tar", maxsize=24 * MIB, options=StreamOptions(retries=40)) as writer:
        for at in range(100):
            if at == 40:
                for pid in targets.values():
                    os.kill(pid, signal.SIGKILL)
            writer.write(sample(at, MIB))
    wait_for(mine.is_healthy, "a healthy cluster")
    assert set(mine.children().values()).isdisjoint(targets.values())
    with Client(mine.url) as client:
        keys = [found.key for info in client.list("killed") for found in client.samples("killed", info.name)]
        assert [info.samples for info in client.list("killed")] == [shard.samples for shard in writer.shards]
        assert client.read_sample_member("killed", "s-002.tar", keys[50], "bin") == bytes([50]) * MIB
    assert keys == [f"{at:06d}" for at in range(100)]


def test_a_node_killed_while_it_receives(mine: Cluster) -> None:
    """Half of an object lies on the disk of the target when it dies; the upload begins anew and arrives whole."""
    body = os.urandom(MIB) * 128
    for attempt in range(10):  # it may have arrived before this test has looked
        name = f"large-{attempt}.bin"
        with ThreadPoolExecutor(1) as executor:
            file = open_upload(f"dfc:killed/{name}", options=StreamOptions(retries=40))
            file.write(body)
            done = executor.submit(file.close)
            blob = wait_for(lambda n=name: received(mine.directory, n), "a blob that is received")
            children = mine.children()
            owner = next(name for name in children if name in blob.parts)
            was_on_its_way = not done.done()
            if was_on_its_way:
                os.kill(children[owner], signal.SIGKILL)
            done.result(timeout=180)
        with Client(mine.url, retries=30) as client:
            assert client.stat("killed", name).etag == checksum_of(body)
        wait_for(mine.is_healthy, "a healthy cluster")
        if was_on_its_way:
            return
    pytest.fail("every upload was over before its node could be killed")


def received(directory: Path, name: str) -> Path | None:
    for path in directory.glob(f"**/objects/**/{name}@*"):
        with suppress(FileNotFoundError):
            if path.stat().st_size > MIB:
                return path
    return None


def test_tokens_go_where_they_belong(mine: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_TOKEN", "")
    file = open_upload(f"{mine.url}/tokens/a")
    file.write(b"1")
    with pytest.raises(Unauthorized):
        file.close()
    with open_upload(f"{mine.url}/tokens/a", options=StreamOptions(token=TOKEN)) as file:
        file.write(b"2")
    assert curl(f"{mine.url}/tokens/a") == b"2"


def test_exclusive_uploads(mine: Cluster) -> None:
    for url in (f"{mine.url}/exclusive/a", "dfc:exclusive/a"):
        with open_upload("dfc:exclusive/a") as file:
            file.write(b"first")
        other = open_upload(url, exclusive=True)
        other.write(b"second")
        with pytest.raises(FileExistsError):
            other.close()
    assert curl(f"{mine.url}/exclusive/a") == b"first"


def test_nginx_takes_shards_too(tmp_path: Path) -> None:
    with nginx(tmp_path, workers=1) as server:
        with ShardWriter(f"{server.url}/new/folder/s-%d.tar", maxcount=2) as writer:
            for at in range(5):
                writer.write(sample(at))
        found = sorted(path.name for path in (server.root / "new/folder").iterdir())
        assert found == ["s-0.tar", "s-1.tar", "s-2.tar"]
        for shard in writer.shards:
            data = curl(shard.url)
            (tmp_path / "back.tar").write_bytes(data)
            with tarfile.open(tmp_path / "back.tar") as tar:
                assert len(tar.getmembers()) == 3 * shard.samples
