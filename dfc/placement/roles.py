"""Placement: which disks there are, and what each of them does for an object. Pure.

A placement is one numbered step, and says which layout is in force for each slice of names. Whatever moves the right to read
or write makes the next one, and nothing is decided by two steps that are not neighbours (docs/decisions/0027-replication.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Final, Literal, NamedTuple

import msgspec
import xxhash

from dfc.limits import PLACEMENT_NAMES_MAX
from dfc.placement.rendezvous import Layout, LayoutDisk, object_key

SLICES: Final = 256
DiskStatus = Literal["up", "down", "failed"]
Phase = Literal["done", "copying", "moving", "moved"]


class DiskPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A disk and its rights.

    `weight` is the one with which it joined; a layout may have given it another one (`LayoutSpec`). `out_of_sync_with` are
    disks that may have acknowledged writes that this one lacks. `down_step` is the step at which it went down or failed, 0
    while it is up. `incarnation` names what is on it: a disk that was replaced or emptied has another one. `compare` names its
    return, unlike any other return, if it came back empty or doubtful: who is in its `out_of_sync_with` delivers everything,
    not only its hints. `removing`: it is lost and leaves for good, whatever is lost with it; it is not brought up again."""

    id: str
    node: str
    group: str
    domain: str
    weight: float = 1.0
    status: DiskStatus = "up"
    out_of_sync_with: frozenset[str] = frozenset()
    down_step: int = 0
    incarnation: str = ""
    compare: str = ""
    removing: bool = False

    @property
    def is_up(self) -> bool:
        return self.status == "up"

    @property
    def is_in_sync(self) -> bool:
        """Whether it is up, and out of sync with no other disk."""
        return self.is_up and not self.out_of_sync_with


class SliceState(NamedTuple):
    """The layout in force for a slice of names, and the one that it moves to.

    `copying`: rows go to the new replicas, nothing else changes. `moving`: writes go to the replicas of both. `moved`: reads
    and decisions are with the new replicas, writes still go to both."""

    at: int
    to: int | None = None
    phase: Phase = "done"

    @property
    def reading(self) -> int:
        """The layout whose replicas serve reads and decide."""
        return self.to if self.phase == "moved" and self.to is not None else self.at

    @property
    def other(self) -> int | None:
        """The layout whose replicas take part in writes besides; None where there is no other."""
        if self.phase == "moving":
            return self.to
        return self.at if self.phase == "moved" else None


class Copies(NamedTuple):
    """How many copies the objects of a bucket have: `reading` of them are complete and may be read, `written` are written, and
    `wanted` is what it comes to. All three are equal unless the number is being changed."""

    reading: int
    written: int
    wanted: int

    @classmethod
    def of(cls, count: int) -> Copies:
        """A number that does not change."""
        return cls(count, count, count)


ONE_COPY: Final = Copies.of(1)


class LayoutSpec(msgspec.Struct, frozen=True):
    """Disks among which objects are placed. Those in `gone` keep their weight in the node's, but hold nothing. `weights` has
    those whose weight is not the one with which they joined."""

    disks: frozenset[str]
    gone: frozenset[str] = frozenset()
    weights: Mapping[str, float] = {}

    def ranks_like(self, other: LayoutSpec) -> bool:
        """Whether both put disks in the same order for every name, whatever is gone."""
        return (self.disks, self.weights) == (other.disks, other.weights)


class Placement(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One step. Layouts are numbered, and never change under their number; disks keep their group, and the weight with which
    they joined, for good.

    `copies` has the buckets, by id. One that is made later has one copy, as long as nobody knows of it.
    """

    step: int
    disks: Mapping[str, DiskPlace]
    layouts: Mapping[int, LayoutSpec]
    slices: tuple[SliceState, ...]
    copies: Mapping[str, Copies] = {}

    def __post_init__(self) -> None:
        self.__dict__["roles"] = {}
        self.__dict__["shared_roles"] = {}
        self.__dict__["rankings"] = {}

    def layout(self, number: int) -> Layout:
        """The ranking of a layout. Two placements with the same disks in it share the object."""
        rankings: dict[int, Layout] = self.__dict__["rankings"]
        found = rankings.get(number)
        if found is None:
            places = (self.disks[each] for each in sorted(self.layouts[number].disks))
            disks = (LayoutDisk(each.id, self.weight_in(number, each.id), each.group, each.domain) for each in places)
            found = rankings[number] = layout_of(tuple(disks))
        return found

    def weight_in(self, number: int, disk_id: str) -> float:
        """The weight of a disk by a layout; if it is not in that, the one with which it joined."""
        return self.layouts[number].weights.get(disk_id, self.disks[disk_id].weight)

    def disks_of(self, node: str) -> list[DiskPlace]:
        """The disks of a node."""
        found: dict[str, list[DiskPlace]] | None = self.__dict__.get("by_node")
        if found is None:
            found = {}
            for disk in self.disks.values():
                found.setdefault(disk.node, []).append(disk)
            self.__dict__["by_node"] = found
        return found.get(node, [])

    @cached_property
    def up(self) -> frozenset[str]:
        """The disks that are up."""
        return frozenset(disk.id for disk in self.disks.values() if disk.is_up)

    @cached_property
    def is_moving(self) -> bool:
        """Whether any slice moves to another layout."""
        return any(each.to is not None for each in self.slices)

    @property
    def stable_layout(self) -> int | None:
        """The one layout in force; None while slices move."""
        return None if self.is_moving else self.slices[0].at

    def copies_of(self, bucket_id: str) -> Copies:
        """How many copies objects of a bucket have."""
        return self.copies.get(bucket_id, ONE_COPY)

    def slice_of(self, bucket_id: str, name: str) -> int:
        """Which slice a name belongs to: its index in `slices`."""
        return slice_number(bucket_id, name) * len(self.slices) // SLICES


def slice_number(bucket_id: str, name: str) -> int:
    """0 to 255."""
    return slice_by(object_key(bucket_id, name))


def slice_by(key: bytes) -> int:
    """The same by the key of an object."""
    return xxhash.xxh3_64_intdigest(b"slice\0" + key) >> 56


@lru_cache(maxsize=16)
def layout_of(disks: tuple[LayoutDisk, ...]) -> Layout:
    """The layout over these disks. All who ask for the same one share it, since a large one takes milliseconds to make."""
    return Layout(disks)


# --- Who does what for an object: its replicas, readers, primary, members and handoff replicas, by one placement. Pure.
#
# Proxies, targets and clients all ask here, and nowhere else.


class Roles(NamedTuple):
    """Ids of disks, in the order of the ranking.

    `replicas`: where the object belongs. `readers`: replicas that hold every acknowledged write, and may be read. `primary`:
    the first reader, which orders writes; None: the object is unavailable. `members`: take every write. `handoffs`: take writes
    in place of replicas that are not up. `everywhere`: replicas by any layout that matters now, where the object must be in the
    end."""

    replicas: tuple[str, ...]
    readers: tuple[str, ...]
    primary: str | None
    members: tuple[str, ...]
    handoffs: tuple[str, ...]
    everywhere: tuple[str, ...]

    @property
    def writers(self) -> tuple[str, ...]:
        """Everybody to whom the primary sends a write."""
        return tuple(each for each in (*self.members, *self.handoffs) if each != self.primary)


def roles(placement: Placement, bucket_id: str, name: str) -> Roles:
    """The roles for one object. Remembered with the placement. Thread-safe."""
    known: dict[tuple[str, str], Roles] = placement.__dict__["roles"]
    key = (bucket_id, name)
    found = known.get(key)
    if found is None:
        shared: dict[Roles, Roles] = placement.__dict__["shared_roles"]
        if len(known) >= PLACEMENT_NAMES_MAX:
            known.clear()
            shared.clear()
        found = roles_once(placement, bucket_id, name)
        found = known[key] = shared.setdefault(found, found)  # there are few different ones, and each takes a kilobyte
    return found


def roles_once(placement: Placement, bucket_id: str, name: str) -> Roles:
    """The roles for one object. Not remembered: for walks over all names, which would drive out those in use."""
    state = placement.slices[placement.slice_of(bucket_id, name)]
    copies = placement.copies_of(bucket_id)
    up = placement.up
    replicas = everywhere = _replicas(placement, state.reading, bucket_id, name, copies)
    readers = _readers(placement, replicas, copies)
    others: tuple[str, ...] = ()
    if state.to is not None:
        coming = _replicas(placement, state.to, bucket_id, name, copies)
        if state.other is not None:
            others = coming if state.other == state.to else _replicas(placement, state.other, bucket_id, name, copies)
        if coming != replicas or others:
            everywhere = tuple(dict.fromkeys((*replicas, *others, *coming)))
    possible = tuple(dict.fromkeys((*replicas, *others))) if others else replicas
    members = possible if up.issuperset(possible) else tuple([each for each in possible if each in up])
    are_present = copies.reading > 1 and len(replicas) == copies.written and up.issuperset(replicas)
    present = replicas if copies.written == 1 or are_present else _present(placement, bucket_id, name, copies.written, ())
    handoffs = () if present is replicas else tuple([each for each in present if each not in members])
    return Roles(replicas, readers, readers[0] if readers else None, members, handoffs, everywhere)


def _readers(placement: Placement, replicas: tuple[str, ...], copies: Copies) -> tuple[str, ...]:
    complete, disks = replicas[: copies.reading], placement.disks
    if copies.reading == 1:  # nobody else can have written; a disk that has failed may still be read
        return tuple([each for each in complete if disks[each].status != "down"])
    return tuple([each for each in complete if disks[each].is_up and not disks[each].out_of_sync_with])


def replicas_of(placement: Placement, bucket_id: str, name: str) -> tuple[str, ...]:
    """The replicas of an object alone. Not remembered: for walks over all names, which would drive out those in use."""
    state = placement.slices[placement.slice_of(bucket_id, name)]
    return _replicas(placement, state.reading, bucket_id, name, placement.copies_of(bucket_id))


def primary_among(placement: Placement, bucket_id: str, replicas: tuple[str, ...]) -> str | None:
    """The primary of an object whose replicas are known: for walks as well."""
    return next(iter(_readers(placement, replicas, placement.copies_of(bucket_id))), None)


def future_replicas(placement: Placement, primary: str, bucket_id: str, names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Of those of the names whose slices are being copied and that have this primary: each future replica that is not a replica
    yet, the bucket id, and the name. For walks as well: of a million names, what is not asked for here is not worked out."""
    copies = placement.copies_of(bucket_id)
    copying = {
        number: (state.at, state.to)
        for number, state in enumerate(placement.slices)
        if state.to is not None and state.phase == "copying"
    }
    if copies == ONE_COPY:
        return _future_replica(placement, copying, primary, bucket_id, names)
    found: list[tuple[str, str, str]] = []
    for name in names:
        at, to = copying.get(placement.slice_of(bucket_id, name), (None, None))
        if at is None or to is None:
            continue
        replicas = _replicas(placement, at, bucket_id, name, copies)
        if primary_among(placement, bucket_id, replicas) == primary:
            coming = _replicas(placement, to, bucket_id, name, copies)
            found += [(each, bucket_id, name) for each in coming if each not in replicas]
    return found


def _future_replica(
    placement: Placement, copying: Mapping[int, tuple[int, int]], primary: str, bucket_id: str, names: Iterable[str]
) -> list[tuple[str, str, str]]:
    """The same where there is one copy."""
    if primary not in placement.disks or not _readers(placement, (primary,), ONE_COPY):
        return []
    slices = len(placement.slices)
    layouts = {number: placement.layout(number) for number in placement.layouts}
    found: list[tuple[str, str, str]] = []
    for name in names:
        key = object_key(bucket_id, name)
        moves = copying.get(slice_by(key) * slices // SLICES)
        if moves is not None and layouts[moves[0]].only_by(key) == primary:
            to = layouts[moves[1]].only_by(key)
            if to is not None and to != primary:
                found.append((to, bucket_id, name))
    return found


def handoffs(placement: Placement, bucket_id: str, name: str, without: Collection[str]) -> tuple[str, ...]:
    """The handoff replicas when these disks are passed over, too."""
    members = roles(placement, bucket_id, name).members
    present = _present(placement, bucket_id, name, placement.copies_of(bucket_id).written, without)
    return tuple(each for each in present if each not in members)


def _present(placement: Placement, bucket_id: str, name: str, count: int, without: Collection[str]) -> tuple[str, ...]:
    """Where the copies would be if all disks that are not up were taken out."""
    number = placement.slices[placement.slice_of(bucket_id, name)].reading
    absent = (placement.disks.keys() - placement.up) | placement.layouts[number].gone | set(without)
    return tuple(placement.layout(number).owners(bucket_id, name, count, absent))


def _replicas(placement: Placement, layout: int, bucket_id: str, name: str, copies: Copies) -> tuple[str, ...]:
    """The disks that hold an object by a layout. Where one copy may be read, a disk that is gone stays: nobody else has it."""
    if copies.written == 1:
        best = placement.layout(layout).only(bucket_id, name)
        return () if best is None else (best,)
    without = placement.layouts[layout].gone if copies.reading > 1 else frozenset()
    return tuple(placement.layout(layout).owners(bucket_id, name, copies.written, without))
