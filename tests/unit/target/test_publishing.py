"""Outputs of jobs: a target publishes what it has staged, offers it to another primary, and takes what is offered to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from copied import BUCKET, V1, Members, NoTees, Target, key_of, map_of, name_with, opened, sender, state_of
from copying import adopt_one
from harness import until

from dfc.checksum import ExpectedChecksums
from dfc.errors import CopiesMissing, JobCancelled, NoSpace, Unavailable
from dfc.storage.catalog.changes import StagedName, StagedRow
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.copies import SmallCopy
from dfc.storage.disk import Disk
from dfc.storage.rows import Standing, Supplied
from dfc.target import publishing
from dfc.target.copies import writes
from dfc.target.copies.messages import CopyItem, CopyKey, PendingCopy
from dfc.target.copies.objects import CopiedObjects
from dfc.target.copies.receive import CopyReceiver, Prepared
from dfc.target.copies.writes import Writes
from dfc.target.jobs import JobStaging
from dfc.target.publishing import Publications

JOB = "job-1"
NAME, OTHER = name_with("d1", "d2"), name_with("d2", "d1")


class Offers(Members):
    """Other targets that note what is offered to them, and what they are to keep copies of; `full` ones do not."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.offered: list[tuple[str, PendingCopy]] = []
        self.offering: Any = None
        self.staged: list[CopyItem] = []
        self.full: set[str] = set()
        self.taking = asyncio.Event()
        self.taking.set()

    async def stage(self, item: CopyItem, disk: Disk, entry: StagedRow, moved: Callable[[], object]) -> None:
        await asyncio.sleep(0)
        while not self.taking.is_set():
            await asyncio.sleep(0.002)
            moved()
        if item.to in self.full:
            raise NoSpace(f"disk {item.to} is full")
        assert os.path.getsize(disk.staging.path(entry)) > item.state.size == entry.row.size
        self.staged.append(item)

    async def offer(self, primary: str, rows: list[PendingCopy]) -> bool:
        self.offered += [(primary, row) for row in rows]
        if self.offering is not None:
            await self.offering(rows)
        return True


class Publisher:
    """The use cases of target t1 for outputs of jobs, over others that are fakes."""

    def __init__(self, target: Target) -> None:
        self.target, self.peers = target, Offers(target)
        peers: Any = self.peers
        tees: Any = NoTees()
        repairer: Any = None
        uploads: Any = None
        self.writes = Writes(target.local, target.ledger, peers)
        objects = CopiedObjects(target.local, target.ledger, peers, tees, self.writes, repairer, 2.0)
        receiver = CopyReceiver(target.local, target.ledger, Prepared(target.local))
        self.publications = Publications(target.local, target.ledger, peers, receiver, self.writes, objects)
        self.staging = JobStaging(target.local, uploads, receiver, self.publications)

    def stage(self, name: str = NAME, body: bytes = b"output", version: str | None = None) -> str:
        """Stage an output, or a copy of one that has a version; its version."""
        supplied = Supplied(version)
        writer = self.target.disk.begin_put(BUCKET, name, size=len(body), staged=StagedName(JOB), supplied=supplied)
        writer.write(body)
        writer.finish()
        return writer.commit().row.version

    async def publish(self) -> int:
        return (await self.staging.publish(JOB)).objects

    async def take(self, name: str = NAME, bucket: str = BUCKET, *, has_bytes: bool = True) -> None:
        """An output is offered, and taken or not."""
        key = CopyKey("d2", bucket, name)
        if has_bytes:
            self.peers.bodies[key] = b"output"
        await self.publications.take(sender(), [PendingCopy(key, state_of(V1, b"output"))])
        await until(lambda: not self.publications._taking)


@pytest.fixture
async def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Publisher]:
    monkeypatch.setattr(writes, "CONFIRM_S", 0.01)
    monkeypatch.setattr(publishing, "OFFER_S", 0.005)
    with opened(tmp_path) as target:
        made = Publisher(target)
        yield made
        await made.publications.close()
        await made.writes.close()


# --- before they are published


async def test_an_output_is_wherever_a_write_of_its_name_would_go_before_it_is_published(publisher: Publisher) -> None:
    version = publisher.stage()
    [prepared] = await publisher.staging.prepare(JOB)
    assert (prepared.object, prepared.version) == (NAME, version)
    [sent] = publisher.peers.staged
    assert (sent.kind, sent.of, sent.to, sent.job) == ("staged", "d1", "d2", JOB)
    assert (sent.name, sent.state.version) == (NAME, version)
    await publisher.staging.prepare(JOB)
    assert len(publisher.peers.staged) == 1, "not again"
    publisher.target.take_map(map_of(2, 2, down=("d2",)))
    await publisher.staging.prepare(JOB)
    assert [each.to for each in publisher.peers.staged] == ["d2", "d3"], "a handoff replica"
    version = publisher.stage(body=b"of another attempt")
    await publisher.staging.prepare(JOB)
    assert publisher.peers.staged[-1].state.version == version


async def test_an_output_with_one_copy_stays_alone(publisher: Publisher) -> None:
    publisher.target.take_map(map_of(2, 2, copies=1))
    publisher.stage()
    assert len(await publisher.staging.prepare(JOB)) == 1
    assert publisher.peers.staged == []


async def test_a_disk_without_space_for_a_copy_fails_the_job_in_time(publisher: Publisher) -> None:
    for number in range(5):
        publisher.stage(name_with("d1", "d2", number=number))
    publisher.peers.full.add("d2")
    with pytest.raises(NoSpace, match="disk d2 is full"):
        await publisher.staging.prepare(JOB)
    publisher.peers.full.clear()
    assert len(await publisher.staging.prepare(JOB)) == 5


async def test_copies_take_their_time(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks hears that it goes on, and asks again; when the job is over, it does not go on."""
    monkeypatch.setattr(publishing, "SPREAD_ANSWER_S", 0.25)
    publisher.stage()
    publisher.peers.taking.clear()
    for _ in range(2):
        with pytest.raises(CopiesMissing, match="disks are being sent copies of the outputs of job job-1: 0 have arrived"):
            await publisher.staging.prepare(JOB)
    publisher.peers.taking.set()
    assert len(await publisher.staging.prepare(JOB)) == 1
    assert len(publisher.peers.staged) == 1
    monkeypatch.setattr(publisher.peers, "stage", lambda *_: asyncio.Event().wait())
    publisher.stage(body=b"of another attempt")
    with pytest.raises(Unavailable, match="no copy of an output of job job-1 has moved"):
        await publisher.staging.prepare(JOB)
    [spread] = publisher.publications._spreads.values()
    await publisher.staging.discard(JOB)
    await until(lambda: spread.task is not None and spread.task.cancelled())
    with pytest.raises(JobCancelled):
        await publisher.staging.prepare(JOB)
    assert not publisher.publications._spreads


async def test_a_copy_is_no_output_of_its_own_and_is_published_all_the_same(publisher: Publisher) -> None:
    """Nor is it sent on. By then it may have come as an object."""
    disk, other = publisher.target.disk, name_with("d2", "d1", number=1)
    for name in (OTHER, other):
        publisher.stage(name, b"copy", V1)
    assert await publisher.staging.prepare(JOB) == []
    assert publisher.peers.staged == []
    verdict = AdoptVerdict(taken=True, commits=True, standing=Standing(1))
    adopt_one(disk, SmallCopy(BUCKET, other, b"copy", ExpectedChecksums(), Supplied(V1), lambda present: verdict))

    async def told(rows: list[PendingCopy]) -> None:
        disk.copies.confirm([(row.key.bucket_id, row.key.name, row.state.version) for row in rows])

    publisher.peers.offering = told
    assert await publisher.publish() == 1
    assert {publisher.target.version(name) for name in (OTHER, other)} == {V1}
    assert {publisher.target.body(name) for name in (OTHER, other)} == {b"copy"}
    assert [(primary, row.key.name) for primary, row in publisher.peers.offered] == [("d2", OTHER)]


# --- at the disk that has staged them


async def test_an_output_that_others_have_is_published_once(publisher: Publisher) -> None:
    publisher.stage()
    assert await publisher.publish() == 1
    assert [(each.to, each.job) for each in publisher.peers.sent] == [("d2", JOB)], "whoever has it knows what it is"
    assert await publisher.publish() == 0
    assert (publisher.target.body(NAME), publisher.peers.offered) == (b"output", [])
    await until(lambda: not publisher.target.disk.copies.publishers)


async def test_an_output_whose_primary_is_elsewhere_by_now_is_offered_until_it_has_it(publisher: Publisher) -> None:
    """As when this target was restarted, and is behind others."""
    version, disk = publisher.stage(), publisher.target.disk
    publisher.target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    publishing = asyncio.create_task(publisher.publish())
    await until(lambda: len(publisher.peers.offered) > 2)
    assert not publishing.done(), "the job goes on when it is there"
    offered = {(primary, row.key, row.state.version) for primary, row in publisher.peers.offered}
    assert offered == {("d2", key_of(NAME), version)}
    assert disk.copies.is_pending(BUCKET, NAME), "nobody reads it here"
    disk.copies.confirm([(BUCKET, NAME, version)])  # what the upkeep does when the primary has it
    assert await publishing == 1
    assert await publisher.publish() == 0


async def test_a_repeated_publication_brings_what_an_earlier_one_has_left(publisher: Publisher) -> None:
    """The target died before anybody else had the output: it is pending, and nothing is staged any more."""
    version, disk = publisher.stage(), publisher.target.disk
    publisher.target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    publisher.publications._until_replicated = lambda disk: asyncio.sleep(10)  # type: ignore[assignment,method-assign]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await publisher.publish()
    del publisher.publications._until_replicated  # type: ignore[method-assign]
    assert disk.staging.totals() == {}

    async def take(rows: list[PendingCopy]) -> None:
        disk.copies.confirm([(BUCKET, NAME, row.state.version) for row in rows])

    assert (await publisher.staging.totals())[JOB].objects == 0, "whoever knows of no such job ends it here"
    publisher.peers.offering = take
    assert await publisher.publish() == 0
    assert [row.state.version for _, row in publisher.peers.offered] == [version]
    assert await publisher.staging.totals() == {}


async def test_publishing_is_given_up_in_time_if_no_primary_takes_an_output(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PUBLISH_S", 0.05)
    publisher.stage()
    publisher.target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    for _ in range(2):
        with pytest.raises(CopiesMissing):
            await publisher.publish()
    assert publisher.target.is_pending(NAME)


async def test_nothing_is_published_in_place_of_what_may_be_undone(publisher: Publisher) -> None:
    """A newer row that another target has begun to write would make this one superfluous, and then be undone itself."""
    publisher.stage(OTHER)
    newer = publisher.target.write(OTHER, b"never acknowledged").version
    with pytest.raises(Unavailable):
        await publisher.publish()
    assert publisher.target.disk.staging.totals()[JOB].objects == 1
    publisher.target.disk.copies.confirm([(BUCKET, OTHER, newer)])
    assert await publisher.publish() == 0, "it has been replaced"


# --- at the primary


async def test_a_primary_takes_an_output_that_it_lacks_and_brings_it_to_the_others(publisher: Publisher) -> None:
    await publisher.take()
    assert (publisher.target.body(NAME), publisher.target.version(NAME)) == (b"output", V1)
    assert [(each.kind, each.to) for each in publisher.peers.sent] == [("commit", "d2")]
    await until(lambda: not publisher.target.is_pending(NAME))
    assert publisher.target.ledger.in_doubt == set()
    await publisher.take()
    assert len(publisher.peers.sent) == 1, "again"


async def test_an_output_that_is_taken_is_not_read_before_it_is_certain(publisher: Publisher) -> None:
    event = publisher.peers.hang()
    taking = asyncio.create_task(publisher.take())
    await until(lambda: bool(publisher.peers.sent))
    assert publisher.target.ledger.in_doubt == {key_of(NAME)}
    event.set()
    await taking
    await until(lambda: not publisher.target.ledger.in_doubt)


@pytest.mark.parametrize("how", ["object", "delete"])
async def test_a_primary_keeps_what_is_newer_than_an_output(publisher: Publisher, how: str) -> None:
    version = publisher.target.write(NAME, b"newer", pending=False).version
    if how == "delete":
        version = publisher.target.bury(NAME, pending=False).version
    await publisher.take()
    assert (publisher.target.version(NAME), publisher.peers.sent) == (version, [])


async def test_what_has_come_while_an_output_was_fetched_is_kept(publisher: Publisher) -> None:
    versions = list[str]()
    publisher.peers.after_fetch = lambda: versions.append(publisher.target.write(NAME, b"newer", pending=False).version)
    await publisher.take()
    assert (publisher.target.version(NAME), publisher.target.body(NAME)) == (versions[0], b"newer")
    assert publisher.target.ledger.in_doubt == set()


@pytest.mark.parametrize("why", ["other primary", "no bytes", "unsettled", "no lease", "no such bucket"])
async def test_a_target_that_cannot_take_an_output_leaves_everything_as_it_is(publisher: Publisher, why: str) -> None:
    target, name = publisher.target, OTHER if why == "other primary" else NAME
    if why == "unsettled":
        publisher.publications._objects._hold_s = 0.05
        target.settles = False
        publisher.target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)}))
        target.ledger.peering._since = ()
    if why == "no lease":
        target.local.lease.end()
    await publisher.take(name, "gone" if why == "no such bucket" else BUCKET, has_bytes=why != "no bytes")
    assert (target.version(name), target.ledger.in_doubt, publisher.peers.sent) == (None, set(), [])
    assert not any(path.is_file() for path in Path(target.disk.parts.root, "objects").rglob("*@*")), "no blob is left"


async def test_outputs_wait_for_their_turn_and_not_without_end(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "TAKEN_MAX", 3)
    event = asyncio.Event()
    publisher.peers.fetch = lambda *_: event.wait()
    names = [name_with("d1", "d2", number=number) for number in range(5)]
    rows = [PendingCopy(key_of(name, "d2"), state_of(V1, b"output")) for name in names]
    for _ in range(2):
        await publisher.publications.take(sender(), rows)
    assert len(publisher.publications._taking) == 3
    event.set()
    await until(lambda: not publisher.publications._taking)


# --- what a job asks at the end


async def test_what_is_missing_is_told_only_for_certain(publisher: Publisher) -> None:
    target = publisher.target
    there, deleted, older, missing = (name_with("d1", "d2", number=number) for number in range(4))
    target.disk.put_small(BUCKET, older, b"x")
    version = target.write(there, b"output", pending=False).version
    target.write(deleted, b"output", pending=False)
    target.bury(deleted, pending=False)
    assert await publisher.staging.missing("b", [there, deleted, older, missing], version) == ([older, missing], [])
    target.ledger.in_doubt.add(key_of(there))
    assert await publisher.staging.missing("b", [there], version) == ([], [there]), "a write is on its way"
    target.ledger.in_doubt.clear()
    with pytest.raises(Unavailable):
        await publisher.staging.missing("b", [OTHER], version)
