"""Writers of shards into local files: where shards are cut, what is stored when something goes wrong, who can read it."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from dfc.inputs.base import SampleBroken
from dfc.inputs.writers import ShardWriter, TarWriter, WrittenShard
from dfc.listing.specs import ShardPattern


def samples(count: int, size: int = 1000) -> list[dict[str, Any]]:
    return [{"__key__": f"train/{at:04d}", "bin": bytes([at % 256]) * size, "cls": at} for at in range(count)]


def keys_in(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return [name.removesuffix(".bin") for name in tar.getnames() if name.endswith(".bin")]


def test_shards_are_cut_before_the_sample_that_is_too_much(tmp_path: Path) -> None:
    """2 headers of 512 bytes, 1,024 + 512 of data: 2,560 a sample, and 1,024 for the end."""
    with ShardWriter(f"{tmp_path}/s-%03d.tar", maxsize=4 * 2560 + 1024) as writer:
        for sample in samples(10):
            assert writer.write(sample) == 1000 + len(str(sample["cls"]))
    assert [shard.samples for shard in writer.shards] == [4, 4, 2]
    assert [shard.size for shard in writer.shards] == [11264, 11264, 6144]
    for number, shard in enumerate(writer.shards):
        assert shard.url == f"{tmp_path}/s-{number:03d}.tar"
        assert os.path.getsize(shard.url) == shard.size
    found = [key for shard in writer.shards for key in keys_in(Path(shard.url))]
    assert found == [sample["__key__"] for sample in samples(10)]
    assert len(os.listdir(tmp_path)) == 3


def test_counts_and_larger_samples(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=3, maxsize=9000, start_shard=7) as writer:
        for at, size in enumerate([10, 10, 10, 10, 20_000, 10]):
            writer.write({"__key__": f"{at}", "bin": bytes(size)})
    assert [(shard.url.rpartition("/")[2], shard.samples) for shard in writer.shards] == [
        ("s-7.tar", 3),
        ("s-8.tar", 1),
        ("s-9.tar", 1),
        ("s-10.tar", 1),
    ]


def test_no_samples_make_no_shard(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/s-%d.tar") as writer:
        pass
    assert writer.shards == []
    assert os.listdir(tmp_path) == []


def test_an_exception_keeps_whole_shards_only(tmp_path: Path) -> None:
    writer = ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=4)
    with pytest.raises(RuntimeError):
        fail_at(writer, 7, RuntimeError)
    assert keys_in(tmp_path / "s-0.tar") == [sample["__key__"] for sample in samples(4)]
    assert os.listdir(tmp_path) == ["s-0.tar"]
    with pytest.raises(ValueError, match="closed"):
        writer.write(samples(1)[0])
    writer.close()
    writer.abort()


def fail_at(writer: ShardWriter, number: int, error: type[BaseException]) -> None:
    with writer:
        for at, sample in enumerate(samples(10)):
            if at == number:
                raise error
            writer.write(sample)


def test_a_broken_sample_leaves_the_writer_as_it_was(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/s-%d.tar") as writer:
        for sample in samples(5):
            writer.write(sample)
            with pytest.raises(SampleBroken):
                writer.write({"__key__": "bad", "bin": b"1", "cls": "no number"})
            with pytest.raises(SampleBroken, match="previous sample"):
                writer.write({"__key__": sample["__key__"], "other": b"1"})
    assert len(keys_in(tmp_path / "s-0.tar")) == 5


def test_shards_go_out_while_the_next_is_filled(tmp_path: Path) -> None:
    """The first shard waits in `post` for a sample of the second."""
    begun, filled = threading.Event(), threading.Event()
    posted: list[WrittenShard] = []

    def post(shard: WrittenShard) -> None:
        begun.set()
        assert filled.wait(10)
        posted.append(shard)

    with ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=2, post=post) as writer:
        for at, sample in enumerate(samples(4)):
            writer.write(sample)
            if at == 2:
                assert begun.wait(10)
                assert posted == []
                filled.set()
    assert sorted(posted, key=lambda shard: shard.url) == writer.shards  # the second may have been the faster one
    assert len(posted) == 2


def test_a_failing_post_is_told(tmp_path: Path) -> None:
    def post(shard: WrittenShard) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail_at(ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=1, post=post), 9, KeyError)


def test_earlier_shards_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for count in (3, 2):
        with caplog.at_level(logging.WARNING, "dfc.inputs"):
            with ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=1) as writer:
                for sample in samples(count):
                    writer.write(sample)
    expected = f"{tmp_path}/s-2.tar, and perhaps more shards, exist from an earlier run; delete them if they are stale"
    assert [record.message for record in caplog.records] == [expected]


@pytest.mark.parametrize("ending", ["tgz", "tar.zst", "tar.lz4", "tar.bz2", "tar.xz"])
def test_compressed_shards(tmp_path: Path, ending: str) -> None:
    from dfc.tar.compression import Decompressor
    from dfc.tar.index.format import index_kind

    path = tmp_path / f"s-0.{ending}"
    with ShardWriter(str(tmp_path / f"s-%d.{ending}")) as writer:
        for sample in samples(50):
            writer.write(sample)
    assert writer.shards == [WrittenShard(str(path), 50, path.stat().st_size)]
    kind = index_kind(path.name)
    assert kind is not None
    plain = b"".join(Decompressor(kind).feed(path.read_bytes()))
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        assert len(tar.getmembers()) == 100
    assert path.stat().st_size < len(plain) // 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # WebDataset leaves its files open
def test_webdataset_reads_what_is_written(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    with TarWriter(tmp_path / "s.tar") as writer:
        writer.write({"__key__": "a/0", "png": image, "cls": 3, "json": {"x": [1]}, "npy": image, "TXT": "ü"})
        writer.write({"__key__": "a/1", "left.png": image, "__source__": "elsewhere"})
    assert (writer.samples, writer.size) == (2, os.path.getsize(tmp_path / "s.tar"))
    first, second = webdataset.WebDataset(str(tmp_path / "s.tar"), shardshuffle=False).decode("rgb8")
    assert (first["__key__"], first["cls"], first["json"], first["txt"]) == ("a/0", 3, {"x": [1]}, "ü")
    assert (first["png"] == image).all()
    assert (first["npy"] == image).all()
    assert second["__key__"] == "a/1"
    assert (second["left.png"] == image).all()


def test_tar_writers_into_open_files() -> None:
    file = io.BytesIO()
    with TarWriter(file, compress="gz") as writer:
        writer.write(samples(1)[0])
    assert not file.closed
    assert tarfile.open(fileobj=io.BytesIO(file.getvalue()), mode="r:gz").getnames() == ["train/0000.bin", "train/0000.cls"]
    file = io.BytesIO()
    with pytest.raises(KeyError):
        fail_after_one(TarWriter(file))
    assert not file.getvalue().endswith(bytes(1024))


def test_tar_writers_store_nothing_after_an_exception(tmp_path: Path) -> None:
    writer = TarWriter(tmp_path / "s.tar")
    with pytest.raises(KeyError):
        fail_after_one(writer)
    with pytest.raises(ValueError, match="closed"):
        writer.write(samples(1)[0])
    assert os.listdir(tmp_path) == []


def test_writers_store_what_they_have_when_they_are_closed_in_a_handler(tmp_path: Path) -> None:
    for writer in (TarWriter(tmp_path / "one.tar"), ShardWriter(f"{tmp_path}/many-%d.tar")):
        writer.write(samples(1)[0])
        try:
            raise StopIteration
        except StopIteration:
            writer.close()
    assert sorted(os.listdir(tmp_path)) == ["many-0.tar", "one.tar"]
    assert (tmp_path / "many-0.tar").read_bytes() == (tmp_path / "one.tar").read_bytes()


def fail_after_one(writer: TarWriter) -> None:
    with writer:
        writer.write(samples(1)[0])
        raise KeyError


def test_a_forked_child_leaves_the_writer_alone(tmp_path: Path) -> None:
    """It inherits a half-filled shard: it can neither write to it nor, by ending, write or remove anything."""
    program = f"""
import os, sys
from dfc.inputs.writers import ShardWriter
for pattern in ("{tmp_path}/file-%d.tar", "pipe:cat > {tmp_path}/pipe-%d.tar"):
    with ShardWriter(pattern, maxcount=3) as writer:
        for at in range(5):
            writer.write({{"__key__": f"{{at}}", "bin": bytes(2_000_000)}})
        child = os.fork()
        if child == 0:
            try:
                writer.write({{"__key__": "child", "bin": b"1"}})
            except ValueError as problem:
                print(problem, flush=True)
            del writer
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        writer.write({{"__key__": "5", "bin": b"parent"}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["opened by another process before a fork; open it in the process that uses it"] * 2
    assert sorted(os.listdir(tmp_path)) == ["file-0.tar", "file-1.tar", "pipe-0.tar", "pipe-1.tar"]
    for name in ("file", "pipe"):
        assert [keys_in(tmp_path / f"{name}-{number}.tar") for number in range(2)] == [["0", "1", "2"], ["3", "4", "5"]]


def test_a_program_that_ends_without_close(tmp_path: Path) -> None:
    program = f"""
from dfc.inputs.writers import ShardWriter
writer = ShardWriter("{tmp_path}/s-%d.tar", maxcount=3)
for at in range(5):
    writer.write({{"__key__": f"{{at}}", "bin": b"1"}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "s-1.tar was not stored, because it was never closed" in done.stderr
    assert os.listdir(tmp_path) == ["s-0.tar"]


def test_patterns() -> None:
    assert ShardPattern("http://h/a%20d/x-%06d.tar").text(7) == "http://h/a%20d/x-000007.tar"
    assert ShardPattern("x-%d.tar").text(1234) == "x-1234.tar"
    for text in ("x.tar", "x-%d-%d.tar", "x-%s.tar"):
        with pytest.raises(ValueError, match="one number"):
            ShardPattern(text)
    for limits in ({"maxcount": 0}, {"maxsize": 0}, {"uploads": 0}):
        with pytest.raises(ValueError):
            ShardWriter("x-%d.tar", **limits)  # type: ignore[arg-type]
