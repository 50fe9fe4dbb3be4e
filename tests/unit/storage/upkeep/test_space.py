from __future__ import annotations

import errno
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFileSystem, fail_with

from dfc.errors import NoSpace
from dfc.filesystem import FileSystem, FileSystemSpace, file_system_id
from dfc.storage.health import SpaceKeeper


class Sized(FileSystem):
    """A file system that says how much is free."""

    free = 1000

    def space(self, path: str) -> FileSystemSpace:
        return FileSystemSpace(10_000, self.free)


def test_uploads_claim_what_they_announce_and_leave_the_reserve(tmp_path: Path) -> None:
    keeper = SpaceKeeper(str(tmp_path), Sized(), reserve_bytes=100, ballast_bytes=0)
    space = keeper.measure()
    assert space[:4] == (10_000, 9_000, 900, 100)
    assert space.file_system == file_system_id(str(tmp_path))
    keeper.claim(600)
    with pytest.raises(NoSpace):
        keeper.claim(301)
    with pytest.raises(NoSpace):
        keeper.require(301)
    keeper.require(300)
    keeper.release(100)
    keeper.claim(400)
    keeper.require_room()
    Sized.free = 99
    try:
        with pytest.raises(NoSpace):
            keeper.require_room()
    finally:
        Sized.free = 1000


def test_the_ballast_is_given_up_once_and_made_again(tmp_path: Path) -> None:
    keeper = SpaceKeeper(str(tmp_path), FileSystem(), reserve_bytes=0, ballast_bytes=8192)
    assert keeper.keep_ballast()
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 8192
    assert keeper.give_up_ballast()
    assert not (tmp_path / "ballast").exists()
    assert not keeper.give_up_ballast()
    assert keeper.keep_ballast()
    assert SpaceKeeper(str(tmp_path), FileSystem(), reserve_bytes=0, ballast_bytes=8192).keep_ballast()


def test_without_room_there_is_no_ballast_and_no_error(tmp_path: Path) -> None:
    assert not SpaceKeeper(str(tmp_path), Sized(), reserve_bytes=500, ballast_bytes=251).keep_ballast()
    filesystem = FaultyFileSystem(fail_with(errno.ENOSPC))
    filesystem.arm(1)
    assert not SpaceKeeper(str(tmp_path), filesystem, reserve_bytes=0, ballast_bytes=10).keep_ballast()
    assert list(tmp_path.iterdir()) == []
