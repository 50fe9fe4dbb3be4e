"""Copies on a disk: what is adopted and what is not, what is pending, and what is undone."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from calls import after, before, raising
from copying import PENDING, V1, V2, V3, adopt, body, newer, pages, version_of, written
from faulty_filesystem import FaultyFileSystem, commit_and_fail, fail_with

from dfc.errors import BadName, Conflict, NoSpace, ObjectCorrupt, ObjectNotFound, StorageFailed
from dfc.storage import Precondition
from dfc.storage.catalog.changes import Put, StagedName
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.rows import ALONE, NameState, Standing, Supplied, later

both_ways = pytest.mark.parametrize("small", [True, False])
both_durabilities = pytest.mark.parametrize("durability", ["fsync", "relaxed"])


# --- adopting


@both_ways
@both_durabilities
def test_a_copy_is_adopted_with_its_version_and_its_standing(disk: Any, open_disk: Any, small: bool, durability: str) -> None:
    standing = Standing(rank=2, pending=True, hints=("disk-2", "disk-3"))
    outcome = adopt(disk, "x", V1, b"one", standing, small=small, durability=durability)
    assert (outcome.taken, outcome.commits, outcome.stored, outcome.replaced) == (True, True, True, False)
    assert (body(disk, "x"), version_of(disk, "x")) == (b"one", V1)
    assert disk.copies.rows() == ([("b", "x", V1, 2)], None)
    assert disk.copies.pending() == ([("b", "x", V1)], None)
    assert disk.copies.hint_counts() == {"disk-2": 1, "disk-3": 1}
    assert (disk.counts("b"), disk.totals()) == ((0, 0), (1, 3))
    disk = open_disk.again()
    assert (body(disk, "x"), disk.copies.is_pending("b", "x"), disk.copies.has_hints_for("disk-3")) == (b"one", True, True)
    assert disk.parts.clock.next_version() > V1


def test_what_a_disk_is_to_have_later_is_hinted_apart(disk: Any) -> None:
    """But for whoever counts, or asks who lacks a name, it is the same disk."""
    for name in ("a", "b"):
        disk.put_small("b", name, b"x")
    disk.copies.add_hints([("d2", "b", "a"), (later("d2"), "b", "a"), (later("d2"), "b", "b"), ("d10", "b", "b")])
    assert disk.copies.hinted() == ["d10", "d2", later("d2")]
    assert disk.copies.hints("d2")[0] == [("b", "a")]
    assert disk.copies.hints(later("d2"))[0] == [("b", "a"), ("b", "b")]
    assert disk.copies.hint_counts() == {"d10": 1, "d2": 1, later("d2"): 2}
    assert (disk.copies.hinted_disks("b", "a"), disk.copies.hinted_disks("b", "b")) == ({"d2"}, {"d2", "d10"})
    disk.copies.forget_disk("d2")
    assert disk.copies.hinted() == ["d10", later("d2")]
    disk.copies.forget_disk(later("d2"))
    disk.copies.forget_disk("d10")
    assert (disk.copies.hinted(), disk.copies.has_hints) == ([], False)


@both_ways
@both_durabilities
def test_the_newer_version_stays_and_the_older_copy_leaves_nothing(open_disk: Any, small: bool, durability: str) -> None:
    disk = open_disk()
    adopt(disk, "x", V2, b"two", small=small)
    outcome = adopt(disk, "x", V1, b"one", PENDING, small=small, durability=durability)
    assert (outcome.taken, outcome.stored) == (False, False)
    assert (body(disk, "x"), len(open_disk.files()), disk.copies.has_pending) == (b"two", 1, False)
    outcome = adopt(disk, "x", V3, b"three", small=small, durability=durability)
    assert (outcome.stored, outcome.row.version) == (True, V2)
    assert body(disk, "x") == b"three"
    disk.sync_relaxed()
    assert len(open_disk.files()) == 1


def test_tombstones_are_adopted_like_objects(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one", Standing(rank=1))
    outcome = adopt(disk, "x", V2, None, Standing(pending=True, hints=("disk-2",)))
    assert (outcome.taken, outcome.commits, outcome.row.version) == (True, True, V1)
    assert disk.copies.state("b", "x") == NameState(V2)
    assert disk.copies.tombstones() == ([("b", "x", V2)], None)
    assert (disk.copies.pending()[0], disk.copies.hints("disk-2")) == ([("b", "x", V2)], ([("b", "x")], None))
    assert (disk.totals(), open_disk.files()) == ((0, 0), set())
    assert not adopt(disk, "x", V1, None).taken
    assert not adopt(disk, "x", V1, b"one").taken
    assert adopt(disk, "x", V3, b"three").commits
    assert (disk.copies.tombstones(), body(disk, "x")) == (([], None), b"three")
    assert not disk.copies.is_pending("b", "x"), "the mark was that of the tombstone"
    assert disk.copies.hinted_disks("b", "x"), "the disk lacks the new object as well"


@both_ways
@both_durabilities
def test_the_version_that_is_here_comes_again_and_the_object_stays(open_disk: Any, small: bool, durability: str) -> None:
    disk = open_disk()
    row = adopt(disk, "x", V1, b"one", PENDING, small=small, durability=durability) and disk.find("b", "x")
    for _ in range(2):
        outcome = adopt(disk, "x", V1, b"one", Standing(1, True, ("disk-2",)), small=small, durability=durability)
        assert (outcome.taken, outcome.commits, outcome.stored) == (True, False, False)
        assert (body(disk, "x"), disk.find("b", "x"), len(open_disk.files())) == (b"one", row, 1)
    assert disk.copies.hints("disk-2") == ([("b", "x")], None)
    assert disk.copies.rows()[0][0].rank == 1
    assert disk.copies.is_pending("b", "x")
    disk.copies.confirm([("b", "x", V1)])
    adopt(disk, "x", V1, b"one", PENDING, small=small, durability=durability)
    assert not disk.copies.is_pending("b", "x"), "what was confirmed stays so"
    assert adopt(disk, "y", V1, None, PENDING).commits
    assert not adopt(disk, "y", V1, None, PENDING).commits
    assert disk.copies.is_pending("b", "y")
    adopt(disk, "y", V1, None)
    assert not disk.copies.is_pending("b", "y"), "who sends it knows that it counts"


def test_a_blob_that_is_the_object_already_is_no_garbage(disk: Any, open_disk: Any) -> None:
    """The same change twice, as after an answer that was lost."""
    writer = disk.begin_put("b", "x", size=3, supplied=Supplied(V1))
    writer.write(b"one")
    row = writer.finish()
    for _ in range(2):
        outcome = disk.parts.committer.submit(Put(row, Precondition()))
        assert (outcome.stored, outcome.garbage) == (True, ())
    assert disk.copies.adopt(writer, newer(V1)).stored
    assert (body(disk, "x"), len(open_disk.files()), disk.counts("b")) == (b"one", 1, (1, 3))


def test_one_version_with_two_contents_is_refused(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one")
    for data, attributes in ((b"two", b""), (b"one", b"\x80")):
        with pytest.raises(Conflict, match="different bytes or attributes"):
            adopt(disk, "x", V1, data, attributes=attributes)
    with pytest.raises(Conflict, match="both as an object and as its deletion"):
        adopt(disk, "x", V1, None)
    assert (body(disk, "x"), len(open_disk.files())) == (b"one", 1)


@both_ways
@both_durabilities
def test_a_sound_copy_takes_the_place_of_a_quarantined_blob(disk: Any, open_disk: Any, small: bool, durability: str) -> None:
    adopt(disk, "x", V1, b"one", Standing(rank=1))
    Path(disk.blob_path(disk.find("b", "x"))).unlink()
    with pytest.raises(ObjectCorrupt):
        body(disk, "x")
    assert version_of(disk, "x") == V1
    outcome = adopt(disk, "x", V1, b"one", Standing(1, pending=True), small=small, durability=durability)
    assert (outcome.taken, outcome.commits, outcome.stored) == (True, False, True)
    assert (body(disk, "x"), disk.quarantined()) == (b"one", [])
    assert not disk.copies.is_pending("b", "x"), "it had been confirmed"
    assert disk.parts.catalog.copy_counts("b") == (1, 3)
    assert open_disk.problems() == {}


def quarantine(disk: Any, name: str) -> None:
    """Lose the bytes of an object, and notice it."""
    row = disk.find("b", name)
    os.unlink(disk.blob_path(row))
    with pytest.raises(ObjectCorrupt):
        disk.read_small(row)


def test_pages_of_damaged_objects_are_complete(disk: Any) -> None:
    names = [f"x{number}" for number in range(5)]
    for name in (*names, "sound"):
        adopt(disk, name, V1, b"one")
    assert (disk.copies.has_damaged, disk.copies.damaged()) == (False, ([], None))
    for name in names:
        quarantine(disk, name)
    assert [each for page in pages(disk.copies.damaged, 2) for each in page] == [("b", name) for name in names]


@pytest.mark.parametrize("how", ["repaired", "replaced", "deleted", "surplus", "bucket removed"])
def test_a_disk_knows_whether_anything_is_damaged(disk: Any, open_disk: Any, how: str) -> None:
    """Without a look at the catalog, also after it was opened again."""
    for name in ("x", "y"):
        adopt(disk, name, V1, b"one")
        quarantine(disk, name)
    disk = open_disk.again()
    for name in ("x", "y"):
        assert disk.copies.has_damaged
        if how == "repaired":
            adopt(disk, name, V1, b"one")
        elif how == "replaced":
            adopt(disk, name, V2, b"two")
        elif how == "deleted":
            disk.delete("b", name)
        elif how == "surplus":
            assert disk.copies.remove_excess([("b", name, V1)]) == 1
        elif name == "y":
            disk.remove_bucket("b")
    assert (disk.copies.has_damaged, disk.quarantined()) == (False, [])


def test_a_durable_copy_takes_the_place_of_one_that_is_not_synced(disk: Any, open_disk: Any) -> None:
    """Whoever asks for it to be durable is told that it is."""
    adopt(disk, "x", V1, b"old")
    adopt(disk, "x", V2, b"two", PENDING, durability="relaxed")
    assert (disk.stats.unsynced_rows, len(open_disk.files())) == (1, 2)
    assert adopt(disk, "x", V2, b"two", PENDING).stored
    assert (disk.stats.unsynced_rows, len(open_disk.files()), body(disk, "x")) == (0, 1, b"two")
    assert disk.copies.is_pending("b", "x")


def test_a_bucket_that_was_removed_takes_nothing(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one", Standing(2, True, ("disk-2",)))
    adopt(disk, "y", V1, None, Standing(0, True, ("disk-2",)))
    assert disk.remove_bucket("b") == 1
    assert (disk.copies.has_pending, disk.copies.hint_counts(), disk.bucket_ids()) == (False, {}, [])
    for name, data in (("x", b"two"), ("y", None)):
        assert not adopt(disk, name, V2, data, PENDING).taken
    disk.copies.add_hints([("disk-2", "b", "x")])
    assert (disk.bucket_ids(), disk.copies.hint_counts(), open_disk.files()) == ([], {}, set())


def test_what_decides_runs_in_the_transaction_and_may_refuse(open_disk: Any) -> None:
    disk, seen = open_disk(), []

    def decide(present: str | None) -> AdoptVerdict:
        seen.append(present)
        if len(seen) > 2:
            raise BadName("not now")
        return AdoptVerdict(taken=True, commits=present is None)

    for _ in range(2):
        disk.copies.adopt(written(disk, "x", b"one", V1), decide)
    with pytest.raises(BadName, match="not now"):
        disk.copies.adopt(written(disk, "x", b"one", V1), decide)
    with pytest.raises(BadName, match="not now"):
        disk.copies.adopt_tombstone("b", "x", V2, decide)
    assert seen == [None, V1, V1, V1]
    assert (body(disk, "x"), len(open_disk.files())) == (b"one", 1)
    # What is taken but not committed leaves nothing.
    outcome = disk.copies.adopt(written(disk, "y", b"one", V1), lambda present: AdoptVerdict(taken=True))
    assert (outcome.taken, outcome.stored, version_of(disk, "y"), len(open_disk.files())) == (True, False, None, 1)


def test_the_sweep_leaves_a_copy_alone_that_is_on_its_way(open_disk: Any, tar_of: Any) -> None:
    """Its version is older than the opening of the disk, but its file is not."""
    disk, data = open_disk(), tar_of(3)
    writer = disk.begin_put("b", "x.tar", size=len(data), supplied=Supplied(V1))
    writer.write(data)
    assert disk.sweep().found == 0
    writer.finish()
    assert disk.sweep().found == 0
    assert disk.copies.adopt(writer, newer(V1, PENDING)).stored
    assert disk.sweep().found == 0
    assert disk.open_index(disk.lookup("b", "x.tar")).member_count == 3


def test_a_relaxed_copy_comes_back_to_what_it_replaced(open_disk: Any) -> None:
    """And that is pending, too, if the copy was: nobody has confirmed anything since."""
    for number, standing in enumerate((ALONE, PENDING)):
        disk = open_disk(boot_id=f"boot-{number}")
        name = f"n{number}"
        adopt(disk, name, V1, b"one", Standing(rank=1))
        adopt(disk, name, V2, b"two", Standing(rank=1, pending=standing.pending), durability="relaxed")
        path = Path(disk.blob_path(disk.find("b", name)))
        disk.parts.committer.close()  # as a power loss ends it: nothing more is synced
        os.close(disk._lock_fd)
        disk._lock_fd = -1
        disk.parts.catalog.close()
        path.write_bytes(bytes(path.stat().st_size))
        disk = open_disk(boot_id=f"boot-{number}b")
        assert body(disk, name) == b"one"
        assert [row.version for row in disk.copies.pending()[0]] == [V1] * standing.pending
        assert {row.rank for row in disk.copies.rows()[0]} == {1}
        disk.close()


def watched(filesystem: Any) -> list[bool]:
    """Whether each commit from now on is synced."""
    synced = list[bool]()
    before(filesystem, "commit", lambda database: synced.append(database.execute("PRAGMA synchronous").fetchone()[0] == 2))
    return synced


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_a_copy_is_on_the_medium_before_its_row(open_disk: Any, small: bool) -> None:
    """Its primary counts on it once this disk has said that it has it, and so does who reads the row."""
    filesystem = FaultyFileSystem()
    disk = open_disk(filesystem)
    is_synced = watched(filesystem)
    filesystem.arm()
    assert adopt(disk, "x", V1, b"one", PENDING, small=small).stored
    called = filesystem.names
    assert "fdatasync" in called, "its bytes"
    assert "sync_directory" in called, "its name"
    last_write = max(at for at, name in enumerate(called) if name in ("write", "pwrite"))
    assert last_write < called.index("fdatasync") < called.index("sync_directory")
    assert called.index("commit") == len(called) - 1
    assert is_synced == [True], "the row"


def test_what_is_unlinked_late_is_not_what_has_come_again(open_disk: Any) -> None:
    """Large files are unlinked in a thread of their own, long after the commit. By then the same version may be here again."""
    filesystem, data = FaultyFileSystem(), bytes(5 << 20)
    disk, late = open_disk(filesystem), threading.Event()
    adopt(disk, "x", V1, data, small=False)
    before(filesystem, "unlink", lambda _: late.wait(30))
    assert disk.copies.remove_excess([("b", "x", V1)]) == 1
    assert adopt(disk, "x", V1, data, small=False).stored
    assert len(open_disk.files()) == 2
    late.set()
    disk.parts.discarder.wait()
    assert len(open_disk.files()) == 1
    assert body(disk, "x") == data


# --- marks


def test_a_write_of_the_disk_records_its_standing_and_a_later_one_removes_its_mark(disk: Any, open_disk: Any) -> None:
    guard = Precondition(guard=lambda: Standing(pending=True, hints=("disk-2",)))
    first = disk.put_small("b", "x", b"one", precondition=guard).row
    assert disk.copies.pending() == ([("b", "x", first.version)], None)
    second = disk.put_small("b", "x", b"two", precondition=guard).row
    assert disk.copies.pending() == ([("b", "x", second.version)], None)
    assert disk.copies.undone == 1
    disk.copies.confirm([("b", "x", first.version)])
    assert disk.copies.is_pending("b", "x"), "another version is meant"
    disk.put_small("b", "x", b"three")
    assert (disk.copies.has_pending, disk.copies.undone) == (False, 2)
    row, version = disk.copies.delete("b", "x", precondition=guard)
    assert (row.size, disk.copies.state("b", "x")) == (5, NameState(version))
    assert disk.copies.pending() == ([("b", "x", version)], None)
    disk.copies.confirm([("b", "x", version)])
    assert (disk.copies.has_pending, disk.copies.undone, disk.copies.hint_counts()) == (False, 2, {"disk-2": 1})
    assert not open_disk.again().copies.has_pending


@both_durabilities
def test_a_disk_without_copies_executes_no_statement_for_them(disk: Any, durability: str) -> None:
    disk.put_small("b", "x", b"one")
    statements: list[str] = []
    disk.parts.catalog.writer.set_trace_callback(statements.append)
    disk.put_small("b", "x", b"two", durability=durability)
    disk.put_small("b", "y", b"two", durability=durability)
    disk.delete("b", "x")
    disk.parts.catalog.writer.set_trace_callback(None)
    assert len(statements) > 10
    assert not [each for each in statements if any(table in each for table in (" pending", " hints", " departed"))]


def test_a_row_is_known_to_be_pending_before_it_can_be_read(open_disk: Any) -> None:
    disk, seen = open_disk(), []
    for around in (before, after):
        around(disk.parts.filesystem, "commit", lambda _: seen.append(disk.copies.is_pending("b", "x")))
    adopt(disk, "x", V1, b"one", PENDING)
    disk.copies.confirm([("b", "x", V1)])
    adopt(disk, "x", V2, b"two")
    assert seen == [True, True, True, True, False, False]


def test_what_was_not_committed_is_not_pending_and_what_may_be_is(open_disk: Any) -> None:
    filesystem = FaultyFileSystem(fail_with(errno.ENOSPC))
    disk = open_disk(filesystem)
    adopt(disk, "x", V1, b"one")
    filesystem.arm(0, every=1)
    with pytest.raises(NoSpace):
        adopt(disk, "x", V2, None, PENDING)
    filesystem.arm()
    assert disk.state == "up"
    assert not disk.copies.has_pending
    filesystem = FaultyFileSystem(commit_and_fail)
    disk = open_disk.again(filesystem)
    filesystem.arm(0, every=1)
    with pytest.raises(StorageFailed):
        adopt(disk, "x", V2, None, PENDING)
    filesystem.arm()
    assert disk.copies.is_pending("b", "x")
    assert open_disk.again().copies.pending() == ([("b", "x", V2)], None)


def test_a_write_is_made_certain_in_one_step(disk: Any) -> None:
    adopt(disk, "x", V1, b"one", PENDING)
    adopt(disk, "y", V1, b"one", PENDING)
    durable = watched(disk.parts.filesystem)
    disk.copies.mark_replicated("b", "x", V1, ["disk-2", "disk-3"])
    assert (disk.copies.is_pending("b", "x"), disk.copies.hint_counts()) == (False, {"disk-2": 1, "disk-3": 1})
    disk.copies.mark_replicated("b", "y", V1)
    assert (disk.copies.has_pending, disk.copies.hint_counts()) == (False, {"disk-2": 1, "disk-3": 1})
    assert durable == [True, False]
    adopt(disk, "x", V2, b"two", PENDING)
    disk.copies.mark_replicated("b", "x", V1, ["disk-4"])
    assert (disk.copies.is_pending("b", "x"), disk.copies.has_hints_for("disk-4")) == (True, True)


def test_pages_of_pending_rows_are_complete(disk: Any) -> None:
    names = [f"n{number:02d}" for number in range(23)]
    for name in names:
        adopt(disk, name, V1, b"" if name < "n10" else None, PENDING)
    found = pages(disk.copies.pending, 5)
    assert ([row.name for page in found for row in page], len(found)) == (names, 5)


# --- undoing


@pytest.mark.parametrize("pending_row", [True, False])
@pytest.mark.parametrize("to", ["object", "tombstone", "nothing"])
def test_what_is_pending_can_be_undone_by_an_older_state(disk: Any, open_disk: Any, pending_row: bool, to: str) -> None:
    adopt(disk, "x", V2, b"two" if pending_row else None, Standing(rank=1, pending=True))
    if to == "object":
        assert disk.copies.revert_to(written(disk, "x", b"one", V1), V2, rank=None if pending_row else 1)
        assert (body(disk, "x"), disk.copies.rows()) == (b"one", ([("b", "x", V1, 1)], None))
    else:
        assert disk.copies.revert("b", "x", V2, V1 if to == "tombstone" else None)
        assert disk.copies.state("b", "x") == (NameState(V1) if to == "tombstone" else None)
        with pytest.raises(ObjectNotFound):
            disk.lookup("b", "x")
    assert (disk.copies.has_pending, disk.copies.undone) == (False, 1)
    assert len(open_disk.files()) == (to == "object")
    assert disk.totals() == ((1, 3) if to == "object" else (0, 0))
    disk = open_disk.again()
    assert (disk.sweep().found, disk.copies.has_pending) == (0, False)
    assert open_disk.problems() == {}


def test_nothing_else_than_exactly_what_is_pending_is_undone(disk: Any, open_disk: Any) -> None:
    adopt(disk, "certain", V2, b"two")
    adopt(disk, "newer", V3, b"three", PENDING)
    for name in ("certain", "newer", "absent"):
        assert not disk.copies.revert("b", name, V2, None)
        assert not disk.copies.revert("b", name, V2, V1)
        assert not disk.copies.revert_to(written(disk, name, b"one", V1), V2)
    adopt(disk, "guarded", V2, b"two", PENDING)
    guard = raising(BadName("something has come"))
    with pytest.raises(BadName):
        disk.copies.revert("b", "guarded", V2, None, guard=guard)
    with pytest.raises(BadName):
        disk.copies.revert_to(written(disk, "guarded", b"one", V1), V2, guard=guard)
    assert (body(disk, "certain"), body(disk, "newer"), body(disk, "guarded")) == (b"two", b"three", b"two")
    assert (len(open_disk.files()), disk.copies.undone) == (3, 0)


def test_what_was_undone_does_not_come_back_after_a_power_loss(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one")
    adopt(disk, "x", V3, b"three", PENDING, durability="relaxed")  # with the first as what it could come back to
    assert disk.copies.revert_to(written(disk, "x", b"two", V2, durability="relaxed"), V3)
    assert (body(disk, "x"), len(open_disk.files())) == (b"two", 1)
    [(_, previous)] = disk.parts.catalog.writer.execute("SELECT us, previous FROM unsynced").fetchall()
    assert previous is None


# --- outputs of jobs


def published(disk: Any, *names: str) -> list[str]:
    """Outputs of job-1 that are published here while another disk is the primary; their versions."""
    versions = [written(disk, name, b"abc", staged=StagedName("job-1")).commit().row.version for name in names]
    disk.staging.publish("job-1", lambda _: True, lambda _row, _pending: PENDING)
    return versions


def test_a_disk_remembers_what_a_job_publishes_until_it_counts_or_is_replaced(disk: Any, open_disk: Any) -> None:
    names = ["counts", "undone", "replaced", "stays"]
    versions = published(disk, *names)
    assert sorted(disk.copies.published_by("job-1")) == sorted(("b", name) for name in names)
    assert disk.copies.publisher("b", "stays") == "job-1"
    assert disk.copies.published_by("job-2") == []
    disk.copies.confirm([("b", "counts", versions[0])])
    disk.copies.revert("b", "undone", versions[1], None)
    disk.put_small("b", "replaced", b"new", precondition=Precondition(guard=lambda: PENDING))
    assert (disk.copies.publisher("b", "replaced"), disk.copies.is_pending("b", "replaced")) == ("", True)
    disk = open_disk.again()
    assert (disk.copies.published_by("job-1"), disk.copies.publishers) == ([("b", "stays")], {"job-1"})
    assert disk.staging.discard("job-2") == disk.staging.discard("job-1") == 0
    assert (disk.copies.published_by("job-1"), disk.copies.is_pending("b", "stays")) == ([], True)
    disk = open_disk.again()
    assert (disk.copies.publishers, body(disk, "stays")) == (set(), b"abc")


def test_a_copy_of_what_a_job_publishes_is_one_too_also_if_it_comes_again(disk: Any) -> None:
    standing = Standing(1, pending=True, job="job-1")
    for _ in range(2):
        adopt(disk, "x", V1, b"abc", standing)
        assert disk.copies.publisher("b", "x") == "job-1"
    adopt(disk, "x", V1, b"abc", Standing(1))
    assert (disk.copies.publisher("b", "x"), disk.copies.is_pending("b", "x")) == ("", False)


def test_a_rebuilt_catalog_and_a_bucket_that_goes(disk: Any, open_disk: Any) -> None:
    published(disk, "x", "y")
    disk.copies.add_hints([("disk-2", "b", "x")])
    disk = open_disk.rebuilt()
    assert sorted(disk.copies.published_by("job-1")) == [("b", "x"), ("b", "y")]
    disk.remove_bucket("b")
    assert disk.copies.publishers == set()
