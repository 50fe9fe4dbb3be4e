"""What the crash tests share: a formatted disk to copy, children that die, and the look at what they left."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from copying import newer
from depositing import deposit
from faulty_filesystem import Fault, FaultyFileSystem
from job_shards import tar_of

from dfc.clock import HybridClock
from dfc.errors import ObjectCorrupt, ObjectNotFound
from dfc.filesystem import FileSystem
from dfc.limits import KIB
from dfc.storage import Disk, DiskOptions, Durability
from dfc.storage.catalog.changes import StagedName
from dfc.storage.rows import Standing, Supplied
from dfc.storage.upkeep.check import check

BUCKET = "b1"
CLUSTER = "crash-cluster"


OLD_SMALL, NEW_SMALL = b"old " * 100, b"NEW." * 150
OLD_TAR, NEW_TAR = (
    tar_of([(f"{number:04d}.bin", fill * 700) for number in range(members)], tarfile.USTAR_FORMAT)
    for members, fill in ((8, b"o"), (12, b"n"))
)


def options(**changes: object) -> DiskOptions:
    """No background threads, small pieces, and no space set aside, so that a run is short and repeats itself."""
    values: dict[str, object] = {
        "reserve_bytes": 0,
        "ballast_bytes": 0,
        "maintenance": False,
        "writeback_bytes": 6 * KIB,
        "orphan_alarm": 10,
        "boot_id": "boot-1",
    }
    return DiskOptions(**{**values, **changes})  # type: ignore[arg-type]


@dataclass
class Outcome:
    """What a child did: the acknowledgements it wrote before it ended, and how it ended."""

    acknowledged: list[str]
    killed: bool


def put(disk: Disk, name: str, data: bytes, durability: Durability = "fsync", staged: StagedName | None = None) -> None:
    """An upload in pieces."""
    writer = disk.begin_put(BUCKET, name, size=len(data), durability=durability, staged=staged)
    for start in range(0, len(data), 5000):
        writer.write(data[start : start + 5000])
    writer.finish()
    writer.commit()


def adopt(disk: Disk, name: str, data: bytes | None, durability: Durability = "fsync") -> None:
    """A copy that is newer than all that is here, pending, and that some other disk lacks; `data` None: a tombstone."""
    version = disk.parts.clock.next_version()
    decide = newer(version, Standing(1, pending=True, hints=("disk-2",)))
    if data is None:
        disk.copies.adopt_tombstone(BUCKET, name, version, decide)
        return
    writer = disk.begin_put(BUCKET, name, size=len(data), durability=durability, supplied=Supplied(version))
    writer.write(data)
    writer.finish()
    disk.copies.adopt(writer, decide)


def read(disk: Disk, name: str) -> bytes | None:
    """The object as a client would get it: None when it is missing or, after a power loss, quarantined."""
    try:
        row = disk.lookup(BUCKET, name)
    except (ObjectNotFound, ObjectCorrupt):
        return None
    fd = disk.open_blob(row)
    try:
        return os.pread(fd, row.size, 0)
    finally:
        os.close(fd)


@dataclass
class Scenario:
    """Something that is done to a disk, and the contents that it changes (None: the object is gone)."""

    act: Callable[[Disk], object]
    changes: dict[str, bytes | None]

    def allowed(self, acknowledged: bool) -> dict[str, list[bytes | None]]:
        """What every object may be afterwards: the old or the new, and only the new once it was acknowledged."""
        return {
            name: [self.changes[name]] if acknowledged and name in self.changes else [old, self.changes.get(name, old)]
            for name, old in BEFORE.items()
        }


BEFORE: dict[str, bytes | None] = {"old-small": OLD_SMALL, "old.tar": OLD_TAR, "new-small": None, "new.tar": None}


def scenarios() -> dict[str, Scenario]:
    """By the names that the tests are parametrised with."""
    return {
        "put small": Scenario(lambda d: d.put_small(BUCKET, "new-small", NEW_SMALL), {"new-small": NEW_SMALL}),
        "put tar": Scenario(lambda d: put(d, "new.tar", NEW_TAR), {"new.tar": NEW_TAR}),
        "put relaxed": Scenario(lambda d: put(d, "new-small", NEW_SMALL, "relaxed"), {"new-small": NEW_SMALL}),
        "deposit tar": Scenario(lambda d: deposit(d, BUCKET, "new.tar", NEW_TAR, owner=None), {"new.tar": NEW_TAR}),
        "replace small": Scenario(lambda d: d.put_small(BUCKET, "old-small", NEW_SMALL), {"old-small": NEW_SMALL}),
        "replace tar": Scenario(lambda d: put(d, "old.tar", NEW_TAR), {"old.tar": NEW_TAR}),
        "replace relaxed": Scenario(lambda d: put(d, "old.tar", NEW_TAR, "relaxed"), {"old.tar": NEW_TAR}),
        "delete small": Scenario(lambda d: d.delete(BUCKET, "old-small"), {"old-small": None}),
        "delete tar": Scenario(lambda d: d.delete(BUCKET, "old.tar"), {"old.tar": None}),
        "adopt small": Scenario(lambda d: adopt(d, "new-small", NEW_SMALL), {"new-small": NEW_SMALL}),
        "adopt tar": Scenario(lambda d: adopt(d, "old.tar", NEW_TAR), {"old.tar": NEW_TAR}),
        "adopt relaxed": Scenario(lambda d: adopt(d, "old.tar", NEW_TAR, "relaxed"), {"old.tar": NEW_TAR}),
        "adopt tombstone": Scenario(lambda d: adopt(d, "old-small", None), {"old-small": None}),
        "remove bucket": Scenario(lambda d: d.remove_bucket(BUCKET), {"old-small": None, "old.tar": None}),
    }


SCENARIOS = tuple(scenarios())


class CrashLab:
    """Copies of one formatted disk that holds `old-small` and `old.tar`."""

    bucket = BUCKET
    cluster = CLUSTER
    before = BEFORE
    new_small = NEW_SMALL
    new_tar = NEW_TAR
    put = staticmethod(put)
    read = staticmethod(read)
    options = staticmethod(options)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.template = directory / "template"
        Disk.format(str(self.template), CLUSTER, "disk-1")
        disk = self.open(self.template)
        disk.put_small(BUCKET, "old-small", OLD_SMALL)
        put(disk, "old.tar", OLD_TAR)
        disk.close()
        self._count = 0
        self.scenarios = scenarios()

    def fresh(self) -> Path:
        """A new copy of the template."""
        self._count += 1
        return Path(shutil.copytree(self.template, self.directory / f"disk-{self._count}"))

    def open(self, path: Path, filesystem: FileSystem | None = None, **changes: object) -> Disk:
        return Disk.open(str(path), CLUSTER, HybridClock(1), options(**changes), filesystem)

    def calls_of(self, act: Callable[[Any], object], begin: Callable[[Any], Any] = lambda it: it) -> list[str]:
        """The names of the calls of `act` when nothing goes wrong; see `die`."""
        filesystem = FaultyFileSystem()
        given = begin(filesystem)
        filesystem.arm()
        act(given)
        names = list(filesystem.names)
        if isinstance(given, Disk):
            given.close()
        return names

    def calls_in(self, scenario: str) -> list[str]:
        return self.calls_of(self.scenarios[scenario].act, partial(self.open, self.fresh()))

    def run(self, action: Callable[[Callable[[str], None]], None]) -> Outcome:
        """Run `action(acknowledge)` in a forked child, which is expected to be killed in it."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pytest-xdist's own thread; the child never meets it
            pid = os.fork()
        if pid == 0:
            code = 17
            try:
                os.close(reader)
                action(lambda text: os.write(writer, text.encode() + b"\n") and None)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            acknowledged = pipe.read().split()
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed by itself; see its traceback"
        return Outcome(acknowledged, os.WIFSIGNALED(status))

    def die(self, fault: Fault, call: int, act: Callable[[Any], object], begin: Callable[[Any], Any] = lambda it: it) -> bool:
        """Whether `act` has ended when this call of it killed the process, as it must; it gets what `begin` makes of the file
        system, whose calls do not count."""

        def action(acknowledge: Callable[[str], None]) -> None:
            filesystem = FaultyFileSystem(fault)
            given = begin(filesystem)
            filesystem.arm(call)
            act(given)
            acknowledge("done")

        outcome = self.run(action)
        assert outcome.killed, f"call {call} was never made"
        return outcome.acknowledged == ["done"]

    def expect(self, path: Path, allowed: Mapping[str, Iterable[bytes | None]], **changes: object) -> dict[str, bytes | None]:
        """Open the disk again and see that every object is one of what it may be, whole, and that nothing else is left."""
        disk = self.open(path, **changes)
        try:
            report = disk.sweep()
            assert not report.alarm
            found = {}
            for name, contents in allowed.items():
                found[name] = read(disk, name)
                assert found[name] in list(contents), f"{name!r} is none of what it may be"
            rows = disk.list(BUCKET, limit=1000, ranks="all")
            assert disk.totals() == (len(rows), sum(row.size for row in rows))
            expect_marks(disk)
            assert {row.name for row in rows} <= set(allowed), "an object came from nowhere"
            for row in rows:
                if row.samples is not None and not row.quarantined:
                    index = disk.open_index(row)
                    assert (index.sample_count, index.version) == (row.samples, row.version)
            needed = {disk.blob_path(row) for row in rows} | {disk.index_path(row) for row in rows if row.samples is not None}
        finally:
            disk.close()
        left = {str(file) for file in (path / "objects").rglob("*") if file.is_file()}
        assert left <= needed, f"left over: {left - needed}"
        assert not list((path / "temporary").iterdir())
        problems = check(str(path), full=True)
        harmless = {"quarantined", "damaged_blob", "row_without_blob"}  # after a power loss, where it may be missing
        assert set(problems.counts) <= harmless, problems.problems
        assert not problems.counts or None in [content for contents in allowed.values() for content in contents]
        shutil.rmtree(path)
        return found


def expect_marks(disk: Disk) -> None:
    """What is pending, and what is hinted, is there: a copy of the scenarios came with both, or not at all."""
    assert {name for _, name, _, rank in disk.copies.rows()[0] if rank} <= {row.name for row in disk.copies.pending()[0]}
    for bucket_id, name, version in disk.copies.pending()[0]:
        state = disk.copies.state(bucket_id, name)
        assert state is not None
        assert state.version == version
        assert disk.copies.hinted_disks(bucket_id, name)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[CrashLab]:
    # A killed process loses nothing that the kernel has, so memory does as well as a disk, and is much faster.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as directory:
        yield CrashLab(Path(directory))
