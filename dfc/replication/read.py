"""What a target does with a read, by the roles of its disk for the name."""

from __future__ import annotations

from enum import Enum

from dfc.placement.roles import Roles


class ReadVerdict(Enum):
    """What to do with a read of a name at one disk."""

    SERVE = "serve"  # the row, or its absence, is what every acknowledged write has made it
    WAIT = "wait"  # a write of the name is on its way, or the name is not settled yet
    ASK_PRIMARY = "ask primary"  # the row here is pending; its primary knows whether it counts
    ELSEWHERE = "elsewhere"  # this disk is not a reader of the name


def reading(found: Roles, disk: str, *, settled: bool, uncertain: bool, pending: bool) -> ReadVerdict:
    """`settled` and `uncertain` are about the primary's names: served by it already, and a write on its way. `pending`: the row
    on this disk has not been confirmed."""
    if disk not in found.readers:
        return ReadVerdict.ELSEWHERE
    if disk == found.primary:
        return ReadVerdict.SERVE if settled and not uncertain else ReadVerdict.WAIT
    return ReadVerdict.ASK_PRIMARY if pending else ReadVerdict.SERVE
