"""All changes to a registry, as pure functions from one state to the next.

A change may be applied more than once, each time to the current state, if someone else changed it meanwhile. So it uses no
random numbers, no clock and no I/O: ids and times are passed in. It returns the same state if there is nothing to change, and
raises a DfcError if the change is not possible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dfc.clock import NODE_NUMBER_MAX
from dfc.errors import BadRequest, BucketConflict, BucketDeleting, BucketNotFound, Conflict, NotFound
from dfc.limits import REMOVED_DISKS_MAX, WEIGHT_MAX, WEIGHT_MIN
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, DiskUse, LayoutEntry, NodeEntry, RebalanceEntry, SliceRun
from dfc.placement.mapped import FIRST_LAYOUT, buckets_after, layouts_after, nodes_after, placement_of, share_out
from dfc.placement.roles import Placement
from dfc.registry.messages import Registration, is_known, removed_for_good, use_of, with_use
from dfc.wire import PROTOCOL


class RegistryState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a registry. `last_number` is the highest node number ever given, even to nodes that are gone: object
    versions end in these numbers and must be unique."""

    map: ClusterMap
    last_number: int = 0


REMOVED_MAX: Final = 1000  # buckets whose objects a disk that is away has to remove; those of older ones stay on it, unseen
Change = Callable[[RegistryState], RegistryState]


def check_step(old: RegistryState, new: RegistryState) -> None:
    """Check that a change made one step in the same cluster. ValueError: the change has a bug and must not be stored."""
    if (new.map.cluster_id, new.map.version) != (old.map.cluster_id, old.map.version + 1):
        raise ValueError(f"a change led from version {old.map.version} to {new.map.version} of {new.map.cluster_id!r}")
    if new.last_number < max((old.last_number, *(node.number for node in new.map.nodes))):
        raise ValueError(f"a change would give numbers of nodes again: {new.last_number} after {old.last_number}")


# --- nodes


def join(registration: Registration) -> Change:
    """Add or update a node. New disks wait if buckets exist, because placing on them would move objects.

    Conflict when its disks belong to another cluster, when it is not a target, when no node number is left, or when it has
    taken a disk of another node that must not be with its own.
    """

    def change(state: RegistryState) -> RegistryState:
        check_registration(state.map, registration)
        if is_known(state.map, registration):
            return state
        draft = Draft(state)
        draft.join(registration)
        return draft.finish()

    return change


def check_registration(cluster_map: ClusterMap, registration: Registration) -> None:
    """Check that this node may be in this cluster. Conflict."""
    if registration.cluster_id != cluster_map.cluster_id:
        raise Conflict(
            f"these disks belong to cluster {registration.cluster_id or '(none)'}, but this is cluster {cluster_map.cluster_id}"
        )
    if registration.role != "target":
        raise Conflict(f"{registration.node_id} is not a target: proxies are known by the registry that they use")
    if registration.protocol > PROTOCOL:
        raise Conflict(
            f"target {registration.node_id} is of a newer version than this proxy (protocol {registration.protocol}, not"
            f" {PROTOCOL}): update the proxies first"
        )
    removed = (
        removed_for_good(cluster_map).intersection(disk.id for disk in registration.disks) if registration.starting else ()
    )
    for disk_id in removed:
        raise Conflict(
            f"disk {disk_id} was removed from this cluster for good: leave it out of `disks`, or empty its directory"
        )


class StepOvertaken(Conflict):
    """Placement has been changed otherwise since the step was computed: compute another. 409."""


def take_step(before: Placement, new: Placement, seen: Sequence[NodeEntry] = ()) -> Change:
    """Take the cluster from one placement to the next. `seen`: the last reports of targets that go down, which are kept, since
    no newer ones will come. StepOvertaken."""

    def change(state: RegistryState) -> RegistryState:
        if placement_of(state.map) != before or new.step != before.step + 1:
            raise StepOvertaken(f"step {new.step} was made for another placement than that of step {state.map.step}")
        draft = Draft(state)
        last = {node.id: node for node in seen}
        nodes, buckets = nodes_after(state.map, new), buckets_after(state.map, new)
        draft.layouts, draft.slices = layouts_after(new)
        moves = (draft.layouts, draft.slices) != (state.map.layouts, state.map.slices)
        if not nodes and not buckets and not moves and msgspec.structs.replace(new, step=before.step) != before:
            # And would be wanted again and again.
            raise StepOvertaken(f"what step {new.step} would change is not there any more")
        for node in nodes:
            reported = last.get(node.id)
            draft.put_node(node if reported is None else with_use(node, reported.disks, reported.last_heartbeat))
        for bucket in buckets:
            draft.put_bucket(bucket.name, bucket)
        draft.step = new.step
        return draft.finish()

    return change


def remove_node(node_id: str) -> Change:
    """Remove a node that is gone for good. NotFound; Conflict while it is up, or has disks that may hold objects."""

    def change(state: RegistryState) -> RegistryState:
        node = state.map.node(node_id)
        if node is None:
            raise NotFound(f"node {node_id} does not exist")
        if node.state == "up" and node.disks:
            raise Conflict(f"node {node_id} is up; stop it first")
        for disk in node.disks:
            _check_empty(state.map, disk)
        draft = Draft(state)
        draft.remove_node(node_id)
        return draft.finish()

    return change


def drop_disk(disk_id: str) -> Change:
    """Remove a disk that is gone for good. NotFound; Conflict while it is in use, or may hold objects."""

    def change(state: RegistryState) -> RegistryState:
        node, disk = _find_disk(state.map, disk_id)
        if disk.state == "up" and node.state == "up":
            raise Conflict(f"disk {disk_id} is in use by node {node.id}")
        _check_empty(state.map, disk)
        draft = Draft(state)
        draft.put_node(msgspec.structs.replace(node, disks=tuple(each for each in node.disks if each.id != disk_id)))
        return draft.finish()

    return change


def use_disks(disk_ids: Collection[str], use: DiskUse) -> Change:
    """Say what disks are for: objects move accordingly. NotFound."""
    return mark_disks({disk_id: {"use": use} for disk_id in disk_ids})


def expect_by(node_id: str, expected_by: int) -> Change:
    """Say by when a target is expected back, in seconds since 1970. NotFound."""

    def change(state: RegistryState) -> RegistryState:
        node = state.map.node(node_id)
        if node is None:
            raise NotFound(f"node {node_id} does not exist")
        if node.expected_by == expected_by:
            return state
        draft = Draft(state)
        draft.put_node(msgspec.structs.replace(node, expected_by=expected_by))
        return draft.finish()

    return change


def mark_evicted(disk_ids: Collection[str], *, evicted: bool, step: int | None = None) -> Change:
    """Place objects with several copies as if these disks were lost, or no longer; by this step if one is given. NotFound."""
    mark = mark_disks({disk_id: {"evicted": evicted} for disk_id in disk_ids})
    return lambda state: state if step not in (None, state.map.step) else mark(state)


def set_rebalance(paused: bool | None, rate_bytes_per_s: int | None) -> Change:
    """Say how objects are moved; what is None stays."""

    def change(state: RegistryState) -> RegistryState:
        now = state.map.rebalance
        draft = Draft(state)
        draft.set_rebalance(
            RebalanceEntry(
                paused=now.paused if paused is None else paused,
                rate_bytes_per_s=now.rate_bytes_per_s if rate_bytes_per_s is None else rate_bytes_per_s,
            )
        )
        return draft.finish()

    return change


def mark_disks(marks: Mapping[str, Mapping[str, object]]) -> Change:
    """Change fields of disks, given by id, in a way that may move objects. NotFound."""

    def change(state: RegistryState) -> RegistryState:
        draft = Draft(state)
        for disk_id, fields in marks.items():
            node, _ = _find_disk(state.map, disk_id)
            node = draft.nodes[node.id]
            disks = tuple(msgspec.structs.replace(each, **fields) if each.id == disk_id else each for each in node.disks)
            if disks != node.disks:
                draft.put_node(msgspec.structs.replace(node, disks=disks))
        if not draft.layouts:
            placed = tuple(sorted(state.map.placed()))
            draft.layouts = (LayoutEntry(number=FIRST_LAYOUT, disks=placed),)
            draft.slices = (SliceRun(first=0, at=FIRST_LAYOUT),)
        return draft.finish()

    return change


def _find_disk(cluster_map: ClusterMap, disk_id: str) -> tuple[NodeEntry, DiskEntry]:
    for node in cluster_map.nodes:
        for disk in node.disks:
            if disk.id == disk_id:
                return node, disk
    raise NotFound(f"disk {disk_id} does not exist")


def may_hold_objects(cluster_map: ClusterMap, disk: DiskEntry) -> bool:
    """Whether a disk may hold objects that count: it is in placement while buckets exist, so without it they would be 404. One
    that was evicted is in its layout, too: without it, objects of others would have other replicas by the same layout."""
    used = {each for layout in cluster_map.layouts for each in layout.disks} if cluster_map.layouts else cluster_map.in_use()
    return bool(cluster_map.buckets) and disk.id in used


def _check_empty(cluster_map: ClusterMap, disk: DiskEntry) -> None:
    if may_hold_objects(cluster_map, disk):
        raise Conflict(f"disk {disk.id} may hold objects of {len(cluster_map.buckets)} buckets")


# --- buckets


def create_bucket(new: BucketEntry) -> Change:
    """Create a bucket unless one with these settings exists. BucketConflict when its settings differ; BucketDeleting.

    The id of the bucket in the resulting state tells the caller whether it is new.
    """

    def change(state: RegistryState) -> RegistryState:
        found = state.map.bucket(new.name)
        if found is None:
            return _with_bucket(state, new.name, new)
        if found.state == "deleting":
            raise BucketDeleting(f"bucket {new.name!r} is being deleted")
        if _settings(found) != _settings(new):
            least = f", min_copies={found.min_copies}" if found.min_copies or new.min_copies else ""
            raise BucketConflict(
                f"bucket {new.name!r} already exists with copies={found.goal}, durability={found.durability}{least}"
            )
        return state

    return change


def _settings(bucket: BucketEntry) -> tuple[int, int, str]:
    """What was asked for: copies that are still being made count."""
    return bucket.goal, bucket.min_copies, bucket.durability


def ensure_bucket(new: BucketEntry) -> Change:
    """Create a bucket unless one of this name exists, whatever its settings and state."""
    return lambda state: state if state.map.bucket(new.name) is not None else _with_bucket(state, new.name, new)


def change_bucket(name: str, **fields: object) -> Change:
    """Replace fields of a bucket; BucketNotFound."""

    def change(state: RegistryState) -> RegistryState:
        found = state.map.bucket(name)
        if found is None:
            raise BucketNotFound(f"bucket {name!r} does not exist")
        new = msgspec.structs.replace(found, **fields)
        return state if new == found else _with_bucket(state, name, new)

    return change


def remove_bucket(name: str, bucket_id: str, without: Collection[str] = ()) -> Change:
    """Remove a bucket. Disks in `without` still have to remove what they have of it; does nothing if the name is another bucket
    by now."""

    def change(state: RegistryState) -> RegistryState:
        found = state.map.bucket(name)
        if found is None or found.id != bucket_id:
            return state
        draft = Draft(state)
        draft.put_bucket(name, None)
        draft.mark_removed(lambda disk: (*disk.removed, bucket_id)[-REMOVED_MAX:] if disk.id in without else disk.removed)
        return draft.finish()

    return change


def forget_removed(bucket_id: str, disk_ids: Collection[str]) -> Change:
    """These disks have removed what they had of a bucket that is gone."""

    def change(state: RegistryState) -> RegistryState:
        draft = Draft(state)
        draft.mark_removed(lambda disk: tuple(each for each in disk.removed if disk.id not in disk_ids or each != bucket_id))
        return draft.finish()

    return change


def end_checks(state: RegistryState) -> RegistryState:
    """Make buckets that are `checking` active again, since the proxy that was checking them is gone."""
    draft = Draft(state)
    for name, bucket in list(draft.buckets.items()):
        if bucket.state == "checking":
            draft.put_bucket(name, msgspec.structs.replace(bucket, state="active"))
    return draft.finish()


def _with_bucket(state: RegistryState, name: str, bucket: BucketEntry | None) -> RegistryState:
    draft = Draft(state)
    draft.put_bucket(name, bucket)
    return draft.finish()


class Draft:
    """A draft of the next state. Entries that are not changed stay the same objects."""

    def __init__(self, base: RegistryState) -> None:
        self._base: Final = base
        self._changed = False
        self._last_number = base.last_number
        self.step = base.map.step
        self.layouts, self.slices = base.map.layouts, base.map.slices
        self.removed_disks = base.map.removed_disks
        self._rebalance = base.map.rebalance
        self.nodes = {node.id: node for node in base.map.nodes}
        self.buckets = {bucket.name: bucket for bucket in base.map.buckets}

    def put_node(self, node: NodeEntry) -> None:
        self.nodes[node.id] = node
        self._changed = True

    def remove_node(self, node_id: str) -> None:
        del self.nodes[node_id]
        self._changed = True

    def mark_removed(self, removed: Callable[[DiskEntry], tuple[str, ...]]) -> None:
        """Say of each disk which buckets were removed without it."""
        for node in list(self.nodes.values()):
            disks = tuple(msgspec.structs.replace(disk, removed=removed(disk)) for disk in node.disks)
            if disks != node.disks:
                self.put_node(msgspec.structs.replace(node, disks=disks))

    def put_bucket(self, name: str, bucket: BucketEntry | None) -> None:
        if bucket is None:
            del self.buckets[name]
        else:
            self.buckets[name] = bucket
        self._changed = True

    def set_rebalance(self, entry: RebalanceEntry) -> None:
        self._changed = self._changed or entry != self._rebalance
        self._rebalance = entry

    def finish(self) -> RegistryState:
        """Return the new state, with the map one version higher; the old state if nothing changed."""
        if not self._changed and self.step == self._base.map.step:
            return self._base
        is_moving = any(run.to is not None for run in self.slices)
        buckets = (
            bucket if bucket.is_moving == is_moving else msgspec.structs.replace(bucket, is_moving=is_moving)
            for bucket in self.buckets.values()
        )
        cluster_map = ClusterMap(
            cluster_id=self._base.map.cluster_id,
            version=self._base.map.version + 1,
            step=self.step,
            nodes=tuple(sorted(self.nodes.values(), key=lambda node: node.id)),
            buckets=tuple(sorted(buckets, key=lambda bucket: bucket.name)),
            layouts=self._known_layouts(),
            slices=self.slices,
            rebalance=self._rebalance,
            removed_disks=self.removed_disks,
        )
        return RegistryState(map=cluster_map, last_number=self._last_number)

    def _known_layouts(self) -> tuple[LayoutEntry, ...]:
        """The layouts without disks that were removed, which is done while there are no objects."""
        known = {disk.id for node in self.nodes.values() for disk in node.disks}
        return tuple(
            layout
            if known.issuperset(layout.disks)
            else msgspec.structs.replace(
                layout,
                disks=tuple(disk for disk in layout.disks if disk in known),
                gone=tuple(disk for disk in layout.gone if disk in known),
                weights={disk: weight for disk, weight in layout.weights.items() if disk in known},
            )
            for layout in self.layouts
        )

    def join(self, registration: Registration) -> None:
        removed = removed_for_good(self._base.map)
        registration = msgspec.structs.replace(
            registration, disks=tuple(disk for disk in registration.disks if disk.id not in removed)
        )
        known = self.nodes.get(registration.node_id)
        placed = {disk.id for node in self.nodes.values() for disk in node.disks}
        old = {disk.id: disk for disk in _with_domains(known, known.disks)} if known else {}
        before = old | self._take_from_others(registration)
        reported = {disk.id: disk for disk in registration.disks}
        may_enter = not placed or not (self.buckets or self.layouts)
        domain, holds_copies = registration.labels.domain(registration.node_id), self._base.map.has_copies
        entries = []
        for disk_id in dict.fromkeys((*old, *reported)):
            now, was = reported.get(disk_id), before.get(disk_id)
            if disk_id not in placed:
                entry = _unplaced(registration.node_id, now, was)
                entry = entry if may_enter else msgspec.structs.replace(entry, use="new")
            else:  # the coordinator decides what it may do
                entry = before[disk_id] if now is None else _reported(before[disk_id], now)
                if disk_id not in old:  # it was at another node, which does not have it any more
                    entry = msgspec.structs.replace(entry, down_step=entry.down_step or max(1, self.step))
            if disk_id not in placed or not holds_copies:  # no replica depends on it
                entry = msgspec.structs.replace(entry, domain=domain)
            entries.append(entry)
        _check_domains(registration.node_id, [entry for entry in entries if entry.id in placed], old.keys())
        if not may_enter and not self.layouts and any(entry.id not in placed for entry in entries):
            # From now on, not every disk holds objects.
            self.layouts = (LayoutEntry(number=FIRST_LAYOUT, disks=tuple(sorted(placed))),)
            self.slices = (SliceRun(first=0, at=FIRST_LAYOUT),)
        is_back = known is not None and known.state == "down"  # the coordinator brings it up in its next step
        node = NodeEntry(
            id=registration.node_id,
            number=known.number if known else self._free_number(),
            role=registration.role,
            url=registration.url,
            advertise_url=registration.advertise_url,
            state="down" if is_back else "up",
            disks=tuple(entries),
            labels=registration.labels,
            expected_by=known.expected_by if known else 0,
            protocol=registration.protocol,
        )
        self.put_node(node)

    def _take_from_others(self, registration: Registration) -> dict[str, DiskEntry]:
        """Take disks from other nodes that had them before: the lock on a disk decides who has it now."""
        ids = {disk.id for disk in registration.disks}
        taken: dict[str, DiskEntry] = {}
        for node in list(self.nodes.values()):
            moved = [disk for disk in node.disks if disk.id in ids]
            if node.id != registration.node_id and moved:
                taken.update((disk.id, disk) for disk in _with_domains(node, moved))
                self.put_node(msgspec.structs.replace(node, disks=tuple(d for d in node.disks if d.id not in ids)))
        return taken

    def _free_number(self) -> int:
        """Return a number that no node ever had, not even one that is gone: objects that it stored keep its number."""
        if self._last_number >= NODE_NUMBER_MAX:
            raise Conflict(f"there is no number left for another node: {NODE_NUMBER_MAX} nodes have joined this cluster")
        self._last_number += 1
        return self._last_number


def _with_domains(node: NodeEntry, disks: Iterable[DiskEntry]) -> tuple[DiskEntry, ...]:
    """Return disks of a node with the failure domains that placement goes by, whatever becomes of the node's labels."""
    return tuple(msgspec.structs.replace(disk, domain=node.domain_of(disk)) for disk in disks)


def _check_domains(node_id: str, placed: Sequence[DiskEntry], own: Collection[str]) -> None:
    """Check that a node which takes disks of others has disks of one failure domain: otherwise two of them might be replicas of
    one object, and both copies at one node. Conflict."""
    came = [disk for disk in placed if disk.id not in own]
    domains = sorted({disk.domain for disk in placed})
    if came and len(domains) > 1:
        raise Conflict(
            f"disk {came[0].id} was another target's, and placement puts copies of one object on disks of"
            f" {' and '.join(domains)}: target {node_id} cannot have both. Start another target for the disks that were moved"
        )


def _unplaced(node_id: str, now: DiskEntry | None, was: DiskEntry | None) -> DiskEntry:
    """Return the entry of a disk outside placement, from what its node reports `now` and what it `was`."""
    if now is None:
        assert was is not None
        return msgspec.structs.replace(was, state="failed")
    entry = DiskEntry(id=now.id, weight=now.weight, group=node_id, state=now.state, incarnation=now.incarnation)
    if was is not None:
        entry = msgspec.structs.replace(entry, weight=was.weight, group=was.group)
    return _reported(entry, now)


def _reported(entry: DiskEntry, now: DiskEntry) -> DiskEntry:
    """Return the entry with the usage that its node reports, and the incarnation if that was not known."""
    return msgspec.structs.replace(entry, **use_of(now), incarnation=entry.incarnation or now.incarnation)


# --- Changes by which a lost disk is removed for good.


def remove_lost(disk_ids: Collection[str]) -> Change:
    """Give up these disks, and move everything to a layout without them, whatever is lost by that; none of them is brought up
    again. NotFound; Conflict if one of them is up."""

    def change(state: RegistryState) -> RegistryState:
        up = placement_of(state.map).up.intersection(disk_ids)
        if up:
            raise Conflict(f"disk {', '.join(sorted(up))} is up: drain it instead, or stop its target if it is lost")
        return mark_disks({disk: {"evicted": True, "removing": True, "use": "out"} for disk in disk_ids})(state)

    return change


def forgettable(cluster_map: ClusterMap) -> set[str]:
    """Return the disks that are removed for good and that no layout has any more."""
    used = {disk for layout in cluster_map.layouts for disk in layout.disks}
    return {disk for disk, owner in cluster_map.placed().items() if owner.disk.removing and disk not in used}


def forget_removed_disks(state: RegistryState) -> RegistryState:
    """Forget the disks that are removed for good, when all has been moved, and targets that are down and have no others. Their
    ids are kept, so that they never come back."""
    gone = forgettable(state.map)
    if not gone:
        return state
    draft = Draft(state)
    for node in state.map.nodes:
        disks = tuple(disk for disk in node.disks if disk.id not in gone)
        if disks != node.disks:
            draft.put_node(msgspec.structs.replace(node, disks=disks))
            if not disks and node.state == "down":
                draft.remove_node(node.id)
    draft.removed_disks = (*draft.removed_disks, *sorted(gone))[-REMOVED_DISKS_MAX:]
    return draft.finish()


# --- The change that gives disks other weights.


def weigh_disks(disk_ids: Collection[str], total: float) -> Change:
    """Give disks other weights, in the proportions that they are to have now, whose sum is `total`: objects move accordingly.
    NotFound; BadRequest if one of them would get a weight outside the limits."""

    def change(state: RegistryState) -> RegistryState:
        known = {disk.id: disk for node in state.map.nodes for disk in node.disks}
        weights = share_out(total, {disk: known[disk].goal if disk in known else 1.0 for disk in disk_ids})
        for disk, weight in weights.items():
            if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
                raise BadRequest(
                    f"disk {disk} would get the weight {weight:g}, and weights are from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}"
                )
        marks = {
            disk: {"wanted_weight": 0.0 if disk in known and known[disk].weight == weight else weight}
            for disk, weight in weights.items()
        }
        return mark_disks(marks)(state)

    return change
