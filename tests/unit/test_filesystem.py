from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFileSystem, write_short

from dfc.filesystem import FileSystem, remove_if_there, write_all


def test_a_file_is_created_only_once_and_links_are_not_followed(tmp_path: Path) -> None:
    filesystem = FileSystem()
    filesystem.close(filesystem.create(str(tmp_path / "a")))
    with pytest.raises(FileExistsError):
        filesystem.create(str(tmp_path / "a"))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError) as caught:
        filesystem.open(str(tmp_path / "link"))
    assert caught.value.errno == errno.ELOOP


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    filesystem = FileSystem()
    fd = filesystem.create(str(tmp_path / "a"))
    write_all(filesystem, fd, b"hello world")
    filesystem.pwrite(fd, b"J", 0)
    filesystem.start_writeback(fd, 0, 11)
    filesystem.start_writeback(fd, 0, 11, wait=True)
    filesystem.fdatasync(fd)
    filesystem.sync_directory(str(tmp_path))
    filesystem.sync_all(str(tmp_path))
    buffer = bytearray(20)
    assert filesystem.read_into(fd, memoryview(buffer), 6) == 5
    assert (filesystem.pread(fd, 100, 0), bytes(buffer[:5])) == (b"Jello world", b"world")
    filesystem.truncate(fd, 3)
    filesystem.allocate(fd, 8192)
    assert os.fstat(fd).st_size == 8192
    filesystem.close(fd)
    filesystem.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    remove_if_there(filesystem, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert os.listdir(tmp_path) == []


def test_short_writes_go_on_until_all_is_written(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem(write_short)
    filesystem.arm(0, every=1)
    fd = filesystem.create(str(tmp_path / "a"))
    data = os.urandom(1000)
    write_all(filesystem, fd, data)
    assert filesystem.pread(fd, 2000, 0) == data
    assert filesystem.names.count("write") > 5
    filesystem.close(fd)


def test_a_pipe_has_no_writeback_and_that_is_no_error() -> None:
    reader, writer = os.pipe()
    FileSystem().start_writeback(writer, 0, 10)
    os.close(reader)
    os.close(writer)


def test_writeback_of_a_closed_descriptor_is_an_error() -> None:
    with pytest.raises(OSError) as caught:
        FileSystem().start_writeback(999_999, 0, 10)
    assert caught.value.errno == errno.EBADF


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    space = FileSystem().space(str(tmp_path))
    assert 0 < space.free <= space.capacity
