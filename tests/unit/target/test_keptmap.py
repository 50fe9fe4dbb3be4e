"""The map on a target's disks: written when it changes, read even if some of the files are damaged."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dfc.errors import StorageFailed, Unavailable
from dfc.filesystem import FileSystem
from dfc.placement.map import BucketEntry, ClusterMap
from dfc.registry.messages import FILE, read_maps, write_map
from dfc.target import membership
from dfc.target.membership import MapKeeper


def map_of(version: int, buckets: int = 1) -> ClusterMap:
    entries = tuple(BucketEntry(id=f"b{number}", name=f"bucket-{number}") for number in range(buckets))
    return ClusterMap(cluster_id="c", version=version, buckets=entries)


def directories(tmp_path: Path, count: int) -> list[str]:
    found = [tmp_path / str(number) for number in range(count)]
    for each in found:
        each.mkdir()
    return [str(each) for each in found]


def test_the_newest_of_several_is_read(tmp_path: Path) -> None:
    paths = directories(tmp_path, 4)
    assert read_maps(paths, "c") is None
    for path, version in zip(paths, (3, 9, 4), strict=False):
        write_map(path, map_of(version, 30_000), FileSystem())  # 3 MB: longer than what is a small file otherwise
    assert read_maps(paths, "c") == map_of(9, 30_000)
    write_map(paths[1], map_of(2), FileSystem())
    assert read_maps(paths, "c") == map_of(4, 30_000)
    write_map(paths[3], ClusterMap(cluster_id="other", version=99), FileSystem())
    assert read_maps(paths, "c") == map_of(4, 30_000)
    assert read_maps(paths, "none") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"{",
        b"[]",
        b'{"format": 1}',
        b'{"format": 2, "map": {}}',
        b'{"format": 1, "map": {"cluster_id": "\xff\xfe", "version": 1}}',
        b'{"x": ' + b"[" * 100_000,
    ],
)
def test_what_is_damaged_is_skipped_and_named(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    paths = directories(tmp_path, 2)
    (tmp_path / "0" / FILE).write_bytes(content)
    assert read_maps(paths, "c") is None
    assert f"{tmp_path}/0/{FILE} is not used" in caplog.text
    write_map(paths[1], map_of(1), FileSystem())
    assert read_maps(paths, "c") == map_of(1)


def test_another_format_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = directories(tmp_path, 1)
    write_map(path, map_of(1), FileSystem())
    kept = json.loads((tmp_path / "0" / FILE).read_bytes())
    (tmp_path / "0" / FILE).write_text(json.dumps({**kept, "format": 2}))
    assert read_maps([path], "c") is None
    assert "it is of format 2, and this version of DFC reads format 1" in caplog.text


class Node:
    """As much of a target as the keeper sees: disks whose threads can be made to fail or hang."""

    def __init__(self, paths: list[str]) -> None:
        self.map = map_of(1)
        self.disks = [SimpleNamespace(id=f"d{number}", path=path) for number, path in enumerate(paths)]
        self.broken: set[str] = set()
        self.hanging: set[str] = set()
        self.written: list[tuple[str, int]] = []

    def in_order(self) -> list[Any]:
        return self.disks

    def threads(self, disk: Any) -> Any:
        async def write(function: Any, path: str, newest: ClusterMap, filesystem: FileSystem) -> None:
            if disk.id in self.hanging:
                await asyncio.Event().wait()
            if disk.id in self.broken:
                raise StorageFailed("input/output error")
            function(path, newest, filesystem)
            self.written.append((disk.id, newest.version))

        async def read(function: Any, path: str) -> ClusterMap | None:
            found: ClusterMap | None = function(path)
            return found

        return SimpleNamespace(write=write, read=read)


async def test_a_write_waits_for_the_map_with_its_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the usual second; and not for ever, if the disk takes no map."""
    monkeypatch.setattr(membership, "KEEP_S", 30.0)
    monkeypatch.setattr(membership, "HURRY_S", 0.5)
    node = Node(directories(tmp_path, 2))
    keeper = MapKeeper(node, FileSystem())  # type: ignore[arg-type]
    await keeper.until_kept("d0", "b0")  # nothing is kept before the start
    keeper.start()
    node.hanging = {"d1"}
    await asyncio.wait_for(keeper.until_kept("d0", "b0"), 10)
    assert node.written == [("d0", 1)]
    node.map = map_of(2, 2)
    await asyncio.wait_for(keeper.until_kept("d0", "b0"), 0.1)  # it has that
    assert node.written == [("d0", 1)]
    await asyncio.gather(*(asyncio.wait_for(keeper.until_kept("d0", "b1"), 10) for _ in range(3)))
    assert node.written == [("d0", 1), ("d0", 2)]
    assert read_maps([node.disks[0].path], "c") == map_of(2, 2)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(keeper.until_kept("d1", "b0"), 10)
    await keeper.stop()
    node.hanging, node.broken, node.written = set(), {"d1"}, []
    again = MapKeeper(node, FileSystem())  # type: ignore[arg-type]
    again.start()
    await asyncio.wait_for(again.until_kept("d1", "b1"), 0.4)  # the write is refused for itself, if it is
    await asyncio.wait_for(again.until_kept("d0", "b1"), 10)  # what is on the disk is known after a restart
    assert node.written == []
    await again.stop()


async def test_each_disk_gets_each_map_that_lasts_and_one_that_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(membership, "KEEP_S", 0.01)
    monkeypatch.setattr(membership, "KEEP_AGAIN_S", 0.05)
    node = Node(directories(tmp_path, 3))
    node.hanging, node.broken = {"d0"}, {"d1"}
    keeper = MapKeeper(node, FileSystem())  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "dfc.target"):
        keeper.start()
        await asyncio.sleep(0.2)
        assert node.written == [("d2", 1)], "a map that stays is written once"
        node.map = map_of(2)
        await asyncio.sleep(0.2)
        assert node.written == [("d2", 1), ("d2", 2)]
        node.broken.clear()
        await asyncio.sleep(0.2)
        assert node.written[2:] == [("d1", 2)]
    assert [record.getMessage() for record in caplog.records] == [
        "cannot keep the cluster map on disk d1: input/output error"
    ], "said once"
    await keeper.stop()
    assert read_maps([disk.path for disk in node.disks], "c") == map_of(2)
