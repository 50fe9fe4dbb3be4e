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


# The disk of the fixture below, as a program of disk format 3 left it when it was killed: with a log beside the catalog. In the
# bucket "b" are `plain`, the shard `x.tar` with its index, the tombstone of `deleted`, `replaced`, whose new blob was not
# synced, and `bad`, whose blob was damaged and which is in quarantine; `staged` is staged for the job "job-1"; the bucket
# "removed" is gone. It was made, with the code of commit 58d0715, by a child that did not close the disk:
#
#     disk = Disk.open(root, "cluster-1", HybridClock(7), DiskOptions(maintenance=False, boot_id="boot-1", …))
#     for name, body in {"plain": b"plain", "x.tar": archive, "replaced": b"before", "deleted": b"gone", "bad": b"bad"}.items():
#         disk.put_small("b", name, body)
#     disk.delete("b", "deleted")
#     disk.put_small("removed", "x", b"x")
#     disk.remove_bucket("removed")
#     writer = disk.begin_put("b", "staged", size=6, staged=StagedName("job-1"))
#     writer.write(b"staged"), writer.finish(), writer.commit()
#     Path(disk.blob_path(disk.find("b", "bad"))).open("r+b").write(b"BAD")
#     disk.read_small(disk.lookup("b", "bad"))  # raises ObjectCorrupt
#     disk.put_small("b", "replaced", b"after", durability="relaxed")
#     os._exit(0)
FORMAT_3 = Path(__file__).parents[2] / "data" / "disk-format-3.tar.gz"


@pytest.fixture
def format_3(fast_directory: Path) -> Path:
    """A disk in format 3 with something in each table."""
    with tarfile.open(FORMAT_3) as archive:
        archive.extractall(fast_directory, filter="data")
    return fast_directory / "disk"


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
