"""The lines with which the loaders were published, word for word but for the host, against a cluster."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Cluster
from PIL import Image

from dfc.client import Client

HOST = "http://nvdata"
SHARDS = 3
SAMPLES = 90  # in each of them
# As they were published; what `train_batch` does was left to the reader.
TRAINING = """
from dfc.inputs import gopen
import dfc.inputs.filters as df

dataset = gopen.sharditerator("http://nvdata/imagenet-@000003.tgz")
pipeline = df.compose(df.shuffle(1000), df.batch(20))
for batch in pipeline(dataset): train_batch(batch["png"], batch["cls"])
"""
# Checks what it is given, prints every label, and ends the program in the middle of the endless loop.
TRAIN_BATCH = """
import sys
import numpy

batches = 0
def train_batch(images, labels):
    global batches
    assert images.shape == (20, 28, 28, 3), images.shape
    assert images.dtype == numpy.float32 and 0 <= images.min() and 0.9 < images.max() <= 1
    assert len(labels) == 20 and all(isinstance(int(label), int) for label in labels)
    print(*map(int, labels))
    batches += 1
    if batches == 40:  # of the third epoch: one has 13.5
        sys.exit()
"""


@pytest.fixture(scope="module")
def nvdata(start_cluster: Callable[..., Cluster], data: Path) -> Cluster:
    """A cluster with imagenet-000000.tgz to imagenet-000002.tgz in the bucket `default`."""
    cluster = start_cluster(targets=2)
    for number in range(SHARDS):
        shell(f'curl --fail -s -T "{data}/sample.tgz" http://nvdata/imagenet-{number:06d}.tgz', cluster)
    return cluster


def on(cluster: Cluster, text: str) -> str:
    """The text with the cluster in the place of the host."""
    return text.replace(HOST, cluster.url)


def shell(command: str, cluster: Cluster, cwd: Path | None = None) -> str:
    """What a line of shell prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = ["bash", "-euo", "pipefail", "-c", on(cluster, command)]
    done = subprocess.run(run, cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def python(program: str) -> str:
    """What a program prints that ends well and says nothing on standard error."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def contents(data: Path) -> list[tuple[int, bytes]]:
    """(label, PNG) of the samples of the shard, read with the standard library."""
    with tarfile.open(data / "sample.tgz") as tar:
        members = {info.name: tar.extractfile(info).read() for info in tar if info.isfile()}  # type: ignore[union-attr]
    return [(int(members[f"{name[:-4]}.cls"]), members[name]) for name in members if name.endswith(".png")]


def test_the_training_loop(nvdata: Cluster, data: Path) -> None:
    """Batches run on over the ends of epochs; the first two epochs hold every sample of three shards twice, bar the buffer."""
    printed = python(TRAIN_BATCH + on(nvdata, TRAINING))
    labels = [int(word) for line in printed.splitlines() for word in line.split()]
    assert len(labels) == 40 * 20
    have = [label for label, _ in contents(data)]
    assert len(have) == SAMPLES
    # 800 of an endless stream through a buffer of 1000: no label can come more often than all that was read has it.
    read = 800 + 1000
    epochs = -(-read // (SHARDS * SAMPLES))
    for label in set(have):
        assert 0 < labels.count(label) <= epochs * SHARDS * have.count(label)
    assert labels[:90] != sorted(labels[:90])


def test_one_epoch_gives_every_picture_with_its_label(nvdata: Cluster, data: Path) -> None:
    """The same lines for one epoch: what is in the batches is what Pillow and tarfile read from the file."""
    from dfc.inputs import filters as df
    from dfc.inputs import gopen

    dataset = gopen.sharditerator_once(on(nvdata, "http://nvdata/imagenet-@000003.tgz"))
    pipeline = df.compose(df.shuffle(1000), df.batch(20))
    batches = list(pipeline(dataset))
    assert [len(batch["__key__"]) for batch in batches] == [20] * 13 + [10]
    assert [batch["png"].shape for batch in batches] == [(20, 28, 28, 3)] * 13 + [(10, 28, 28, 3)]
    found = [(int(label), image) for batch in batches for label, image in zip(batch["cls"], batch["png"], strict=True)]
    wanted = [
        (label, np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), np.float32) / 255)
        for label, png in contents(data) * SHARDS
    ]
    assert as_set(found) == as_set(wanted)
    sources = {source for batch in batches for source in batch["__source__"]}
    assert sources == {f"{nvdata.url}/imagenet-{number:06d}.tgz" for number in range(SHARDS)}


def picture(png: bytes) -> np.ndarray:
    """As Pillow reads it, in [0, 1]."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), np.float32) / 255


def as_set(samples: list[tuple[int, np.ndarray]]) -> dict[tuple[int, bytes], int]:
    """How often each pair is there; equal up to the rounding of eight bits."""
    found: dict[tuple[int, bytes], int] = {}
    for label, image in samples:
        pair = label, np.rint(image * 255).astype(np.uint8).tobytes()
        found[pair] = found.get(pair, 0) + 1
    return found


def test_the_upload_of_a_tar(nvdata: Cluster, data: Path, tmp_path: Path) -> None:
    (tmp_path / "dataset.tar").write_bytes((data / "tendata.tar").read_bytes())
    shell("curl -T dataset.tar http://nvdata/dataset.tar", nvdata, tmp_path)
    with Client(nvdata.url) as client:
        assert client.get("default", "dataset.tar") == (data / "tendata.tar").read_bytes()


def test_the_cutting_of_a_folder(nvdata: Cluster, data: Path, tmp_path: Path) -> None:
    """And the loader reads what `tarshards` has cut."""
    shell(f'mkdir dataset && tar -C dataset -xzf "{data}/sample.tgz"', nvdata, tmp_path)
    shell("tar -cf - dataset | tarshards http://nvdata/dataset-%06d.tar", nvdata, tmp_path)
    from dfc.inputs import gopen

    samples = list(gopen.sharditerator_once(on(nvdata, "http://nvdata/dataset-@000001.tar")))
    assert {(sample["__key__"], sample["cls"]) for sample in samples if "cls" in sample} >= {
        (f"dataset/{number}", int((tmp_path / "dataset" / f"{number}.cls").read_text())) for number in (10, 11, 12)
    }
