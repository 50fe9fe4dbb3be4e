"""The program `tarshards` against fake nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from job_shards import members_of, tar_of

from dfc.cli.session import UsageMistake, parse_remote
from dfc.cli.tarshards import parse_pattern

PROGRAM = [sys.executable, "-m", "dfc.cli.tarshards"]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A tar of ten samples of two files."""
    path = tmp_path / "all.tar"
    path.write_bytes(tar_of([(f"d/{at}.{ext}", os.urandom(2000)) for at in range(10) for ext in ("jpg", "cls")]))
    return path


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Make a file standard input."""
    with ExitStack() as opened:
        yield lambda path: monkeypatch.setattr(sys, "stdin", opened.enter_context(path.open()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http://h/d-%06d.tar", "d-000007.tar"),
        ("b/d-%d.tar", "d-7.tar"),
        ("b/%04d/x.tar", "0007/x.tar"),
        ("http://h/a%20b-%03d.tar", "a b-007.tar"),
        ("http://h/b/a%20data-%03d.tar", "a data-007.tar"),
        ("b/prefix", "prefix-000007.tar"),
        ("b/folder/", "folder/000007.tar"),
    ],
)
def test_patterns(text: str, name: str) -> None:
    assert parse_remote(parse_pattern(text).text(7)).name == name


@pytest.mark.parametrize("text", ["d-%06d.tgz", "d-%06d.tar.gz", "d-%06d.zip", "d.tar", "%06d-%06d.tar", "d-%06d"])
def test_patterns_that_cannot_be_made(text: str) -> None:
    with pytest.raises(UsageMistake):
        parse_pattern(text)


def test_a_tar_on_standard_input(fake: Any, shard_program: Any, stdin: Any, archive: Path) -> None:
    stdin(archive)
    ran = shard_program("-n", "4", f"{fake.url}/d-%06d.tar", "-j", "1")
    assert ran.code == 0
    assert [line.split()[:3] for line in ran.out.splitlines()] == [
        [f"{fake.url}/d-000000.tar", "4", "samples"],
        [f"{fake.url}/d-000001.tar", "4", "samples"],
        [f"{fake.url}/d-000002.tar", "2", "samples"],
    ]
    assert ran.err == "tarshards: 3 shards, 10 samples, 54.3 kB\n"
    stored = fake.target.objects
    assert sorted(name for _, name in stored) == ["d-000000.tar", "d-000001.tar", "d-000002.tar"]
    members = [member for _, body in sorted(stored.items()) for member in members_of(body)]
    assert members == members_of(archive.read_bytes())


def test_the_line_word_for_word(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    for at in range(5):
        (tmp_path / f"dataset/{at}.png").write_bytes(b"x" * 1000)
    tar = subprocess.Popen(["tar", "-cf", "-", "dataset"], cwd=tmp_path, stdout=subprocess.PIPE)
    done = subprocess.run([*PROGRAM, f"{fake.url}/dataset-%06d.tar"], stdin=tar.stdout, capture_output=True, check=False)
    tar.stdout.close()
    assert (tar.wait(), done.returncode) == (0, 0)
    ((_, name),) = fake.target.objects
    assert name == "dataset-000000.tar"


def test_json(fake: Any, shard_program: Any, stdin: Any, archive: Path) -> None:
    stdin(archive)
    lines = shard_program("-n", "5", "b/d-%02d.tar", "--json").json
    assert sorted(line["name"] for line in lines[:-1]) == ["b/d-00.tar", "b/d-01.tar"]
    assert lines[-1]["total"]["samples"] == 10
    assert {"checksum", "size", "samples", "members", "bucket", "object"} < set(lines[0])


def test_a_file_list(fake: Any, shard_program: Any, stdin: Any, tmp_path: Path) -> None:
    for name in ("a.jpg", "a.cls", "b.jpg", "b.cls"):
        (tmp_path / name).write_bytes(name.encode())
    listed = tmp_path / "list"
    listed.write_text("a.cls\na.jpg\nb.cls\nb.jpg\n")
    ran = shard_program("-T", listed, "-C", tmp_path, "-s", "4k", "set/pre")
    assert ran.code == 0
    stdin(listed)
    assert shard_program("-T", "-", "-C", tmp_path, "-s", "4k", "list/pre").code == 0
    for bucket in ("set", "list"):
        bodies = [body for (b, _), body in sorted(fake.target.objects.items()) if b == bucket]
        members = [member for body in bodies for member in members_of(body)]
        assert members == [(name, name.encode()) for name in ("a.cls", "a.jpg", "b.cls", "b.jpg")]
    assert ("set", "pre-000001.tar") in fake.target.objects


def test_a_truncated_tar_leaves_no_half_shard(fake: Any, shard_program: Any, stdin: Any, archive: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes(archive.read_bytes()[:30_000])
    stdin(cut)
    ran = shard_program("-n", "4", "b/d-%06d.tar")
    assert ran.code == 1
    assert "standard input, at byte 30000" in ran.err
    assert "1 shards were stored; the unfinished one was not" in ran.err
    assert [name for _, name in fake.target.objects] == ["d-000000.tar"]
    assert len(members_of(fake.target.objects["b", "d-000000.tar"])) == 8


def test_a_failed_upload_is_tried_again(fake: Any, shard_program: Any, stdin: Any, archive: Path) -> None:
    fake.target.fail("PUT", status=503)
    fake.target.fail("PUT", hang_up=True, read_before=500)
    stdin(archive)
    assert shard_program("-n", "4", "b/d-%06d.tar").code == 0
    assert len(fake.target.objects) == 3


def test_an_upload_that_keeps_failing(fake: Any, shard_program: Any, stdin: Any, archive: Path) -> None:
    for _ in range(10):
        fake.target.fail("PUT", status=507, code="no_space")
    stdin(archive)
    ran = shard_program("-n", "1", "b/d-%06d.tar")
    assert ran.code == 1
    assert "said no_space" in ran.err
    assert fake.target.objects == {}


def test_warnings(fake: Any, shard_program: Any, stdin: Any, archive: Path, tmp_path: Path) -> None:
    fake.target.objects["b", "d-000003.tar"] = b"of an earlier run"
    archive.write_bytes(tar_of([(name, b"") for name in ("a.jpg", "b.jpg", "a.cls")]))
    stdin(archive)
    ran = shard_program("-n", "1", "b/d-%06d.tar")
    assert ran.code == 0
    assert "1 samples are split" in ran.err
    assert "d-000003.tar and maybe more shards exist from an earlier run" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [["d.tar"], ["-s", "x", "d-%06d.tar"], ["-n", "0", "d-%06d.tar"], [], ["a-%d.tar", "b-%d.tar"], ["-s", "0", "d-%d.tar"]],
)
def test_usage(fake: Any, shard_program: Any, stdin: Any, archive: Path, arguments: list[str]) -> None:
    stdin(archive)
    assert shard_program(*arguments).code == 2


def test_nothing_to_read(fake: Any, shard_program: Any, stdin: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    stdin(empty)
    assert shard_program("d-%06d.tar").code == 1
    stdin(empty)
    assert shard_program("-T", "-", "d-%06d.tar").code == 0
    empty.write_bytes(bytes(10_240))
    stdin(empty)
    assert shard_program("d-%06d.tar").code == 0
    assert fake.target.objects == {}
