"""What comes with an upload from outside: the version that somebody else has given to it, and attributes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from copying import body, end_run, written
from hypothesis import given
from hypothesis import strategies as st

from dfc.clock import VERSION_AHEAD_US_MAX, HybridClock, version_us
from dfc.errors import BadRequest, Conflict, ObjectCorrupt, ObjectNotFound
from dfc.limits import ATTRIBUTES_BYTES_MAX
from dfc.storage import layout
from dfc.storage.blobs import reader
from dfc.storage.catalog.changes import MarkSynced, PurgeTombstones, StagedName
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.rows import NO_ATTRIBUTES, Attributes, ObjectRow, RowChanged, Supplied, check_attributes
from dfc.storage.upkeep.relaxed import keep_house
from dfc.storage.upkeep.sweep import read_footer

OLD = "0600000000000000ff"  # of 2023, by the node 255: older than every opening of a disk
OLDER = "05ffffffffffff00ff"
SAID = Attributes(content_type="image/jpeg", metadata={"camera": "ä"}, digests={"md5": "0" * 32}).encode()
JOB, OTHER_JOB = StagedName("job-1"), StagedName("job-2")


def put(
    disk: Any, name: str, data: bytes, *, small: bool = True, version: str | None = None, attributes: bytes = b"", **more: Any
) -> Any:
    if small:
        return disk.put_small("b", name, data, supplied=Supplied(version, attributes), **more)
    return written(disk, name, data, version, attributes, **more).commit()


def bury(disk: Any, name: str, version: str) -> ObjectRow | None:
    """Apply a delete whose version was assigned elsewhere: remove anything older for good."""

    def decide(present: str | None) -> AdoptVerdict:
        return AdoptVerdict(taken=True, commits=present is None or present < version)

    return disk.copies.adopt_tombstone("b", name, version, decide).row


both_ways = pytest.mark.parametrize("small", [True, False])
both_durabilities = pytest.mark.parametrize("durability", ["fsync", "relaxed"])


# --- versions


@both_ways
@both_durabilities
def test_an_object_keeps_the_version_that_it_comes_with(disk: Any, open_disk: Any, small: bool, durability: str) -> None:
    result = put(disk, "x.tar" if not small else "x", b"old", small=small, version=OLD, durability=durability)
    name = result.row.name
    assert (result.row.version, result.replaced, disk.lookup("b", name).version) == (OLD, False, OLD)
    assert read_footer(disk.parts.filesystem, disk.blob_path(result.row)).version == OLD
    disk.sync_relaxed()
    disk = open_disk.again()
    assert body(disk, name) == b"old"
    assert not {"row_without_blob", "damaged_blob"} & open_disk.problems().keys()


@both_ways
def test_of_two_versions_the_newer_one_stays_in_whatever_order_they_come(disk: Any, open_disk: Any, small: bool) -> None:
    for name, order in (("a", (OLDER, OLD)), ("b", (OLD, OLDER))):
        for version in order:
            put(disk, name, version.encode(), small=small, version=version)
        assert body(disk, name) == OLD.encode()
        assert count_of(open_disk, name) == 1


def count_of(open_disk: Any, name: str) -> int:
    """How many files there are of an object."""
    return len([file for file in open_disk.files() if f"/{name}@" in file])


def test_the_clock_follows_versions_from_outside(disk: Any) -> None:
    ahead = f"{int(disk.parts.clock.next_version()[:14], 16) + VERSION_AHEAD_US_MAX // 2:014x}00ff"
    put(disk, "x", b"ahead", version=ahead)
    assert disk.parts.clock.next_version() > ahead
    assert put(disk, "x", b"own").row.version > ahead
    assert body(disk, "x") == b"own"
    further = f"{int(ahead[:14], 16) + 1000:014x}00ff"
    assert bury(disk, "x", further).version < further
    assert disk.parts.clock.next_version() > further


@pytest.mark.parametrize("version", ["", "x", OLD[:-1], OLD + "0", OLD.replace("f", "F"), "0x" + OLD[2:], "f" * 18])
def test_what_is_no_version_or_of_a_time_to_come_is_refused(disk: Any, open_disk: Any, version: str) -> None:
    put(disk, "y", b"y")
    before = disk.parts.clock.next_version()
    for small in (True, False):
        with pytest.raises(BadRequest):
            put(disk, "x", b"x", small=small, version=version)
    with pytest.raises(BadRequest):
        bury(disk, "y", version)
    assert before < disk.parts.clock.next_version() < "1"
    assert body(disk, "y") == b"y"
    assert count_of(open_disk, "x") == 0


def test_a_clock_refuses_what_would_carry_it_away() -> None:
    clock = HybridClock(1, lambda: 1_000_000)
    clock.observe_foreign(f"{1_000_000 + VERSION_AHEAD_US_MAX:014x}0002")
    with pytest.raises(ValueError, match="ahead"):
        clock.observe_foreign(f"{1_000_001 + VERSION_AHEAD_US_MAX:014x}0002")
    assert clock.next_version() == f"{1_000_001 + VERSION_AHEAD_US_MAX:014x}0001"


@both_ways
@both_durabilities
def test_a_version_that_is_here_already_may_come_again_as_it_was(open_disk: Any, small: bool, durability: str) -> None:
    disk = open_disk()
    for _ in range(3):
        put(disk, "x", b"first", small=small, version=OLD, durability=durability, attributes=SAID)
    for data, attributes in ((b"other", SAID), (b"first", b"")):
        with pytest.raises(Conflict, match=OLD):
            put(disk, "x", data, small=small, version=OLD, attributes=attributes, durability=durability)
    assert (body(disk, "x"), disk.lookup("b", "x").attributes) == (b"first", SAID)
    assert (len(open_disk.files()), disk.counts("b")) == (1, (1, 5))
    assert open_disk.problems() == {}


def lose(path: Path) -> None:
    path.unlink()


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@both_ways
@both_durabilities
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("harm", [lose, spoil])
def test_a_version_whose_blob_was_lost_comes_again(
    open_disk: Any, small: bool, durability: str, known: bool, harm: Any
) -> None:
    """With the damage noticed before, which quarantines the object, and not."""
    disk = open_disk()
    row = put(disk, "x", b"first", small=small, version=OLD).row
    harm(Path(disk.blob_path(row)))
    if known:
        with pytest.raises(ObjectCorrupt):
            body(disk, "x")
    with pytest.raises(Conflict, match="different bytes"):
        put(disk, "x", b"other", small=small, version=OLD, durability=durability)
    renewed = put(disk, "x", b"first", small=small, version=OLD, durability=durability).row
    assert (renewed.version, renewed.blob_id > row.blob_id) == (OLD, True)
    assert body(disk, "x") == b"first"
    disk.sync_relaxed()
    assert body(disk, "x") == b"first"
    assert (disk.counts("b"), disk.quarantined(), len(open_disk.files())) == ((1, 5), [], 1)
    assert open_disk.problems() == {}


def test_a_reader_of_the_lost_blob_does_not_quarantine_the_new_one(disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = put(disk, "x", b"first", version=OLD).row
    Path(disk.blob_path(row)).unlink()
    real = reader.quarantine

    def late(*arguments: Any, **more: Any) -> str:
        """The same version comes again between the reader's look and what it does about it."""
        put(disk, "x", b"first", version=OLD)
        return real(*arguments, **more)

    monkeypatch.setattr(reader, "quarantine", late)
    with pytest.raises(ObjectCorrupt):
        disk.read_small(row)
    assert disk.quarantined() == []
    assert body(disk, "x") == b"first"


def test_an_object_and_what_is_staged_have_files_of_their_own(disk: Any, open_disk: Any) -> None:
    """A target that missed the publishing of a job gets the object as a copy, and holds it as staged, too."""
    put(disk, "x", b"first", small=False, version=OLD, staged=JOB, attributes=SAID)
    put(disk, "x", b"first", version=OLD, attributes=SAID)
    put(disk, "y", b"y", small=False, staged=JOB)
    assert len(open_disk.files()) == 3
    disk.staging.prepare(JOB.job)
    assert disk.staging.publish(JOB.job, lambda _: True).objects == 1
    assert (body(disk, "x"), body(disk, "y"), len(open_disk.files())) == (b"first", b"y", 2)
    put(disk, "z", b"first", small=False, version=OLD, staged=OTHER_JOB)
    put(disk, "z", b"again", small=False, version=OLD, staged=OTHER_JOB)
    put(disk, "z", b"object", version=OLD)
    disk.staging.discard(OTHER_JOB.job)
    assert (body(disk, "z"), len(open_disk.files())) == (b"object", 3)
    assert open_disk.problems() == {}


def test_publishing_what_is_here_with_other_bytes_changes_nothing_else(disk: Any, open_disk: Any) -> None:
    put(disk, "b", b"copied", version=OLD)
    put(disk, "a", b"a", small=False, staged=JOB)
    put(disk, "b", b"staged", small=False, version=OLD, staged=JOB)
    put(disk, "c", b"c", small=False, staged=JOB)
    assert disk.staging.publish(JOB.job, lambda _: True).objects == 2
    assert [body(disk, name) for name in "abc"] == [b"a", b"copied", b"c"]
    assert len(open_disk.files()) == 3


@pytest.mark.parametrize("harm", [None, lose, spoil])
def test_publishing_makes_a_copy_good_that_is_lost_or_may_be(open_disk: Any, harm: Callable[[Path], None] | None) -> None:
    """The copy is relaxed, and the power is cut after the publishing; or it is quarantined before that."""
    disk = open_disk()
    put(disk, "x", b"first", small=False, version=OLD, staged=JOB)
    copy = put(disk, "x", b"first", version=OLD, durability="relaxed" if harm is None else "fsync").row
    if harm is not None:
        harm(Path(disk.blob_path(copy)))
        with pytest.raises(ObjectCorrupt):
            body(disk, "x")
    disk.staging.prepare(JOB.job)
    disk.staging.publish(JOB.job, lambda _: True)
    cut_power(disk, copy)
    disk = open_disk(boot_id="boot-2")
    assert body(disk, "x") == b"first"
    assert (disk.quarantined(), len(open_disk.files())) == ([], 1)


def cut_power(disk: Any, *lost: ObjectRow) -> None:
    """End a run of the machine in which these blobs did not come to the medium."""
    end_run(disk)
    for row in lost:
        path = Path(disk.blob_path(row))
        if path.exists():
            path.write_bytes(bytes(row.size) + path.read_bytes()[row.size :])


def test_a_durable_upload_below_a_relaxed_one_is_what_it_comes_back_to(open_disk: Any) -> None:
    for number, first in enumerate((None, OLDER)):
        name, disk = f"n{number}", open_disk()
        if first is not None:
            put(disk, name, b"one", version=first)
        relaxed = put(disk, name, b"three", version="06000000000003ffff", durability="relaxed").row
        for small in (True, False):
            assert put(disk, name, b"two", small=small, version=f"06000000000001000{int(small)}").replaced
        put(disk, name, b"never", version=OLDER)
        put(disk, name, b"relaxed", version="0600000000000200ff", durability="relaxed")
        assert body(disk, name) == b"three"
        assert count_of(open_disk, name) == 2
        assert disk.sweep().found == 0
        cut_power(disk, relaxed)
        disk = open_disk(boot_id=f"boot-{number + 2}")
        assert body(disk, name) == b"two"
        assert count_of(open_disk, name) == 1
        disk.close()


def test_what_a_relaxed_one_could_come_back_to_goes_when_it_is_synced(disk: Any, open_disk: Any) -> None:
    put(disk, "x", b"three", version="06000000000003ffff", durability="relaxed")
    put(disk, "x", b"two", version=OLD)
    disk.sync_relaxed()
    assert (body(disk, "x"), len(open_disk.files())) == (b"three", 1)


def test_a_delete_below_a_relaxed_upload_is_not_undone_by_a_power_cut(disk: Any, open_disk: Any) -> None:
    put(disk, "x", b"one", version=OLDER)
    relaxed = put(disk, "x", b"three", version="06000000000003ffff", durability="relaxed").row
    assert bury(disk, "x", OLD) is None
    assert (body(disk, "x"), len(open_disk.files())) == (b"three", 1)
    cut_power(disk, relaxed)
    disk = open_disk(boot_id="boot-2")
    with pytest.raises(ObjectCorrupt):
        disk.lookup("b", "x")


def test_a_bucket_that_was_removed_is_not_remembered_for_a_late_delete(disk: Any) -> None:
    put(disk, "x", b"x")
    disk.remove_bucket("b")
    assert bury(disk, "x", OLD) is None
    assert disk.parts.catalog.bucket_ids() == []


def test_a_delete_keeps_the_version_that_it_comes_with(disk: Any, open_disk: Any) -> None:
    put(disk, "x", b"x", version=OLD)
    assert bury(disk, "x", OLDER) is None
    assert body(disk, "x") == b"x"
    later = "06000000000001ffff"
    assert bury(disk, "x", later).version == OLD
    assert bury(disk, "x", OLD) is None
    assert disk.parts.catalog.tombstone("b", "x") == later
    put(disk, "x", b"x", version="0600000000000100ff")
    with pytest.raises(ObjectNotFound):
        disk.lookup("b", "x")
    put(disk, "x", b"newer", version="06000000000002ffff")
    assert body(disk, "x") == b"newer"
    assert len(open_disk.files()) == 1


def test_a_delete_that_comes_before_its_object_keeps_it_away(disk: Any, open_disk: Any) -> None:
    assert bury(disk, "x", OLD) is None
    put(disk, "x", b"x", version=OLDER)
    with pytest.raises(ObjectNotFound):
        disk.lookup("b", "x")
    assert open_disk.files() == set()


def test_a_delete_is_remembered_from_when_it_came_however_old_it_is(open_disk: Any) -> None:
    disk = open_disk(tombstone_keep_s=3600)
    bury(disk, "x", OLD)
    keep_house(disk.parts)
    assert disk.parts.catalog.tombstone("b", "x") == OLD
    disk = open_disk.rebuilt(tombstone_keep_s=3600)
    keep_house(disk.parts)
    assert disk.parts.catalog.tombstone("b", "x") == OLD
    disk = open_disk.again()
    between = version_us(disk.parts.clock.next_version())
    for version in (OLDER, OLD):  # once more, and one that is older
        bury(disk, "x", version)
    disk.parts.committer.submit(PurgeTombstones(between))
    assert disk.parts.catalog.tombstone("b", "x") == OLD
    disk.parts.committer.submit(PurgeTombstones(version_us(disk.parts.clock.next_version())))
    assert disk.parts.catalog.tombstone("b", "x") is None


def test_the_sweep_leaves_alone_what_arrives_with_an_old_version(open_disk: Any, tar_of: Any) -> None:
    """It takes files without a row that are older than the opening of the disk for leftovers."""
    disk, data = open_disk(), tar_of(3)
    writer = disk.begin_put("b", "x.tar", size=None, supplied=Supplied(OLD))
    writer.write(data)
    assert disk.sweep().found == 0
    writer.finish()
    assert disk.sweep().found == 0
    row = writer.commit().row
    assert disk.sweep().found == 0
    assert (body(disk, "x.tar"), disk.open_index(row).member_count) == (data, 3)
    broken_off = disk.begin_put("b", "y.tar", size=None, supplied=Supplied(OLD))
    assert len(open_disk.files()) == 4
    broken_off.abort()
    assert len(open_disk.files()) == 2


@pytest.mark.parametrize("ahead_us", [0, VERSION_AHEAD_US_MAX // 2])
def test_what_a_crash_leaves_of_a_version_from_outside_is_set_aside(open_disk: Any, tmp_path: Path, ahead_us: int) -> None:
    """Also of one whose time has not come; and it does not keep that version from being received again."""
    disk = open_disk()
    version = f"{int(disk.parts.clock.next_version()[:14], 16) + ahead_us:014x}00ff"
    writer = written(disk, "x", b"first", version)
    shutil.copytree(open_disk.root, tmp_path / "crashed")
    writer.commit()
    disk.close()
    shutil.rmtree(open_disk.root)
    shutil.copytree(tmp_path / "crashed", open_disk.root)
    disk = open_disk()
    assert put(disk, "x", b"first", version=version).row.version == version
    disk = open_disk.again(clock=HybridClock(7, lambda: time.time_ns() // 1000 + ahead_us))  # then its time has come
    assert (disk.sweep().moved, len(open_disk.files())) == (1, 1)
    assert body(disk, "x") == b"first"


def test_a_file_that_another_one_replaced_is_known_as_such(disk: Any, open_disk: Any) -> None:
    """By the version in its footer: its name says only when it came."""
    path = Path(disk.blob_path(put(disk, "x", b"old", version=OLDER).row))
    kept = path.read_bytes()
    put(disk, "x", b"new", version=OLD)
    path.write_bytes(kept)
    assert open_disk.problems(full=False) == {"superseded_blob": 1}


def test_whoever_holds_the_row_of_the_lost_blob_is_told_of_the_new_one(disk: Any) -> None:
    lost = put(disk, "x", b"first", version=OLD).row
    Path(disk.blob_path(lost)).unlink()
    renewed = put(disk, "x", b"first", version=OLD).row
    with pytest.raises(RowChanged) as caught:
        disk.open_blob(lost)
    assert caught.value.row == renewed


def test_that_one_blob_was_synced_says_nothing_of_another_of_its_version(disk: Any) -> None:
    first = put(disk, "x", b"first", version=OLD, durability="relaxed").row
    put(disk, "x", b"first", version=OLD, durability="relaxed")
    disk.parts.committer.submit(MarkSynced([first]))
    assert disk.stats.unsynced_rows == 1


def test_a_disk_draws_no_id_that_it_has_drawn_before(open_disk: Any) -> None:
    """Though its clock was set back, and the versions of what it holds are old."""
    disk = open_disk(clock=HybridClock(7, lambda: 2_000_000_000_000_000))
    later = put(disk, "x", b"x", version=OLD).row
    disk = open_disk.again(clock=HybridClock(7, lambda: 1_900_000_000_000_000))
    assert disk.parts.clock.next_version() > later.blob_id > OLD


def test_the_sweep_knows_drawn_ids_of_files_with_hashed_names(open_disk: Any) -> None:
    """Whose names say nothing; where the footer cannot be read either, the ids that are needed decide."""
    disk, name = open_disk(), "ä" * 300
    path = Path(disk.blob_path(put(disk, name, b"x", version=OLD).row))
    assert path.name.startswith("#")
    path.write_bytes(b"x" + bytes(100))
    disk = open_disk.again()
    assert disk.sweep().found == 0
    assert path.exists()


def test_what_is_known_of_one_blob_is_not_believed_of_another_of_its_version(disk: Any, open_disk: Any) -> None:
    """A leftover with a sound footer and torn bytes, younger than the blob that the old catalog knows as good."""
    good = Path(disk.blob_path(put(disk, "x", b"first", version=OLD).row))
    later = disk.parts.clock.next_version()
    torn = Path(layout.blob_path(str(open_disk.root), "b", "x", later))
    torn.write_bytes(b"?" + good.read_bytes()[1:])
    disk = open_disk.rebuilt()
    assert body(disk, "x") == b"first"
    assert disk.lookup("b", "x").blob_id == good.name.partition("@")[2]


@pytest.mark.parametrize("full", [True, False])
def test_of_two_blobs_of_one_version_a_rebuilt_catalog_takes_the_younger(disk: Any, open_disk: Any, full: bool) -> None:
    path = Path(disk.blob_path(put(disk, "x", b"first", version=OLD).row))
    kept = path.read_bytes()
    second = put(disk, "x", b"first", version=OLD).row
    path.write_bytes(b"?" + kept[1:])
    staged = put(disk, "y", b"first", small=False, version=OLD, staged=JOB).row
    left = Path(layout.blob_path(str(open_disk.root), "b", "y", disk.parts.clock.next_version()))
    left.write_bytes(Path(disk.blob_path(staged)).read_bytes())
    disk = open_disk.rebuilt(full=full)
    assert disk.lookup("b", "x").blob_id == second.blob_id
    assert body(disk, "x") == b"first"
    assert disk.staging.find("b", "y", JOB).row.blob_id == left.name.partition("@")[2]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_rebuilt_catalog_goes_by_versions_and_not_by_when_they_came(open_disk: Any, full: bool, is_lost: bool) -> None:
    """The newest came first. Where it was lost, the sound one that is older counts."""
    disk = open_disk()
    writer = disk.begin_put("b", "x", size=6, durability="relaxed", supplied=Supplied("06000000000003ffff"))
    put(disk, "x", b"older", version=OLD)
    writer.write(b"newest")
    writer.finish()
    newest = writer.commit().row
    cut_power(disk, *((newest,) if is_lost else ()))
    disk = open_disk.rebuilt(full=full, boot_id="boot-2")
    wanted = b"older" if is_lost else b"newest"
    assert body(disk, "x") == wanted
    disk.sweep()
    assert body(disk, "x") == wanted


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("wrong", [(b"WRONG", SAID), (b"acked", b"")])
@pytest.mark.parametrize("first", [True, False])
def test_a_rebuilt_catalog_takes_nothing_else_for_what_was_acknowledged(
    open_disk: Any, full: bool, wrong: tuple[bytes, bytes], first: bool
) -> None:
    """An upload of the same version was finished, and would have been refused had the process not died."""
    disk = open_disk()
    data, attributes = wrong
    refused = disk.begin_put("b", "x", size=len(data), supplied=Supplied(OLD, attributes)) if first else None
    put(disk, "x", b"acked", version=OLD, attributes=SAID)
    refused = refused or disk.begin_put("b", "x", size=len(data), supplied=Supplied(OLD, attributes))
    refused.write(data)
    refused.finish()
    disk = open_disk.rebuilt(full=full)
    assert (body(disk, "x"), disk.lookup("b", "x").attributes) == (b"acked", SAID)


# --- attributes


@both_ways
@both_durabilities
def test_attributes_come_back_as_they_came(disk: Any, open_disk: Any, small: bool, durability: str) -> None:
    row = put(disk, "x", b"x", small=small, attributes=SAID, durability=durability).row
    assert row.attributes == disk.lookup("b", "x").attributes == SAID
    assert read_footer(disk.parts.filesystem, disk.blob_path(row)).attributes == SAID
    put(disk, "plain", b"x", small=small, durability=durability)
    disk = open_disk.again()
    assert [(row.name, row.attributes) for row in disk.list("b", limit=9)] == [("plain", b""), ("x", SAID)]
    assert body(disk, "x") == b"x"
    put(disk, "x", b"x2", small=small, durability=durability)
    assert disk.lookup("b", "x").attributes == b""


@pytest.mark.parametrize("full", [True, False])
def test_a_rebuilt_catalog_has_attributes_from_the_footers(disk: Any, open_disk: Any, full: bool) -> None:
    put(disk, "x", b"x", attributes=SAID, version=OLD)
    put(disk, "staged", b"s", small=False, attributes=SAID, staged=JOB)
    disk = open_disk.rebuilt(full=full)
    assert (disk.lookup("b", "x").attributes, disk.lookup("b", "x").version) == (SAID, OLD)
    disk.staging.prepare(JOB.job)
    disk.staging.publish(JOB.job, lambda _: True)
    assert disk.lookup("b", "staged").attributes == SAID
    assert read_footer(disk.parts.filesystem, disk.blob_path(disk.lookup("b", "staged"))).attributes == SAID


def test_a_footer_with_other_attributes_than_the_row_is_damage(disk: Any, open_disk: Any) -> None:
    row = put(disk, "x", b"x", attributes=SAID).row
    path = Path(disk.blob_path(row))
    disk.close()
    other = Attributes(content_type="image/jpeG", metadata={"camera": "ä"}, digests={"md5": "0" * 32}).encode()
    path.write_bytes(b"x" + layout.row_footer(msgspec.structs.replace(row, attributes=other)))
    assert open_disk.problems(full=False) == {"damaged_blob": 1}


@both_ways
def test_too_many_attributes_are_refused(disk: Any, small: bool) -> None:
    put(disk, "x", b"x", small=small, attributes=bytes(ATTRIBUTES_BYTES_MAX))
    with pytest.raises(BadRequest, match=str(ATTRIBUTES_BYTES_MAX)):
        put(disk, "y", b"y", small=small, attributes=bytes(ATTRIBUTES_BYTES_MAX + 1))
    assert disk.counts("b") == (1, 1)
    name = "n" * 1024
    put(disk, name, b"z", small=small, attributes=bytes(ATTRIBUTES_BYTES_MAX))
    assert read_footer(disk.parts.filesystem, disk.blob_path(disk.lookup("b", name))).name == name


WORDS = st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5)


@given(st.text(max_size=50), WORDS, WORDS)
def test_attributes_are_encoded_and_decoded(content_type: str, metadata: dict[str, str], digests: dict[str, str]) -> None:
    said = Attributes(content_type=content_type, metadata=metadata, digests=digests)
    turned = Attributes(content_type=content_type, metadata=dict(reversed(metadata.items())), digests=digests)
    assert Attributes.decode(said.encode()) == said
    assert turned.encode() == said.encode()
    assert (said.encode() == b"") == (said == NO_ATTRIBUTES)


def test_fields_of_a_newer_version_are_passed_over() -> None:
    newer = msgspec.msgpack.encode({"content_type": "a/b", "tier": {"cold": True}})
    assert Attributes.decode(newer) == Attributes(content_type="a/b")
    for wrong in (msgspec.msgpack.encode({"content_type": 1}), b"\x81", b"\xc1", b"\x90"):
        with pytest.raises(msgspec.DecodeError):
            Attributes.decode(wrong)


def test_attributes_that_are_too_long_are_not_encoded() -> None:
    with pytest.raises(BadRequest):
        Attributes(metadata={"x": "y" * ATTRIBUTES_BYTES_MAX}).encode()
    check_attributes(bytes(ATTRIBUTES_BYTES_MAX))
