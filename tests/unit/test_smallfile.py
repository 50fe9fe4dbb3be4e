from __future__ import annotations

import os
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFileSystem, fail_with

from dfc.errors import OperatorError
from dfc.filesystem import FileSystem, SmallFileDamaged, make_directories, read_small_file, write_small_file


class Recorded(FileSystem):
    """Says what was done, with the last two components of each path."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def _note(self, what: str, path: str) -> None:
        self.did.append(f"{what} {'/'.join(path.split('/')[-2:])}")

    def sync_directory(self, path: str) -> None:
        self._note("sync", path)
        super().sync_directory(path)

    def make_directory(self, path: str) -> None:
        self._note("make", path)
        super().make_directory(path)

    def rename(self, source: str, destination: str) -> None:
        self._note("rename", destination)
        super().rename(source, destination)

    def fdatasync(self, fd: int) -> None:
        self._note("sync", os.readlink(f"/proc/self/fd/{fd}"))
        super().fdatasync(fd)


def test_a_file_is_durable_before_it_has_its_name_and_its_name_before_the_end(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    filesystem = Recorded()
    write_small_file(str(tmp_path / "d" / "a"), b"one\n", filesystem)
    assert filesystem.did == ["sync d/a.new", "rename d/a", f"sync {tmp_path.name}/d"]
    assert read_small_file(str(tmp_path / "d" / "a"), "") == b"one\n"
    write_small_file(str(tmp_path / "d" / "a"), b"two\n", FileSystem())
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["a"]
    assert read_small_file(str(tmp_path / "d" / "a"), "") == b"two\n"


def test_what_a_crash_left_of_another_writing_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "a.new").write_bytes(b"half of someth")
    write_small_file(str(tmp_path / "a"), b"all", FileSystem(), 0o600)
    assert (tmp_path / "a").read_bytes() == b"all"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "a.new").exists()


@pytest.mark.parametrize("call", range(6))
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, call: int) -> None:
    write_small_file(str(tmp_path / "a"), b"old", FileSystem())
    filesystem = FaultyFileSystem(fail_with(5))
    filesystem.arm(call)
    with pytest.raises(OSError):
        write_small_file(str(tmp_path / "a"), b"new", filesystem)
    # Only the sync of the directory comes after the rename: then it is whole, and perhaps not durable.
    assert (tmp_path / "a").read_bytes() == (b"new" if filesystem.names[call] == "sync_directory" else b"old")


def test_directories_are_durable_from_the_deepest_that_was_there(tmp_path: Path) -> None:
    filesystem = Recorded()
    make_directories(str(tmp_path / "a" / "b"), filesystem)
    above = "/".join(str(tmp_path.parent).split("/")[-2:])
    here = "/".join(str(tmp_path).split("/")[-2:])
    name = tmp_path.name
    assert filesystem.did == [f"sync {above}", f"make {name}/a", f"sync {here}", "make a/b", f"sync {name}/a"]
    # Whoever made it may have been killed before the sync, so it is synced again.
    filesystem.did = []
    make_directories(str(tmp_path / "a" / "b"), filesystem)
    assert filesystem.did == [f"sync {name}/a"]


def test_a_directory_below_one_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    filesystem = FileSystem()
    monkeypatch.setattr(filesystem, "sync_directory", forbidden)
    make_directories(str(tmp_path), filesystem)
    with pytest.raises(PermissionError):
        make_directories(str(tmp_path / "new"), filesystem)  # that one could not be made durable


@pytest.mark.parametrize(
    ("left", "what"),
    [(b"", "is empty"), (b"\0" * 40, "nothing but blanks"), (b"\n", "nothing but blanks"), (b"x" * 70_000, "longer")],
)
def test_a_damaged_file_says_where_it_is_and_what_to_do(tmp_path: Path, left: bytes, what: str) -> None:
    path = tmp_path / "a"
    assert read_small_file(str(path), "Do this") is None
    path.write_bytes(left)
    with pytest.raises(SmallFileDamaged, match=what) as caught:
        read_small_file(str(path), "Do this")
    assert caught.value.message.startswith(str(path))
    assert caught.value.message.endswith(". Do this")
    assert isinstance(caught.value, OperatorError)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(SmallFileDamaged, match="cannot be read"):
        read_small_file(str(tmp_path / "a"), "")
