"""Copies compared: digests, differences, and what was found. Pure.

A pair is the disk that is the primary of some names, and another replica of them. Both fold what they have of these into one
number for each slice of names. What differs is looked at by name, twice, and repaired from the primary: what that has counts.
Tombstones are in no digest, since each disk forgets its own after a while; they are seen when a name is looked at.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

import msgspec
import xxhash

from dfc.placement.roles import SLICES, Placement, primary_among, replicas_of, slice_number
from dfc.replication.recovery import are_roles_changing
from dfc.wire.status import CheckedDisk, CheckedObject


def row_digest(bucket_id: str, name: str, version: str, checksum: str) -> int:
    """The digest of an object: 64 bits."""
    return xxhash.xxh3_64_intdigest(f"{bucket_id}\0{name}\0{version}\0{checksum}".encode())


class SliceDigests:
    """What one disk has of a pair's objects: for each slice the exclusive or of their digests, and their number. 4 KiB."""

    __slots__ = ("counts", "folds")

    def __init__(self, folds: bytes = bytes(8 * SLICES), counts: bytes = bytes(8 * SLICES)) -> None:
        """As `folds` and `counts` of another one were sent, by `tobytes`. ValueError unless both have that size."""
        if len(folds) != 8 * SLICES or len(counts) != 8 * SLICES:
            raise ValueError("these are no digests of all slices")
        self.folds = array("Q", folds)
        self.counts = array("Q", counts)

    def add(self, number: int, digest: int) -> None:
        """Add an object of the slice with this number."""
        self.folds[number] ^= digest
        self.counts[number] += 1

    @property
    def rows(self) -> int:
        """How many objects there are."""
        return sum(self.counts)

    def differing(self, other: SliceDigests) -> list[int]:
        """The slices in which the two are not alike."""
        both = zip(self.folds, other.folds, self.counts, other.counts, strict=True)
        return [number for number, (fold, theirs, count, their) in enumerate(both) if fold != theirs or count != their]


def why_not_compared(placement: Placement, primary: str, replica: str) -> str:
    """Why two disks cannot be compared by this placement; empty: they can. What is on its way to a disk would only seem to be
    missing there, and while objects move they have other replicas a moment later."""
    if placement.stable_layout is None:
        return "objects are being moved"
    if are_roles_changing(placement):
        return "the number of copies of a bucket is being changed"
    for each in (primary, replica):
        place = placement.disks.get(each)
        if place is None:
            return f"disk {each} is not in the cluster map"
        if not place.is_up:
            return f"disk {each} is {place.status}"
        if place.out_of_sync_with:
            return f"disk {each} is catching up with others"
    return ""


def pairs_of(placement: Placement, primary: str) -> list[str]:
    """The disks that may be other replicas of a disk's objects: those of other failure domains that hold something."""
    if not any(copies.reading > 1 for copies in placement.copies.values()):
        return []
    spec, domain = placement.layouts[max(placement.layouts)], placement.disks[primary].domain
    if primary not in spec.disks - spec.gone:
        return []
    return sorted(each for each in spec.disks - spec.gone if placement.disks[each].domain != domain)


class Seen(NamedTuple):
    """What a disk has of a name: `version` None: neither an object nor a tombstone; `checksum` empty: a tombstone. `is_sure`:
    no write of the name is on its way here, and what is here is known to count; at the primary, also that it decides."""

    version: str | None
    checksum: str = ""
    is_sure: bool = True

    @property
    def has_object(self) -> bool:
        return bool(self.checksum)


class BothSeen(NamedTuple):
    """What the two disks of a pair have of a name. `is_hinted`: the primary has a hint for the replica already."""

    primary: Seen
    replica: Seen
    is_hinted: bool = False

    @property
    def are_alike(self) -> bool:
        """Whether nothing is to be done. A tombstone is as good as nothing: it is forgotten some day."""
        if not self.primary.has_object and not self.replica.has_object:
            return True
        return (self.primary.version, self.primary.checksum) == (self.replica.version, self.replica.checksum)


class Remedy(Enum):
    """What is done about a name of which the two disks of a pair do not have the same."""

    NONE = "none"  # they are alike, or will be by a hint
    WAIT = "wait"  # it is being written: that brings it to both
    MISSING = "missing"  # the replica lacks it, or has it older: the primary makes a hint, and so delivers it
    LOST = "lost"  # the primary had it: it has lost rows, is in doubt, and is given it again
    SET_ASIDE = "set aside"  # the primary has never heard of it, or forgotten that it was deleted
    ALARM = "alarm"  # the replica has a newer one, or another object of this version: that cannot be, and nothing is touched


def remedy(first: BothSeen, second: BothSeen, forgotten: str) -> Remedy:
    """What is done about a name that was looked at twice, some time apart. `forgotten`: a version as of the time since which no
    tombstone has been forgotten; an object that is newer cannot have been deleted without a trace.

    The primary decides what counts, so its state goes to the replica, never the other way round. What an acknowledged write has
    brought to the replica is at the primary, too; if not, one of the two is wrong in a way that no rule explains.
    """
    if second.are_alike or second.is_hinted:
        return Remedy.NONE
    if first != second or not second.primary.is_sure or not second.replica.is_sure:
        return Remedy.WAIT
    mine, theirs = second.primary.version, second.replica.version
    if mine is None:
        return Remedy.LOST if theirs is not None and theirs > forgotten else Remedy.SET_ASIDE
    if theirs is None or theirs < mine:
        return Remedy.MISSING
    return Remedy.ALARM


def differing_names(own: dict[str, int], theirs: dict[str, int]) -> Iterator[str]:
    """The names whose digests are not the same, or that only one of the two has; in byte order."""
    names: Collection[str] = own.keys() | theirs.keys()
    return (name for name in sorted(names, key=str.encode) if own.get(name) != theirs.get(name))


Pair = tuple[str, str]  # the primary, and another replica
Compared = tuple[str, str, str, str]  # bucket id, name, version, checksum


def compared_buckets(placement: Placement, wanted: Collection[str]) -> frozenset[str]:
    """The ids of the buckets whose objects have several copies; of those that are wanted, if any are named."""
    several = frozenset(bucket_id for bucket_id, copies in placement.copies.items() if copies.reading > 1)
    return several.intersection(wanted) if wanted else several


def fold(
    placement: Placement, disk: str, rows: Iterable[Compared], buckets: Collection[str], into: dict[Pair, SliceDigests]
) -> None:
    """Add rows of a disk to the digests of all pairs that the disk takes part in, as the primary or as another replica."""
    for bucket_id, name, version, checksum in rows:
        if bucket_id not in buckets:
            continue
        replicas = replicas_of(placement, bucket_id, name)
        if disk not in replicas:
            continue  # excess: see `dfc.replication.recovery`
        primary = primary_among(placement, bucket_id, replicas)
        if primary is None:
            continue
        number, digest = slice_number(bucket_id, name), row_digest(bucket_id, name, version, checksum)
        for replica in replicas if primary == disk else (disk,):
            if replica != primary:
                pair = (primary, replica)
                digests = into.get(pair)
                if digests is None:
                    digests = into[pair] = SliceDigests()
                digests.add(number, digest)


def shared(placement: Placement, pair: Pair, rows: Iterable[Compared], slices: Collection[int]) -> dict[str, int]:
    """The digests of those of the rows, all of one bucket, that a pair shares and that are in these slices, by name."""
    found, (wanted, replica) = dict[str, int](), pair
    for bucket_id, name, version, checksum in rows:
        if slice_number(bucket_id, name) in slices:
            replicas = replicas_of(placement, bucket_id, name)
            if replica in replicas and primary_among(placement, bucket_id, replicas) == wanted:
                found[name] = row_digest(bucket_id, name, version, checksum)
    return found


# --- What comparing copies has found, as targets tell proxies, and proxies tell whoever has asked.

FOUND_MAX: Final = 100  # names that one disk tells; all are counted, and more are in its target's log


class CheckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target is to compare what its disks have with others. `check` names this time, `began_us` is when it was asked for, in
    µs since 1970; `buckets` are the ids of those to be compared, none for all."""

    check: str
    began_us: int
    buckets: tuple[str, ...] = ()


class TargetCheck(msgspec.Struct, frozen=True):
    """What a target has to say about the last comparison that it was asked for; `check` empty: none since it was started."""

    check: str = ""
    began_us: int = 0
    buckets: tuple[str, ...] = ()
    disks: list[CheckedDisk] = []


def note(check: CheckedDisk, found: CheckedObject) -> None:
    """Add a difference to those that are told, unless there are many, or it is found again."""
    if len(check.found) < FOUND_MAX and found not in check.found:
        check.found.append(found)
