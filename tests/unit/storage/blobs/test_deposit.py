"""Outputs that a worker writes to the disk itself: the same blob and index as of an upload, and nothing believed blindly."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import msgspec
import pytest
from depositing import deposit, fill
from faulty_filesystem import FaultyFileSystem, fail_with
from harness import own_files

from dfc.checksum import checksum_of
from dfc.errors import BadRequest, JobCancelled, LengthMismatch, NoSpace, StorageFailed, TooLarge, Unavailable
from dfc.filesystem import boot_id
from dfc.limits import DEPOSIT_LINE_BYTES_MAX, MIB
from dfc.storage.blobs.deposit import Deposited, DepositFile, is_here
from dfc.storage.catalog.changes import StagedName
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.sweep import read_footer
from dfc.tar.index.format import HEADER_BYTES

JOB = StagedName("job-1")


def upload(disk, name, data, owner=JOB):
    writer = disk.begin_put("b1", name, size=len(data), staged=owner)
    writer.write(data)
    writer.finish()
    return writer.commit().row


def temporary(open_disk) -> set[str]:
    return {path.name for path in (open_disk.root / "temporary").iterdir()}


def begin(disk, name="x.tar", data=b"", *, size=None, durability="fsync", owner=JOB):
    """A deposit with these bytes in it, and its writer at the target."""
    file = DepositFile(disk.deposit_site(durability), "tar" if name.endswith(".tar") else None)
    writer = disk.adopt("b1", name, file.name, size=size, durability=durability, staged=owner)
    if data:
        file.write(data)
    return file, writer


@pytest.mark.parametrize("name", ["x.tar", "x.bin", "dir/ä b.tar"])
@pytest.mark.parametrize("durability", ["fsync", "relaxed"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_deposit_is_what_an_upload_would_be(disk, open_disk, tar_of, name, durability, announced):
    data = tar_of(40)
    sent = upload(disk, name, data, StagedName("job-2"))
    row = deposit(disk, "b1", name, data, owner=JOB, durability=durability, announced=announced).row
    told = ("size", "checksum", "samples", "members", "warnings")
    assert [getattr(row, field) for field in told] == [getattr(sent, field) for field in told]
    path = Path(disk.blob_path(row))
    assert path.read_bytes()[: len(data)] == data
    footer = read_footer(disk.parts.filesystem, str(path))
    assert (footer.job, footer.version, footer.size, footer.checksum) == ("job-1", row.version, len(data), checksum_of(data))
    if name.endswith(".tar"):
        indexes = [Path(disk.index_path(each)).read_bytes()[HEADER_BYTES:] for each in (row, sent)]
        assert indexes[0] == indexes[1]
        index = disk.open_index(row)
        assert (index.version, index.checksum, index.sample_count) == (row.version, row.checksum, 40)
    assert temporary(open_disk) == set()
    disk.staging.publish("job-1", lambda bucket_id: True)
    assert disk.read_small(disk.lookup("b1", name)) == data
    disk.close()
    assert not check(str(open_disk.root), full=True).damaged


def test_what_is_no_archive_is_told_as_of_an_upload(disk, open_disk):
    data = b"this is no archive" * 1000
    sent, row = upload(disk, "x.tar", data, StagedName("job-2")), deposit(disk, "b1", "x.tar", data, owner=JOB).row
    assert row.samples is None
    assert row.warnings == sent.warnings != ()
    assert temporary(open_disk) == set()
    assert len(open_disk.files()) == 2, "no index of either"


def test_the_last_of_two_attempts_counts(disk, open_disk, tar_of):
    file, writer = begin(disk, data=tar_of(3))
    row = deposit(disk, "b1", "x.tar", tar_of(5), owner=JOB).row
    writer.write(msgspec.json.encode(file.finish()))
    writer.finish()
    writer.commit()
    assert disk.staging.find("b1", "x.tar", JOB).row == row, "the later version"
    disk.parts.discarder.wait()
    assert {name.partition("@")[2] for name in open_disk.files()} == {row.version, f"{row.version}.idx"}


def test_nothing_is_deposited_for_a_job_that_has_ended(disk, open_disk, tar_of):
    file, writer = begin(disk, data=tar_of(3))
    disk.staging.discard("job-1")
    writer.write(msgspec.json.encode(file.finish()))
    writer.finish()
    with pytest.raises(JobCancelled):
        writer.commit()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


@pytest.mark.parametrize("when", ["begun", "written", "finished"])
@pytest.mark.parametrize("who", ["target", "worker first"])
def test_what_is_broken_off_leaves_nothing(disk, open_disk, tar_of, when, who):
    before = own_files()
    file, writer = begin(disk, data=b"" if when == "begun" else tar_of(9))
    if when == "finished":
        writer.write(msgspec.json.encode(file.finish()))
        writer.finish()
    if who == "worker first":
        file.abort()
    writer.abort()
    file.abort()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())
    assert own_files() == before
    with pytest.raises(Unavailable):
        writer.write(b"x")


def test_a_worker_that_dies_leaves_nothing(disk, open_disk, tar_of):
    """Its file has the blob's name from the first byte on, so the end of the request removes it; the index goes with it."""
    file, writer = begin(disk, data=tar_of(9))
    assert temporary(open_disk) == {f"{file.name}.idx"}
    writer.abort()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())
    file.abort()


def test_what_never_came_to_a_request_goes_with_the_next_start(disk, open_disk):
    DepositFile(disk.deposit_site("fsync"), "tar")
    assert len(temporary(open_disk)) == 2
    open_disk.again()
    assert temporary(open_disk) == set()


# --- what is said is looked at


@pytest.mark.parametrize(
    "name",
    ["", f"deposit-{'0' * 31}", f"deposit-{'0' * 33}", f"deposit-{'G' * 32}", f"deposit-{'0' * 32}\n", f"deposit-{'0' * 32}/x"],
)
def test_names_that_are_none(disk, open_disk, name):
    with pytest.raises(BadRequest, match="invalid deposit name"):
        disk.adopt("b1", "x", name, size=None, durability="fsync", staged=JOB)
    assert open_disk.files() == set()


@pytest.mark.parametrize("what", ["nothing", "symlink", "hard link", "directory", "fifo", "another user's"])
def test_files_that_are_none(disk, open_disk, tmp_path, what):
    name, before = "deposit-" + "0" * 32, own_files()
    path, other = open_disk.root / "temporary" / name, open_disk.root / "dfc-disk.json"
    if what == "symlink":
        path.symlink_to(other)
    elif what == "hard link":
        os.link(other, path)
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        path.touch()
        os.chown(path, 65534, 65534)
    with pytest.raises(Unavailable if what == "nothing" else BadRequest):
        disk.adopt("b1", "x", name, size=None, durability="fsync", staged=JOB)
    assert open_disk.files() == set()
    assert other.exists()
    assert own_files() == before
    assert disk.state == "up"
    assert disk.stats.io_errors == 0


def test_a_compressed_shard_is_not_deposited(disk, open_disk):
    file = DepositFile(disk.deposit_site("fsync"), None)
    with pytest.raises(BadRequest, match="compressed"):
        disk.adopt("b1", "x.tgz", file.name, size=None, durability="fsync", staged=JOB)
    file.abort()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


def said(file: DepositFile, **changes: object) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(file.finish(), **changes))


SAID: dict[str, Deposited] = {}
LIES = {
    "no json": lambda file: b"{",
    "nothing": lambda file: b"",
    "another shape": lambda file: b'{"size": "big"}',
    "a negative size": lambda file: b'{"size": -1}',
    "no such checksum": lambda file: said(file, checksum="xyz"),
    "no checksum": lambda file: said(file, checksum=""),
    "a checksum and a line feed": lambda file: said(file, checksum="0" * 32 + "\n"),
    "an error that does not exist": lambda file: b'{"errno": 99999999999}',
    "more members than anything has": lambda file: said_with(file, members=2**60),
    "neither an index nor a reason": lambda file: said(file, index=None),
    "an index that is not there": lambda file: (file.finish(), os.unlink(f"{file._path}.idx"), said_again(file))[-1],
    "other counts": lambda file: said_with(file, members=7),
    "an index of something else": lambda file: said(file, checksum="0" * 32),
}


def said_again(file: DepositFile) -> bytes:
    return msgspec.json.encode(SAID[file.name])


def said_with(file: DepositFile, **changes: object) -> bytes:
    complete = file.finish()
    return msgspec.json.encode(msgspec.structs.replace(complete, index=msgspec.structs.replace(complete.index, **changes)))


@pytest.mark.parametrize("lie", LIES)
def test_lies_that_can_be_seen_are_refused(disk, open_disk, tar_of, lie, monkeypatch):
    finish = DepositFile.finish
    monkeypatch.setattr(DepositFile, "finish", lambda self: SAID.setdefault(self.name, finish(self)))
    before = own_files()
    file, writer = begin(disk, data=tar_of(5))
    writer.write(LIES[lie](file))
    with pytest.raises(BadRequest):
        writer.finish()
    writer.abort()
    file.abort()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())
    assert own_files() == before
    assert disk.state == "up"


@pytest.mark.parametrize("lie", ["longer", "shorter", "cut", "not as announced"])
def test_the_length_is_that_of_the_file(disk, open_disk, tar_of, lie):
    data = tar_of(5)
    file, writer = begin(disk, "x.bin", data, size=len(data) + 1 if lie == "not as announced" else None)
    complete = file.finish()
    size = complete.size + {"longer": 1, "shorter": -1}.get(lie, 0)
    if lie == "cut":
        os.truncate(writer._blob.path, 1000)
    writer.write(msgspec.json.encode(msgspec.structs.replace(complete, size=size)))
    with pytest.raises(LengthMismatch):
        writer.finish()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


def test_an_index_that_is_cut_is_refused(disk, open_disk, tar_of):
    file, writer = begin(disk, data=tar_of(5))
    complete = file.finish()
    os.truncate(f"{file._path}.idx", HEADER_BYTES)
    writer.write(msgspec.json.encode(complete))
    with pytest.raises(BadRequest, match="incomplete"):
        writer.finish()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


def test_what_is_said_has_an_end(disk, open_disk):
    file, writer = begin(disk)
    writer.write(b" " * DEPOSIT_LINE_BYTES_MAX)
    with pytest.raises(TooLarge):
        writer.write(b" ")
    file.abort()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


# --- disks that fail, or are full


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageFailed), (errno.ENOSPC, NoSpace)])
def test_the_target_counts_what_its_worker_met(disk, open_disk, number, error):
    file, writer = begin(disk, data=b"x" * 1000)
    writer.write(msgspec.json.encode(Deposited(errno=number)))
    with pytest.raises(error):
        writer.finish()
    file.abort()
    assert disk.stats.io_errors == (number == errno.EIO)
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


@pytest.mark.parametrize("call", ["write", "pwrite", "start_writeback", "close"])
def test_an_error_of_the_workers_own_calls_is_told(open_disk, tar_of, call):
    disk = open_disk(writeback_bytes=4096)
    filesystem = FaultyFileSystem(fail_with(errno.EIO))
    file = DepositFile(disk.deposit_site("fsync"), "tar", filesystem)
    real = getattr(filesystem, call)

    def failing(*arguments, **named):
        if call == "close":
            real(*arguments)
        raise OSError(errno.EIO, "broken")

    setattr(filesystem, call, failing)
    assert fill(file, tar_of(40), 5000).errno == errno.EIO
    setattr(filesystem, call, real)
    file.abort()
    assert temporary(open_disk) == set()


def test_the_reserve_is_left_alone(disk, open_disk, tar_of):
    free = disk.space().free
    disk.close()
    full = open_disk(reserve_bytes=2 * free, writeback_bytes=MIB)
    file = DepositFile(full.deposit_site("relaxed"), None)
    with pytest.raises(NoSpace):
        full.adopt("b1", "x", file.name, size=MIB, durability="relaxed", staged=JOB)
    with pytest.raises(NoSpace):
        file.write(bytes(MIB))
    file.abort()
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


def test_an_object_has_a_largest_size(open_disk):
    disk = open_disk(object_bytes_max=1000)
    with pytest.raises(TooLarge):
        deposit(disk, "b1", "x", b"y" * 1001, owner=JOB)
    assert (open_disk.files(), temporary(open_disk)) == (set(), set())


# --- whose disk it is


def test_a_worker_knows_its_own_machine(disk, open_disk, tmp_path):
    site = disk.deposit_site("fsync")
    assert is_here(site, "boot-1")
    assert not is_here(site, "boot-2"), "another machine, or another run of it"
    assert not is_here(site, "")
    assert not is_here(msgspec.structs.replace(site, disk="disk-2"), "boot-1"), "another disk under this path"
    assert not is_here(msgspec.structs.replace(site, root=str(tmp_path)), "boot-1")
    if os.geteuid() == 0:
        os.chown(open_disk.root, 65534, 65534)
        assert not is_here(site, "boot-1"), "a target of another user"
        os.chown(open_disk.root, 0, 0)
    (open_disk.root / "dfc-disk.json").write_bytes(b"{")
    assert not is_here(site, "boot-1")
    assert boot_id() == boot_id()


def test_pieces_are_told_of(open_disk):
    file = DepositFile(open_disk(writeback_bytes=10_000).deposit_site("fsync"), None)
    told = [file.write(bytes(random.Random(1).randrange(1, 6000))) for _ in range(20)]
    assert sum(told) == pytest.approx(file.size / 10_000, rel=0.3)
    file.abort()
