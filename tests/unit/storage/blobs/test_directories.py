from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dfc.filesystem import FileSystem
from dfc.storage.parts import Directories


class SlowSync(FileSystem):
    """An fsync of a directory that lasts until it is let go."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.began = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: OSError | None = None

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)
        self.began.release()
        assert self.go_on.acquire(timeout=60)
        if self.error is not None:
            raise self.error


class CountingSync(FileSystem):
    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_directory(self, path: str) -> None:
        self.synced.append(path)


def test_parents_are_synced_once_and_the_directory_every_time(tmp_path: Path) -> None:
    filesystem = CountingSync()
    (tmp_path / "objects").mkdir()
    directories = Directories(str(tmp_path), filesystem)
    path = directories.make("b", "name")
    directories.sync_chain(path)
    bucket, objects = f"{tmp_path}/objects/b", f"{tmp_path}/objects"
    assert filesystem.synced == [path, bucket, objects]
    directories.sync_chain(path)
    assert filesystem.synced[3:] == [path]
    directories.forget("b")
    directories.sync_chain(directories.make("b", "name"))
    assert filesystem.synced[4:] == [path, bucket, objects]


def test_threads_that_ask_while_a_sync_runs_share_the_next(tmp_path: Path) -> None:
    filesystem = SlowSync()
    directories = Directories(str(tmp_path), filesystem)
    threads = [threading.Thread(target=directories.sync, args=("d",)) for _ in range(8)]
    threads[0].start()
    assert filesystem.began.acquire(timeout=60)
    for thread in threads[1:]:
        thread.start()
    while len(directories._next) == 0 or sum(thread.is_alive() for thread in threads) < 8:
        pass
    filesystem.go_on.release()
    assert filesystem.began.acquire(timeout=60)
    for _ in range(8):
        filesystem.go_on.release()
    for thread in threads:
        thread.join(60)
    assert 2 <= len(filesystem.synced) < 8  # more than two when threads came after the second had begun
    assert not directories._running
    assert not directories._next


def test_a_failed_sync_is_everybodys_who_waited_for_it(tmp_path: Path) -> None:
    filesystem = SlowSync()
    filesystem.error = OSError(5, "I/O error")
    filesystem.go_on.release()
    directories = Directories(str(tmp_path), filesystem)
    with pytest.raises(OSError, match="I/O error"):
        directories.sync("d")
    filesystem.error = None
    filesystem.go_on.release()
    directories.sync("d")
