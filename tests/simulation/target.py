"""A target in the simulation: carries out what the cores of `dfc.replication` say, over catalogs that survive crashes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from dfc.placement.roles import DiskPlace, Placement, Roles, SliceState, roles
from dfc.replication import recovery, steps, write
from dfc.replication import write as accept
from dfc.replication import write as lease
from dfc.replication import write as read
from simulation import coordinator
from simulation.world import Actor, All, Call, Process, Sleep, World

BUCKET = "b"
BEAT_S = 0.5
WORK_S = 0.25
BODY_S = 0.3
SYNCED_SHARE = 0.1  # of the looks at a disk
READ_TRIES = 30
NOTES_S = (0.01, 0.01, 0.5)  # until notes are committed
SETTLED_LOOKS = 6  # at rows that were pending when a disk was asked about
CALM_S = 4.0  # until surplus rows are gone, after all disks have caught up
WRITE_LOOKS = 50  # at writes that a report waits for
SILENT_S = 10.0
PUBLISH_LOOKS = 15  # at outputs of a job that are pending
Version = tuple[int, int]


class Row(NamedTuple):
    """`value` None: a tombstone."""

    version: Version
    value: Any


class Hint(NamedTuple):
    """That a disk should get the row of a name; `later`: only because it moves there, as it was when this was noted."""

    disk: str
    name: str
    later: bool = False


class Unsynced(NamedTuple):
    """A change of a name since the disk was last synced: what was there before it."""

    name: str
    row: Row | None
    pending: Version | None
    is_durable: bool


@dataclass
class SimDisk:
    """What is on a disk: it survives everything but being emptied, and power losses if it was synced. All is relaxed."""

    id: str
    incarnation: str = "first"
    rows: dict[str, Row] = field(default_factory=dict)
    pending: dict[str, Version] = field(default_factory=dict)
    hints: set[Hint] = field(default_factory=set)
    unsynced: list[Unsynced] = field(default_factory=list)
    losses: int = 0
    staged: dict[str, dict[str, Row]] = field(default_factory=dict)  # outputs of jobs, by job and name
    staged_copies: set[tuple[str, str]] = field(default_factory=set)  # those of them that came from another disk
    ended: set[str] = field(default_factory=set)  # jobs of which nothing more is staged
    published: dict[str, tuple[str, Version]] = field(default_factory=dict)  # by name: by which job, if that is still pending

    def put(self, name: str, row: Row, *, pending: bool, job: str = "") -> None:
        self.unsynced.append(Unsynced(name, self.rows.get(name), self.pending.get(name), row.value is None))
        self.rows[name] = row
        if pending:
            self.pending[name] = row.version
        else:
            self.pending.pop(name, None)
        self.published.pop(name, None)
        if pending and job:
            self.published[name] = job, row.version

    def publisher(self, name: str) -> str:
        """The job that publishes what is pending, or ""."""
        job, version = self.published.get(name, ("", None))
        return job if version is not None and self.pending.get(name) == version else ""

    def empty(self, incarnation: str) -> None:
        self.rows, self.pending, self.hints, self.incarnation = {}, {}, set(), incarnation
        self.staged, self.published, self.staged_copies, self.ended = {}, {}, set(), set()
        self.unsynced.clear()

    def sync(self) -> None:
        self.unsynced.clear()

    def lose_power(self, chance: random.Random) -> None:
        """Lose the last changes, but none that comes before a durable one, such as a delete; and the bytes of some others."""
        if not self.unsynced:
            return
        durable = max((at + 1 for at, each in enumerate(self.unsynced) if each.is_durable), default=0)
        kept = chance.randint(durable, len(self.unsynced))
        newest = {each.name: at for at, each in enumerate(self.unsynced)}
        for at, each in reversed(list(enumerate(self.unsynced))):
            is_lost = not each.is_durable and newest[each.name] == at and chance.random() < 0.5
            if at >= kept or is_lost:
                self._undo(each)
        self.unsynced.clear()
        self.losses += 1
        self.incarnation = f"{self.incarnation.partition('.')[0]}.{self.losses}"

    def _undo(self, change: Unsynced) -> None:
        name = change.name
        was_pending = self.pending.pop(name, None) is not None
        if change.row is None:
            self.rows.pop(name, None)  # it may have been removed since, as surplus
            return
        self.rows[name] = change.row
        if change.pending is not None or was_pending:
            self.pending[name] = change.row.version


class Key(NamedTuple):
    """A name on a disk."""

    disk: str
    name: str


class SimTarget(Actor):
    """One node with its disks."""

    def __init__(self, world: World, name: str, number: int, disks: list[str]) -> None:
        super().__init__(world, name)
        self.number = number
        self.disks = {disk: SimDisk(disk) for disk in disks}
        self.skew = world.random.uniform(-5, 5)
        self._syncing = random.Random(number)  # of its own: other runs are the same as without it
        self.notes_s = NOTES_S
        self._clock = 0
        self.boot()

    def boot(self) -> None:
        self.placement: Placement | None = None
        self.lease = lease.TargetLease()
        self.peering = recovery.Peering(self.name)
        self.in_doubt: set[Key] = set()
        self._waited_for: dict[object, set[Key]] = {}  # writes that a report waits for
        self.cleared: dict[str, set[str]] = defaultdict(set)
        self.marked: dict[str, set[str]] = defaultdict(set)
        self._silent: dict[str, float] = {}  # by disk: when it last did not answer to a row
        self._locked: set[str] = set()
        self._driven: set[Key] = set()
        self._changes: dict[Key, int] = defaultdict(int)
        self._conditional: dict[str, Version] = {}
        self._keeps_until = inf  # tombstones
        self._compared: dict[tuple[str, str], str] = {}
        self.world.spawn(self, self._beat())
        self.world.spawn(self, self._work())

    # --- what it knows

    @property
    def leased(self) -> bool:
        return self.placement is not None and self.lease.is_held(self.world.now)

    def roles(self, name: str) -> Roles:
        assert self.placement is not None
        return roles(self.placement, BUCKET, name)

    def _is_peered(self, name: str, primary: str) -> bool:
        return self.peering.is_peered(BUCKET, name, primary)

    def _serves(self, name: str) -> SimDisk | None:
        """The own disk that is primary, if any."""
        return self.disks.get(self.roles(name).primary or "")

    def _version(self, after: Version | None = None) -> Version:
        wall = int((self.world.now + self.skew + 10) * 1000)
        self._clock = max(self._clock + 1, wall, 0 if after is None else after[0] + 1)
        return (self._clock, self.number)

    def _observe(self, version: Version) -> None:
        self._clock = max(self._clock, version[0])

    def _node_of(self, disk: str) -> str:
        assert self.placement is not None
        return self.placement.disks[disk].node

    def _call(self, disk: str, method: str, *arguments: Any, timeout_s: float = 0.8) -> Call:
        return Call(self._node_of(disk), method, arguments, timeout_s)

    # --- lease and placements

    def _beat(self) -> Process:
        while True:
            sent = self.world.now
            step = 0 if self.placement is None else self.placement.step
            incarnations = {disk.id: disk.incarnation for disk in self.disks.values()}

            def answered(result: Any, sent: float = sent) -> None:
                if result is not None:
                    leased, length_s, placement = result
                    if placement is not None:
                        self.take(placement)
                    if leased and self.placement is not None:
                        self.lease.extend(sent, length_s)

            self.world.call(self, Call(coordinator.NAME, "beat", (step, incarnations, str(self.life))), answered)
            yield Sleep(BEAT_S)

    def leave(self) -> None:
        """Give up the lease, and say so."""
        self.lease.end()
        self.world.tell(self, Call(coordinator.NAME, "leave"))

    def take(self, placement: Placement) -> None:
        if self.placement is not None and placement.step <= self.placement.step:
            if placement.step == self.placement.step and placement.disks.keys() < self.placement.disks.keys():
                self.placement = placement  # disks were removed, which makes no step
                self._keeps_until = inf if recovery.needs_tombstones(placement) else self.world.now + CALM_S
            return
        for own in self.disks:
            self.marked[own] = write.marked_just_now(self.placement, placement, own)
        self.placement = placement
        for disk, cleared in self.cleared.items():
            cleared.intersection_update(
                {each.id for each in placement.disks.values() if each.is_up and disk in each.out_of_sync_with}
            )
        self.peering.take(placement)
        self._keeps_until = inf if recovery.needs_tombstones(placement) else self.world.now + CALM_S
        self.world.spawn(self, self._settle(placement.step))

    def on_map(self, sender: str, placement: Placement) -> int:
        self.take(placement)
        assert self.placement is not None
        return self.placement.step

    # --- settling

    def _settle(self, step: int) -> Process:
        self._adopt_pending(self._pending_for(self.name))
        while True:
            if self.peering.step != step:
                return
            ask = {node: Call(node, "pending", (self.placement,)) for node in sorted(self.peering.to_ask())}
            results = yield All(ask)
            if self.peering.step != step:
                return
            for node, result in results.items():
                if result is not None and result[0] == "rows":
                    self._adopt_pending(result[1])
                    self.peering.answered(node, step)
                elif result is not None:
                    self.take(result[1])
            if not self.peering.to_ask():
                break
            yield Sleep(0.1)
        self._drive_pending()
        self.peering.finish()

    def _pending_for(self, node: str) -> list[tuple[str, Row]]:
        """Pending rows here of names whose primary is on that node."""
        assert self.placement is not None
        found = []
        for disk in self.disks.values():
            for name, version in disk.pending.items():
                row, primary = disk.rows.get(name), self.roles(name).primary
                if row is None or row.version != version or not recovery.counts(self.placement, self.roles(name), disk.id):
                    continue
                if primary is not None and self._node_of(primary) == node:
                    found.append((name, row))
        return found

    def _adopt_pending(self, rows: list[tuple[str, Row]]) -> None:
        for name, row in rows:
            disk = self._serves(name)
            if disk is None:
                continue
            if not self._adopts(disk, name, row):
                continue
            if self.world.slow_rows:
                self.peering.expect(BUCKET, name)
                self.world.spawn(self, self._bring(self.peering.step, name, row))
            else:
                self._adopt(disk.id, name, row, pending=True)

    def _adopts(self, disk: SimDisk, name: str, row: Row) -> bool:
        newer = name not in disk.rows or disk.rows[name].version < row.version
        return self.peering.adopts(BUCKET, name, disk.id, newer=newer)

    def _bring(self, step: int, name: str, row: Row) -> Process:
        """Adopt a row some time later, or never."""
        yield Sleep(self.world.random.uniform(0, 3))
        while self.peering.step == step and not self.peering.is_done:
            yield Sleep(0.1)
        if self.peering.step != step:
            return
        disk = self._serves(name)
        if disk is not None and self._adopts(disk, name, row) and self.world.random.random() < 0.7:
            self._adopt(disk.id, name, row, pending=True)
        self._drive_pending()
        self.peering.has_come(BUCKET, name)

    def _drive_pending(self) -> None:
        """Bring every pending row of which a disk here is primary to the others."""
        for disk in self.disks.values():
            for name in list(disk.pending):
                key = Key(disk.id, name)
                if self.roles(name).primary == disk.id and key not in self._driven:
                    self.in_doubt.add(key)
                    self.world.spawn(self, self._drive(disk, name, disk.pending[name]))

    def on_pending(self, sender: str, placement: Placement) -> Any:
        self.take(placement)
        assert self.placement is not None
        if self.placement.step > placement.step:
            return ("newer", self.placement)
        return ("rows", self._pending_for(sender))

    # --- clients

    def on_put(
        self, sender: str, name: str, value: Any, expected: tuple[Any] | None, has_left: Callable[[], bool] = lambda: False
    ) -> Process:
        """`value` None deletes. Answers: ok, failed, absent, unknown, or retry with a placement. Whoever `has_left` before the
        body is complete has sent nothing."""
        if not self.leased:
            return ("retry", None)
        disk = self._serves(name)
        if disk is None or self._refusal(disk, name) is accept.Refusal.NOT_PEERED:
            return ("retry", self.placement)
        version = self._version()
        yield Sleep(self.world.random.uniform(0, BODY_S))
        if has_left():
            return ("retry", None)
        while name in self._locked:
            yield Sleep(0.02)
        self._locked.add(name)
        try:
            refused = self._commit(disk, name, value, expected, version)
        finally:
            self._locked.discard(name)
        if isinstance(refused, tuple):
            return refused
        box: list[Any] = []
        self.world.spawn(self, self._drive(disk, name, refused.version), box.append)
        while not box:
            yield Sleep(0.02)
        return box[0] or ("unknown",)

    def _commit(self, disk: SimDisk, name: str, value: Any, expected: tuple[Any] | None, version: Version) -> Any:
        """The row as it was committed on the primary's disk, or the answer."""
        key = Key(disk.id, name)
        refused = self._refusal(disk, name)
        if refused is not None:
            return ("retry", self.placement if refused is accept.Refusal.NOT_PRIMARY else None)
        present = disk.rows.get(name)
        now = None if present is None else present.value
        if expected is not None and now != expected[0]:
            return ("failed",)
        if value is None:
            if now is None:
                return ("absent",)
            version = self._version(None if present is None else present.version)
        before = None if present is None else present.version
        ordered = accept.order(
            version, before, conditional=expected is not None, newest_conditional=self._conditional.get(name)
        )
        if ordered is not accept.UploadOrder.FIRST:
            answers = {
                accept.UploadOrder.FAILED: ("failed",),
                accept.UploadOrder.REPLACED: ("ok",),
                accept.UploadOrder.OVERTAKEN: ("retry", None),
            }
            return answers[ordered]
        row = Row(version, value)
        disk.put(name, row, pending=True)
        self.in_doubt.add(key)
        self._changes[key] += 1
        if expected is not None:
            self._conditional[name] = version
        return _Committed(version)

    def _refusal(self, disk: SimDisk, name: str) -> accept.Refusal | None:
        return accept.refusal(
            self.roles(name),
            disk.id,
            leased=self.leased,
            peered=self._is_peered(name, disk.id),
            in_doubt=Key(disk.id, name) in self.in_doubt,
        )

    def on_get(self, sender: str, name: str) -> Process:
        for _ in range(READ_TRIES):
            if not self.leased:
                return ("retry", None)
            found = self.roles(name)
            told = {each: self._reading(disk, name) for each, disk in self.disks.items()}
            here = [each for each in told if told[each] is not read.ReadVerdict.ELSEWHERE]
            if not here:
                return ("retry", self.placement)
            disk = self.disks[here[0]]
            if told[disk.id] is read.ReadVerdict.WAIT:
                yield Sleep(0.05)
                continue
            if told[disk.id] is read.ReadVerdict.ASK_PRIMARY:
                assert found.primary is not None
                result = yield self._call(found.primary, "state", name, self.placement)
                row, is_replicated = result or (None, False)
                if is_replicated and row is not None and row.version == disk.pending.get(name):
                    disk.pending.pop(name, None)
                yield Sleep(0.02)
                continue
            row = disk.rows.get(name)
            return ("ok", None if row is None else row.value)
        return ("retry", None)

    def _reading(self, disk: SimDisk, name: str) -> read.ReadVerdict:
        return read.reading(
            self.roles(name),
            disk.id,
            peered=self._is_peered(name, disk.id),
            in_doubt=Key(disk.id, name) in self.in_doubt,
            pending=name in disk.pending,
        )

    # --- jobs

    def on_stage(self, sender: str, job: str, name: str) -> Version | None:
        """The version of the output, which is durable; None: not here."""
        disk = self._serves(name) if self.leased else None
        if disk is None or job in disk.ended:
            return None
        row = Row(self._version(), job)
        disk.staged.setdefault(job, {})[name] = row
        disk.staged_copies.discard((job, name))
        return row.version

    def on_prepare(self, sender: str, job: str) -> Process:
        """The versions of what was staged here, all of which are by now wherever a write of that name would go; None if
        that cannot be had."""
        if not self.leased:
            return None
        versions = []
        for disk in self.disks.values():
            for name, row in list(disk.staged.get(job, {}).items()):
                if (job, name) in disk.staged_copies:
                    continue
                found = self.roles(name)
                others = [each for each in (*found.members, *found.handoffs) if each != disk.id]
                told = yield All({each: self._call(each, "stage_copy", each, job, name, row) for each in others})
                if not all(told.values()):
                    return None
                versions.append(row.version)
        return versions if self.leased else None

    def on_stage_copy(self, sender: str, to: str, job: str, name: str, row: Row) -> bool:
        """Stage a copy of an output, unless a newer attempt is there."""
        disk = self.disks.get(to)
        if disk is None or job in disk.ended or not self.leased:
            return False
        self._observe(row.version)
        present = disk.staged.setdefault(job, {}).get(name)
        if present is None or present.version < row.version:
            disk.staged[job][name] = row
            disk.staged_copies.add((job, name))
        return True

    def on_publish(self, sender: str, job: str) -> Process:
        """Publish what is staged, all or nothing on each disk; True when nothing of the job is pending here any more."""
        for disk in self.disks.values():
            disk.ended.add(job)  # whether it is published yet or not
            staged = disk.staged.get(job, {})
            if not self.leased:
                return False
            refused = {name: self._refusal(disk, name) for name in staged}
            if set(refused.values()) - {None, accept.Refusal.NOT_PRIMARY}:
                return False
            if any(refused[name] and disk.pending.get(name, row.version) != row.version for name, row in staged.items()):
                return False  # what may be undone may not count as newer
            for name, row in staged.items():
                present = disk.rows.get(name)
                if present is not None and present.version >= row.version:
                    continue
                if refused[name] is None:
                    self._publish(disk, name, row, job)
                else:
                    disk.put(name, row, pending=True, job=job)
            disk.staged.pop(job, None)
        for _ in range(PUBLISH_LOOKS):
            left = [(disk, name) for disk in self.disks.values() for name in disk.published if disk.publisher(name) == job]
            if not left:
                return True
            for disk, name in left:
                primary = self.roles(name).primary
                if self.leased and primary not in (None, disk.id):
                    yield self._call(primary, "offer", name, disk.rows[name], self.placement)
            yield Sleep(0.2)
        return False

    def _publish(self, disk: SimDisk, name: str, row: Row, job: str = "") -> None:
        disk.put(name, row, pending=True, job=job)
        self.in_doubt.add(Key(disk.id, name))
        self._changes[Key(disk.id, name)] += 1
        self.world.spawn(self, self._drive(disk, name, row.version))

    def on_offer(self, sender: str, name: str, row: Row, placement: Placement) -> bool:
        """Take an output of a job as its primary, as a write, unless something newer is there."""
        self.take(placement)
        disk = self._serves(name)
        if disk is None or not self.leased or self._refusal(disk, name) is not None:
            return False
        present = disk.rows.get(name)
        if present is None or present.version < row.version:
            self._observe(row.version)
            self._publish(disk, name, row)
        return True

    def on_discard(self, sender: str, job: str) -> bool:
        for disk in self.disks.values():
            disk.staged.pop(job, None)
            disk.ended.add(job)
            disk.published = {name: each for name, each in disk.published.items() if each[0] != job}
        return True

    # --- writes on their way

    def _drive(self, disk: SimDisk, name: str, version: Version) -> Process:
        """Until the row is certain, or this disk decides no more. ("ok",) or ("unknown",)."""
        key = Key(disk.id, name)
        # Of this life: what a crash has cut off ends at some time after it.
        in_doubt, driven, waited_for = self.in_doubt, self._driven, self._waited_for
        driven.add(key)
        silent = [each for each, at in self._silent.items() if self.world.now - at < SILENT_S]
        writing = write.Writing(disk.id, BUCKET, name, silent=silent)
        try:
            while True:
                row = disk.rows.get(name)
                if row is None or row.version != version:
                    return ("unknown",)
                assert self.placement is not None
                if not self.leased:
                    yield Sleep(0.1)
                    continue
                told = writing.next(self.placement, self.cleared[disk.id] | self.marked[disk.id])
                if isinstance(told, write.NotPrimary):
                    return ("unknown",)
                if isinstance(told, write.SendCommit):
                    for each in told.disks:
                        self.world.spawn(self, self._send_commit(writing, disk, name, row, each))
                elif isinstance(told, write.MarkOutOfSync):
                    new = yield Call(coordinator.NAME, "out_of_sync", (disk.id, told.disk), 8.0)
                    if new is not None:
                        # Earlier reports have been withdrawn; one that begins from now on waits until this write is over.
                        self.cleared[disk.id].discard(told.disk)
                        self.take(new)
                        if self.placement is new or self.placement.step == new.step:
                            self.marked[disk.id].discard(told.disk)
                elif isinstance(told, write.Pause):
                    yield Sleep(0.02)
                else:
                    if told.hints:  # the notes are a commit of their own
                        yield Sleep(self._syncing.choice(self.notes_s))
                    disk.hints.update(self._hint(each, name) for each in told.hints)
                    if disk.pending.get(name) == version:
                        del disk.pending[name]
                    for each in told.confirm:
                        self.world.tell(self, self._call(each, "confirm", each, name, version))
                    return ("ok",)
        finally:
            driven.discard(key)
            if name not in disk.pending or self.placement is None or self.roles(name).primary != disk.id:
                in_doubt.discard(key)
                for left in waited_for.values():
                    left.discard(key)

    def _until_over(self, disk: SimDisk, placement: Placement) -> Process:
        """Wait until the writes of a disk that are on their way now are not any more: whether they are, by this placement."""
        waiting, waited_for = object(), self._waited_for
        left = waited_for[waiting] = {key for key in self.in_doubt if key.disk == disk.id}
        try:
            for _ in range(WRITE_LOOKS):
                if not left or self.placement is not placement:
                    break
                yield Sleep(0.02)
        finally:
            del waited_for[waiting]
        return not left and self.placement is placement

    def _send_commit(self, writing: write.Writing, disk: SimDisk, name: str, row: Row, to: str) -> Process:
        """An answer that comes when the write has ended changes nothing."""
        if to not in self.placement.disks:  # since it was to be sent
            writing.failed(to)
            return
        result = yield self._call(to, "commit", disk.id, to, name, row, disk.publisher(name), self.placement)
        if result is None:
            self._silent[to] = self.world.now
        else:
            self._silent.pop(to, None)
        if result is not None and result[0] == "ok":
            writing.committed(to)
            return
        if result is not None and result[0] == "newer":
            self.take(result[1])
        yield Sleep(0.02)
        writing.failed(to)

    def on_commit(self, sender: str, primary: str, to: str, name: str, row: Row, job: str, placement: Placement) -> Any:
        self.take(placement)
        assert self.placement is not None
        found, disk = self.roles(name), self.disks[to]
        present = disk.rows.get(name)
        before = None if present is None else present.version
        told = accept.acceptance(found, primary, row.version, before, leased=self.leased)
        if told.is_newer_map:
            return ("newer", self.placement)
        self._changes[Key(to, name)] += 1
        if not told.taken:
            return ("no",)
        if told.commits:
            disk.put(name, row, pending=True, job=job)
            self._observe(row.version)
        disk.hints.update(Hint(each, name) for each in recovery.hints_after_commit(self.placement, found, to))
        return ("ok",)

    def on_confirm(self, sender: str, to: str, name: str, version: Version) -> bool:
        if self.disks[to].pending.get(name) == version:
            del self.disks[to].pending[name]
        return True

    def on_state(self, sender: str, name: str, placement: Placement) -> Any:
        """The primary's row, for whoever has one that is pending, and whether it is certain; None while the primary does not
        know itself."""
        self.take(placement)
        if not self.leased:
            return None
        disk = self._serves(name)
        if disk is None or not self._is_peered(name, disk.id):
            return None
        return disk.rows.get(name), Key(disk.id, name) not in self.in_doubt

    # --- in the background

    def _work(self) -> Process:
        planned: _Needed | None = None
        while True:
            yield Sleep(WORK_S)
            if not self.leased:
                continue
            assert self.placement is not None
            needed = _Needed.by(self.placement)
            if not needed.is_covered_by(planned):
                planned = needed
                self._plan()
            if self.peering.is_done:
                self._drive_pending()
            for disk in self.disks.values():
                if self._syncing.random() < SYNCED_SHARE:
                    disk.sync()
                if disk.pending:
                    yield from self._resolve(disk)
                if disk.hints:
                    yield from self._deliver(disk)
                if disk.id in _lacked(self.placement):
                    yield from self._report_clean(disk)
                if _Needed.by(self.placement).is_covered_by(planned):
                    yield from self._report_ready(disk)
                yield from self._remove_excess(disk)
                if recovery.is_evicted(self.placement, disk.id):
                    yield from self._drop_stale(disk)
                self._purge(disk)

    def _plan(self) -> None:
        """Note what future replicas, or replicas of a bucket with more copies, lack."""
        for disk in self.disks.values():
            for name in disk.rows:
                found = self.roles(name)
                if found.primary == disk.id:
                    disk.hints.update(
                        self._hint(each, name) for each in recovery.hints_when_planned(self.placement, found, BUCKET)
                    )

    def _compare(self, disk: SimDisk, other: DiskPlace) -> Process:
        """A disk that came back empty needs hints for everything that it should have. Whether it has them by now."""
        placement = self.placement
        assert placement is not None
        if other.compare and self._compared.get((disk.id, other.id)) != other.compare:
            if not (yield from self._until_over(disk, placement)):
                return False
            disk.hints.update(self._hint(other.id, name) for name in disk.rows if other.id in self.roles(name).everywhere)
            self._compared[disk.id, other.id] = other.compare
        return True

    def _resolve(self, disk: SimDisk) -> Process:
        """Rows that are pending here while another disk is primary: its state counts."""
        for name, version in list(disk.pending.items()):
            found = self.roles(name)
            if found.primary is None or found.primary == disk.id:
                continue
            key = Key(disk.id, name)
            changes = self._changes[key]
            result = yield self._call(found.primary, "state", name, self.placement)
            if result is None:
                continue
            row: Row | None = result[0]
            theirs = None if row is None else row.version
            changed = self._changes[key] != changes or disk.pending.get(name) != version
            published = bool(disk.publisher(name))
            told = recovery.resolution(version, theirs, changed=changed, replicated=result[1], published=published)
            if told is recovery.Resolution.CONFIRM:
                disk.pending.pop(name, None)
            elif told is recovery.Resolution.REVERT:
                if row is None:
                    disk.rows.pop(name, None)
                    disk.pending.pop(name, None)
                else:
                    disk.put(name, row, pending=not result[1])
                    self._observe(row.version)

    def _deliver(self, disk: SimDisk) -> Process:
        for hint in sorted(disk.hints):
            if not self.leased:
                return
            assert self.placement is not None
            row = disk.rows.get(hint.name)
            if row is None or hint.disk not in self.placement.disks:
                disk.hints.discard(hint)
                continue
            told = recovery.delivery(self.placement, self.roles(hint.name), disk.id, hint.disk)
            if told is recovery.Delivery.DROP:
                disk.hints.discard(hint)
            elif told is recovery.Delivery.ADOPT:
                yield from self._send_row(disk, hint, row)
            elif told is not recovery.Delivery.KEEP:
                yield from self._hand_on(disk, hint, direct=told is recovery.Delivery.DIRECT)

    def _send_row(self, disk: SimDisk, hint: Hint, row: Row) -> Process:
        if Key(disk.id, hint.name) in self.in_doubt or not self._is_peered(hint.name, disk.id):
            return
        result = yield self._call(hint.disk, "adopt", disk.id, hint.disk, hint.name, row, self.placement)
        if result is not None and result[0] == "ok" and disk.rows.get(hint.name) == row:
            disk.hints.discard(hint)
        elif result is not None and result[0] == "newer":
            self.take(result[1])

    def _hand_on(self, disk: SimDisk, hint: Hint, *, direct: bool) -> Process:
        result = yield self._call(hint.disk, "version", hint.disk, hint.name, self.placement)
        row = disk.rows.get(hint.name)
        if result is None or row is None:
            return
        if recovery.has_arrived(result[0], row.version):
            disk.hints.discard(hint)
            return
        primary = self.roles(hint.name).primary
        if primary is not None:
            yield self._call(primary, "handover", hint, self.placement)
        elif direct:
            is_pending = disk.pending.get(hint.name) == row.version
            job = disk.publisher(hint.name)
            yield self._call(hint.disk, "adopt_direct", hint.disk, hint.name, row, is_pending, job, self.placement)

    def _report_clean(self, disk: SimDisk) -> Process:
        assert self.placement is not None
        for other in list(self.placement.disks.values()):
            placement = self.placement
            place = placement.disks.get(other.id)
            if place is None or not place.is_up or disk.id not in place.out_of_sync_with or not self.peering.is_done:
                continue
            if not (yield from self._compare(disk, place)) or self._has_hints(disk, other.id):
                continue
            self.cleared[disk.id].add(other.id)  # first: writes that are decided from now on are required there again
            resolved = yield self._call(other.id, "is_resolved", other.id, placement)
            is_over = resolved and (yield from self._until_over(disk, placement))
            # Those that were decided without the other disk have left their notes by now.
            if (
                is_over
                and self.placement is placement
                and other.id in self.cleared[disk.id]
                and not self._has_hints(disk, other.id)
            ):
                yield Call(coordinator.NAME, "clean", (disk.id, other.id, placement.step, str(self.life)))

    def _has_hints(self, disk: SimDisk, other: str) -> bool:
        assert self.placement is not None
        is_all = recovery.are_roles_changing(self.placement)
        return any(hint.disk == other and (is_all or not hint.later) for hint in disk.hints)

    def _hint(self, disk: str, name: str) -> Hint:
        return Hint(disk, name, later=not recovery.keeps_out_of_sync(self.roles(name), disk))

    def _report_ready(self, disk: SimDisk) -> Process:
        placement = self.placement
        assert placement is not None
        if not self.peering.is_done or not self._ready(disk, placement):
            return
        if (yield from self._until_over(disk, placement)):
            for report in self._ready(disk, placement):
                self._report(report)

    def _ready(self, disk: SimDisk, placement: Placement) -> list[steps.ReadyReport]:
        """What a disk may report that has nothing to do for it."""
        found = []
        for number, state in _moving(placement):
            if state.phase == "moved" or disk.id not in placement.layouts[state.at].disks:
                continue
            assert state.to is not None
            to = placement.layouts[state.to].disks
            if placement.copies_of(BUCKET).reading > 1:
                to -= placement.layouts[state.to].gone
            if any(placement.slice_of(BUCKET, hint.name) == number and hint.disk in to for hint in disk.hints):
                continue
            found.append(steps.ReadyReport("copied" if state.phase == "copying" else "moved", disk.id, number, state.to))
        copies = placement.copies_of(BUCKET)
        if copies.reading < copies.wanted and all(hint.later for hint in disk.hints):
            found.append(steps.ReadyReport("raised", disk.id, BUCKET, copies.written))
        return found

    def _report(self, report: steps.ReadyReport) -> None:
        assert self.placement is not None
        self.world.tell(self, Call(coordinator.NAME, "report", (report, self.placement.step)))

    def _remove_excess(self, disk: SimDisk) -> Process:
        for name in sorted(disk.rows):
            placement = self.placement
            assert placement is not None
            found, row = self.roles(name), disk.rows.get(name)
            is_hinted = any(hint.name == name for hint in disk.hints)
            if row is None or not recovery.is_excess(
                placement, found, disk.id, pending=name in disk.pending, is_hinted=is_hinted
            ):
                continue
            results = yield All({each: self._call(each, "have", each, name, row.version, placement) for each in found.replicas})
            if recovery.may_remove(results.values()) and self.placement is placement and disk.rows.get(name) == row:
                del disk.rows[name]

    def _drop_stale(self, disk: SimDisk) -> Process:
        """A disk that was given up drops what is not its own, and says so when that is all."""
        placement = self.placement
        assert placement is not None
        if disk.id not in placement.up or placement.disks[disk.id].out_of_sync_with:
            return
        left = False
        for name in sorted(disk.rows):
            found, row = self.roles(name), disk.rows[name]
            if disk.id in found.everywhere:
                continue
            answer = None
            if recovery.is_stale(placement, found, disk.id):
                answer = yield self._call(found.primary or "", "state", name, placement)
            if answer is not None and self.placement is placement and disk.rows.get(name) == row:
                del disk.rows[name]
                disk.pending.pop(name, None)
                disk.hints -= {hint for hint in disk.hints if hint.name == name}
            else:
                left = True
        if not left and self.placement is placement:
            self.world.tell(self, Call(coordinator.NAME, "cleared", (disk.id, placement.step)))

    def _purge(self, disk: SimDisk) -> None:
        """Drop old tombstones that nobody lacks, when nobody has been away or behind for a while."""
        if self.world.now < self._keeps_until:
            return
        wall = int((self.world.now + self.skew + 10) * 1000)
        for name, row in list(disk.rows.items()):
            is_old = row.value is None and row.version[0] + self.world.tombstones_kept_s * 1000 < wall
            if is_old and name not in disk.pending and not any(hint.name == name for hint in disk.hints):
                del disk.rows[name]

    # --- what others ask of it

    def on_have(self, sender: str, to: str, name: str, version: Version, placement: Placement) -> bool:
        self.take(placement)
        row = self.disks[to].rows.get(name)
        return row is not None and row.version >= version and Key(to, name) not in self.in_doubt

    def on_adopt(self, sender: str, primary: str, to: str, name: str, row: Row, placement: Placement) -> Any:
        self.take(placement)
        if self.roles(name).primary != primary:
            return ("newer", self.placement)
        self._adopt(to, name, row, pending=False)
        return ("ok",)

    def on_adopt_direct(
        self, sender: str, to: str, name: str, row: Row, is_pending: bool, job: str, placement: Placement
    ) -> bool:
        self.take(placement)
        if self.roles(name).primary is None:
            self._adopt(to, name, row, pending=is_pending, job=job)
        return True

    def _adopt(self, to: str, name: str, row: Row, *, pending: bool, job: str = "") -> None:
        disk = self.disks[to]
        self._changes[Key(to, name)] += 1
        if name not in disk.rows or disk.rows[name].version < row.version:
            disk.put(name, row, pending=pending, job=job)
            self._observe(row.version)

    def on_version(self, sender: str, to: str, name: str, placement: Placement) -> tuple[Version | None]:
        self.take(placement)
        row = self.disks[to].rows.get(name)
        return (None if row is None else row.version,)

    def on_handover(self, sender: str, hint: Hint, placement: Placement) -> Any:
        self.take(placement)
        disk = self._serves(hint.name)
        if disk is None or not self._is_peered(hint.name, disk.id):
            return None
        if hint.disk != disk.id and hint.disk in self.roles(hint.name).everywhere:
            disk.hints.add(self._hint(hint.disk, hint.name))
        return True

    def on_is_resolved(self, sender: str, to: str, placement: Placement) -> Process:
        """Whether what is pending on a disk now, and an existing primary could resolve, is resolved soon."""
        self.take(placement)
        asked, disk = self.placement, self.disks[to]
        before = {name: each for name, each in disk.pending.items() if self.roles(name).primary not in (None, to)}
        for _ in range(SETTLED_LOOKS):
            before = recovery.still_pending(before, disk.pending)
            if not before or self.placement is not asked:
                break
            yield Sleep(0.1)
        return not before and self.placement is asked


# Targets ask these of the same placement, which never changes, all the time, so what is found is kept with it.


def _lacked(placement: Placement) -> frozenset[str]:
    """The disks that some disk is out of sync with."""
    found: frozenset[str] | None = placement.__dict__.get("others_lack")
    if found is None:
        found = placement.__dict__["others_lack"] = frozenset(
            each for disk in placement.disks.values() for each in disk.out_of_sync_with
        )
    return found


def _moving(placement: Placement) -> list[tuple[int, SliceState]]:
    """The slices that move, with their numbers."""
    found: list[tuple[int, SliceState]] | None = placement.__dict__.get("moving")
    if found is None:
        moving = [(number, state) for number, state in enumerate(placement.slices) if state.to is not None]
        found = placement.__dict__["moving"] = moving
    return found


class _Needed(NamedTuple):
    """For what notes have to be made, as targets do it: those made for the same move are enough, also in later steps."""

    copying: frozenset[tuple[int, int]]
    others: tuple[object, ...]

    @classmethod
    def by(cls, placement: Placement) -> _Needed:
        found: _Needed | None = placement.__dict__.get("needed")
        if found is None:
            found = placement.__dict__["needed"] = cls._by(placement)
        return found

    @classmethod
    def _by(cls, placement: Placement) -> _Needed:
        copying = frozenset((at, each.to) for at, each in enumerate(placement.slices) if each.to and each.phase == "copying")
        raised = placement.copies_of(BUCKET).reading < placement.copies_of(BUCKET).written
        disks = tuple(
            sorted((each.id, each.status, each.out_of_sync_with, each.incarnation) for each in placement.disks.values())
        )
        return cls(copying, (disks, placement.step if raised else 0) if copying or raised else ())

    def is_covered_by(self, done: _Needed | None) -> bool:
        return not self.others or (done is not None and self.copying <= done.copying and self.others == done.others)


@dataclass(frozen=True)
class _Committed:
    version: Version
