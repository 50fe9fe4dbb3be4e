"""Who does what for an object: its homes, readers, primary, members and stand-ins, by one placement. Pure.

Proxies, targets and clients all ask here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from dfc.limits import PLACEMENT_NAMES_MAX
from dfc.placement.layout import Layout, object_key
from dfc.placement.state import ONE_COPY, SLICES, Copies, Placement, slice_by


class Roles(NamedTuple):
    """Ids of disks, in the order of the ranking.

    `homes`: where the object belongs. `readers`: homes that hold every acknowledged write, and may be read. `primary`: the
    first reader, which orders writes; None: the object is unavailable. `members`: take every write. `standins`: take writes
    in place of homes that are not up. `everywhere`: homes by any layout that matters now, where the object must be in the end.
    """

    homes: tuple[str, ...]
    readers: tuple[str, ...]
    primary: str | None
    members: tuple[str, ...]
    standins: tuple[str, ...]
    everywhere: tuple[str, ...]

    @property
    def writers(self) -> tuple[str, ...]:
        """Everybody to whom the primary sends a write."""
        return tuple(each for each in (*self.members, *self.standins) if each != self.primary)


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
    homes = everywhere = _homes(placement, state.reading, bucket_id, name, copies)
    readers = _readers(placement, homes, copies)
    others: tuple[str, ...] = ()
    if state.to is not None:
        coming = _homes(placement, state.to, bucket_id, name, copies)
        if state.other is not None:
            others = coming if state.other == state.to else _homes(placement, state.other, bucket_id, name, copies)
        if coming != homes or others:
            everywhere = tuple(dict.fromkeys((*homes, *others, *coming)))
    possible = tuple(dict.fromkeys((*homes, *others))) if others else homes
    members = possible if up.issuperset(possible) else tuple([each for each in possible if each in up])
    are_present = copies.reading > 1 and len(homes) == copies.written and up.issuperset(homes)
    present = homes if copies.written == 1 or are_present else _present(placement, bucket_id, name, copies.written, ())
    standing_in = () if present is homes else tuple([each for each in present if each not in members])
    return Roles(homes, readers, readers[0] if readers else None, members, standing_in, everywhere)


def _readers(placement: Placement, homes: tuple[str, ...], copies: Copies) -> tuple[str, ...]:
    complete, disks = homes[: copies.reading], placement.disks
    if copies.reading == 1:  # nobody else can have written; a disk that has failed may still be read
        return tuple([each for each in complete if disks[each].status != "down"])
    return tuple([each for each in complete if disks[each].is_up and not disks[each].behind])


def homes_of(placement: Placement, bucket_id: str, name: str) -> tuple[str, ...]:
    """The homes of an object alone. Not remembered: for walks over all names, which would drive out those in use."""
    state = placement.slices[placement.slice_of(bucket_id, name)]
    return _homes(placement, state.reading, bucket_id, name, placement.copies_of(bucket_id))


def primary_among(placement: Placement, bucket_id: str, homes: tuple[str, ...]) -> str | None:
    """The primary of an object whose homes are known: for walks as well."""
    return next(iter(_readers(placement, homes, placement.copies_of(bucket_id))), None)


def homes_to_come(placement: Placement, primary: str, bucket_id: str, names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Of those of the names whose slices are being copied and that have this primary: each home to come that is not a home yet,
    the bucket id, and the name. For walks as well: of a million names, what is not asked for here is not worked out."""
    copies = placement.copies_of(bucket_id)
    copying = {
        number: (state.at, state.to)
        for number, state in enumerate(placement.slices)
        if state.to is not None and state.phase == "copying"
    }
    if copies == ONE_COPY:
        return _home_to_come(placement, copying, primary, bucket_id, names)
    found: list[tuple[str, str, str]] = []
    for name in names:
        at, to = copying.get(placement.slice_of(bucket_id, name), (None, None))
        if at is None or to is None:
            continue
        homes = _homes(placement, at, bucket_id, name, copies)
        if primary_among(placement, bucket_id, homes) == primary:
            coming = _homes(placement, to, bucket_id, name, copies)
            found += [(each, bucket_id, name) for each in coming if each not in homes]
    return found


def _home_to_come(
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


def standins(placement: Placement, bucket_id: str, name: str, without: Collection[str]) -> tuple[str, ...]:
    """The stand-ins when these disks are passed over, too."""
    members = roles(placement, bucket_id, name).members
    present = _present(placement, bucket_id, name, placement.copies_of(bucket_id).written, without)
    return tuple(each for each in present if each not in members)


def _present(placement: Placement, bucket_id: str, name: str, count: int, without: Collection[str]) -> tuple[str, ...]:
    """Where the copies would be if all disks that are not up were taken out."""
    number = placement.slices[placement.slice_of(bucket_id, name)].reading
    absent = (placement.disks.keys() - placement.up) | _gone(placement, number) | set(without)
    return _first(placement.layout(number), bucket_id, name, count, absent)


def _homes(placement: Placement, layout: int, bucket_id: str, name: str, copies: Copies) -> tuple[str, ...]:
    """The disks that hold an object by a layout. Where one copy may be read, a disk that is gone stays: nobody else has it."""
    if copies.written == 1:
        best = placement.layout(layout).only(bucket_id, name)
        return () if best is None else (best,)
    without = _gone(placement, layout) if copies.reading > 1 else frozenset()
    return _first(placement.layout(layout), bucket_id, name, copies.written, without)


def _gone(placement: Placement, layout: int) -> frozenset[str]:
    return placement.layouts[layout].gone


def _first(layout: Layout, bucket_id: str, name: str, count: int, without: Collection[str]) -> tuple[str, ...]:
    return tuple(layout.owners(bucket_id, name, count, without))
