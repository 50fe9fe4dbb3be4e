"""Fixtures of the storage tests: disks in memory where there is some, without background threads unless asked for."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dfc.clock import HybridClock
from dfc.filesystem import FileSystem
from dfc.storage import Disk, DiskOptions
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

CLUSTER = "cluster-1"


@pytest.fixture
def fast_directory(tmp_path: Path) -> Iterator[Path]:
    """A directory whose fsync costs nothing, where the machine has one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as directory:
        yield Path(directory)


class Disks:
    """Opens one formatted disk, again and again; closes what a test leaves open."""

    def __init__(self, root: Path) -> None:
        self.root = root / "disk"
        self._open: list[Disk] = []
        Disk.format(str(self.root), CLUSTER, "disk-1")

    def __call__(self, filesystem: FileSystem | None = None, *, clock: HybridClock | None = None, **changes: Any) -> Disk:
        values = {"reserve_bytes": 0, "ballast_bytes": 0, "maintenance": False, "boot_id": "boot-1", **changes}
        disk = Disk.open(str(self.root), CLUSTER, clock or HybridClock(7), DiskOptions(**values), filesystem)
        self._open.append(disk)
        return disk

    def close(self) -> None:
        for disk in self._open:
            disk.close()

    def again(self, *given: Any, **changes: Any) -> Disk:
        """Close the disk, and open it again."""
        self.close()
        return self(*given, **changes)

    def rebuilt(self, *, full: bool = False, **changes: Any) -> Disk:
        """Close the disk, make its catalog anew, and open it again."""
        self.close()
        rebuild(str(self.root), full=full)
        return self(**changes)

    def problems(self, *, full: bool = True) -> dict[str, int]:
        """Close the disk, and count what a check of it finds."""
        self.close()
        return check(str(self.root), full=full).counts

    def files(self) -> set[str]:
        """Files below objects/, relative to it."""
        objects = self.root / "objects"
        return {str(file.relative_to(objects)) for file in objects.rglob("*") if file.is_file()}


@pytest.fixture
def open_disk(fast_directory: Path) -> Iterator[Disks]:
    disks = Disks(fast_directory)
    yield disks
    disks.close()


@pytest.fixture
def disk(open_disk: Disks) -> Disk:
    return open_disk()


@pytest.fixture
def tar_of() -> Callable[..., bytes]:
    """Makes a small valid archive of so many members."""

    def make(members: int, size: int = 700) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for number in range(members):
                info = tarfile.TarInfo(f"{number:04d}.bin")
                info.size = size
                archive.addfile(info, io.BytesIO(bytes([number % 256]) * size))
        return file.getvalue()

    return make
