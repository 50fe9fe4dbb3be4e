from __future__ import annotations

import base64
import errno
import hashlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from copying import written
from harness import own_files

from dfc.checksum import ExpectedChecksums, checksum_of
from dfc.errors import ChecksumMismatch, LengthMismatch, NoSpace, StorageFailed, TooLarge, Unavailable
from dfc.filesystem import FileSystem, FileSystemSpace
from dfc.storage import Disk, Precondition
from dfc.storage.rows import OtherCondition

BODY = os.urandom(100_000)


class Recording(FileSystem):
    """Notes the calls that matter for when bytes reach the medium."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.free = 1 << 40

    def start_writeback(self, fd: int, offset: int, size: int, *, wait: bool = False) -> None:
        self.calls.append(("writeback", offset, size, wait))

    def fdatasync(self, fd: int) -> None:
        self.calls.append(("fdatasync",))

    def space(self, path: str) -> FileSystemSpace:
        return FileSystemSpace(1 << 41, self.free)


def put(disk: Disk, name: str, body: bytes, piece: int = 7000, **named: Any) -> Any:
    writer = disk.begin_put("b", name, size=len(body), **named)
    for start in range(0, len(body), piece):
        writer.write(memoryview(body)[start : start + piece])
    writer.finish()
    return writer.commit()


def write_and_finish(writer: Any, data: bytes) -> None:
    writer.write(data)
    writer.finish()


def test_an_upload_in_pieces_is_stored_whole(disk: Disk) -> None:
    result = put(disk, "a/b.bin", BODY)
    row = result.row
    assert (row.size, row.checksum, row.samples) == (100_000, checksum_of(BODY), None)
    assert (result.replaced, result.warnings) == (False, ())
    fd = disk.open_blob(row)
    assert os.pread(fd, 200_000, 0)[: row.size] == BODY
    os.close(fd)


def test_a_shard_is_indexed_while_it_arrives(disk: Disk, tar_of: Callable[..., bytes]) -> None:
    row = put(disk, "s.tar", tar_of(50)).row
    assert (row.samples, row.members) == (50, 50)
    assert os.path.exists(disk.index_path(row))
    assert disk.cached_index(disk.blob_path(row)) is None
    index = disk.open_index(row)
    assert (index.version, index.size, index.checksum, index.sample_count) == (row.version, row.size, row.checksum, 50)
    assert disk.cached_index(disk.blob_path(row)) is index
    assert disk.stats.indexes_rebuilt == 0


def test_a_broken_tar_is_stored_with_a_warning_and_without_an_index(open_disk: Any, tar_of: Callable[..., bytes]) -> None:
    disk = open_disk()
    result = put(disk, "s.tar", tar_of(50)[:5000])
    assert (result.row.samples, result.row.members) == (None, None)
    assert "at offset" in result.warnings[0]
    assert disk.lookup("b", "s.tar").warnings == result.warnings
    assert len(open_disk.files()) == 1
    assert open_disk.again().lookup("b", "s.tar").warnings == result.warnings


@pytest.mark.parametrize("name", ["a.bin", "a.tar"])
@pytest.mark.parametrize("given", [0, 99, 101])
def test_another_length_than_announced_stores_nothing(disk: Disk, open_disk: Any, name: str, given: int) -> None:
    disk.put_small("b", name, b"old")
    before = open_disk.files()
    writer = disk.begin_put("b", name, size=100)
    with pytest.raises(LengthMismatch, match="expected 100 bytes"):
        write_and_finish(writer, bytes(given))
    writer.abort()
    assert open_disk.files() == before
    assert disk.read_small(disk.lookup("b", name)) == b"old"


def test_checksums_of_the_client_decide(disk: Disk, open_disk: Any) -> None:
    md5 = base64.b64encode(hashlib.md5(BODY).digest()).decode()
    good = ExpectedChecksums.from_headers(f"xxh3-128={checksum_of(BODY)}", md5)
    put(disk, "good", BODY, expected=good)
    disk.put_small("b", "small", BODY, expected=good)
    before = open_disk.files()
    for bad in (ExpectedChecksums(xxh3_128="0" * 32), ExpectedChecksums(md5=bytes(16))):
        with pytest.raises(ChecksumMismatch):
            put(disk, "bad", BODY, expected=bad)
        with pytest.raises(ChecksumMismatch):
            disk.put_small("b", "bad", BODY, expected=bad)
    assert open_disk.files() == before


def test_an_upload_of_unknown_length_is_bounded(open_disk: Any) -> None:
    disk = open_disk(object_bytes_max=1000)
    with pytest.raises(TooLarge):
        disk.begin_put("b", "a", size=1001)
    writer = disk.begin_put("b", "a", size=None)
    writer.write(bytes(1000))
    with pytest.raises(TooLarge):
        writer.write(b"x")
    assert open_disk.files() == set()
    writer = disk.begin_put("b", "a", size=None)
    writer.write(bytes(999))
    assert writer.finish().size == 999
    writer.commit()
    assert disk.counts("b") == (1, 999)


def test_an_aborted_upload_leaves_nothing_and_may_be_aborted_again(disk: Disk, open_disk: Any) -> None:
    descriptors = own_files()
    for last in ("nothing", "write", "finish"):
        writer = disk.begin_put("b", "a.tar", size=10)
        if last != "nothing":
            writer.write(bytes(10))
        if last == "finish":
            writer.finish()
        writer.abort()
        writer.abort()
        with pytest.raises(Unavailable if last == "finish" else RuntimeError):
            writer.commit()
        with pytest.raises(Unavailable):
            writer.write(b"x")
    assert open_disk.files() == set()
    assert os.listdir(disk.path + "/temporary") == []
    assert own_files() == descriptors


def test_abort_after_commit_does_nothing(disk: Disk) -> None:
    writer = written(disk, "a", b"x")
    writer.commit()
    writer.abort()
    assert disk.read_small(disk.lookup("b", "a")) == b"x"


@pytest.mark.parametrize("outcome", ["stored", "refused"])
def test_an_abort_beside_a_commit_leaves_the_decision_to_the_commit(disk: Disk, open_disk: Any, outcome: str) -> None:
    """The handler of an upload is cancelled while its row is in the catalog's transaction."""
    put(disk, "a.tar", b"old")
    files, descriptors = open_disk.files(), own_files()
    writer = written(disk, "a.tar", b"new")

    def guard() -> None:
        aborting = threading.Thread(target=writer.abort)
        aborting.start()
        aborting.join()
        if outcome == "refused":
            raise Unavailable("not now")

    if outcome == "refused":
        with pytest.raises(Unavailable, match="not now"):
            writer.commit(Precondition(guard=guard))
        assert open_disk.files() == files
    else:
        writer.commit(Precondition(guard=guard))
    writer.abort()
    assert disk.read_small(disk.lookup("b", "a.tar")) == (b"new" if outcome == "stored" else b"old")
    assert len(open_disk.files()) == len(files)
    assert own_files() == descriptors
    assert disk.quarantined() == []


@pytest.mark.parametrize("then", ["committed", "aborted", "aborted meanwhile", "refused"])
def test_an_upload_that_may_be_committed_otherwise_is_kept(open_disk: Any, then: str) -> None:
    filesystem = Recording()
    disk = open_disk(filesystem, reserve_bytes=0)
    put(disk, "a.tar", b"old")
    files, descriptors = open_disk.files(), own_files()
    filesystem.free = 3
    writer = written(disk, "a.tar", b"new")

    def guard(error: Exception) -> Precondition:
        def refuse() -> None:
            if then == "aborted meanwhile":
                writer.abort()
            raise error

        return Precondition(guard=refuse)

    with pytest.raises(OtherCondition):
        writer.commit(guard(OtherCondition("not like this")))
    if then == "committed":
        assert writer.commit().committed
    elif then == "refused":
        with pytest.raises(Unavailable, match="never"):
            writer.commit(guard(Unavailable("never")))
    else:
        writer.abort()
        with pytest.raises(Unavailable, match="aborted"):
            writer.commit()
    assert disk.read_small(disk.lookup("b", "a.tar")) == (b"new" if then == "committed" else b"old")
    assert len(open_disk.files()) == len(files)
    assert own_files() == descriptors
    disk.begin_put("b", "b", size=3).abort()  # the space is free again


def test_two_threads_share_the_work_on_one_upload(disk: Disk, open_disk: Any) -> None:
    body = os.urandom(3_000_000)
    pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
    writer = disk.begin_put("b", "a", size=len(body))
    digesting = threading.Thread(target=lambda: [writer.digest(piece) for piece in pieces])
    digesting.start()
    for piece in pieces:
        writer.store(piece)
    digesting.join()
    assert writer.finish().checksum == checksum_of(body)
    writer.commit()
    half = disk.begin_put("b", "b", size=10)
    half.store(bytes(10))
    with pytest.raises(ValueError, match="0 of them hashed"):
        half.finish()
    assert len(open_disk.files()) == 1


class Gate(FileSystem):
    """Holds the first call of one kind until it is opened, then lets it work, or fail."""

    def __init__(self, held: str, error: int = 0) -> None:
        self.held, self.error = held, error
        self.reached, self.let_go = threading.Event(), threading.Event()
        self.armed = False

    def _wait(self, name: str) -> None:
        if self.armed and name == self.held:
            self.armed = False
            self.reached.set()
            assert self.let_go.wait(30)
            if self.error:
                raise OSError(self.error, os.strerror(self.error))

    def write(self, fd: int, data: Any) -> int:
        self._wait("write")
        return super().write(fd, data)

    def fdatasync(self, fd: int) -> None:
        self._wait("fdatasync")
        super().fdatasync(fd)


@pytest.mark.parametrize("error", [0, errno.EIO])
@pytest.mark.parametrize("held", ["write", "fdatasync"])
def test_an_abort_beside_a_write_waits_for_nobody_and_closes_nothing_under_it(open_disk: Any, held: str, error: int) -> None:
    gate = Gate(held, error)
    disk = open_disk(gate)
    put(disk, "a.tar", b"old")
    files, descriptors = open_disk.files(), own_files()
    writer = disk.begin_put("b", "a.tar", size=3)
    raised: list[Exception] = []

    def upload() -> None:
        try:
            writer.write(b"new")
            writer.finish()
            writer.commit()
        except Exception as found:
            raised.append(found)

    gate.armed = True
    uploading = threading.Thread(target=upload)
    uploading.start()
    assert gate.reached.wait(30)
    writer.abort()  # comes back at once, although the disk does not
    assert own_files() > descriptors
    gate.let_go.set()
    uploading.join()
    assert [type(found) for found in raised] == [StorageFailed if error else Unavailable]
    assert open_disk.files() == files
    assert own_files() == descriptors
    assert disk.read_small(disk.lookup("b", "a.tar")) == b"old"
    assert disk.stats.io_errors == (1 if error else 0)


def test_writing_out_begins_with_the_upload_and_stays_two_pieces_behind(open_disk: Any) -> None:
    filesystem = Recording()
    disk = open_disk(filesystem, writeback_bytes=10_000)
    filesystem.calls.clear()
    put(disk, "a", bytes(45_000), piece=5000)
    assert filesystem.calls == [
        ("writeback", 0, 10_000, False),
        ("writeback", 10_000, 10_000, False),
        ("writeback", 0, 10_000, True),
        ("writeback", 20_000, 10_000, False),
        ("writeback", 10_000, 10_000, True),
        ("writeback", 30_000, 10_000, False),
        ("writeback", 20_000, 10_000, True),
        ("fdatasync",),
    ]
    filesystem.calls.clear()
    put(disk, "b", bytes(45_000), piece=5000, durability="relaxed")
    assert [call[3] for call in filesystem.calls] == [False] * 4


def test_space_is_claimed_for_what_is_announced_and_given_back(open_disk: Any) -> None:
    filesystem = Recording()
    disk = open_disk(filesystem, reserve_bytes=1000, writeback_bytes=10_000)
    filesystem.free = 101_000
    first = disk.begin_put("b", "a", size=60_000)
    with pytest.raises(NoSpace):
        disk.begin_put("b", "c", size=40_001)
    first.write(bytes(30_000))
    filesystem.free -= 30_000
    second = disk.begin_put("b", "c", size=40_000)
    with pytest.raises(NoSpace):
        disk.put_small("b", "d", b"x")
    first.abort()
    second.abort()
    disk.put_small("b", "d", b"x")
    unknown = disk.begin_put("b", "e", size=None)
    unknown.write(bytes(5_000))
    filesystem.free = 999
    with pytest.raises(NoSpace):
        unknown.write(bytes(5_000))
    assert len(open_disk.files()) == 1
