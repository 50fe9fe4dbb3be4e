"""Compare the copies of a disk with those of others, and when to do so. Rules: `dfc.replication.compare`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from dfc.errors import DfcError
from dfc.placement.roles import Placement
from dfc.replication.compare import (
    BothSeen,
    CheckRequest,
    Remedy,
    Seen,
    SliceDigests,
    TargetCheck,
    compared_buckets,
    differing_names,
    note,
    pairs_of,
    remedy,
    shared,
    why_not_compared,
)
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState
from dfc.target.copies.answers import RANGE_ROWS, DigestTables
from dfc.target.copies.ledger import Ledger, PlacementChanged, hint_key
from dfc.target.copies.messages import (
    ASIDE_PATH,
    DIGESTS_PATH,
    LOOKS_PATH,
    NAMES_PATH,
    AsideReply,
    AsideRequest,
    CopyKey,
    DigestsReply,
    DigestsRequest,
    LooksReply,
    LooksRequest,
    PairRequest,
    SharedNamesReply,
    SharedNamesRequest,
    UnknownRow,
)
from dfc.target.copies.peers import Peers
from dfc.target.copies.walks import PAGE, chunks
from dfc.target.local import TargetState
from dfc.wire.status import CheckedDisk, CheckedObject, CheckedPair

_log: Final = logging.getLogger("dfc.target")
POLL_S: Final = 0.25  # between two questions whether digests are made
SLACK_S: Final = 2.0  # targets are asked at nearly the same time, and questions travel: so much older may digests be
SILENT_S: Final = 10.0  # for so long a replica is asked that does not answer
AGAIN_S: Final = 2.0  # between the two looks at a name
AGAIN_STEP_S: Final = 0.5  # until a pair is begun again after a step
ATTEMPTS_MAX: Final = 20
LOOKED_AT_ONCE: Final = 5000  # names that differ by their digests, and share the time between two looks
SET_ASIDE_MAX: Final = 100  # of one pair: more unknown rows than that mean that the primary has lost its own
LOGGED_MAX: Final = 1000  # of one pair
PAUSE_SHARE: Final = 1.0  # between two ranges of names: so many times as long as one took
DELIVERED_S: Final = 60.0  # how long the delivery of hints is waited for
DELIVERED_LOOK_S: Final = 0.25
T = TypeVar("T", DigestsReply, SharedNamesReply, LooksReply, AsideReply)
Name = tuple[str, str]  # bucket id and name


class NotCompared(Exception):
    """A pair cannot be compared now; the text says why."""


class ComparedWith(NamedTuple):
    """What comparing needs of its target."""

    local: TargetState
    ledger: Ledger
    peers: Peers
    tables: DigestTables


class PairComparison:
    """One comparison of a disk here with another replica of the objects of which it is the primary. Its hints stay if it is cut
    off; nothing else has to be undone."""

    def __init__(self, target: ComparedWith, disk: Disk, check: CheckedDisk, replica: str, buckets: frozenset[str]) -> None:
        """`buckets`: the ids of those that are compared; none: all."""
        self._local, self._ledger, self._peers, self._tables = target
        self._disk = disk
        self._threads = target.local.threads(disk)
        self._check = check
        self._replica = replica
        self._wanted = buckets
        self._since_s = time.monotonic()
        self._hinted = 0
        self._told = 0  # lines in the log
        self._unknown: list[tuple[Name, BothSeen]] = []  # rows at the replica that are to be set aside
        self._has_lost = False  # whether the primary does not know so many that it must have lost them
        self.lost: Counter[str] = Counter()  # by bucket id: objects that the primary has lost for certain
        self._pair = CheckedPair(replica=replica)
        self.alarms: Counter[str] = Counter()  # by bucket id

    async def compare(self, since_s: float) -> CheckedPair:
        """Compare what the two disks have, by digests made after this moment of the monotonic clock, or just before it, and
        have the replica get what it lacks."""
        self._since_s, pair, why = since_s - SLACK_S, self._pair, "the cluster map changes again and again"
        for _ in range(ATTEMPTS_MAX):
            self._begin()
            try:
                await self._compare(self._ledger.placement)
                break
            except PlacementChanged:
                pair.not_compared = why
                await asyncio.sleep(AGAIN_STEP_S)
            except NotCompared as reason:
                pair.not_compared = str(reason)
                break
            except DfcError as error:
                pair.not_compared = error.message
                break
        self._disk.copies.note_compared(pair.rows, pair.differing, self._hinted)
        await self._until_delivered()
        return pair

    def _begin(self) -> None:
        """Begin anew. What has a hint or was set aside is not found again; the rest is."""
        pair = self._pair
        pair.rows, pair.not_compared = 0, ""
        pair.differing, pair.alarms = pair.differing - pair.alarms, 0
        self.alarms.clear()
        self.lost.clear()
        self._unknown, self._has_lost = [], False

    async def _compare(self, placement: Placement) -> None:
        why = why_not_compared(placement, self._disk.id, self._replica)
        if not why and not self._local.is_leased:
            why = "its target has no lease"
        if not why and not self._ledger.peering.is_done:
            why = "its target has not heard yet what others have"
        if why:
            raise NotCompared(why)
        own, theirs = await self._digests(placement)
        slices = own.differing(theirs)
        if slices:
            for bucket_id in sorted(filter(self._local.map.has_bucket, compared_buckets(placement, self._wanted))):
                await self._compare_names(placement, bucket_id, frozenset(slices))
            await self._set_aside(placement)
        self._require(placement)
        self._pair.rows = own.rows

    def _require(self, placement: Placement) -> None:
        """PlacementChanged."""
        if self._ledger.placement.step != placement.step:
            raise PlacementChanged("the cluster map has changed")

    async def _digests(self, placement: Placement) -> tuple[SliceDigests, SliceDigests]:
        """Those of this disk and those of the replica. Both are made at the same time, while they are asked for."""
        while True:
            table = self._tables.look(self._disk, placement, self._wanted, self._since_s)
            self._check.rows_read = self._tables.rows_read(self._disk.id)
            reply = await self._ask(placement, DIGESTS_PATH, self._digests_request(placement), DigestsReply)
            if table is not None and reply.folds:
                try:
                    return table.of(self._disk.id, self._replica), SliceDigests(reply.folds, reply.counts)
                except ValueError as error:
                    raise NotCompared(f"the target of disk {self._replica}: {error}") from None
            await asyncio.sleep(POLL_S)

    def _digests_request(self, placement: Placement) -> DigestsRequest:
        age_s = time.monotonic() - self._since_s
        return DigestsRequest(self._asking(placement), tuple(sorted(self._wanted)), age_s)

    def _asking(self, placement: Placement) -> PairRequest:
        return PairRequest(self._peers.sender, placement.step, self._disk.id, self._replica)

    async def _ask(self, placement: Placement, path: str, question: object, kind: type[T]) -> T:
        """Ask the replica's target, for a while if it does not answer. NotCompared, PlacementChanged."""
        until_s = time.monotonic() + SILENT_S
        while True:
            reply = await self._peers.ask(self._replica, path, question, kind)
            self._require(placement)
            if reply is not None:
                break
            if time.monotonic() > until_s:
                raise NotCompared(f"the target of disk {self._replica} does not answer")
            await asyncio.sleep(POLL_S)
        if reply.has_changed:
            raise PlacementChanged("the replica has another map")
        if reply.why:
            raise NotCompared(reply.why)
        return reply

    async def _compare_names(self, placement: Placement, bucket_id: str, slices: frozenset[int]) -> None:
        """Look at all names of a bucket in these slices, range by range, that do not have the same digests."""
        after, names = "", list[Name]()
        while True:
            begun_s = time.monotonic()
            own, upto = await self._threads.read(self._own_names, placement, bucket_id, slices, after)
            asked = SharedNamesRequest(self._asking(placement), bucket_id, slices, after, upto)
            reply = await self._ask(placement, NAMES_PATH, asked, SharedNamesReply)
            if reply.until is not None:  # it has many more than are here
                upto, cut = reply.until, reply.until.encode()
                own = {name: digest for name, digest in own.items() if name.encode() <= cut}
            names += [(bucket_id, name) for name in differing_names(own, reply.digests)]
            if names and (upto is None or len(names) >= LOOKED_AT_ONCE):
                await self._look_twice(placement, names)
                names = []
            if upto is None:
                return
            after = upto
            await asyncio.sleep(PAUSE_SHARE * (time.monotonic() - begun_s))

    def _own_names(
        self, placement: Placement, bucket_id: str, slices: frozenset[int], after: str
    ) -> tuple[dict[str, int], str | None]:
        """The digests of the first names after one, and up to which these are; None: to the end. In a thread of the disk."""
        rows = self._disk.copies.compared_range(bucket_id, after, None, RANGE_ROWS)
        digests = shared(placement, (self._disk.id, self._replica), rows, slices)
        return digests, rows[-1].name if len(rows) == RANGE_ROWS else None

    async def _look_twice(self, placement: Placement, names: Sequence[Name]) -> None:
        first = [seen for some in chunks(names, PAGE) for seen in await self._looks(placement, some)]
        different = [(name, seen) for name, seen in zip(names, first, strict=True) if not seen.are_alike]
        if not different:
            return
        await asyncio.sleep(AGAIN_S)
        for some in chunks(different, PAGE):
            second = await self._looks(placement, [name for name, _ in some])
            found: dict[Remedy, list[tuple[Name, BothSeen]]] = {each: [] for each in Remedy}
            for (name, before), now in zip(some, second, strict=True):
                if self._local.map.has_bucket(name[0]):  # else each disk deletes its rows by itself
                    found[remedy(before, now, self._disk.copies.tombstones_forgotten())].append((name, now))
            await self._hint(found[Remedy.MISSING])
            self._collect(found[Remedy.SET_ASIDE])
            self._alarm(found[Remedy.ALARM])
            self._alarm(found[Remedy.LOST], Remedy.LOST)

    async def _looks(self, placement: Placement, names: Sequence[Name]) -> list[BothSeen]:
        """What both disks have of names."""
        keys = [CopyKey(self._disk.id, *name) for name in names]
        spoke = {key for key in keys if self._ledger.speaks(key)}
        reply = await self._ask(placement, LOOKS_PATH, LooksRequest(self._asking(placement), list(names)), LooksReply)
        if len(reply.looks) != len(names):
            raise NotCompared(f"the target of disk {self._replica} has not answered about all names")
        own = await self._threads.read(self._own_looks, names)
        looks = list[BothSeen]()
        for key, (seen, is_hinted), theirs in zip(keys, own, reply.looks, strict=True):
            # Both before the question and after it: what was read counts.
            is_sure = seen.is_sure and key in spoke and self._ledger.speaks(key)
            other = Seen(theirs.version, theirs.checksum, theirs.is_sure)
            looks.append(BothSeen(seen._replace(is_sure=is_sure), other, is_hinted))
        self._require(placement)
        return looks

    def _own_looks(self, names: Sequence[Name]) -> list[tuple[Seen, bool]]:
        """What this disk has of names, and whether there is a hint that the replica lacks that. In a thread of the disk."""
        copies = self._disk.copies
        return [
            (_seen(state, is_sure=not copies.is_pending(*name)), self._replica in copies.hinted_disks(*name))
            for name, state in zip(names, copies.states(names), strict=True)
        ]

    # --- what is done

    async def _hint(self, found: Sequence[tuple[Name, BothSeen]]) -> None:
        """Have the replica get what it lacks, or has older."""
        if not found:
            return
        whom = [hint_key(self._ledger.roles(*name), self._replica) for name, _ in found]
        await self._threads.go_on(
            self._disk.copies.add_hints, [(each, *name) for each, (name, _) in zip(whom, found, strict=True)]
        )
        self._hinted += len(found)
        self._pair.differing += len(found)
        self._pair.under_way += len(found)
        for name, seen in found:
            has = "nothing" if seen.replica.version is None else f"version {seen.replica.version}"
            self._tell(name, Remedy.MISSING, f"it has {has} instead of {seen.primary.version}, and gets that")

    def _collect(self, found: Sequence[tuple[Name, BothSeen]]) -> None:
        """Remember rows of which the primary knows nothing. If they are many, it is rather the primary that has lost them: then
        they are the only copies, and nothing is touched."""
        self._unknown += found
        self._has_lost = self._has_lost or len(self._unknown) > SET_ASIDE_MAX
        if self._has_lost:
            self._alarm(self._unknown)
            self._unknown = []

    async def _set_aside(self, placement: Placement) -> None:
        rows = [UnknownRow(*name, seen.replica.version) for name, seen in self._unknown if seen.replica.version is not None]
        if rows:
            reply = await self._ask(placement, ASIDE_PATH, AsideRequest(self._asking(placement), rows), AsideReply)
            self._pair.differing += len(reply.gone)
            self._pair.set_aside += len(reply.gone)
            for bucket_id, name in reply.gone:
                message = "its primary knows nothing of it; the bytes are in orphans/ of the disk for a while"
                self._tell((bucket_id, name), Remedy.SET_ASIDE, message)

    def _alarm(self, found: Sequence[tuple[Name, BothSeen]], what: Remedy = Remedy.ALARM) -> None:
        so = "left as it is" if what is Remedy.ALARM else "the primary has lost it"
        for name, seen in found:
            (self.alarms if what is Remedy.ALARM else self.lost)[name[0]] += 1
            mine = "nothing" if seen.primary.version is None else f"version {seen.primary.version}"
            other = ", of other content" if seen.replica.version == seen.primary.version else ""
            self._tell(name, what, f"it has version {seen.replica.version}{other}, its primary {mine}: {so}")
        self._pair.differing += len(found)
        self._pair.alarms += len(found)

    def _tell(self, name: Name, what: Remedy, message: str) -> None:
        bucket_id, bucket = name[0], self._local.map.bucket_of(name[0])
        shown = bucket_id if bucket is None else bucket.name
        self._told += 1
        if self._told <= LOGGED_MAX:
            _log.log(
                logging.WARNING if what is Remedy.MISSING else logging.ERROR,
                "disk %s, compared with its primary %s: %s/%s: %s%s",
                self._replica,
                self._disk.id,
                shown,
                name[1],
                message,
                "" if self._told < LOGGED_MAX else "; there are more that are only counted",
            )
        found = CheckedObject(bucket=shown, object=name[1], replica=self._replica, what=what.value, message=message)
        note(self._check, found)

    async def _until_delivered(self) -> None:
        """Wait until the hints for the replica are delivered, or a while: they are in any case."""
        until_s, left, copies = time.monotonic() + DELIVERED_S, self._hinted, self._disk.copies
        while left and time.monotonic() < until_s:
            await asyncio.sleep(DELIVERED_LOOK_S)
            if not await self._threads.read(copies.has_hints_for, self._replica):
                left = 0
        if left:
            left = min(left, (await self._threads.read(copies.hint_counts)).get(self._replica, 0))
        self._pair.under_way, self._pair.repaired = left, self._hinted - left


def _seen(state: NameState | None, *, is_sure: bool) -> Seen:
    if state is None:
        return Seen(None, is_sure=is_sure)
    return Seen(state.version, "" if state.row is None else state.row.checksum, is_sure)


# --- When the disks of a target are compared with others: when asked, after a pass of the scrubber, and when one has come back.

LOOK_S: Final = 0.5
RETRY_S: Final = 60.0  # until pairs are tried again that could not be compared, unless somebody has asked


class Comparer:
    """Compares one disk of a target at a time. What is asked for goes first, and has everything begin anew."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers, tables: DigestTables) -> None:
        self._with = ComparedWith(local, ledger, peers, tables)
        self._local = local
        self._ledger = ledger
        self._asked: CheckRequest | None = None
        self._checks: list[CheckedDisk] = []  # of the last time that somebody has asked, by disk
        self._is_begun = True
        self._asked_s = 0.0  # by the monotonic clock, like all times here
        self._due: dict[str, set[str]] = {}  # by disk here: with whom it is to be compared
        self._left: dict[str, dict[str, str]] = {}  # by disk: what could not be compared last time, and why
        self._next_s = 0.0  # not before this
        self._scrubbed: dict[str, float] = {}  # by disk: when the pass ended that was seen last
        self._returning: set[str] = set()  # disks for which others have hints for everything
        self._alarms: dict[tuple[str, str], Counter[str]] = {}  # by pair: by bucket id
        self._doubted: set[str] = set()  # disks that have lost objects
        self._task: asyncio.Task[None] | None = None

    def ask(self, asked: CheckRequest) -> TargetCheck:
        """Compare all disks now, and give up what is under way. Asked for the same again, it goes on."""
        if self._asked is None or self._asked.check != asked.check:
            self._asked, self._is_begun, self._asked_s = asked, False, time.monotonic()
            self._checks = [CheckedDisk(disk=disk.id, node=self._local.node_id) for disk in self._local.in_order()]
            if self._task is not None:
                self._task.cancel()
        return self.status()

    def status(self) -> TargetCheck:
        """How far that is."""
        if self._asked is None:
            return TargetCheck()
        return TargetCheck(self._asked.check, self._asked.began_us, self._asked.buckets, self._checks)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    self._notice()
                except Exception:
                    _log.exception("cannot tell which copies are to be compared; trying again")
                if not self._is_begun or (self._due and time.monotonic() >= self._next_s):
                    self._task = asyncio.create_task(self._work())
                    await asyncio.wait((self._task,))
        finally:
            if self._task is not None:
                self._task.cancel()
                with suppress(asyncio.CancelledError):
                    await self._task

    def _notice(self) -> None:
        """See what has become due."""
        placement = self._ledger.placement
        for disk in self._local.in_order():
            scrubbed_s = disk.copies.scrubbed_s
            if scrubbed_s != self._scrubbed.setdefault(disk.id, scrubbed_s) and disk.id in placement.disks:
                self._scrubbed[disk.id] = scrubbed_s
                self._add(disk.id, pairs_of(placement, disk.id))
        in_doubt = {place.id for place in placement.disks.values() if place.compare}
        for back in self._returning - in_doubt:
            for disk in self._local.in_order():
                if disk.id in placement.disks and back in placement.disks:
                    replicas = pairs_of(placement, disk.id)
                    self._add(disk.id, replicas if disk.id == back else [back] if back in replicas else [])
        self._returning = in_doubt

    def _add(self, disk_id: str, replicas: Collection[str]) -> None:
        if replicas:
            self._due.setdefault(disk_id, set()).update(replicas)

    async def _work(self) -> None:
        try:
            if not self._is_begun:
                self._is_begun = True
                await self._as_asked()
            else:
                await self._as_due()
        except DfcError as error:
            _log.info("copies are not compared: %s", error.message)
        except Exception:
            _log.exception("comparing copies has failed")
            self._next_s = time.monotonic() + RETRY_S

    async def _as_asked(self) -> None:
        asked, since_s = self._asked, self._asked_s
        assert asked is not None
        for check in self._checks:
            disk = self._local.disks[check.disk]
            await self._compare(disk, check, None, frozenset(asked.buckets), since_s)
            if not asked.buckets and not _left(check):
                self._due.pop(disk.id, None)

    async def _as_due(self) -> None:
        """Compare one disk. Pairs that cannot be compared now are tried again later."""
        disk_id, replicas = next(iter(self._due.items()))
        disk = self._local.disks.get(disk_id)
        check = CheckedDisk(disk=disk_id, node=self._local.node_id)
        if disk is not None:
            await self._compare(disk, check, replicas, frozenset(), time.monotonic())
        self._due.pop(disk_id)
        left = _left(check)
        if left:
            self._due[disk_id] = set(left)  # the last one now: others have their turns
            self._next_s = time.monotonic() + RETRY_S
        if left and left == self._left.get(disk_id):
            return  # as was said before
        self._left[disk_id] = left
        _log.info(
            "disk %s was compared with %d others: %d objects, %d differed, %d repaired, %d set aside, %d contradict it%s",
            disk_id,
            len(check.pairs) - len(left),
            sum(pair.rows for pair in check.pairs),
            sum(pair.differing for pair in check.pairs),
            sum(pair.repaired + pair.under_way for pair in check.pairs),
            sum(pair.set_aside for pair in check.pairs),
            sum(pair.alarms for pair in check.pairs),
            f"; not compared: {'; '.join(sorted(set(left.values())))}" if left else "",
        )

    async def _compare(
        self, disk: Disk, check: CheckedDisk, replicas: Collection[str] | None, buckets: frozenset[str], since_s: float
    ) -> None:
        """Compare a disk with these others; None: with all."""
        placement = self._ledger.placement
        check.state = "running"
        try:
            check.rows_total = (await self._local.threads(disk).read(disk.totals))[0]
            found = pairs_of(placement, disk.id) if disk.id in placement.disks else []
            wanted = found if replicas is None else [each for each in found if each in replicas]
            check.pairs_total = len(wanted)
            for replica in wanted:
                comparison = PairComparison(self._with, disk, check, replica, buckets)
                pair = await comparison.compare(since_s)
                check.pairs = [*check.pairs, pair]
                is_doubted = bool(comparison.lost) and await self._is_doubted(disk, comparison.lost.total())
                if not pair.not_compared:
                    alarms = comparison.alarms if is_doubted else comparison.alarms + comparison.lost
                    self._remember(disk, replica, buckets, alarms)
                if is_doubted:
                    check.pairs_total = len(check.pairs)
                    return  # the others have to wait until it has everything again
        finally:
            check.state = "done"

    async def _is_doubted(self, disk: Disk, lost: int) -> bool:
        """Have a disk taken for one in doubt that has lost objects which others have: whether that is so. Only once while this
        process runs, since it takes the disk out of use for a while, and a second time would hardly help more."""
        if disk.id in self._doubted:
            return False
        self._doubted.add(disk.id)
        _log.error(
            "disk %s has lost %d objects that others have, or more: it is in doubt, and not used until it has everything again",
            disk.id,
            lost,
        )
        await self._local.threads(disk).go_on(partial(disk.doubt, 0, loses_alone=False))
        return True

    def _remember(self, disk: Disk, replica: str, buckets: frozenset[str], alarms: Counter[str]) -> None:
        """What was found of these buckets takes the place of what was found of them before."""
        before = self._alarms.get((disk.id, replica), Counter[str]())
        kept = {bucket_id: count for bucket_id, count in before.items() if buckets and bucket_id not in buckets}
        self._alarms[disk.id, replica] = Counter({**kept, **alarms})
        known = self._ledger.placement.disks
        self._alarms = {pair: each for pair, each in self._alarms.items() if each and pair[1] in known}
        disk.copies.note_alarms(sum(each.total() for (owner, _), each in self._alarms.items() if owner == disk.id))


def _left(check: CheckedDisk) -> dict[str, str]:
    """Why replicas were not compared."""
    return {pair.replica: pair.not_compared for pair in check.pairs if pair.not_compared}
