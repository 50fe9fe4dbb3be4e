"""A target and its cluster: which node it is, its registration and heartbeats, and the map that it keeps."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from dfc.config import Settings
from dfc.errors import DfcError, DiskRefused, NoRegistry, OperatorError, Unavailable
from dfc.filesystem import FileSystem, SmallFileDamaged, make_directories
from dfc.http.retry import RemoteError
from dfc.http.shutdown import end
from dfc.limits import DISK_ANSWER_S
from dfc.placement.map import ClusterMap, DiskEntry, Labels
from dfc.placement.mapped import placement_of
from dfc.registry.base import boot_s
from dfc.registry.messages import (
    DiskNumbers,
    Registered,
    Registration,
    new_node_id,
    node_file,
    read_map,
    read_maps,
    read_node_id,
    write_map,
    write_node_id,
)
from dfc.storage.disk import Disk
from dfc.storage.identity import DiskIdentity, give_to_node, lock_disk, read_identity
from dfc.storage.rows import hinted_disk
from dfc.target.disks import describe, describe_unopened, hints_by_disk, numbers_of
from dfc.target.local import TargetState
from dfc.target.threads import DiskReport
from dfc.wire import PROTOCOL

# --- Determine which node a target is from its id file, its disks' identity files and the map, and claim its disks.
#
# A target whose id file is lost recovers its id from its disks if there is no doubt. If there is, it does not start and says
# what to do: two targets with one id, or a disk that two nodes consider theirs, would be worse than a target that does not
# start.

_log: Final = logging.getLogger("dfc.target")


class Evidence(NamedTuple):
    """What is known about a target before it knows its id. `own`: the id in its file; `damage`: why it cannot be read."""

    file: str
    own: str | None
    damage: str
    disks: Mapping[str, DiskIdentity]
    map: ClusterMap


def claim_identity(directory: str, disks: tuple[str, ...], known: ClusterMap, filesystem: FileSystem) -> str:
    """Return the id of this target, after writing it to its file and each of its disks; format new disks.

    Raises DiskRefused for a disk of another cluster or node, DiskLocked, and OperatorError when the id is not certain.
    """
    make_directories(directory, filesystem)
    found = _look(directory, disks, known)
    node_id = choose_id(found)
    if node_id is None:
        node_id = new_node_id("target")
    elif found.own is None:
        _log.warning("%s was lost: restored as %s, which is what the disks say", found.file, node_id)
    if found.own is None:
        for path in found.disks:
            os.close(lock_disk(path))  # a target that runs has it: then this is not that one, and must not say so
        write_node_id(directory, node_id, filesystem)
    else:
        filesystem.sync_directory(directory)  # the process that wrote it may have been killed before it synced
    for path in disks:
        identity = found.disks.get(path)
        if identity is None:
            Disk.format(path, known.cluster_id, filesystem=filesystem, node_id=node_id)
        elif identity.node_id != node_id:
            give_to_node(path, node_id, filesystem)
    return node_id


def _look(directory: str, disks: tuple[str, ...], known: ClusterMap) -> Evidence:
    identities: dict[str, DiskIdentity] = {}
    for path in disks:
        identity = read_identity(path)
        if identity is not None and identity.cluster_id != known.cluster_id:
            raise DiskRefused(
                f"{path} belongs to cluster {identity.cluster_id}, but the registry is of cluster {known.cluster_id}"
            )
        if identity is not None:
            same = next((each for each, other in identities.items() if other.disk_id == identity.disk_id), None)
            if same is not None:
                raise DiskRefused(f"{same} and {path} are both disk {identity.disk_id}: list only one of them in 'disks'")
            identities[path] = identity
    own, damage = None, ""
    try:
        own = read_node_id(directory)
    except SmallFileDamaged as error:
        damage = error.what
    return Evidence(node_file(directory), own, damage, identities, known)


def choose_id(found: Evidence) -> str | None:
    """Return the id that all evidence agrees on; None for a new target without any. Pure. Raises OperatorError."""
    if found.own is not None:
        for path, identity in found.disks.items():
            if identity.node_id not in (None, "", found.own):
                raise DiskRefused(
                    f"{path} belongs to node {identity.node_id}, but this is {found.own}. If the disk was moved here on "
                    f"purpose, release it: dfc disk release {path}. If this is {identity.node_id}, write that into "
                    f"{found.file}"
                )
        return found.own
    what = f"{found.file} {found.damage or 'is missing'}"
    named = {path: _named(identity, found.map) for path, identity in found.disks.items()}
    ids = {node_id for node_id in named.values() if node_id}
    if len(ids) > 1:
        owners = ", ".join(f"{path}: {node_id}" for path, node_id in named.items() if node_id)
        raise OperatorError(
            f"{what}, and the disks belong to different nodes ({owners}). Write the id of this node: echo ID > {found.file};"
            f" and release the disks that were moved here on purpose: dfc disk release DIR"
        )
    if not ids:
        if found.damage:
            raise OperatorError(f"{what}. No disk here belongs to a known node: remove the file to start as a new node")
        return None
    (node_id,) = ids
    node = found.map.node(node_id)
    elsewhere = {disk.id for disk in node.disks} - {disk.disk_id for disk in found.disks.values()} if node else set()
    if elsewhere:
        raise OperatorError(
            f"{what}. The disks here belong to {node_id}, which also has others ({', '.join(sorted(elsewhere))}). If this is "
            f"that node and no other target runs as it: echo {node_id} > {found.file}. If the disks were moved here on "
            f"purpose, release each of them: dfc disk release DIR"
        )
    return node_id


def _named(identity: DiskIdentity, known: ClusterMap) -> str:
    """Return the node that a disk belongs to, by its identity file, else by the map; empty: none."""
    if identity.node_id is not None:
        return identity.node_id
    return next((node.id for node in known.nodes for disk in node.disks if disk.id == identity.disk_id), "")


START_ALONE_S: Final = 10.0  # a target waits so long for the registry before it starts with the map that it kept
RETRY_S: Final = 0.25  # first retry delay at start, while the registry cannot be reached
RETRY_MAX_S: Final = 2.0
BEAT_ANSWER_S: Final = 2.0  # per address, if another one is left
LEAVE_S: Final = 2.0  # to tell the coordinator that this target stops
BEAT_S_MAX: Final = 5.0  # then the next one is sent, on another connection: this one may lead nowhere
NO_HINTS: Final[Mapping[str, int]] = {}
HASTY_BEATS: Final = 20  # heartbeats at short intervals, for a lease


class Joined(NamedTuple):
    """The registry's answer to the registration."""

    cluster_id: str
    node_number: int


class Membership:
    """Joins the cluster once, then sends heartbeats."""

    def __init__(self, local: TargetState, settings: Settings, filesystem: FileSystem) -> None:
        self._local = local
        self._settings = settings
        self._filesystem = filesystem
        self._url = self._advertised = ""
        self._incarnations: dict[str, str] = {}  # of the disks, as they were reported last
        self._changing: dict[str, asyncio.Task[None]] = {}  # by disk: what it is to say of itself from now on
        self.on_scheduler: Callable[[str], None] = lambda _: None  # told with each heartbeat; see `Registered.jobs_scheduler`

    async def join(self, url: str, advertised: str) -> Joined:
        """Determine which node this is, and register it with its URLs for nodes and for clients. Its disks are formatted by
        then, but not open yet. Raises OperatorError, and what `claim_identity` raises."""
        self._url, self._advertised = url, advertised
        settings, local = self._settings, self._local
        directory = os.path.abspath(settings.dir or settings.disks[0])
        kept = await local.call(_kept_map, directory, settings.disks)
        known = await self._cluster_map(kept)
        local.node_id = await local.call(claim_identity, directory, settings.disks, known, self._filesystem)
        if known is kept:
            return self._started_alone(known)
        await self._keep_newer(known)
        entries = await local.call(describe_unopened, settings.disks)
        return Joined(known.cluster_id, await self._first_registration(known.cluster_id, entries))

    async def _keep_newer(self, known: ClusterMap) -> None:
        """If a map on the disks is newer than that of the registry, go by it: the registry is an old copy, and is told so
        with the registration. If its map were taken, the newer one would be overwritten on the disks, too."""
        kept = await self._local.call(read_maps, self._settings.disks, known.cluster_id)
        if kept is not None and kept.version > known.version:
            _log.error(
                "the registry has version %d of the cluster map, and version %d was kept on the disks: it is an old copy, and"
                " its map is not used",
                known.version,
                kept.version,
            )
            self._local.take_map(kept)

    def _started_alone(self, kept: ClusterMap) -> Joined:
        """Join with the map that this target kept; the heartbeats register it when the registry answers."""
        _log.warning(
            "no registry has answered for %g s: starting with version %d of the cluster map, which was kept on the disks; "
            "reads are served and marked as possibly stale, until the registry at %s answers",
            START_ALONE_S,
            kept.version,
            self._local.proxies,
        )
        self._local.take_map(kept)
        own = kept.node(self._local.node_id)
        assert own is not None  # see `_kept_map`
        return Joined(kept.cluster_id, own.number)

    async def _cluster_map(self, kept: ClusterMap | None = None) -> ClusterMap:
        """Fetch the registry's map, retrying until it answers, or if there is a kept map for START_ALONE_S."""
        wait_s, begun_s = RETRY_S, boot_s()
        while True:
            try:
                return await self._local.ask_registry("GET", "/v1/cluster", ClusterMap)
            except (Unavailable, RemoteError) as error:
                if not _may_be_asked_again(error):
                    raise OperatorError(
                        f"the registry at {self._local.proxies} refuses this target: {error.message}"
                    ) from error
                _log.info("waiting for the registry at %s: %s", self._local.proxies, error.message)
                if kept is not None and boot_s() - begun_s >= START_ALONE_S:
                    return kept
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _first_registration(self, cluster_id: str, entries: tuple[DiskEntry, ...]) -> int:
        while True:
            try:
                return (await self._register(cluster_id, entries, starting=True)).node_number
            except (Unavailable, RemoteError) as error:
                if not _may_be_asked_again(error):
                    raise OperatorError(f"the registry refuses this target: {error.message}") from error
                _log.info("the registry does not accept registrations yet: %s", error.message)
                await asyncio.sleep(RETRY_S)

    @property
    def leaves(self) -> bool:
        """Whether others should take over at once when this target stops. With one copy of each object nobody can, so requests
        rather wait for its return."""
        return self._local.standing() == "up" and any(bucket.has_several for bucket in self._local.map.buckets)

    async def leave(self, why: str = "it is stopping") -> None:
        """Give up the lease and tell the coordinator, so that others take over. A heartbeat takes that back if it comes before
        the coordinator has declared this target down."""
        local = self._local
        local.lease.end()
        local.why_no_lease = why
        entries = next((node.disks for node in local.map.nodes if node.id == local.node_id), ())
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._register(local.map.cluster_id, entries, leaving=True)
        except (Unavailable, RemoteError, TimeoutError) as error:
            _log.info("cannot tell the coordinator that this target leaves: %s", error)

    async def _register(
        self,
        cluster_id: str,
        entries: tuple[DiskEntry, ...],
        numbers: tuple[DiskNumbers, ...] = (),
        hints: Mapping[str, int] = NO_HINTS,
        *,
        reports: Sequence[DiskReport] = (),
        starting: bool = False,
        leaving: bool = False,
    ) -> Registered:
        registration = Registration(
            node_id=self._local.node_id,
            role="target",
            url=self._url,
            advertise_url=self._advertised,
            cluster_id=cluster_id,
            protocol=PROTOCOL,
            map_version=self._local.map.version,
            step=self._local.decides_by.step,
            now_us=time.time_ns() // 1000,
            process=self._local.process,
            starting=starting,
            leaving=leaving,
            disks=entries,
            labels=Labels(zone=self._settings.zone, host=self._settings.host_label),
            numbers=numbers,
            hints={whom: count for whom, count in hints.items() if whom == hinted_disk(whom)},
            hints_later={hinted_disk(whom): count for whom, count in hints.items() if whom != hinted_disk(whom)},
            epochs={report.disk_id: report.epoch for report in reports if report.state == "up"},
            rolled_back=tuple(report.disk_id for report in reports if report.is_rolled_back),
            unaccepted=tuple(report.disk_id for report in reports if report.needs_accepting),
        )
        sent_s = boot_s()  # of the first try: whichever address answers, it was asked later
        try:
            async with asyncio.timeout(BEAT_S_MAX * max(1, len(self._local.proxies.urls))):
                path = "/v1/node/registration"
                answer = await self._local.ask_registry("POST", path, Registered, registration, answer_s=BEAT_ANSWER_S)
        except TimeoutError:
            raise Unavailable(f"the registry at {self._local.proxies} did not answer in time") from None
        if answer.map is not None:
            self._local.take_map(answer.map)
        self._take_lease(answer, sent_s)
        return answer

    def _take_lease(self, answer: Registered, sent_s: float) -> None:
        local = self._local
        if answer.why_no_lease and answer.why_no_lease != local.why_no_lease:
            _log.warning("the coordinator grants this target no lease: %s", answer.why_no_lease)
        local.why_no_lease, local.no_registry = answer.why_no_lease, False
        local.has_several_proxies = answer.is_shared
        local.proxy_for_clients = answer.proxy_url or local.proxy_for_clients
        local.extend_lease(sent_s, answer.lease_s)

    async def _stays_away(self) -> bool:
        """Whether a disk that hangs keeps this target from acknowledging a step; then it leaves.

        The step that would call the disk failed cannot come before that one is acknowledged. So this target has itself declared
        down; the heartbeat after that brings it back without the disk.
        """
        local, why = self._local, "one of its disks hangs"
        if not local.is_held_up or local.standing() != "up":
            return False
        if local.why_no_lease != why:
            _log.error("a disk hangs and holds up the whole cluster: this target leaves, and comes back without it")
        await self.leave(why)
        local.why_no_lease = why  # the answer gives no reason
        return True

    async def _leave_if_in_doubt(self, reports: Sequence[DiskReport]) -> None:
        """If a disk has become another one while it was used, this target has to be declared down before it is taken in again:
        have that done at once."""
        before, now = self._incarnations, {each.disk_id: each.incarnation for each in reports if each.incarnation}
        self._incarnations = {**before, **now}
        if any(before.get(disk_id, incarnation) != incarnation for disk_id, incarnation in now.items()):
            await self.leave("one of its disks is in doubt")

    async def _see_to_rolled_back(self, reports: Sequence[DiskReport], older: Mapping[str, int]) -> None:
        """Have disks take another incarnation that were put back to an earlier state, so that others give them what they lack.
        What no other disk has is lost: then that has to be accepted, unless every object had several copies."""
        local = self._local
        has_one = any(bucket.copies == 1 for bucket in local.map.buckets)
        for disk_id, epoch in older.items():
            disk = local.disks.get(disk_id)
            if disk is not None:
                _log.error(
                    "disk %s was put back to an earlier state: it is at %d, and was reported to be at %d before",
                    disk_id,
                    disk.tell_epoch(),
                    epoch,
                )
                await self._change(disk, partial(disk.doubt, epoch, loses_alone=has_one))
        for report in reports:
            place = placement_of(local.map).disks.get(report.disk_id)
            # A torn log may have cost objects with one copy, too.
            waits = report.has_torn_log and has_one
            if not (report.is_rolled_back or report.has_torn_log) or report.needs_accepting or waits:
                continue
            if place is None or report.disk_id in older:
                continue
            if place.is_in_sync and place.incarnation == report.incarnation:
                _log.warning("disk %s, which had lost rows, has everything again", report.disk_id)
                disk = local.disks[report.disk_id]
                await self._change(disk, disk.accept)

    async def _change(self, disk: Disk, change: Callable[[], None]) -> None:
        """Change what a disk says of itself. One that hangs does not hold up heartbeats, and is asked once."""
        task = self._changing.get(disk.id)
        if task is None or task.done():
            task = self._changing[disk.id] = asyncio.create_task(self._local.threads(disk).go_on(change))
        done, _ = await asyncio.wait((task,), timeout=DISK_ANSWER_S)
        if done:
            task.result()

    async def beat(self) -> None:
        """Send heartbeats forever; if the registry cannot be reached, keep serving and retry."""
        local, failing, in_vain = self._local, "", -1
        while True:
            # Without a lease soon again: a proxy that has just started may not have been elected yet.
            hastens = local.standing() != "joining" and not local.is_leased and in_vain < HASTY_BEATS
            if in_vain >= 0:
                await asyncio.sleep(min(RETRY_S, self._settings.heartbeat_s) if hastens else self._settings.heartbeat_s)
            try:
                if await self._stays_away():
                    await asyncio.sleep(self._settings.heartbeat_s)
                    continue
                reports = await local.reports()
                await self._leave_if_in_doubt(reports)
                entries, numbers = describe(reports, local.map, local.node_id), numbers_of(reports, local.map, local.counted)
                answer = await self._register(
                    local.map.cluster_id, entries, numbers, hints_by_disk(local.counted), reports=reports
                )
                self.on_scheduler(answer.jobs_scheduler)
                failing, in_vain = "", 0 if local.is_leased else in_vain + 1
                await self._see_to_rolled_back(reports, answer.older)
            except (Unavailable, RemoteError) as error:
                local.no_registry = error.code == NoRegistry.code
                if not _may_be_asked_again(error):
                    local.why_no_lease = f"the registry refuses it: {error.message}"
                elif local.no_registry:
                    local.why_no_lease = error.message
                if error.message != failing:
                    _log.warning("cannot send heartbeats: %s", error.message)
                failing, in_vain = error.message, in_vain + 1
            except Exception:
                _log.exception("sending a heartbeat failed; trying again")
                in_vain += 1


def _kept_map(directory: str, disks: tuple[str, ...]) -> ClusterMap | None:
    """Return the map that this target kept, if it leaves no doubt which node this is and that all disks are its own: new disks,
    and disks from elsewhere, are only taken with the registry. Blocking."""
    try:
        own, identities = read_node_id(directory), [read_identity(disk) for disk in disks]
    except (SmallFileDamaged, DiskRefused):
        return None
    clusters = {None if each is None or each.node_id != own else each.cluster_id for each in identities}
    cluster_id = clusters.pop() if len(clusters) == 1 else None
    kept = None if cluster_id is None else read_maps(disks, cluster_id)
    return kept if kept is not None and own is not None and kept.node(own) is not None else None


def _may_be_asked_again(error: DfcError) -> bool:
    """Whether to retry: the registry cannot be reached, or is too busy now."""
    return error.status == 503


# --- The newest cluster map, kept on every disk of a target: with it the target starts and serves reads while no registry
# answers.
#
# It is also the last copy of the map if the registry is lost. A file may be a second old; whoever starts from it has no lease.

KEEP_AGAIN_S: Final = 10.0  # after a write has failed
HURRY_S: Final = 5.0  # a write waits so long for the map that has its bucket
KEEP_S: Final = 1.0  # how often a disk's file is brought up to date, if the map has changed


class MapKeeper:
    """Keeps the map of a target on its disks, from `start` to `stop`."""

    def __init__(self, local: TargetState, filesystem: FileSystem) -> None:
        self._local = local
        self._filesystem = filesystem
        self._tasks: list[asyncio.Task[None]] = []
        self._kept: dict[str, frozenset[str]] = {}  # by disk: the buckets of its map
        self._hurries: dict[str, asyncio.Event] = {}
        self._tries: dict[str, int] = {}
        self._tried = asyncio.Event()

    def start(self) -> None:
        """Begin, for each disk that is open: one that hangs holds up no other."""
        self._hurries = {disk.id: asyncio.Event() for disk in self._local.in_order()}
        self._tries = dict.fromkeys(self._hurries, 0)
        self._tasks = [asyncio.create_task(self._keep(disk)) for disk in self._local.in_order()]

    async def stop(self) -> None:
        """Stop; a write that has begun goes on in its disk's thread."""
        await end(*self._tasks)

    async def until_kept(self, disk_id: str, bucket_id: str) -> None:
        """Wait until the map on a disk has this bucket, so that objects which are stored in it are not unknown to whoever
        starts with an older registry. Unavailable if the disk hangs; one that cannot take the map takes the write as it can."""
        if not self._tasks or bucket_id in self._kept.get(disk_id, ()):
            return
        try:
            async with asyncio.timeout(HURRY_S):
                tries = self._tries[disk_id]
                while bucket_id not in self._kept.get(disk_id, ()) and self._tries[disk_id] < tries + 2:
                    self._hurries[disk_id].set()
                    await self._tried.wait()
        except TimeoutError:
            raise Unavailable("the cluster map with this bucket could not be kept on the disk yet; try again") from None

    def _note(self, disk: Disk, written: ClusterMap | None) -> None:
        """A map was written, or could not be."""
        if written is not None:
            self._kept[disk.id] = frozenset(bucket.id for bucket in written.buckets)
        self._tries[disk.id] += 1
        self._tried.set()
        self._tried = asyncio.Event()

    async def _keep(self, disk: Disk) -> None:
        kept, failing = -1, False
        hurry = self._hurries[disk.id]
        with suppress(OSError, DfcError):  # buckets that are known to the disk need not be waited for after a restart
            self._note(disk, await self._local.threads(disk).read(read_map, disk.path))
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_AGAIN_S if failing else KEEP_S):
                    await hurry.wait()
            is_hurried = hurry.is_set()
            hurry.clear()
            newest = self._local.map
            if newest.version == kept:
                if is_hurried:
                    self._note(disk, None)  # for a bucket that is gone again
                continue
            try:
                await self._local.threads(disk).write(write_map, disk.path, newest, self._filesystem)
                kept, failing = newest.version, False
                self._note(disk, newest)
            except Exception as error:
                if not failing:
                    bug = error if not isinstance(error, OSError | DfcError) else None
                    _log.warning("cannot keep the cluster map on disk %s: %s", disk.id, error, exc_info=bug)
                failing = True
                self._note(disk, None)
