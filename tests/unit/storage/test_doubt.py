"""What a disk says of itself after a power loss that may have cost rows which other disks have."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import pytest
from calls import before
from copying import V1, V2, adopt, end_run
from faulty_filesystem import FaultyFileSystem

from dfc.storage.rows import QUARANTINED, UNSYNCED, Precondition, Standing

COPY = Standing(1)


@pytest.mark.parametrize("how", ["own", "copy", "large copy"])
def test_a_power_loss_that_may_have_cost_rows_makes_the_disk_another(disk: Any, open_disk: Any, how: str) -> None:
    before = disk.incarnation
    if how == "own":
        disk.put_small("b", "a", b"x", durability="relaxed", precondition=Precondition(guard=lambda: Standing(pending=True)))
    else:
        adopt(disk, "a", V1, b"x" * (10 if how == "copy" else 300_000), COPY, durability="relaxed")
    end_run(disk)
    disk = open_disk(boot_id="boot-2")
    after = disk.incarnation
    assert after != before
    assert after.partition(".")[0] == before.partition(".")[0], "it has not lost more than its last rows"
    end_run(disk)
    assert open_disk(boot_id="boot-3").incarnation == after, "once is enough"


def test_each_power_loss_counts(open_disk: Any) -> None:
    found = set()
    for number in range(3):
        disk = open_disk(boot_id=f"boot-{number}")
        found.add(disk.incarnation)
        adopt(disk, f"a{number}", V1, b"x", COPY, durability="relaxed")
        end_run(disk)
    assert len(found) == 3
    assert {each.partition(".")[0] for each in found} == {min(found, key=len)}


def test_a_restart_of_the_process_alone_changes_nothing(disk: Any, open_disk: Any) -> None:
    before = disk.incarnation
    for _ in range(2):
        adopt(disk, "a", V1, b"x", COPY, durability="relaxed")
        end_run(disk)
        disk = open_disk()
        assert disk.incarnation == before


@pytest.mark.parametrize("what", ["one copy", "durable", "synced", "closed", "replaced"])
def test_a_disk_that_can_have_lost_nothing_stays_the_same(disk: Any, open_disk: Any, what: str) -> None:
    """With one copy nobody else has the rows: it is of no use to ask."""
    before = disk.incarnation
    if what == "one copy":
        disk.put_small("b", "a", b"x", durability="relaxed")
    else:
        adopt(disk, "a", V1, b"x", COPY, durability="fsync" if what == "durable" else "relaxed")
    if what == "synced":
        disk.sync_relaxed()
    if what == "replaced":
        adopt(disk, "a", V2, b"y", COPY)
        disk.sync_relaxed()
    if what == "closed":
        disk.close()
    else:
        end_run(disk)
    assert open_disk(boot_id="boot-2").incarnation == before


def test_what_is_not_synced_yet_keeps_the_note(disk: Any, open_disk: Any) -> None:
    """Also what comes with, or just after, the commit that was to end it."""
    before = disk.incarnation
    adopt(disk, "a", V1, b"x", COPY, durability="relaxed")
    disk.sync_relaxed()
    adopt(disk, "c", V1, b"x", COPY, durability="relaxed")
    disk._relaxed._end_doubt()
    end_run(disk)
    assert open_disk(boot_id="boot-2").incarnation != before


def test_the_note_costs_one_commit_until_all_is_synced(open_disk: Any) -> None:
    filesystem = FaultyFileSystem()
    disk = open_disk(filesystem)
    filesystem.arm()
    for number, expected in enumerate((2, 1, 1)):
        before = filesystem.names.count("commit")
        adopt(disk, f"a{number}", V1, b"x", COPY, durability="relaxed")
        assert filesystem.names.count("commit") - before == expected
    assert disk.stats.unsynced_rows == 3


def test_the_note_is_durable_before_the_row(disk: Any) -> None:
    """It is synced in a commit of its own; the row, as ever, is not."""
    commits: list[tuple[bool, int]] = []

    def look(connection: sqlite3.Connection) -> None:
        is_synced = connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        commits.append((is_synced, connection.execute("SELECT count(*) FROM unsynced").fetchone()[0]))

    before(disk.parts.filesystem, "commit", look)
    for name in ("a", "b"):
        adopt(disk, name, V1, b"x", COPY, durability="relaxed")
    assert commits == [(True, 0), (False, 1), (False, 2)]


@pytest.mark.parametrize("harm", [False, True])
@pytest.mark.parametrize("previous", [False, True])
def test_what_may_be_lost_is_looked_at_before_others_hear_of_it(disk: Any, open_disk: Any, harm: bool, previous: bool) -> None:
    """They would believe that this disk lacks nothing, and it would go back to an older object later."""
    if previous:
        adopt(disk, "a", V1, b"one", COPY)
    adopt(disk, "a", V2, b"two", COPY, durability="relaxed")
    row = disk.find("b", "a")
    end_run(disk)
    if harm:
        os.truncate(disk.blob_path(row), 1)
    disk = open_disk(boot_id="boot-2")
    told = disk.copies.states([("b", "a")])[0]
    assert told.version == (V1 if harm and previous else V2)
    assert told.row.state != UNSYNCED
    assert (told.row.state == QUARANTINED) == (harm and not previous)


def test_a_body_that_comes_again_takes_the_place_of_one_that_may_be_lost(disk: Any, open_disk: Any) -> None:
    adopt(disk, "a", V1, b"one", COPY, durability="relaxed")
    row = disk.find("b", "a")
    end_run(disk)
    os.truncate(disk.blob_path(row), 1)
    disk = open_disk(boot_id="boot-2")
    adopt(disk, "a", V1, b"one", COPY, durability="relaxed")
    assert disk.read_small(disk.lookup("b", "a")) == b"one"
    assert disk.stats.quarantined_rows == 0
