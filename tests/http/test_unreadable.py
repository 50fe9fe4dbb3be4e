"""A medium that cannot give an object's bytes: every way of reading them tells the disk, which looks a second time before it
stops serving the object. An I/O error on demand takes a patched system call; truncated files are real."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from inprocess import InProcess
from job_shards import tar_of

from dfc.filesystem import FileSystem

MEMBERS = [(f"{number:04d}.bin", os.urandom(99_000)) for number in range(8)]
SHARD = tar_of(MEMBERS)
ITEMS = {"items": [{"bucket": "b", "object": "s.tar", "number": number} for number in range(8)]}
# method, path, body; whether the answer has begun when the error is met
READS: dict[str, tuple[str, str, Any, bool]] = {
    "sendfile": ("GET", "/b/s.tar", None, True),
    "small object": ("GET", "/b/small", None, False),
    "large member": ("GET", "/b/s.tar?member=0003.bin", None, True),
    "small member": ("GET", "/b/t.tar?member=a.txt", None, False),
    "sample": ("GET", "/b/s.tar?sample=0003", None, True),
    "batch": ("POST", "/v1/batch", ITEMS, True),
    "compressed member": ("GET", "/b/c.tgz?member=0003.bin", None, True),
}
NAMES = {"small object": "small", "small member": "t.tar", "compressed member": "c.tgz"}


class Medium:
    """Fails reads of one blob, by its inode. `seconds` says whether the second look fails too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inode = 0
        self.seconds = False
        self.failed = 0
        for name in ("sendfile", "pread", "preadv"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name), 1 if name == "sendfile" else 0))
        reading = FileSystem.pread

        def second_look(filesystem: FileSystem, fd: int, size: int, offset: int) -> bytes:
            before, self.inode = self.inode, self.inode if self.seconds else 0
            try:
                return reading(filesystem, fd, size, offset)
            finally:
                self.inode = before

        self._second_look = second_look
        monkeypatch.setattr(FileSystem, "pread", second_look)

    def _failing(self, call: Any, position: int) -> Any:
        def checked(*arguments: Any, **named: Any) -> Any:
            if self.inode and os.fstat(arguments[position]).st_ino == self.inode:
                self.failed += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **named)

        return checked


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    made = await InProcess(tmp_path).start(1)
    for name, body in {
        "s.tar": SHARD, "small": b"x" * 1000, "t.tar": tar_of([("a.txt", b"a" * 100)]), "c.tgz": gzip.compress(SHARD, 1),
    }.items():  # fmt: skip
        assert (await made.ask("PUT", f"/b/{name}", body))[0] == 201
    yield made
    await made.stop()


async def read(cluster: InProcess, method: str, path: str, body: Any) -> tuple[int, str]:
    """Status and the code of the error; "cut" when the answer broke off."""
    try:
        async with cluster.session.request(
            method, cluster.targets[0]._url + path, data=msgspec.json.encode(body) if body else None
        ) as answer:
            content = await answer.read()
            return answer.status, "" if answer.status == 200 else msgspec.json.decode(content)["error"]["code"]
    except aiohttp.ClientError:
        return 200, "cut"


def states(cluster: InProcess) -> tuple[Any, list[str], int]:
    """The disk, the names that are quarantined, and the answers that were cut."""
    target = cluster.targets[0]
    disk = next(iter(target.local.disks.values()))
    return disk, [found.name for found in disk.quarantined()], sum(target.server.stats.cut.values())


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("way", READS)
async def test_a_read_error_of_the_medium_reaches_the_disk(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, way: str, lasting: bool
) -> None:
    method, path, body, begun = READS[way]
    name = NAMES.get(way, "s.tar")
    assert await read(cluster, method, path, body) == (200, "")
    disk, _, _ = states(cluster)
    bucket = cluster.targets[0].local.map.bucket("b")
    assert bucket is not None
    medium = Medium(monkeypatch)
    if way in ("small object", "small member"):
        # Not the reads that must not wait: they are given up, and a thread meets the error.
        monkeypatch.setattr("dfc.target.objects.read_object", lambda *arguments: None)
        monkeypatch.setattr("dfc.target.objects.read_range", lambda *arguments: None)
    medium.seconds = lasting or way == "small object"
    medium.inode = os.stat(disk.blob_path(disk.lookup(bucket.id, name))).st_ino
    status, code = await read(cluster, method, path, body)
    medium.inode = 0
    disk, quarantined, cut = states(cluster)
    assert medium.failed >= 1
    assert disk.stats.io_errors == 1
    assert disk.state == "up"
    is_quarantined = lasting or way == "small object"
    assert quarantined == ([name] if is_quarantined else [])
    if begun:
        assert ((status, code), cut) == ((200, "cut"), 1)
    else:
        assert ((status, code), cut) == ((500, "object_corrupt" if is_quarantined else "storage_failed"), 0)
    expected = (500, "object_corrupt") if is_quarantined else (200, "")
    assert await read(cluster, "GET", f"/b/{name}", None) == expected


@pytest.mark.parametrize("way", ["sendfile", "large member", "sample", "batch"])
async def test_a_blob_that_shrinks_under_a_reader_is_quarantined(cluster: InProcess, way: str) -> None:
    """The file is cut after it was opened: what every check at the opening cannot see."""
    method, path, body, _ = READS[way]
    disk, _, _ = states(cluster)
    opening = disk.open_blob

    def open_then_cut(row: Any) -> int:
        file: int = opening(row)
        os.truncate(disk.blob_path(row), 4096)
        return file

    disk.open_blob = open_then_cut
    assert await read(cluster, method, path, body) == (200, "cut")
    disk.open_blob = opening
    disk, quarantined, cut = states(cluster)
    assert (quarantined, cut, disk.stats.io_errors) == (["s.tar"], 1, 1)
    assert await read(cluster, "GET", "/b/s.tar", None) == (500, "object_corrupt")
