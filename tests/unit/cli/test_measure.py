"""Parts of a loader measured alone and together, and the verdict, on local shards; without a cluster."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from job_shards import tar_of
from pictures import encoded
from PIL import Image

from dfc.cli.measure import INTERRUPTED, PARTS, Measured, Measurement, default_workers, measure, read_portion, run
from dfc.inputs.base import InputError, ShardBroken, ShardRef
from dfc.inputs.sources.streams import StreamOptions

OPTIONS = StreamOptions(retries=0)
SAMPLES = 40


def shard() -> bytes:
    picture = encoded(Image.new("RGB", (32, 24), (200, 100, 50)))
    keys = [f"{number:04d}" for number in range(SAMPLES)]
    return tar_of([member for key in keys for member in ((f"{key}.png", picture), (f"{key}.bin", os.urandom(3000)))])


@pytest.fixture
def plain(tmp_path: Path) -> ShardRef:
    (tmp_path / "x.tar").write_bytes(shard())
    return ShardRef(str(tmp_path / "x.tar"))


@pytest.fixture
def compressed(tmp_path: Path) -> ShardRef:
    (tmp_path / "x.tgz").write_bytes(gzip.compress(shard()))
    return ShardRef(str(tmp_path / "x.tgz"))


def task(part: str, *refs: ShardRef, rank: int = 0, workers: int = 1, decode: str | None = "rgb8") -> Measurement:
    return Measurement(part, list(refs), rank, workers, 0.05, decode, 0)


def test_the_slowest_part_is_the_weakest():
    found = Measured(2, {"link": 900.0, "parser": 5000.0, "decoder": 400.0}, {"loader": 880.0, "decoding_loader": 300.0})
    assert found.weakest == "decoder"
    assert found.reached == 0.75
    undecoded = Measured(2, {"link": 900.0, "parser": 5000.0}, {"loader": 810.0})
    assert undecoded.weakest == "link"
    assert undecoded.reached == 0.9


def test_default_workers_double_up_to_the_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {*range(6)})
    assert default_workers() == [1, 2, 4]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {*range(96)})
    assert default_workers() == [1, 2, 4, 8, 16]


def test_processes_share_the_shards_or_begin_at_different_ones():
    refs = [ShardRef(str(number)) for number in range(5)]
    shares = [task("link", *refs, rank=rank, workers=2).own_refs for rank in range(2)]
    assert sorted(ref.url for share in shares for ref in share) == ["0", "1", "2", "3", "4"]
    many = [task("link", *refs[:2], rank=rank, workers=3).own_refs for rank in range(3)]
    assert [[ref.url for ref in share] for share in many] == [["0", "1"], ["1", "0"], ["0", "1"]]


@pytest.mark.parametrize("name", ["plain", "compressed"])
def test_a_portion_knows_the_size_of_a_sample(name, request):
    ref: ShardRef = request.getfixturevalue(name)
    found = read_portion(ref, OPTIONS)
    assert found.kind == ("gz" if name == "compressed" else None)
    assert len(found.samples) == SAMPLES
    assert found.sample_bytes == pytest.approx(Path(ref.url).stat().st_size / SAMPLES, rel=0.1)


def test_a_portion_of_a_large_shard_is_its_beginning(plain, monkeypatch):
    monkeypatch.setattr("dfc.cli.measure.PORTION_BYTES", 50_000)
    found = read_portion(plain, OPTIONS)
    assert len(found.stored) == 50_000
    assert 5 < len(found.samples) < 15
    assert found.sample_bytes == pytest.approx(Path(plain.url).stat().st_size / SAMPLES, rel=0.1)


def test_a_portion_of_what_grows_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("dfc.cli.measure.ARCHIVE_BYTES_MAX", 3 << 20)
    archive = tar_of([(f"{number}.bin", bytes(1 << 20)) for number in range(40)])
    (tmp_path / "x.tgz").write_bytes(gzip.compress(archive))
    found = read_portion(ShardRef(str(tmp_path / "x.tgz")), OPTIONS)
    assert 1 <= len(found.samples) <= 4
    assert len(found.archive) < 5 << 20


@pytest.mark.parametrize(
    "body", [b"", b"no tar at all" * 100, bytes(10_240), gzip.compress(b"no tar" * 1000, mtime=0), b"\x1f\x8b\x08\0\0"]
)
def test_what_has_no_sample_is_said(tmp_path, body):
    (tmp_path / "x.tar").write_bytes(body)
    with pytest.raises(ShardBroken, match=r"x\.tar"):
        read_portion(ShardRef(str(tmp_path / "x.tar")), OPTIONS)


@pytest.mark.parametrize("part", [*PARTS])
def test_every_part_does_something(part, plain, compressed):
    waited = []
    ref = compressed if part == "decompressor" else plain
    amount, seconds = run(task(part, ref), lambda: waited.append(part))
    assert waited == [part]
    assert amount > 0
    assert 0.05 <= seconds < 20


def test_a_shard_that_is_not_compressed_like_the_first(plain):
    with pytest.raises(ShardBroken, match="compressed"):
        run(task("decompressor", plain), lambda: None)


def test_processes_measure_together(plain, compressed):
    told: list[str] = []
    report = measure([compressed], workers=[2], seconds=0.2, decode=None, retries=0, progress=told.append)
    assert report.compression == "gz"
    assert [each.workers for each in report.measured] == [2]
    found = report.measured[0]
    assert [*found.parts] == ["decompressor", "parser", "link"]
    assert [*found.loaders] == ["loader"]
    assert all(rate > 0 for rate in (*found.parts.values(), *found.loaders.values()))
    assert told == ["decompressor, 2 processes", "parser, 2 processes", "link, 2 processes", "loader, 2 processes"]


def test_a_process_that_fails_says_why(plain, tmp_path):
    missing = ShardRef(str(tmp_path / "missing.tar"))
    with pytest.raises(InputError, match=r"missing\.tar"):
        measure([plain, missing], workers=[2], seconds=0.2, decode=None, retries=0)


def test_an_unknown_form_of_pictures_is_a_wrong_value(plain):
    with pytest.raises(ValueError, match="rgb9"):
        measure([plain], workers=[1], seconds=0.2, decode="rgb9", retries=0)


@pytest.mark.parametrize("told", [b"", None])
def test_a_process_that_is_left_alone_ends_without_a_word(plain, told):
    line = msgspec.json.encode(task("parser", plain)) + b"\n" if told is None else told
    command = [sys.executable, "-m", "dfc.cli.measure"]
    done = subprocess.run(command, input=line, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (INTERRUPTED, b"")
    assert done.stdout == (b"ready\n" if told is None else b"")
