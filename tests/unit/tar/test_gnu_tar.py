"""What GNU tar writes in each of its formats, against what GNU tar itself and the standard library read back."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfc.tar.header import TYPES
from dfc.tar.scanner import Entry, Scanner

SEGMENTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=60).filter(
    lambda segment: segment not in (".", "..") and len(segment.encode()) < 200
)
PATHS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)
TREES = st.dictionaries(PATHS, st.sampled_from([0, 1, 511, 512, 513, 3000]), max_size=6)
FORMATS = pytest.mark.parametrize("format", ["v7", "ustar", "gnu", "oldgnu", "pax"])


def scan(data: bytes) -> list[Entry]:
    scanner = Scanner()
    entries = scanner.feed(data)
    scanner.finish()
    return entries


def gnu_tar(directory: Path, *options: str) -> bytes:
    """A tar of the directory. Names that the format cannot hold are left out (status 2)."""
    command = ["tar", "-C", str(directory), "-cf", "-", *options, "."]
    return subprocess.run(command, capture_output=True, check=False).stdout


def same_as_the_standard_library(data: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as tar:
        expected = [
            (
                info.name,
                "directory" if info.isdir() else "symlink" if info.issym() else "hardlink" if info.islnk() else "file",
                info.offset_data,
                info.size if info.isreg() else 0,
            )
            for info in tar
        ]
    found = [
        (name.decode(errors="surrogateescape").rstrip("/") or "/", TYPES[kind], offset, size)
        for name, kind, _, offset, size in scan(data)
    ]
    assert found == expected


@FORMATS
@settings(max_examples=12, deadline=None)
@given(tree=TREES)
def test_trees(format, tree):
    directory = Path(tempfile.mkdtemp())
    try:
        for name, size in tree.items():
            path = directory / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x" * size)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
        same_as_the_standard_library(gnu_tar(directory, f"--format={format}"))
    finally:
        shutil.rmtree(directory)


@FORMATS
def test_long_names_links_and_odd_bytes(tmp_path, format):
    deep = tmp_path / ("d" * 90) / ("e" * 90) / ("f" * 90)
    deep.mkdir(parents=True)
    (deep / ("long" * 30 + ".txt")).write_bytes(b"1" * 700)
    (tmp_path / "link").symlink_to("t" * 200)
    (tmp_path / "short").symlink_to("a.txt")
    (tmp_path / "a.txt").write_bytes(b"a" * 10)
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    os.mkfifo(tmp_path / "fifo")
    with open(os.path.join(os.fsencode(tmp_path), b"latin-\xe9.txt"), "wb") as file:
        file.write(b"e")
    data = gnu_tar(tmp_path, f"--format={format}", "--exclude=fifo")
    same_as_the_standard_library(data)
    types = [TYPES[kind] for _, kind, _, _, _ in scan(gnu_tar(tmp_path, f"--format={format}"))]
    assert types.count("fifo") == (0 if format == "v7" else 1)
    assert types.count("hardlink") == 1


@FORMATS
def test_sizes_beyond_eight_gibibytes(tmp_path, format):
    """A sparse file of 9 GiB of holes, stored in full: only the first and last megabyte of the archive are looked at."""
    with open(tmp_path / "large.bin", "wb") as file:
        file.truncate(9 << 30)
    (tmp_path / "zz.txt").write_bytes(b"after")
    command = ["tar", "-C", str(tmp_path), "-cf", "-", f"--format={format}", "large.bin", "zz.txt"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        start = process.stdout.read(1 << 20)
        process.kill()
    entries = Scanner().feed(start)
    if format in ("v7", "ustar"):  # cannot say it: GNU tar leaves the file out
        assert [name for name, *_ in entries] == [b"zz.txt"]
    else:
        assert [(name, size) for name, _, _, _, size in entries] == [(b"large.bin", 9 << 30)]


@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu"],
        ["--format=oldgnu"],
        *(["--format=pax", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")),
    ],
)
@pytest.mark.parametrize("extents", [1, 3, 10, 60])
def test_sparse_files(tmp_path, options, extents):
    with open(tmp_path / "s.bin", "wb") as file:
        for number in range(extents):
            file.seek(number * (1 << 20))
            file.write(b"data" * 1024)
        file.truncate(100 << 20)
    (tmp_path / "z.txt").write_bytes(b"after")
    command = ["tar", "-C", str(tmp_path), "-cSf", "-", *options, "s.bin", "z.txt"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(data) < 10 << 20
    sparse, after = scan(data)
    assert (sparse[0], TYPES[sparse[1]]) == (b"s.bin", "sparse")
    assert data[after[3] : after[3] + after[4]] == b"after"
    assert sparse[3] + sparse[4] <= after[2]


def test_incremental_and_labelled_archives(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").write_bytes(b"a")
    data = gnu_tar(tmp_path / "tree", f"--listed-incremental={tmp_path}/snapshot", "--label=disk one")
    assert [(name, TYPES[kind]) for name, kind, *_ in scan(data)] == [(b"./", "other"), (b"./a.txt", "file")]


def test_blocking_factors_and_appending(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / "b.txt").write_bytes(b"b")
    archive = tmp_path / "x.tar"
    subprocess.run(["tar", "-C", tmp_path, "-b", "1", "-cf", archive, "a.txt"], check=True)
    assert len(archive.read_bytes()) == 2048
    assert len(scan(archive.read_bytes())) == 1
    subprocess.run(["tar", "-C", tmp_path, "-rf", archive, "b.txt"], check=True)
    assert [name for name, *_ in scan(archive.read_bytes())] == [b"a.txt", b"b.txt"]
