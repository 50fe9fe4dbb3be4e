"""A file system with nothing left: uploads are 507 and leave nothing, deletes and reads work, opening works.

Real small file systems where mounting is allowed, and everywhere one whose limit is kept by the seam.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dfc.clock import HybridClock
from dfc.errors import NoSpace, ObjectNotFound
from dfc.filesystem import FileSystem, FileSystemSpace
from dfc.limits import KIB, MIB
from dfc.storage import Disk


class LimitedFileSystem(FileSystem):
    """Counts the bytes below `objects/` and the ballast against a limit."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root
        self._limit = limit

    def _free(self) -> int:
        files = (file for file in self._root.rglob("*") if file.is_file() and "catalog" not in file.name)
        return self._limit - sum(file.stat().st_size for file in files)

    def write(self, fd: int, data: Any) -> int:
        free = self._free()
        if free <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, memoryview(data)[:free])

    def space(self, path: str) -> FileSystemSpace:
        return FileSystemSpace(self._limit, self._free())


def mounted(kind: str, where: Path) -> bool:
    """Mount a file system of 16 MiB; False where that is not allowed."""
    where.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(where)]
    else:
        image = where.parent / "image"
        with open(image, "wb") as file:
            file.truncate(16 * MIB)
        if not shutil.which("mkfs.ext4") or subprocess.run(["mkfs.ext4", "-q", str(image)], check=False).returncode:
            return False
        command = ["mount", "-o", "loop", str(image), str(where)]
    return bool(shutil.which("mount")) and subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.fixture(params=["limited", "tmpfs", "ext4"])
def small(request: Any, tmp_path: Path) -> Iterator[tuple[Path, FileSystem]]:
    """The root of a disk on a file system of 16 MiB. What cannot be mounted is replaced by the seam's own limit."""
    root = tmp_path / "small"
    if request.param == "limited" or not mounted(request.param, root):
        root.mkdir(exist_ok=True)
        yield root, LimitedFileSystem(root, 16 * MIB)
        return
    try:
        yield root, FileSystem()
    finally:
        subprocess.run(["umount", str(root)], check=True)


def fill(path: Path, filesystem: FileSystem) -> None:
    """Use up every byte from outside."""
    if isinstance(filesystem, LimitedFileSystem):
        filesystem._limit -= filesystem._free()
        return
    piece = MIB
    with open(path, "wb", buffering=0) as file:
        while piece:
            try:
                file.write(bytes(piece))
            except OSError:
                piece //= 2
        os.fsync(file.fileno())


def files(root: Path) -> set[Path]:
    return {file for file in (root / "objects").rglob("*") if file.is_file()}


@pytest.mark.parametrize("size", [None, 40 * KIB])
def test_a_full_disk_refuses_uploads_and_still_deletes(lab: Any, small: tuple[Path, FileSystem], size: int | None) -> None:
    root, filesystem = small
    path = str(root)
    Disk.format(path, lab.cluster)
    options = lab.options(reserve_bytes=0, ballast_bytes=512 * KIB, writeback_bytes=16 * KIB)
    disk = Disk.open(path, lab.cluster, HybridClock(1), options, filesystem)
    for number in range(40):
        disk.put_small("b", f"n{number}", bytes(50 * KIB))
    fill(root / "filler", filesystem)
    before = files(root)
    with pytest.raises(NoSpace):
        disk.put_small("b", "more", bytes(40 * KIB))
    with pytest.raises(NoSpace):
        upload(disk, bytes(40 * KIB), size)
    assert files(root) == before
    assert disk.state == "up"
    assert disk.read_small(disk.lookup("b", "n0")) == bytes(50 * KIB)
    for number in range(20):
        disk.delete("b", f"n{number}")
    upload(disk, bytes(40 * KIB), size)
    disk.close()
    disk = Disk.open(path, lab.cluster, HybridClock(1), options, filesystem)
    assert disk.counts("b") == (21, 20 * 50 * KIB + 40 * KIB)
    with pytest.raises(ObjectNotFound):
        disk.lookup("b", "n3")
    disk.close()


def upload(disk: Disk, data: bytes, size: int | None) -> None:
    writer = disk.begin_put("b", "large", size=size)
    for start in range(0, len(data), 10_000):
        writer.write(data[start : start + 10_000])
    writer.finish()
    writer.commit()


def test_a_disk_that_is_full_can_be_opened_and_emptied(lab: Any, small: tuple[Path, FileSystem]) -> None:
    root, filesystem = small
    path = str(root)
    Disk.format(path, lab.cluster)
    options = lab.options(ballast_bytes=2 * MIB)
    disk = Disk.open(path, lab.cluster, HybridClock(1), options, filesystem)
    for number in range(100):
        disk.put_small("b", f"n{number}", bytes(10 * KIB))
    disk.close()
    fill(root / "filler", filesystem)
    disk = Disk.open(path, lab.cluster, HybridClock(1), options, filesystem)
    assert not (root / "ballast").exists()
    assert disk.remove_bucket("b") == 100
    assert disk.totals() == (0, 0)
    disk.close()
