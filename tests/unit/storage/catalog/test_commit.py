from __future__ import annotations

import errno
import os
import sqlite3
import threading
from typing import Any

import pytest
from calls import raising
from faulty_filesystem import FaultyFileSystem, commit_and_fail, fail_with, sqlite_error

from dfc.errors import NoSpace, ObjectNotFound, StorageFailed
from dfc.filesystem import FileSystem
from dfc.storage import Precondition
from dfc.storage.catalog.changes import Delete, Put
from dfc.storage.catalog.commit import OutcomeUnknown, _Ticket


class HeldCommits(FileSystem):
    """COMMITs that wait to be let go, so that a batch gathers meanwhile."""

    def __init__(self) -> None:
        self.hold = False
        self.began = threading.Event()
        self.go_on = threading.Event()

    def commit(self, connection: sqlite3.Connection) -> None:
        if self.hold:
            self.began.set()
            assert self.go_on.wait(10)
        super().commit(connection)


def test_operations_that_wait_share_one_transaction_and_fail_one_by_one(open_disk: Any) -> None:
    filesystem = HeldCommits()
    disk = open_disk(filesystem)
    disk.put_small("b", "there", b"x")
    filesystem.hold = True
    commits = disk.stats.commits
    first = threading.Thread(target=disk.put_small, args=("b", "first", b"x"))
    first.start()
    assert filesystem.began.wait(10)
    errors: list[str] = []

    def delete(name: str) -> None:
        try:
            disk.delete("b", name)
        except ObjectNotFound:
            errors.append(name)

    threads = [threading.Thread(target=disk.put_small, args=("b", f"n{n}", b"x")) for n in range(20)]
    threads += [threading.Thread(target=delete, args=(name,)) for name in ("there", "absent")]
    for thread in threads:
        thread.start()
    while disk.parts.committer._queue.qsize() < 22:
        assert all(thread.is_alive() for thread in threads)
    filesystem.go_on.set()
    for thread in [first, *threads]:
        thread.join()
    assert disk.stats.commits - commits == 2
    assert errors == ["absent"]
    assert disk.counts("b") == (21, 21)


def test_a_full_catalog_gets_the_ballast_and_goes_on(open_disk: Any) -> None:
    filesystem = FaultyFileSystem(fail_with(errno.ENOSPC))
    disk = open_disk(filesystem, ballast_bytes=4096)
    disk.put_small("b", "a", b"x")
    filesystem.arm(0)
    disk.delete("b", "a")
    assert filesystem.names[:3] == ["commit", "unlink", "commit"]
    assert not os.path.exists(os.path.join(disk.path, "ballast"))
    assert disk.counts("b") == (0, 0)


class FullForPuts(FileSystem):
    """COMMITs that find no space while a put is in the transaction."""

    full = False

    def commit(self, connection: sqlite3.Connection) -> None:
        if self.full and connection.execute("SELECT 1 FROM objects WHERE name = CAST('new' AS BLOB)").fetchone():
            raise sqlite_error()
        super().commit(connection)


def test_on_a_full_disk_deletes_go_through_and_puts_beside_them_fail(open_disk: Any) -> None:
    filesystem = FullForPuts()
    disk = open_disk(filesystem)
    disk.put_small("b", "a", b"x")
    writer = disk.begin_put("b", "new", size=0)
    row = writer.finish()
    filesystem.full = True
    put = _Ticket(Put(row, Precondition()))
    delete = _Ticket(Delete("b", "a", Precondition(), disk.parts.clock))
    disk.parts.committer._queue.put(put)
    disk.parts.committer._queue.put(delete)
    for ticket in (put, delete):
        assert ticket.done.acquire(timeout=10)
    assert isinstance(put.error, NoSpace)
    assert delete.error is None
    assert disk.state == "up"
    writer.abort()
    assert disk.counts("b") == (0, 0)


def test_an_unknown_outcome_ends_writing_and_touches_no_blob(open_disk: Any) -> None:
    filesystem = FaultyFileSystem(commit_and_fail)
    disk = open_disk(filesystem)
    disk.put_small("b", "a", b"old")
    filesystem.arm(0, every=1)
    with pytest.raises(OutcomeUnknown):
        disk.put_small("b", "a", b"new")
    filesystem.arm()
    assert disk.state == "failed"
    assert "COMMIT" in str(disk.failure)
    assert len(open_disk.files()) == 2
    with pytest.raises(StorageFailed, match="accepts no writes"):
        disk.put_small("b", "b", b"x")
    disk = open_disk.again()
    disk.sweep()
    assert disk.read_small(disk.lookup("b", "a")) == b"new"
    assert len(open_disk.files()) == 1


def test_the_log_is_merged_now_and_then(open_disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfc.storage.catalog.commit._CHECKPOINT_PAGES", 50)
    disk = open_disk()
    for number in range(200):
        disk.put_small("b", f"n{number}", b"x", durability="relaxed")
    assert os.path.getsize(disk.parts.catalog.path + "-wal") < 100 * 4152
    assert disk.counts("b") == (200, 200)


def test_an_unexpected_error_is_the_callers_and_not_the_committers(disk: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        disk.put_small("b", "a", b"x", precondition=Precondition(guard=raising(ZeroDivisionError())))
    disk.put_small("b", "a", b"x")
