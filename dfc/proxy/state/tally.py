"""How many objects lack copies or cannot be read: from what targets have counted, and else estimated. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from dfc.placement.roles import roles
from dfc.placement.state import Placement
from dfc.proxy.state.facts import StateFacts
from dfc.replication.left import is_calm
from dfc.wire.status import MissingCopies

DRAWN: Final = 1000  # made-up names, by whose homes shares are estimated


class _Shares(msgspec.Struct, frozen=True):
    one_left: float
    missing: float
    unavailable: float


def count_copies(facts: StateFacts) -> MissingCopies:
    """Count. While targets count after a step, and for objects none of whose disks is up, an estimate has to do."""
    placement = facts.placement
    if is_calm(placement):
        return MissingCopies()
    alone, first, is_unsure = _objects(facts)
    shares = _shares(placement)
    if shares is None:
        return MissingCopies(unavailable=alone, estimated=is_unsure and alone > 0)
    unavailable = round(shares.unavailable * first)
    told = [facts.numbers.get(disk.id) for disk in placement.disks.values() if disk.is_up]
    counted = [each for each in told if each is not None and each.counted_step == placement.step]
    if len(counted) == len(told):
        one_left, missing, is_estimate = sum(each.one_left for each in counted), sum(each.missing for each in counted), False
    else:
        one_left, missing, is_estimate = round(shares.one_left * first), round(shares.missing * first), True
    return MissingCopies(
        one_left=one_left,
        missing=missing,
        unavailable=alone + unavailable,
        estimated=is_estimate or unavailable > 0 or (is_unsure and alone > 0),
    )


def _objects(facts: StateFacts) -> tuple[int, int, bool]:
    """Return the number of objects with one copy on disks that are down, that of objects which should have several, and whether
    some disk has not said it: a proxy that has started since knows only how many rows a disk had that is down."""
    fewest = min((bucket.copies for bucket in facts.map.buckets), default=1)
    alone = first = 0
    is_unsure = False
    for disk_id, owner in facts.map.placed().items():
        numbers, is_down = facts.numbers.get(disk_id), facts.placement.disks[disk_id].status == "down"
        if numbers is not None:
            first += numbers.first
            alone += numbers.alone if is_down else 0
        elif fewest > 1:
            first, is_unsure = first + owner.disk.objects // fewest, True
        else:
            alone, is_unsure = alone + (owner.disk.objects if is_down else 0), True
    return alone, first, is_unsure


def _shares(placement: Placement) -> _Shares | None:
    """Estimate which shares of the objects with several copies are in trouble, by the bucket with the fewest of them; None if
    no bucket has several."""
    # Objects that are getting their second copy are counted by their first home, as those with one are.
    several = {bucket_id: copies for bucket_id, copies in placement.copies.items() if copies.reading > 1}
    if not several:
        return None
    bucket_id, copies = min(several.items(), key=lambda item: item[1].reading)
    one_left = missing = unavailable = 0
    for number in range(DRAWN):
        found = roles(placement, bucket_id, f"drawn-{number}")
        there = len(found.readers)
        unavailable += there == 0
        one_left += there == 1
        missing += 0 < there < copies.reading
    return _Shares(one_left / DRAWN, missing / DRAWN, unavailable / DRAWN)
