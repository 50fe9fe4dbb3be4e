"""What each change makes of a placement: nodes and disks that go and come back, who is out of sync with whom, moves. Pure.

The coordinator queues changes, and numbers the step that they make: `dfc.replication.steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from dfc.placement.roles import Copies, DiskPlace, DiskStatus, LayoutSpec, Placement, SliceState

Change = Callable[[Placement], Placement]
"""Makes the next placement of one, or gives it back as it is where there is nothing to change. The step is counted later."""


def declare_down(nodes: set[str]) -> Change:
    """Targets that were silent for too long: their disks are down."""

    def change(placement: Placement) -> Placement:
        silent = [disk for disk in placement.disks.values() if disk.status != "down" and disk.node in nodes]
        return _with_disks(placement, {disk.id: _stopped(disk, "down", placement.step + 1) for disk in silent})

    return change


def put_failed(disk_id: str) -> Change:
    """A disk cannot be written any more, although its target goes on."""

    def change(placement: Placement) -> Placement:
        disk = placement.disks.get(disk_id)
        if disk is None or not disk.is_up:
            return placement
        return _with_disks(placement, {disk_id: _stopped(disk, "failed", placement.step + 1)})

    return change


def _stopped(disk: DiskPlace, status: DiskStatus, step: int) -> DiskPlace:
    return msgspec.structs.replace(disk, status=status, down_step=step if disk.is_up else disk.down_step)


def bring_up(node: str, incarnations: Mapping[str, str], long_gone: Collection[str] = ()) -> Change:
    """A target that was down is heard of again, with these disks: they take part in writes, and serve nothing before they have
    caught up. Its others have failed. `long_gone`: disks that had been down for so long when this target went silent that
    everything they may have was safe on its disks by then, whatever a power loss has cost those since."""

    def change(placement: Placement) -> Placement:
        for disk in sorted(placement.disks):
            place = placement.disks[disk]
            if place.node == node and not place.is_up and disk in incarnations and not place.removing:
                placement = _back(placement, place, incarnations[disk], long_gone)
        left = {
            disk.id: msgspec.structs.replace(disk, status="failed")
            for disk in placement.disks.values()
            if disk.node == node and disk.status == "down"
        }
        return _with_disks(placement, left)

    return change


def _back(placement: Placement, disk: DiskPlace, incarnation: str, long_gone: Collection[str] = ()) -> Placement:
    """A disk is up again, out of sync with every disk of another node, but for those that stopped no later than it did and have
    not been up since: they have acknowledged nothing without it. (If A stopped, then B, and B is back first, then B waits for
    nothing of A.) A disk that comes back empty or in doubt is out of sync with
    all of them, and is compared. While no object has two copies, and none is moving, nobody else can have written what belongs
    on it.

    Whoever is out of sync with an emptied disk waits for all others instead (`_forget`). One that is only in doubt still has
    what it has hints for: others stay out of sync with it, also if it is out of sync with them. Then nobody reads, and the
    newest of what the two have goes to both, until each has reported the other clean (`Delivery.DIRECT`)."""
    several = any(max(each) > 1 for each in placement.copies.values()) or any(each.to is not None for each in placement.slices)
    gone = placement.layouts[max(placement.layouts)].gone | _removed(placement)  # what they had, others have
    others = frozenset(each.id for each in placement.disks.values() if each.node != disk.node and several) - gone
    asleep = {each.id for each in placement.disks.values() if not each.is_up and each.down_step <= disk.down_step}
    if is_another(disk, incarnation):
        is_in_doubt = life_of(incarnation) == life_of(disk.incarnation)
        if is_in_doubt:
            others = disk.out_of_sync_with | (others - (asleep & set(long_gone)))
        back = msgspec.structs.replace(
            disk,
            status="up",
            out_of_sync_with=others,
            incarnation=incarnation,
            compare=f"{incarnation}-{placement.step + 1}" if others else "",
            down_step=0,
        )
        if is_in_doubt:
            return _with_disks(placement, {disk.id: back})
        return _with_disks(placement, {**_forget(placement, [disk.id], gone), disk.id: back})
    back = msgspec.structs.replace(disk, status="up", out_of_sync_with=disk.out_of_sync_with | (others - asleep), down_step=0)
    return _with_disks(placement, {disk.id: back})


def _forget(placement: Placement, lost: Collection[str], gone: Collection[str]) -> dict[str, DiskPlace]:
    """The other disks when what some had is lost; `gone`: those that are evicted by now. Nobody can be out of sync with one of
    these any more; but what a disk had acknowledged without one that was out of sync with it is also on a handoff replica,
    which has the hint, whether it is up or not. So whoever was out of sync with a lost disk is so with all, also if it was
    evicted before and is back."""
    absent = {*lost, *gone, *_removed(placement)}
    all_others = placement.disks.keys() - absent
    return {
        disk.id: msgspec.structs.replace(disk, out_of_sync_with=frozenset(all_others - {disk.id}))
        for disk in placement.disks.values()
        if disk.id not in lost and not disk.out_of_sync_with.isdisjoint(lost)
    }


def forget_removed(placement: Placement) -> Placement:
    """Nobody is out of sync with a disk that leaves for good, or has left: whoever was, is so with all others instead
    (`_forget`)."""
    known = placement.disks.keys() - _removed(placement)
    left = {each for disk in placement.disks.values() for each in disk.out_of_sync_with - known}
    gone = placement.layouts[max(placement.layouts)].gone
    return _with_disks(placement, _forget(placement, left, gone)) if left else placement


def _removed(placement: Placement) -> frozenset[str]:
    """Disks that leave for good: nobody waits for what they have."""
    return frozenset(disk.id for disk in placement.disks.values() if disk.removing)


def is_another(disk: DiskPlace, incarnation: str | None) -> bool:
    """Whether what is on a disk has been replaced since the placement was made; not if either is unknown."""
    return bool(incarnation and disk.incarnation) and incarnation != disk.incarnation


def life_of(incarnation: str) -> str:
    """What of an incarnation stays the same when only the last rows may be lost: the part before a dot."""
    return incarnation.partition(".")[0]


def mark_out_of_sync(disk_id: str, primary: str) -> Change:
    """A disk may lack writes of a primary. Not where the primary is out of sync with that disk itself, or either is not up."""

    def change(placement: Placement) -> Placement:
        disk, asking = placement.disks.get(disk_id), placement.disks.get(primary)
        if disk is None or asking is None or not disk.is_up or not asking.is_up:
            return placement
        if primary in disk.out_of_sync_with or disk_id in asking.out_of_sync_with:
            return placement
        marked = msgspec.structs.replace(disk, out_of_sync_with=disk.out_of_sync_with | {primary})
        return _with_disks(placement, {disk_id: marked})

    return change


def put_clean(disk_id: str, other: str) -> Change:
    """A disk has everything that the other one has acknowledged."""

    def change(placement: Placement) -> Placement:
        disk = placement.disks.get(disk_id)
        if disk is None or other not in disk.out_of_sync_with:
            return placement
        left = disk.out_of_sync_with - {other}
        cleared = msgspec.structs.replace(disk, out_of_sync_with=left, compare=disk.compare if left else "")
        return _with_disks(placement, {disk_id: cleared})

    return change


def want_copies(bucket_id: str, count: int) -> Change:
    """Begin to give objects of a bucket so many copies. More are written before they are read, fewer are read before fewer are
    written; the coordinator takes the other step by itself. A raise can be given up at any time, and nothing else be begun."""

    def change(placement: Placement) -> Placement:
        now = placement.copies_of(bucket_id)
        if now.wanted == count:
            return placement
        if now.reading != now.written:
            # Back to what is read. Roles depend only on what is read and written, so this step changes nothing for anybody, and
            # leads where the first step of lowering does: the next one is the same. Nothing has to be well for it: before and
            # after, only replicas within this number are read and decide, so nobody else is alone in having a write.
            return put_copies(bucket_id, now._replace(wanted=count))(placement) if count == now.reading else placement
        copies = Copies(now.reading, count, count) if count > now.written else Copies(count, now.written, count)
        return put_copies(bucket_id, copies)(placement)

    return change


def put_copies(bucket_id: str, copies: Copies) -> Change:
    """Objects of a bucket have so many copies."""

    def change(placement: Placement) -> Placement:
        if placement.copies_of(bucket_id) == copies:
            return placement
        return msgspec.structs.replace(placement, copies={**placement.copies, bucket_id: copies})

    return change


def start_move(layout: LayoutSpec) -> Change:
    """Begin to copy everything to a new layout, under a number that no layout had before: a disk that has hints for the
    replicas to come would take the former hints to be enough.

    Slices that are on their way elsewhere go there from where they are: those that nobody reads by their new replicas yet are
    copied anew, or stay if this is where they are, and those that are read by them come after that (`hand_over`). Whoever is
    out of sync with a disk that is evicted is then so with its handoff replicas.
    """

    def change(placement: Placement) -> Placement:
        before = max(placement.layouts)
        number = before + 1
        layouts = {**placement.layouts, number: layout}
        lost = layout.gone - placement.layouts[before].gone
        placement = _with_disks(placement, _forget(placement, lost, layout.gone))
        return _with_slices(placement, layouts, [_bound_for(each, number, layouts) for each in placement.slices])

    return change


def _bound_for(state: SliceState, number: int, layouts: Mapping[int, LayoutSpec]) -> SliceState:
    """The slice on its way to this layout, if it can go there now."""
    if state.phase == "moved":
        return state
    if layouts[state.at] == layouts[number]:
        return SliceState(state.at)
    return SliceState(state.at, number, "copying")


def hand_over(numbers: list[int]) -> Change:
    """Take slices to their next phase. Those that have arrived where they were to go before the newest layout was wanted go on
    to that."""

    def change(placement: Placement) -> Placement:
        slices, newest = list(placement.slices), max(placement.layouts)
        for number in numbers:
            after = _next_phase(slices[number])
            slices[number] = _bound_for(after, newest, placement.layouts) if after.to is None else after
        return _with_slices(placement, placement.layouts, slices)

    return change


def _with_slices(placement: Placement, layouts: Mapping[int, LayoutSpec], slices: Sequence[SliceState]) -> Placement:
    """With these slices, and the layouts that they need: the newest one stays as long as a slice has still to be sent there.

    When all have come back to where they were, that is a layout of the same disks with a new number, too. A number says what
    was hinted for a move and by which layout rows have their ranks, so none may come again: the highest is never dropped."""
    newest = max(layouts)
    if all(each.to is None and layouts[each.at] == layouts[newest] for each in slices):
        slices = [SliceState(newest)] * len(slices)
    used = {layout for each in slices for layout in (each.at, each.to)}
    if any(each.phase == "moved" for each in slices):
        used.add(newest)
    kept = {number: spec for number, spec in layouts.items() if number in used}
    return msgspec.structs.replace(placement, layouts=kept, slices=tuple(slices))


def _next_phase(state: SliceState) -> SliceState:
    if state.to is None:
        return state
    if state.phase == "moved":
        return SliceState(state.to)
    return SliceState(state.at, state.to, "moving" if state.phase == "copying" else "moved")


def _with_disks(placement: Placement, new: Mapping[str, DiskPlace]) -> Placement:
    disks: dict[str, DiskPlace] = {**placement.disks, **new}
    return placement if disks == placement.disks else msgspec.structs.replace(placement, disks=disks)
