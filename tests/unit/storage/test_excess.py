"""What is noted of copies: what other disks lack, ranks, surplus rows; and what a rebuild and a check make of it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from calls import raising
from copying import PENDING, V1, V2, adopt, body, pages
from faulty_filesystem import FaultyFileSystem, fail_with

from dfc.clock import HybridClock, version_us
from dfc.errors import BadName, ObjectCorrupt, Unavailable
from dfc.storage import Precondition
from dfc.storage.catalog.changes import PurgeTombstones
from dfc.storage.copies import HINTED_ROWS
from dfc.storage.rows import NO_REPLICA, Standing
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild
from dfc.storage.upkeep.relaxed import keep_house
from dfc.storage.upkeep.scrub import Scrubber
from dfc.storage.upkeep.sweep import unlink_departed

# --- hints


REFUSE = raising(Unavailable("no"))


def test_hints_are_kept_until_the_disk_has_what_is_here(disk: Any, open_disk: Any) -> None:
    assert (disk.copies.has_hints_for("disk-2"), disk.copies.hint_counts()) == (False, {})
    assert disk.copies.hints("disk-2") == ([], None)
    for name in ("x", "y"):
        adopt(disk, name, V1, b"one", Standing(hints=("disk-2", "disk-3")))
    disk.copies.add_hints([("disk-2", "b", "x"), ("disk-4", "b", "x")])
    assert disk.copies.hint_counts() == {"disk-2": 2, "disk-3": 2, "disk-4": 1}
    disk.copies.drop_hints([("disk-2", "b", "x", V2), ("disk-3", "b", "x", V1), ("disk-4", "b", "x", None)])
    assert disk.copies.hint_counts() == {"disk-2": 2, "disk-3": 1, "disk-4": 1}
    disk.copies.add_hints([("disk-4", "b", "never")])
    with pytest.raises(Unavailable):
        disk.copies.drop_hints([("disk-4", "b", "x", V1)], guard=REFUSE)
    disk.copies.drop_hints([("disk-4", "b", "x", V1), ("disk-4", "b", "never", None)])
    assert disk.copies.hint_counts() == {"disk-2": 2, "disk-3": 1}
    assert (disk.copies.hinted_disks("b", "x"), disk.copies.hinted_disks("b", "z")) == ({"disk-2"}, set())
    adopt(disk, "y", V2, None)
    disk.copies.drop_hints([("disk-3", "b", "y", V1)])
    assert disk.copies.hints("disk-3") == ([("b", "y")], None), "it lacks the delete now"
    disk.copies.drop_hints([("disk-3", "b", "y", V2)])
    assert not disk.copies.has_hints_for("disk-3")
    disk = open_disk.again()
    assert disk.copies.hints("disk-2") == ([("b", "x"), ("b", "y")], None)
    assert disk.copies.forget_disk("disk-2") == 2
    assert not disk.parts.catalog.marks.has_hints
    assert disk.copies.hint_counts() == {}


def test_many_hints_are_read_in_pages_and_forgotten_in_steps(disk: Any) -> None:
    adopt(disk, "x", V1, b"one")
    names = [f"{number:05d}" for number in range(HINTED_ROWS + 500)]
    commits = disk.stats.commits
    disk.copies.add_hints([("disk-2", "b", name) for name in names])
    assert disk.stats.commits - commits == 2
    found = pages(partial(disk.copies.hints, "disk-2"), 999)
    assert [name for page in found for _, name in page] == names
    assert disk.copies.forget_disk("disk-2") == len(names)
    disk.copies.add_hints([("disk-2", "b", name) for name in names])
    assert disk.remove_bucket("b") == 1
    assert (disk.copies.hint_counts(), disk.parts.catalog.marks.has_hints) == ({}, False)


def test_a_tombstone_that_somebody_lacks_is_not_purged(open_disk: Any) -> None:
    disk = open_disk(tombstone_keep_s=-3600)
    adopt(disk, "pending", V1, None, PENDING)
    adopt(disk, "hints", V1, None, Standing(hints=("disk-2",)))
    adopt(disk, "old", V1, None)
    later = version_us(disk.parts.clock.next_version()) + 1
    assert disk.parts.committer.submit(PurgeTombstones(later)) == 1
    keep_house(disk.parts)
    assert [name for _, name, _ in disk.copies.tombstones()[0]] == ["hints", "pending"]
    disk.copies.confirm([("b", "pending", V1)])
    disk.copies.drop_hints([("disk-2", "b", "hints", V1)])
    keep_house(disk.parts)
    assert disk.copies.tombstones() == ([], None)


# --- ranks and surplus


def test_ranks_move_counters_and_listings_have_the_first_only(disk: Any, open_disk: Any) -> None:
    for number in range(5):
        adopt(disk, f"n{number}", V1, bytes(10 + number), Standing(rank=number))
    adopt(disk, "none", V1, b"x", Standing(rank=NO_REPLICA))
    names = ["n0", "n1", "n2", "n3", "n4", "none"]
    for listed in (
        lambda **more: [row[0] for row in disk.list_tuples("b", limit=9, **more)],
        lambda **more: [row.name for row in disk.list("b", limit=9, **more)],
    ):
        assert (listed(), listed(ranks="first"), listed(ranks="all")) == (["n0"], ["n0"], names)
    assert (disk.counts("b"), disk.parts.catalog.copy_counts("b"), disk.totals()) == ((1, 10), (5, 51), (6, 61))
    disk.copies.set_ranks([("b", "n0", 1), ("b", "n1", 0), ("b", "n2", 0), ("b", "n3", 3), ("b", "absent", 0), ("c", "x", 1)])
    assert [row.rank for row in disk.copies.rows()[0]] == [1, 0, 0, 3, 4, NO_REPLICA]
    assert (disk.counts("b"), disk.parts.catalog.copy_counts("b"), disk.totals()) == ((2, 23), (4, 38), (6, 61))
    disk.put_small("b", "n1", b"")  # of rank 0, as it was
    disk.put_small("b", "n4", b"", precondition=Precondition(guard=lambda: Standing(rank=2)))
    disk.delete("b", "n2")
    assert (disk.counts("b"), disk.parts.catalog.copy_counts("b")) == ((1, 0), (4, 24))
    Scrubber(disk, bytes_per_s=0, interval_s=9).scrub_once()
    assert disk.stats.scrubbed_objects == 5
    disk.copies.set_ranked_layout(7)
    assert open_disk.problems() == {}
    disk = open_disk()
    assert disk.copies.ranked_layout == 7
    assert disk.remove_bucket("b") == 5
    assert disk.totals() == (0, 0)


def test_a_walk_over_all_rows_is_complete(disk: Any) -> None:
    for bucket in ("b", "a"):
        for number in range(7):
            disk.put_small(bucket, f"n{number}", b"x")
    found = [(row.bucket_id, row.name) for page in pages(disk.copies.rows, 3) for row in page]
    assert found == [(bucket, f"n{number}") for bucket in ("b", "a") for number in range(7)]


@pytest.mark.parametrize("ranks", ["first", "all"])
def test_listings_by_rank_stay_scans_of_a_range(disk: Any, ranks: str) -> None:
    disk.put_small("b", "x", b"x")
    catalog, statements = disk.parts.catalog, []
    with catalog.reader() as connection:  # the only one, so that the listing gets it next
        connection.set_trace_callback(statements.append)
    assert len(disk.list_tuples("b", prefix="x", start_after="w", limit=10, ranks=ranks)) == 1
    with catalog.reader() as connection:
        connection.set_trace_callback(None)
        [plan] = connection.execute(f"EXPLAIN QUERY PLAN {statements[-1]}").fetchall()
    assert plan[3] == "SEARCH objects USING PRIMARY KEY (bucket=? AND name>? AND name<?)"


def test_what_is_removed_is_found_by_its_key_and_no_table_is_walked(disk: Any) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        adopt(disk, name, V1, b"one", Standing(NO_REPLICA, pending=True, hints=("disk-2",)))
    writer, statements = disk.parts.catalog.writer, []
    writer.set_trace_callback(statements.append)
    disk.copies.confirm([("b", name, V1) for name in names])
    disk.copies.drop_hints([("disk-2", "b", name, V1) for name in names])
    disk.delete("b", "n4")
    disk.put_small("b", "n4", b"two")
    assert disk.copies.remove_excess([("b", name, V1) for name in names[:4]]) == 4
    unlink_departed(disk.parts)
    writer.set_trace_callback(None)
    deletes = {statement.split()[2]: statement for statement in statements if statement.startswith("DELETE")}
    assert deletes.keys() == {"pending", "hints", "objects", "tombstones", "departed"}
    for statement in deletes.values():
        [plan] = writer.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        assert "bucket=? AND name=?" in plan[3], (statement, plan)


def test_excess_rows_go_if_they_are_still_what_they_were_and_nobody_needs_them(disk: Any, open_disk: Any) -> None:
    for name in ("gone", "changed", "pending", "hints", "quarantined"):
        adopt(disk, name, V1, b"one", Standing(NO_REPLICA, name == "pending", ("disk-2",) if name == "hints" else ()))
    adopt(disk, "deleted", V1, None)
    adopt(disk, "changed", V2, b"two", Standing(NO_REPLICA))
    Path(disk.blob_path(disk.find("b", "quarantined"))).unlink()
    with pytest.raises(ObjectCorrupt):
        body(disk, "quarantined")
    names = ("gone", "changed", "pending", "hints", "quarantined", "deleted", "absent")
    assert disk.copies.remove_excess(("b", name, V1) for name in names) == 3
    assert [row.name for row in disk.copies.rows()[0]] == ["changed", "hints", "pending"]
    assert disk.copies.tombstones() == ([], None)
    assert (disk.quarantined(), disk.totals(), len(open_disk.files())) == ([], (3, 9), 3)
    with pytest.raises(BadName):
        disk.copies.remove_excess([("b", "changed", V2)], guard=raising(BadName("the map has changed")))
    assert body(disk, "changed") == b"two"
    assert disk.sweep().found == 0


def test_blobs_of_excess_rows_are_remembered_until_they_are_gone(disk: Any, open_disk: Any, tar_of: Any) -> None:
    for name in ("x.tar", "y" * 300):
        adopt(disk, name, V1, tar_of(2))
    disk.parts.filesystem.unlink = lambda path: None
    assert disk.copies.remove_excess([("b", name, V1) for name in ("x.tar", "y" * 300)]) == 2
    assert len(open_disk.files()) == 3
    assert set(open_disk.problems(full=False)) == {"superseded_blob", "index_without_blob"}
    disk = open_disk()
    assert disk.sweep().found == 0
    assert open_disk.files() == set()
    assert unlink_departed(disk.parts) == 0
    adopt(disk, "z", V1, b"one")
    disk.copies.remove_excess([("b", "z", V1)])
    assert open_disk.problems(full=False) == {"departed_without_blob": 1}
    disk = open_disk()
    keep_house(disk.parts)
    assert open_disk.problems(full=False) == {}


@pytest.mark.parametrize("undone", [False, True], ids=["surplus", "undone"])
def test_a_large_removal_whose_files_are_left_raises_no_alarm(open_disk: Any, undone: bool) -> None:
    """As after a crash between the commit and the unlinks; the catalog of today is not too old."""
    disk, names = open_disk(orphan_alarm=3), [f"n{number}" for number in range(10)]
    for name in names:
        adopt(disk, name, V1, b"one", Standing(NO_REPLICA, pending=undone))
    disk.parts.filesystem.unlink = lambda path: None
    if undone:
        assert all(disk.copies.revert("b", name, V1, None) for name in names)
    else:
        assert disk.copies.remove_excess([("b", name, V1) for name in names]) == 10
    assert len(open_disk.files()) == 10
    disk = open_disk.again(orphan_alarm=3)
    assert not disk.sweep().alarm
    assert open_disk.files() == set()


def test_a_removed_file_is_forgotten_when_its_unlink_is_on_the_medium(open_disk: Any) -> None:
    """A power loss brings back what was unlinked; then the catalog must still know why it has no row."""
    filesystem = FaultyFileSystem()
    disk = open_disk(filesystem)
    adopt(disk, "x", V1, b"one")
    disk.copies.remove_excess([("b", "x", V1)])
    filesystem.arm()
    assert unlink_departed(disk.parts) == 1
    assert filesystem.names == ["unlink", "unlink", "sync_all", "commit"], "the blob, its index, and the rest"


def test_a_file_that_cannot_be_unlinked_is_remembered(open_disk: Any) -> None:
    filesystem = FaultyFileSystem(fail_with(5))
    disk = open_disk(filesystem)
    for name in ("x", "y"):
        adopt(disk, name, V1, b"one")
    filesystem.arm(1)
    disk.copies.remove_excess([("b", "x", V1), ("b", "y", V1)])
    assert filesystem.names[:2] == ["commit", "unlink"]
    filesystem.arm(0)
    assert unlink_departed(disk.parts) == 2
    assert open_disk.files() == set()


def test_no_new_blob_gets_the_id_of_one_that_is_to_be_unlinked(open_disk: Any) -> None:
    """Even if the clock has gone back: the new one would be unlinked."""
    disk = open_disk(clock=HybridClock(7, lambda: time.time_ns() // 1000 + 10**9))
    adopt(disk, "x", V1, b"one")
    blob_id = disk.find("b", "x").blob_id
    disk.copies.remove_excess([("b", "x", V1)])
    assert blob_id < open_disk.again().parts.clock.next_version()


def test_a_removed_bucket_forgets_what_was_to_be_unlinked_and_the_sweep_does_not(open_disk: Any) -> None:
    disk = open_disk(orphan_alarm=0)
    adopt(disk, "x", V1, b"one")
    disk.parts.filesystem.unlink = lambda path: None
    disk.copies.remove_excess([("b", "x", V1)])
    assert disk.remove_bucket("b") == 0
    disk = open_disk.again(orphan_alarm=0)
    assert not disk.sweep().alarm
    assert open_disk.files() == set()


# --- rebuilding and checking


def test_a_rebuilt_catalog_keeps_what_is_known_of_copies(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one", Standing(1, True, ("disk-2",)))
    adopt(disk, "y", V1, b"one", Standing(2))
    adopt(disk, "z", V1, None, Standing(0, True, ("disk-3",)))
    adopt(disk, "surplus", V1, b"one", Standing(NO_REPLICA))
    disk.copies.set_ranked_layout(5)
    incarnation = disk.incarnation
    disk.parts.filesystem.unlink = lambda path: None
    disk.copies.remove_excess([("b", "surplus", V1)])
    disk.close()
    report = rebuild(str(open_disk.root))
    assert (report.objects, report.deleted, report.tombstones) == (2, 1, 1)
    disk = open_disk()
    assert disk.copies.rows() == ([("b", "x", V1, 1), ("b", "y", V1, 2)], None)
    assert disk.copies.pending() == ([("b", "x", V1), ("b", "z", V1)], None)
    assert disk.copies.hint_counts() == {"disk-2": 1, "disk-3": 1}
    assert (disk.counts("b"), disk.totals(), disk.copies.ranked_layout) == ((0, 0), (2, 6), 5)
    assert disk.incarnation != incarnation
    assert disk.sweep().found == 0
    assert len(open_disk.files()) == 2
    # A row that the old catalog does not know has an unknown rank, and with it the layout.
    disk.parts.catalog.writer.execute("DELETE FROM objects WHERE name = CAST('y' AS BLOB)")
    disk = open_disk.rebuilt()
    assert disk.copies.rows() == ([("b", "x", V1, 1), ("b", "y", V1, 0)], None)
    assert disk.copies.ranked_layout == 0
    disk.close()
    for file in open_disk.root.glob("catalog.sqlite*"):
        file.unlink()
    disk = open_disk.rebuilt()
    assert {row.rank for row in disk.copies.rows()[0]} == {0}
    assert (disk.copies.has_pending, disk.copies.hint_counts(), disk.copies.ranked_layout) == (False, {}, 0)


def test_a_check_reports_what_refers_to_nothing_as_harmless(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one", Standing(1, True, ("disk-2",)))
    adopt(disk, "y", V1, None, Standing(0, True, ("disk-2",)))
    assert open_disk.problems() == {}
    disk = open_disk()
    disk.parts.catalog.writer.execute("UPDATE pending SET us = us + 1 WHERE name = CAST('x' AS BLOB)")
    disk.parts.catalog.writer.execute("DELETE FROM tombstones")
    disk.parts.catalog.writer.execute("UPDATE buckets SET copies = 7")
    disk.close()
    report = check(str(open_disk.root))
    assert report.counts == {"mark_without_row": 2, "hint_without_row": 1, "counters": 1}
    [counters] = [problem for problem in report.problems if problem.kind == "counters"]
    assert counters.detail == "the counters say 7 objects of later ranks with 3 bytes, but there are 1 with 3 bytes"
    del report.counts["counters"]
    assert not report.damaged


# --- set aside


def _orphans(disk: Any) -> list[Path]:
    return sorted(path for path in Path(disk.path, "orphans").rglob("*") if path.is_file())


def test_what_is_set_aside_is_kept_for_a_while(disk: Any, open_disk: Any) -> None:
    adopt(disk, "x", V1, b"one")
    adopt(disk, "y", V1, b"two")
    with pytest.raises(Unavailable):
        disk.copies.set_aside([("b", "x", V1)], guard=REFUSE)
    assert disk.copies.set_aside([("b", "x", V2), ("b", "never", V1)]) == [], "other versions stay"
    [path] = disk.copies.set_aside([("b", "x", V1)])
    assert [str(each) for each in _orphans(disk)] == [path]
    assert Path(path).read_bytes().startswith(b"one")
    assert (disk.find("b", "x"), body(disk, "y")) == (None, b"two")
    assert disk.copies.state("b", "x") is None, "and no tombstone"
    report = disk.sweep()
    assert (report.found, report.alarm) == (0, False)
    assert open_disk.problems(full=False) == {}


def test_a_crash_before_a_file_is_set_aside_loses_nothing(open_disk: Any) -> None:
    filesystem = FaultyFileSystem(fail_with(5))
    disk = open_disk(filesystem)
    for name in ("x", "y"):
        adopt(disk, name, V1, name.encode())
    filesystem.arm()
    assert len(disk.copies.set_aside([("b", "x", V1)])) == 1
    assert filesystem.names == ["commit", "unlink", "make_directory", "rename"], "the row first"
    filesystem.arm(3)
    assert disk.copies.set_aside([("b", "y", V1)]) == []
    assert disk.find("b", "y") is None
    again = open_disk.again()
    assert again.sweep().moved == 1
    assert sorted(path.read_bytes()[:1] for path in _orphans(again)) == [b"x", b"y"]
