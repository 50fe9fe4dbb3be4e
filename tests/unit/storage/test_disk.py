"""The disk against a dictionary, and what its methods promise one by one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from calls import before, raising
from copying import written
from harness import own_files
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from dfc.checksum import checksum_of
from dfc.clock import HybridClock
from dfc.errors import BadName, DfcError, NoSpace, ObjectNotFound, Overtaken, PreconditionFailed, StorageFailed
from dfc.storage import Disk, DiskOptions, Precondition, RowChanged

BUCKETS = st.sampled_from(["b1", "b2"])
NAMES = st.sampled_from(["a", "a/b", "a/c.tar", "ä", "z" * 300, "#", "b.tgz"])
BODIES = st.binary(max_size=200)
TAGS = st.sampled_from([None, "*", checksum_of(b""), "current"])


class DiskMachine(RuleBasedStateMachine):
    """Every step is done to a disk and to a dictionary; both must answer alike."""

    uploads = Bundle("uploads")

    @initialize()
    def begin(self) -> None:
        self.root = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        Disk.format(self.root, "c", "d")
        self.options = DiskOptions(reserve_bytes=0, ballast_bytes=0, maintenance=False, boot_id="boot", row_cache_rows=4)
        self.disk = Disk.open(self.root, "c", HybridClock(1), self.options)
        self.model: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.conditional: dict[tuple[str, str], str] = {}  # the version of the newest conditional write
        self.deleted: dict[tuple[str, str], str] = {}

    def teardown(self) -> None:
        self.disk.close()
        shutil.rmtree(self.root)

    def precondition(self, key: tuple[str, str], match: str | None, none_match: str | None) -> tuple[Precondition, bool]:
        there = checksum_of(self.model[key][1]) if key in self.model else None
        match, none_match = (there if tag == "current" else tag for tag in (match, none_match))
        refused = match is not None and (there is None or match not in ("*", there))
        refused = refused or (none_match is not None and there is not None and none_match in ("*", there))
        return Precondition(match, none_match), refused

    @rule(
        bucket=BUCKETS, name=NAMES, body=BODIES, match=TAGS, none_match=TAGS, durability=st.sampled_from(["fsync", "relaxed"])
    )
    def put(self, bucket: str, name: str, body: bytes, match: str | None, none_match: str | None, durability: Any) -> None:
        key = (bucket, name)
        precondition, refused = self.precondition(key, match, none_match)
        try:
            result = self.disk.put_small(bucket, name, body, durability=durability, precondition=precondition)
        except PreconditionFailed:
            assert refused
            return
        assert not refused
        assert result.replaced == (key in self.model)
        self.model[key] = (result.row.version, body)
        if match is not None or none_match is not None:
            self.conditional[key] = result.row.version

    @rule(target=uploads, bucket=BUCKETS, name=NAMES, body=BODIES)
    def begin_upload(self, bucket: str, name: str, body: bytes) -> Any:
        writer = self.disk.begin_put(bucket, name, size=len(body))
        writer.write(body)
        return bucket, name, body, writer, self.disk

    @rule(upload=uploads)
    def end_upload(self, upload: Any) -> None:
        bucket, name, body, writer, disk = upload
        if disk is not self.disk or writer.received != len(body) or writer._ended:
            return
        writer.finish()
        key = (bucket, name)
        try:
            writer.commit()
        except Overtaken:
            assert self.conditional[key] > writer.version
            return
        newest = max(self.model.get(key, ("", b""))[0], self.deleted.get(key, ""))
        if writer.version > newest:
            self.model[key] = (writer.version, body)

    @rule(upload=uploads)
    def give_up_upload(self, upload: Any) -> None:
        upload[3].abort()

    @rule(bucket=BUCKETS, name=NAMES, match=TAGS)
    def delete(self, bucket: str, name: str, match: str | None) -> None:
        key = (bucket, name)
        precondition, refused = self.precondition(key, match, None)
        try:
            row = self.disk.delete(bucket, name, precondition=precondition)
        except ObjectNotFound:
            assert key not in self.model
        except PreconditionFailed:
            assert refused
        else:
            assert (not refused, row.version) == (True, self.model.pop(key)[0])
            self.deleted[key] = self.disk.parts.catalog.tombstone(bucket, name)
            assert self.deleted[key] is not None
            if match is not None:
                self.conditional[key] = self.deleted[key]

    @rule(bucket=BUCKETS)
    def remove_bucket(self, bucket: str) -> None:
        gone = [key for key in self.model if key[0] == bucket]
        assert self.disk.remove_bucket(bucket) == len(gone)
        for key in gone:
            del self.model[key]
        self.deleted = {key: version for key, version in self.deleted.items() if key[0] != bucket}

    @rule()
    def sync(self) -> None:
        self.disk.sync_relaxed()
        assert self.disk.stats.unsynced_rows == 0

    @rule()
    def open_again(self) -> None:
        self.disk.close()
        self.disk = Disk.open(self.root, "c", HybridClock(1, lambda: 0), self.options)
        assert self.disk.sweep().complete == 0

    @invariant()
    def answers_alike(self) -> None:
        if not hasattr(self, "model"):
            return
        for bucket in ("b1", "b2"):
            there = {name: value for (b, name), value in self.model.items() if b == bucket}
            rows = self.disk.list(bucket, limit=100)
            assert [row.name for row in rows] == sorted(there, key=str.encode)
            assert self.disk.counts(bucket) == (len(there), sum(len(body) for _, body in there.values()))
            for name, (version, body) in there.items():
                row = self.disk.lookup(bucket, name)
                assert (row.version, row.checksum, self.disk.read_small(row)) == (version, checksum_of(body), body)


TestDiskAgainstADictionary = DiskMachine.TestCase
TestDiskAgainstADictionary.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_lookup_cached_knows_what_was_committed_or_read(disk: Disk, open_disk: Any) -> None:
    assert disk.lookup_cached("b", "a") is None
    row = disk.put_small("b", "a", b"1").row
    assert disk.lookup_cached("b", "a") == row
    disk = open_disk.again()
    assert disk.lookup_cached("b", "a") is None
    assert disk.lookup("b", "a") == row
    assert disk.lookup_cached("b", "a") == row
    disk.delete("b", "a")
    assert disk.lookup_cached("b", "a") is None


def test_a_read_of_the_catalog_is_counted_once(disk: Disk, open_disk: Any) -> None:
    disk.put_small("b", "a", b"1")
    disk = open_disk.again()
    assert disk.lookup_cached("b", "a") is None
    disk.lookup("b", "a")
    disk.lookup("b", "a")
    assert disk.lookup_cached("b", "a") is not None
    assert (disk.stats.cache_misses, disk.stats.cache_hits) == (1, 2)


def test_an_older_upload_loses_against_a_newer_one_and_against_a_delete(disk: Disk) -> None:
    older = written(disk, "a", b"old")
    disk.put_small("b", "a", b"new")
    assert older.commit().replaced
    assert disk.read_small(disk.lookup("b", "a")) == b"new"
    older = written(disk, "a", b"old")
    disk.delete("b", "a")
    older.commit()
    with pytest.raises(ObjectNotFound):
        disk.lookup("b", "a")
    assert disk.sweep().found == 0


@pytest.mark.parametrize("precondition", [Precondition(if_none_match="*"), Precondition(if_match=checksum_of(b"new"))])
def test_a_condition_fails_when_something_newer_came_during_the_upload(disk: Disk, precondition: Precondition) -> None:
    writer = written(disk, "a", b"x")
    disk.put_small("b", "a", b"new")
    if precondition.if_none_match:
        disk.delete("b", "a")
    with pytest.raises(PreconditionFailed):
        writer.commit(precondition)
    assert disk.sweep().found == 0


def test_a_guard_refuses_inside_the_transaction(disk: Disk, open_disk: Any) -> None:
    refusing = Precondition(guard=raising(BadName("not now")))
    with pytest.raises(BadName, match="not now"):
        disk.put_small("b", "a", b"1", precondition=refusing)
    disk.put_small("b", "a", b"1")
    with pytest.raises(BadName, match="not now"):
        disk.delete("b", "a", precondition=refusing)
    with pytest.raises(BadName, match="not now"):
        disk.delete("b", "absent", precondition=refusing)
    assert len(open_disk.files()) == 1


def test_versions_go_on_after_a_restart_with_a_clock_that_went_back(open_disk: Any) -> None:
    disk = open_disk(clock=HybridClock(7, lambda: 1_000_000))
    first = disk.put_small("b", "a", b"1").row.version
    disk.delete("b", "a")
    disk = open_disk.again(clock=HybridClock(7, lambda: 5))
    assert disk.put_small("b", "a", b"2").row.version > first
    assert disk.read_small(disk.lookup("b", "a")) == b"2"


def test_a_version_that_is_taken_on_the_medium_is_passed_over(open_disk: Any) -> None:
    disk = open_disk(clock=HybridClock(7, lambda: 1_000_000))
    row = disk.put_small("b", "a", b"1").row
    disk.delete("b", "a")
    following = f"{int(row.version[:14], 16) + 2:014x}0007"
    blocker = disk.blob_path(row).replace(row.version, following)
    with open(blocker, "wb"):
        pass
    assert disk.put_small("b", "a", b"2").row.version > following


def test_many_threads_at_once(disk: Disk) -> None:
    """Puts, deletes and reads of few names from many threads; whatever is served is whole."""
    bodies = [bytes([number]) * 100 for number in range(8)]

    def work(number: int) -> None:
        for step in range(40):
            name = f"n{(number + step) % 4}"
            disk.put_small("b", name, bodies[number], durability="relaxed" if step % 3 else "fsync")
            with suppress(ObjectNotFound, RowChanged):
                assert disk.read_small(disk.lookup("b", name)) in bodies
                if step % 5 == 0:
                    disk.delete("b", name)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    disk.sync_relaxed()
    rows = disk.list("b", limit=10)
    assert disk.counts("b") == (len(rows), 100 * len(rows))
    assert disk.sweep().found == 0
    assert disk.quarantined() == []


def test_closing_leaves_no_thread_and_no_descriptor(open_disk: Any, tar_of: Callable[..., bytes]) -> None:
    threads, descriptors = set(threading.enumerate()), own_files()
    disk = open_disk(maintenance=True, ballast_bytes=4096)
    for number in range(3):
        disk.put_small("b", f"{number}.tar", tar_of(3))
        disk.open_index(disk.lookup("b", f"{number}.tar"))
    written(disk, "0.tar", bytes(5 << 20)).commit()
    disk.delete("b", "0.tar")
    assert disk.wait_for_opening_work(10)
    disk.close()
    disk.close()
    assert set(threading.enumerate()) <= threads
    assert own_files() == descriptors
    for call in (lambda: disk.put_small("b", "x", b""), lambda: disk.delete("b", "x"), lambda: disk.lookup("b", "x")):
        with pytest.raises(StorageFailed, match="closed"):
            call()
    open_disk()


def test_a_disk_that_is_closed_twice_at_a_time_gives_back_its_lock_once(open_disk: Callable[..., Disk]) -> None:
    """The descriptor may be somebody else's file by then."""
    disk, closing, go_on, files = open_disk(), threading.Event(), threading.Event(), own_files()

    def slowly() -> None:
        closing.set()
        assert go_on.wait(10)

    before(disk._relaxed, "sync", slowly)
    first, second = (threading.Thread(target=disk.close) for _ in range(2))
    first.start()
    assert closing.wait(10)
    second.start()
    second.join(0.1)
    assert second.is_alive(), "closed is closed for whoever asked"
    go_on.set()
    for each in (first, second):
        each.join(10)
    assert own_files() < files
    open_disk()


def test_a_file_for_a_moment(disk: Disk) -> None:
    with disk.scratch_file(10) as file:
        file.write(b"0123456789")
        assert os.listdir(f"{disk.path}/temporary") == []  # it has no name
    with pytest.raises(NoSpace):
        disk.scratch_file(1 << 62)
    os.rmdir(f"{disk.path}/temporary")
    with pytest.raises(DfcError) as refused:
        disk.scratch_file(10)
    assert disk.path not in str(refused.value)
    os.mkdir(f"{disk.path}/temporary")
    assert isinstance(disk.scratch_failed(OSError(errno.EIO, "no"), "testing"), StorageFailed)
    assert disk.last_stats.puts == disk.stats.puts


def test_a_bucket_is_removed_in_many_transactions(disk: Disk, open_disk: Any) -> None:
    for number in range(1010):
        disk.put_small("b", f"n{number}", b"x", durability="relaxed")
    disk.put_small("other", "stays", b"y")
    assert disk.remove_bucket("b") == 1010
    assert disk.bucket_ids() == ["other"]
    assert (disk.counts("b"), disk.totals()) == ((0, 0), (1, 1))
    assert [file.split("/")[0] for file in open_disk.files()] == ["other"]
    assert not os.path.exists(disk.path + "/objects/b")
    disk.put_small("b", "again", b"z")
    assert disk.counts("b") == (1, 1)


@pytest.mark.parametrize("bucket_id", ["", "..", "a/b"])
def test_a_bucket_id_never_leaves_the_disk(disk: Disk, bucket_id: str) -> None:
    with pytest.raises(BadName):
        disk.put_small(bucket_id, "a", b"")
    with pytest.raises(BadName):
        disk.begin_put(bucket_id, "a", size=0)
    with pytest.raises(BadName):
        disk.remove_bucket(bucket_id)


def test_a_disk_that_has_failed_has_nothing_left_to_settle(disk: Disk) -> None:
    """Its target takes the step that says so."""
    disk.put_small("b", "x", b"x")
    disk.parts.health.fail("3 I/O errors")
    disk.barrier()
    with pytest.raises(StorageFailed):
        disk.put_small("b", "y", b"y")
