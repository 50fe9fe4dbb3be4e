"""Staged blobs: unseen until their job is published, gone when it is discarded, known to sweep, check and rebuild."""

from __future__ import annotations

import os

import pytest
from calls import raising

from dfc.errors import BadName, JobCancelled, NotAShard, ObjectCorrupt, ObjectNotFound
from dfc.storage import Durability, Precondition
from dfc.storage.catalog.changes import StagedName
from dfc.storage.layout import decode_footer, row_path, staged_footer
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.sweep import read_footer

JOB = StagedName("job-1")
TEMPORARY = StagedName("job-1", temporary=True)


def stage(disk, name, data, owner=JOB, durability: Durability = "fsync", bucket="b1", guard=None):
    writer = disk.begin_put(bucket, name, size=len(data), durability=durability, staged=owner)
    writer.write(data)
    writer.finish()
    return writer.commit(Precondition(guard=guard)).row


def publish(disk, job="job-1", is_open=lambda bucket_id: True):
    return disk.staging.publish(job, is_open)


def read(disk, name, owner=JOB):
    entry = disk.staging.find("b1", name, owner)
    fd = disk.staging.open(entry)
    try:
        return os.pread(fd, entry.row.size, 0)
    finally:
        os.close(fd)


def body(disk, name):
    return disk.read_small(disk.lookup("b1", name))


def test_nobody_sees_it_before_it_is_published(disk, tar_of):
    stage(disk, "a.tar", tar_of(3))
    assert disk.find("b1", "a.tar") is None
    assert disk.list("b1", limit=10) == []
    assert disk.counts("b1") == (0, 0)
    assert read(disk, "a.tar") == tar_of(3)
    for other in (TEMPORARY, StagedName("job-2")):
        with pytest.raises(ObjectNotFound):
            disk.staging.find("b1", "a.tar", other)
    done = publish(disk)
    assert (done.objects, done.bytes) == (1, len(tar_of(3)))
    row = disk.lookup("b1", "a.tar")
    assert row.samples == 3
    assert disk.open_index(row).sample_count == 3
    assert disk.counts("b1") == (1, len(tar_of(3)))
    assert publish(disk).objects == 0
    assert disk.staging.totals() == {}


def test_temporary_blobs_never_become_objects(disk, open_disk):
    stage(disk, "x", b"output")
    stage(disk, "x", b"for later tasks", TEMPORARY, "relaxed")
    assert (read(disk, "x"), read(disk, "x", TEMPORARY)) == (b"output", b"for later tasks")
    assert disk.staging.totals()["job-1"].objects == 2
    publish(disk)
    assert body(disk, "x") == b"output"
    assert len(open_disk.files()) == 1


def test_a_later_attempt_replaces_an_earlier_one(disk, open_disk):
    slow = disk.begin_put("b1", "x", size=4, staged=JOB)
    stage(disk, "x", b"second")
    stage(disk, "x", b"third")
    slow.write(b"slow")
    slow.finish()
    slow.commit()
    assert read(disk, "x") == b"third"
    assert len(open_disk.files()) == 1


def test_a_newer_object_or_delete_stays(disk, open_disk):
    for name in ("put", "deleted", "older"):
        if name == "older":
            disk.put_small("b1", name, b"before")
        stage(disk, name, b"staged")
    disk.put_small("b1", "put", b"newer")
    disk.put_small("b1", "deleted", b"newer")
    disk.delete("b1", "deleted")
    assert publish(disk).objects == 1
    assert (body(disk, "put"), body(disk, "older")) == (b"newer", b"staged")
    assert disk.find("b1", "deleted") is None
    assert len(open_disk.files()) == 2


def test_a_job_that_has_ended_stages_nothing_more(disk, open_disk):
    for job, end in (("job-1", lambda: disk.staging.discard("job-1")), ("job-2", lambda: publish(disk, "job-2"))):
        late = disk.begin_put("b1", "late", size=1, staged=StagedName(job))
        stage(disk, "x", b"1", StagedName(job))
        assert not disk.staging.has_ended(job)
        end()
        assert disk.staging.has_ended(job)
        late.write(b"x")
        late.finish()
        with pytest.raises(JobCancelled):
            late.commit()
        with pytest.raises(JobCancelled):
            stage(disk, "y", b"2", StagedName(job))
    assert len(open_disk.files()) == 1
    with pytest.raises(JobCancelled):
        stage(open_disk.again(), "z", b"3")


def test_discarding_leaves_nothing(disk, open_disk, tar_of):
    stage(disk, "a.tar", tar_of(2))
    stage(disk, "t", b"1", TEMPORARY)
    stage(disk, "other", b"2", StagedName("job-2"))
    assert disk.staging.discard("job-1") == 2
    assert disk.staging.discard("job-1") == 0
    assert list(disk.staging.totals()) == ["job-2"]
    assert len(open_disk.files()) == 1


def test_a_refused_stage_leaves_nothing(disk, open_disk):
    with pytest.raises(NotAShard):
        stage(disk, "x", b"1", guard=raising(NotAShard("refused")))
    assert open_disk.files() == set()
    assert disk.staging.totals() == {}
    with pytest.raises(BadName):
        disk.begin_put("b1", "x", size=1, staged=StagedName("../x"))
    assert open_disk.files() == set()


def test_a_bucket_that_goes_takes_what_is_staged_with_it(disk, open_disk):
    stage(disk, "x", b"1")
    stage(disk, "x", b"1", bucket="b2")
    disk.put_small("b1", "y", b"2")
    assert disk.remove_bucket("b1") == 1
    assert disk.staging.totals()["job-1"].objects == 1
    stage(disk, "z", b"3", StagedName("job-2"), bucket="b3")
    assert publish(disk, is_open=lambda bucket_id: bucket_id != "b2").objects == 0
    assert len(open_disk.files()) == 1
    assert disk.staging.totals()["job-2"].objects == 1


def test_the_footer_says_whose_it_is(disk, open_disk):
    row = stage(disk, "dir/x", b"12345", TEMPORARY)
    footer = read_footer(disk.parts.filesystem, row_path(str(open_disk.root), row))
    assert (footer.job, footer.temporary, footer.bucket_id, footer.name) == ("job-1", True, "b1", "dir/x")
    assert decode_footer(b"12345" + staged_footer(row, "job-1", True)).size == 5


def test_staged_blobs_are_no_orphans_and_those_without_rows_are(disk, open_disk):
    row = stage(disk, "x", b"1")
    gone = stage(disk, "y", b"2")
    disk.parts.catalog.writer.execute("DELETE FROM staged WHERE name = ?", (b"y",))
    disk = open_disk.again()
    report = disk.sweep()
    assert (report.found, report.complete, report.moved) == (1, 0, 1)
    assert not os.path.exists(row_path(str(open_disk.root), gone))
    assert read(disk, "x") == b"1"
    assert row_path(str(open_disk.root), row) == disk.staging.path(disk.staging.find("b1", "x", JOB))


def test_check_looks_at_staged_blobs(disk, open_disk):
    lost, damaged = stage(disk, "lost", b"1" * 100), stage(disk, "damaged", b"2" * 100)
    stage(disk, "sound", b"3")
    root = str(open_disk.root)
    disk.close()
    assert check(root, full=True).counts == {}
    assert check(root).staged == 3
    os.unlink(row_path(root, lost))
    with open(row_path(root, damaged), "r+b") as file:
        file.write(b"x")
    assert check(root).counts == {"row_without_blob": 1}
    assert check(root, full=True).counts == {"row_without_blob": 1, "damaged_blob": 1}


def test_relaxed_blobs_are_verified_after_a_restart_of_the_machine(disk, open_disk):
    torn = stage(disk, "torn", b"1" * 100, durability="relaxed")
    stage(disk, "sound", b"2" * 100, durability="relaxed")
    stage(disk, "synced", b"3" * 100)
    disk.close()
    with open(row_path(str(open_disk.root), torn), "r+b") as file:
        file.write(b"x")
    disk = open_disk(boot_id="boot-2")
    assert (read(disk, "sound"), read(disk, "synced")) == (b"2" * 100, b"3" * 100)
    for action in (lambda: disk.staging.find("b1", "torn", JOB), lambda: disk.staging.prepare("job-1"), lambda: publish(disk)):
        with pytest.raises(ObjectCorrupt, match="torn"):
            action()
    assert disk.list("b1", limit=10) == []
    disk.staging.discard("job-1")


def test_preparing_makes_relaxed_blobs_durable(disk, open_disk):
    row = stage(disk, "x", b"1" * 100, durability="relaxed")
    assert [found.checksum for found in disk.staging.prepare("job-1")] == [row.checksum]
    disk = open_disk.again(boot_id="boot-2")
    assert disk.staging.find("b1", "x", JOB).boot is None
    publish(disk)
    assert not disk.lookup("b1", "x").unsynced


def test_many_are_published_at_once(disk, open_disk):
    for number in range(150):
        stage(disk, f"{number:03d}", b"%d" % number, durability="relaxed")
    assert publish(disk).objects == 150
    assert disk.stats.unsynced_rows == 0
    assert body(disk, "149") == b"149"
