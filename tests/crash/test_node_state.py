"""Power loss, simulated, in all that a proxy and a target keep: their ids, the registry, the journal of jobs, whole disks.

One life opens everything as the nodes do, says what it acknowledges, and ends at one of its file-system calls, each in turn,
for want of power or by a kill. The next life must start, and find all that was acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import PARTS, FaultyFileSystem, PowerLossFileSystem, in_parts, kill, kill_after

from dfc.clock import HybridClock
from dfc.engine.environment import make_scratch
from dfc.filesystem import FileSystem
from dfc.jobs.journal import Journal
from dfc.jobs.records import NewJob
from dfc.placement.map import BucketEntry, DiskEntry
from dfc.registry.changes import create_bucket, join
from dfc.registry.embedded import RegistryFile
from dfc.registry.messages import Registration
from dfc.servers.proxy import open_file
from dfc.storage import Disk
from dfc.storage.identity import require_identity
from dfc.target.membership import claim_identity

BODY = b"acknowledged" * 50
SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])


class Life:
    """A proxy and a target with two disks, without servers: everything that they keep."""

    def __init__(self, lab: Any, root: Path, filesystem: FileSystem) -> None:
        self.registry: RegistryFile = open_file(str(root / "proxy"), filesystem)
        self.journal = Journal(str(root / "proxy"), filesystem=filesystem)
        paths = tuple(str(root / "targets" / "target-0" / f"disk-{number}") for number in range(2))
        self.node_id = claim_identity(str(root / "targets" / "target-0"), paths, self.registry.state.map, filesystem)
        cluster_id = self.registry.state.map.cluster_id
        self.entries = tuple(DiskEntry(id=require_identity(path, cluster_id).disk_id, weight=1.0) for path in paths)
        self.number = self._register()
        clock = HybridClock(self.number)
        self.disks = [Disk.open(path, cluster_id, clock, lab.options(), filesystem) for path in paths]

    def _register(self) -> int:
        said = Registration(
            node_id=self.node_id, role="target", url="http://a:1", advertise_url="http://a:1",
            cluster_id=self.registry.state.map.cluster_id, disks=self.entries,
        )  # fmt: skip
        node = self.registry.apply(join(said)).map.node(self.node_id)
        assert node is not None
        return node.number

    def ids(self) -> list[Any]:
        """What must stay the same from the moment at which the registry has taken the target in."""
        disks = [entry.id for entry in self.entries]
        return [self.registry.state.map.cluster_id, self.registry.node_id, self.node_id, self.number, *disks]

    def work(self, acknowledge: Callable[[str], None], round_: int) -> None:
        say = lambda *what: acknowledge(json.dumps(what, separators=(",", ":")))  # noqa: E731
        say("ids", self.ids())
        self.registry.apply(create_bucket(BucketEntry(id=f"id-{round_}", name=f"bucket-{round_}")))
        say("bucket", f"bucket-{round_}")
        for number, disk in enumerate(self.disks):
            disk.put_small("b1", f"object-{round_}-{number}", BODY)
            say("object", number, f"object-{round_}-{number}")
        self.journal.create(_job(f"job-{round_}"), [])
        say("job", f"job-{round_}")
        self.journal.start(f"job-{round_}")
        say("started", f"job-{round_}")

    def missing(self, said: list[str]) -> list[Any]:
        """What was acknowledged and is not there."""
        found = []
        for kind, *what in map(json.loads, said):
            match kind:
                case "ids":
                    is_there = what[0] == self.ids()
                case "bucket":
                    is_there = self.registry.state.map.bucket(what[0]) is not None
                case "object":
                    is_there = self.disks[what[0]].read_small(self.disks[what[0]].lookup("b1", what[1])) == BODY
                case "job":
                    is_there = self.journal.get(what[0]).operation == "probe"
                case _:
                    is_there = self.journal.get(what[0]).state == "running"
            if not is_there:
                found.append((kind, *what))
        return found

    def close(self) -> None:
        for disk in self.disks:
            disk.close()
        self.journal.close()
        self.registry.close()


def _job(job_id: str) -> NewJob:
    return NewJob(
        id=job_id, operation="probe", spec=b"{}", label="", bucket="b", bucket_id="1", memory_bytes=1, program="p", warnings=()
    )


def calls_of_a_life(lab: Any, root: Path, round_: int) -> int:
    filesystem = FaultyFileSystem()
    filesystem.arm()
    life = Life(lab, root, filesystem)
    life.work(lambda said: None, round_)
    calls = len(filesystem.names)
    life.close()
    return calls


def losing(root: Path, seed: int, call: int) -> Callable[[int], FaultyFileSystem]:
    """Makes file systems that lose power at a call."""

    def make(round_: int) -> FaultyFileSystem:
        filesystem = PowerLossFileSystem(str(root), (seed * 1000 + call) * 10 + round_)
        filesystem.arm(call)
        return filesystem

    return make


def lives(lab: Any, root: Path, filesystems: list[Callable[[int], FaultyFileSystem]], when: str) -> None:
    """One life after another, each ended by what its file system does; then one that must find everything."""
    try:
        _lives(lab, root, filesystems)
    except Exception as error:
        raise AssertionError(f"{when}: {error}") from error


def _lives(lab: Any, root: Path, filesystems: list[Callable[[int], FaultyFileSystem]]) -> None:
    root.mkdir()
    said: list[str] = []
    for round_, make in enumerate(filesystems):

        def action(acknowledge: Any, round_: int = round_, make: Any = make) -> None:
            filesystem = make(round_)
            life = Life(lab, root, filesystem)
            life.work(acknowledge, round_)
            if isinstance(filesystem, PowerLossFileSystem):
                filesystem.lose_power()
            kill("", lambda: None)

        outcome = lab.run(action)
        assert outcome.killed
        said += outcome.acknowledged
    life = Life(lab, root, FileSystem())
    assert life.missing(said) == []
    life.close()


@in_parts
@SEEDS
def test_power_may_be_lost_at_each_step_of_a_first_start(lab: Any, seed: int, part: int) -> None:
    calls = calls_of_a_life(lab, lab.directory / "whole", 0)
    assert calls > 80, "what the nodes keep is not behind the seam"
    for call in range(part, calls, PARTS):
        root = lab.directory / f"first-{call}"
        lives(lab, root, [losing(root, seed, call)], f"seed {seed}, call {call}")


@in_parts
@SEEDS
def test_power_may_be_lost_at_each_step_of_a_later_life(lab: Any, seed: int, part: int) -> None:
    whole = lab.directory / "whole"
    calls_of_a_life(lab, whole, 0)
    calls = calls_of_a_life(lab, whole, 1)
    for call in range(part, calls, PARTS):
        root = lab.directory / f"later-{call}"
        make = losing(root, seed, call)
        lives(lab, root, [lambda round_: FaultyFileSystem(), make, make], f"seed {seed}, call {call}")


@in_parts
@pytest.mark.parametrize("fault", [kill, kill_after], ids=["before", "after"])
def test_a_first_start_may_be_killed_at_each_step(lab: Any, fault: Any, part: int) -> None:
    for call in range(part, calls_of_a_life(lab, lab.directory / "whole", 0), PARTS):
        root = lab.directory / f"killed-{call}"

        def make(round_: int, call: int = call) -> FaultyFileSystem:
            filesystem = FaultyFileSystem(fault)
            filesystem.arm(call)
            return filesystem

        lives(lab, root, [make], f"call {call}")


def test_what_an_engine_left_when_the_power_went_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is synced, so any part may be missing, the lock too; nothing of it is needed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("run-torn", "run-whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spill").write_bytes(b"x" * 1000)
    (tmp_path / "run-whole" / "lock").touch()
    (tmp_path / "engine.log").write_bytes(b"\0" * 100)
    scratch = make_scratch(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["engine.log", Path(scratch).name])
    again = make_scratch(str(tmp_path))
    assert Path(scratch).is_dir(), "one that is in use was taken away"
    assert again != scratch
