"""Small objects that are stored together: none of them is the worse for another."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from copying import V1, V2, body, newer, version_of
from faulty_filesystem import FaultyFileSystem

from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest, ChecksumMismatch, NoSpace, StorageFailed
from dfc.storage.catalog.copies import AdoptOutcome, AdoptVerdict
from dfc.storage.copies import SmallCopy
from dfc.storage.rows import Supplied

NAMES = [f"{number:02d}" for number in range(20)]


def copy(name: str, **given: Any) -> SmallCopy:
    known = {"expected": ExpectedChecksums(), "supplied": Supplied(V1), "decide": newer(V1), **given}
    return SmallCopy("b", name, name.encode(), **known)


def refuse(_present: str | None) -> AdoptVerdict:
    raise BadRequest("no")


def kinds(found: list[Any]) -> list[type]:
    return [type(each) for each in found]


def test_they_share_a_commit_and_each_is_synced_before(open_disk: Any) -> None:
    filesystem = FaultyFileSystem()
    disk = open_disk(filesystem)
    disk.put_small("b", "first", b"x")
    filesystem.arm()
    found = disk.copies.adopt_small(map(copy, NAMES), "fsync")
    assert all(each.stored for each in found)
    called = filesystem.names
    assert (called.count("create"), called.count("fdatasync"), called.count("commit")) == (len(NAMES), len(NAMES), 1)
    last = {name: max(at for at, each in enumerate(called) if each == name) for name in called}
    assert last["write"] < called.index("fdatasync")
    assert last["fdatasync"] < called.index("sync_directory")
    assert last["sync_directory"] < called.index("commit") == len(called) - 1
    disk = open_disk.again()
    assert [(body(disk, name), version_of(disk, name)) for name in NAMES] == [(name.encode(), V1) for name in NAMES]


def test_one_alone_is_synced_before_its_commit(open_disk: Any) -> None:
    filesystem = FaultyFileSystem()
    disk = open_disk(filesystem)
    disk.put_small("b", "x", b"before")
    filesystem.arm()
    disk.put_small("b", "x", b"x")
    called = [name for name in filesystem.names if name not in ("close", "unlink")]
    assert called == ["create", "write", "fdatasync", "sync_directory", "commit"]


def test_one_of_them_that_is_refused_keeps_none_of_the_others(disk: Any, open_disk: Any) -> None:
    wrong = ExpectedChecksums(xxh3_128="0" * 32)
    shard = SmallCopy("b", "s.tar", bytes(1024), ExpectedChecksums(), Supplied(V1), newer(V1))
    found = disk.copies.adopt_small(
        [copy("a"), copy("b", expected=wrong), shard, copy("c", decide=refuse), copy("d", supplied=Supplied("?")), copy("e")],
        "fsync",
    )
    assert kinds(found) == [AdoptOutcome, ChecksumMismatch, AdoptOutcome, BadRequest, BadRequest, AdoptOutcome]
    assert sorted(row.name for row in disk.list("b", limit=100)) == ["a", "e", "s.tar"]
    assert len([path for path in open_disk.files() if not path.endswith(".idx")]) == 3


def test_two_versions_of_a_name_leave_the_newer_one(disk: Any, open_disk: Any) -> None:
    older, newest = copy("x"), copy("x", supplied=Supplied(V2), decide=newer(V2))
    assert [each.stored for each in disk.copies.adopt_small([newest, older], "fsync")] == [True, False]
    assert (version_of(disk, "x"), len(open_disk.files())) == (V2, 1)


@pytest.mark.parametrize(("call", "lost"), [("create", 1), ("write", 1), ("fdatasync", 1), ("close", 1), ("sync_directory", 2)])
def test_an_error_of_the_disk_is_that_of_the_files_it_concerns(open_disk: Any, call: str, lost: int) -> None:
    """A directory that is not synced concerns all names in it."""
    disk, failing = open_disk(filesystem := FaultyFileSystem()), []
    real = getattr(filesystem, call)

    def fail_once(*arguments: Any) -> Any:
        if not failing:
            failing.append(arguments)
            if call == "close":
                real(*arguments)
            raise OSError(errno.ENOSPC, "full")
        return real(*arguments)

    setattr(filesystem, call, fail_once)
    first = disk.parts.directories.make("b", "00")
    together = [name for name in map(str, range(1000)) if disk.parts.directories.make("b", name) == first][:2]
    names = [*together, *(name for name in NAMES if disk.parts.directories.make("b", name) != first)]
    found = disk.copies.adopt_small(map(copy, names), "fsync")
    assert kinds(found) == [*[NoSpace] * lost, *[AdoptOutcome] * (len(names) - lost)]
    assert [row.name for row in disk.list("b", limit=100)] == sorted(names[lost:])
    assert len(open_disk.files()) == len(names) - lost


def test_a_commit_that_fails_leaves_no_files(disk: Any, open_disk: Any) -> None:
    disk.parts.committer.close()
    assert kinds(disk.copies.adopt_small(map(copy, NAMES), "fsync")) == [StorageFailed] * len(NAMES)
    assert open_disk.files() == set()


def test_their_rows_are_kept_in_memory_only_if_that_is_said(disk: Any) -> None:
    """What moves here is not what is read now, and there may be millions of it."""

    def move(present: str | None) -> AdoptVerdict:
        return AdoptVerdict(taken=True, commits=present is None, stays_cached=False)

    disk.copies.adopt_small([copy("moved", decide=move), copy("written")], "fsync")
    assert disk.lookup_cached("b", "moved") is None
    assert disk.lookup_cached("b", "written") is not None
    assert disk.lookup("b", "moved").version == V1
    assert disk.lookup_cached("b", "moved") is not None
