"""Cutting archives into shards: samples whole, bytes and order kept, limits held; against the standard library's tarfile."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import random
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_shards import members_of, tar_of

from dfc.cli import cutting
from dfc.cli.cutting import BrokenInput, CutShard, Limits, ShardCutter, cut_archive, cut_files, read_names
from dfc.tar.samples import split_key

Member = tuple[str, bytes]
WARNINGS: list[str] = []  # of the last archives that were cut


def cut(archive: bytes, tmp_path: Path, **limits: int) -> tuple[list[bytes], list[CutShard]]:
    """The shards of an archive that comes from a file descriptor."""
    shards: list[CutShard] = []
    cutter = ShardCutter(Limits(**limits), str(tmp_path), shards.append)
    path = tmp_path / "archive"
    path.write_bytes(archive)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        cut_archive(descriptor, cutter, WARNINGS.append)
        cutter.finish()
    except BaseException:
        for shard in shards:
            shard.file.close()
        raise
    finally:
        os.close(descriptor)
        cutter.abandon()
    return [_contents(shard) for shard in shards], shards


def names_in(archives: list[bytes]) -> list[list[str]]:
    return [[name for name, _ in members_of(archive)] for archive in archives]


def _contents(shard: CutShard) -> bytes:
    with shard.file as file:
        data = file.read()
    assert len(data) == shard.size
    return data


def samples(count: int, size: int = 100) -> list[Member]:
    return [(f"d/{at:05d}.{ext}", os.urandom(size)) for at in range(count) for ext in ("jpg", "cls")]


def test_everything_in_order(tmp_path: Path) -> None:
    members = [("d/", b""), *samples(100)]
    archives, shards = cut(tar_of(members), tmp_path, size=20_000)
    assert [member for archive in archives for member in members_of(archive)] == members
    assert sum(shard.samples for shard in shards) == 100
    assert sum(shard.members for shard in shards) == 201
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert all(shard.size <= 20_000 for shard in shards)
    assert all(shard.size > 17_000 for shard in shards[:-1])  # full, up to a sample


def test_exact_numbers_of_samples(tmp_path: Path) -> None:
    _, shards = cut(tar_of(samples(25)), tmp_path, samples=10)
    assert [shard.samples for shard in shards] == [10, 10, 5]
    _, shards = cut(tar_of(samples(20)), tmp_path, samples=10)
    assert [shard.samples for shard in shards] == [10, 10]


def test_a_sample_larger_than_the_limit_stands_alone(tmp_path: Path) -> None:
    members = [*samples(2), ("d/big.bin", os.urandom(5_000_000)), ("d/big.cls", b"1"), *[("e/x.jpg", b"1")]]
    archives, shards = cut(tar_of(members), tmp_path, size=10_000)
    assert names_in(archives) == [
        ["d/00000.jpg", "d/00000.cls", "d/00001.jpg", "d/00001.cls"],
        ["d/big.bin", "d/big.cls"],
        ["e/x.jpg"],
    ]
    assert [shard.samples for shard in shards] == [2, 1, 1]


def test_the_member_that_exceeds_takes_its_sample_along(tmp_path: Path) -> None:
    """The first half of the sample is in the file already when its second half does not fit any more."""
    members = [("a.x", b"1" * 400), ("b.x", b"2" * 400), ("b.y", b"3" * 3_000_000), ("b.z", b"4")]
    archives, _ = cut(tar_of(members), tmp_path, size=4096)
    assert names_in(archives) == [["a.x"], ["b.x", "b.y", "b.z"]]


def test_files_without_a_key(tmp_path: Path) -> None:
    members = [("README", b"1"), ("a.x", b"2"), ("LICENSE", b"3"), ("._a.y", b"4"), ("a.y", b"5"), ("b.x", b"6"), ("END", b"7")]
    archives, shards = cut(tar_of(members), tmp_path, samples=1)
    assert names_in(archives) == [["README", "a.x", "LICENSE", "._a.y", "a.y"], ["b.x", "END"]]
    assert [shard.samples for shard in shards] == [1, 1]
    # Alone they are cut like others, one by one.
    archives, shards = cut(tar_of([(f"file{at}", b"x" * 1000) for at in range(10)]), tmp_path, size=4096)
    assert [len(members_of(archive)) for archive in archives] == [2] * 5
    assert {shard.samples for shard in shards} == {0}


def test_links_and_long_names_are_kept_as_they_are(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for at in range(20):
            info = tarfile.TarInfo("ü" * 150 + f"{at}.jpg")
            info.size, info.mtime, info.uname = 3, 1.5, "somebody"
            archive.addfile(info, io.BytesIO(b"abc"))
            link = tarfile.TarInfo(f"{at}.link")
            link.type, link.linkname = tarfile.SYMTYPE, "target"
            archive.addfile(link)
    archives, shards = cut(buffer.getvalue(), tmp_path, samples=7)
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as opened:
        before = [(info.name, info.type, info.mtime, info.uname, info.linkname) for info in opened]
    after = []
    for archive in archives:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            after += [(info.name, info.type, info.mtime, info.uname, info.linkname) for info in opened]
    assert after == before
    assert [shard.samples for shard in shards] == [7, 7, 6]


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_archive(data: st.DataObject, tmp_path: Path, monkeypatch_module: None) -> None:
    names = data.draw(
        st.lists(st.sampled_from(["a.x", "a.y", "a.z", "b.x", "b.y", "d/c.x", "plain", "._h.x", "dir/", "d/c.y"]), max_size=40)
    )
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 511, 512, 513, 5000]), min_size=len(names), max_size=len(names)))
    members = [
        (name, b"" if name.endswith("/") else bytes([at % 251]) * size)
        for at, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]
    kind = data.draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    limit = data.draw(st.sampled_from([2048, 4096, 10_240]))
    archives, shards = cut(tar_of(members, kind), tmp_path, size=limit)
    assert [member for archive in archives for member in members_of(archive)] == members
    # No run of neighbours with one key lies on both sides of a cut.
    keys = [[split_key(name) for name, _ in members_of(archive) if not name.endswith("/")] for archive in archives]
    keyed = [[key[0] for key in shard if key is not None] for shard in keys]
    for left, right in pairwise(keyed):
        if left and right:
            assert left[-1] != right[0]
    assert all(shard.size % 512 == 0 for shard in shards)


@pytest.fixture
def monkeypatch_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks, so that members and headers lie across their borders."""
    monkeypatch.setattr("dfc.cli.cutting._READ_BYTES", 700)
    monkeypatch.setattr(cutting, "_FLUSH_PIECES", 3)


@pytest.mark.parametrize("keep", [0, 100, 512, 700, 1100, 3000])
def test_a_truncated_archive(tmp_path: Path, keep: int) -> None:
    archive = tar_of(samples(10))
    with pytest.raises(BrokenInput, match="standard input, at byte" if keep else "empty"):
        cut(archive[:keep], tmp_path, samples=2)


def test_odd_archives_are_cut_with_a_warning(tmp_path: Path) -> None:
    members = samples(10)
    archive = tar_of(members)
    bare = archive[: 20 * 1024]
    cases: list[tuple[bytes, str | None]] = [
        (bare, "at byte 20480: the archive has no end blocks"),
        (archive + archive, f"at byte {len(archive)}: data after the end"),
        (gzip.compress(archive) + b"rubbish", "ignored the bytes after the gz stream"),
        (gzip.compress(archive), None),
    ]
    for data, warning in cases:
        WARNINGS.clear()
        shards, _ = cut(data, tmp_path, samples=5)
        assert [member for shard in shards for member in members_of(shard)] == members
        assert len(WARNINGS) == (warning is not None)
        assert all(str(warning) in text for text in WARNINGS)


def test_damage(tmp_path: Path) -> None:
    archive = bytearray(tar_of(samples(10)))
    archive[1024 + 10] ^= 1
    with pytest.raises(BrokenInput, match="checksum"):
        cut(bytes(archive), tmp_path)
    with pytest.raises(BrokenInput):
        cut(b"no tar" * 1000, tmp_path)


def test_compressed_input(tmp_path: Path) -> None:
    members = samples(30)
    for packed in (gzip.compress(tar_of(members)), lzma.compress(tar_of(members))):
        archives, _ = cut(packed, tmp_path, samples=10)
        assert [member for archive in archives for member in members_of(archive)] == members
        with pytest.raises(BrokenInput):
            cut(packed[:-100], tmp_path, samples=10)


def test_unsorted_input_is_noticed(tmp_path: Path) -> None:
    members = samples(50)
    random.Random(1).shuffle(members)
    shards: list[CutShard] = []
    cutter = ShardCutter(Limits(), str(tmp_path), shards.append)
    for name, data in members:
        cutter.begin(name, 0, 512)
        cutter.write(data.ljust(512, b"\0"))
    cutter.finish()
    assert cutter.came_back > 30
    shards[0].file.close()


def test_memory_and_temporary_files_stay_bounded(tmp_path: Path) -> None:
    """The file of a shard is gone from the directory at once, and nothing of it is kept in memory."""
    archives, _ = cut(tar_of([(f"{at}.bin", bytes(200_000)) for at in range(50)]), tmp_path, size=1_000_000)
    assert len(archives) == 13
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        root = tmp_path / "folder"
        (root / "deep").mkdir(parents=True)
        for at in range(10):
            (root / f"deep/{at}.jpg").write_bytes(os.urandom(1000 + at))
            (root / f"deep/{at}.cls").write_bytes(b"%d" % at)
        return root

    def cut(self, names: Iterator[str], folder: Path, tmp_path: Path, **limits: int) -> list[list[Member]]:
        shards: list[CutShard] = []
        cutter = ShardCutter(Limits(**limits), str(tmp_path), shards.append)
        try:
            cut_files(names, str(folder), cutter)
            cutter.finish()
        finally:
            cutter.abandon()
        return [members_of(_contents(shard)) for shard in shards]

    def test_files_of_a_list(self, folder: Path, tmp_path: Path) -> None:
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
        shards = self.cut(iter(names), folder, tmp_path, samples=4)
        assert [len(shard) for shard in shards] == [8, 8, 4]
        assert [member for shard in shards for member in shard] == [(name, (folder / name).read_bytes()) for name in names]

    def test_folders_and_leading_dots(self, folder: Path, tmp_path: Path) -> None:
        (shard,) = self.cut(iter(["deep", "./deep/1.jpg", ".//deep/2.jpg", str(folder / "deep/3.jpg")]), folder, tmp_path)
        assert [name for name, _ in shard] == ["deep/1.jpg", "deep/2.jpg", str(folder / "deep/3.jpg").lstrip("/")]

    @pytest.mark.parametrize("name", ["none.jpg", "../x", "/dev/null", "deep/../deep/1.jpg"])
    def test_what_cannot_be_stored(self, folder: Path, tmp_path: Path, name: str) -> None:
        with pytest.raises(BrokenInput):
            self.cut(iter(["deep/1.jpg", name]), folder, tmp_path)

    def test_lists(self) -> None:
        assert list(read_names(io.BytesIO(b"a b\n\nc\nd"), null=False)) == ["a b", "c", "d"]
        assert list(read_names(io.BytesIO(b"a\nb\0c\0"), null=True)) == ["a\nb", "c"]
