"""What targets tell the coordinator about their disks, besides heartbeats: who lacks what, and who lacks nothing any more; and
what it tells the other proxies of what it has heard."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dfc.placement.map import ClusterMap, Id, Label, SliceNumber
from dfc.placement.state import SLICES

SliceReadiness = Literal["copied", "moved"]


class HeardByCoordinator(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator tells other proxies: the map with how full disks are, and the highest version of it that any target
    knows; 0: it has heard none yet."""

    map: ClusterMap
    newest_version: int


class MarkBehind(msgspec.Struct, frozen=True, kw_only=True):
    """The disk `primary` has a write that `disk` must have and cannot be given now."""

    primary: Id
    disk: Id


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk` owes nothing to the disk `behind`, and will not skip it without asking, as long as its target runs:
    `process` is the random name in heartbeats."""

    disk: Id
    behind: Id
    step: int
    process: Label = ""


class RaisedReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk` owes nothing to the new homes of a bucket's objects, which are to have so many copies."""

    disk: Id
    bucket_id: Id
    copies: Annotated[int, msgspec.Meta(ge=1)]
    step: int


class ClearedReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk`, which was given up and is back, has nothing any more that does not belong there."""

    disk: Id
    step: int


class SlicesReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk` owes nothing to the homes of these slices by the layout `to`: they can be handed over, from
    `copying` (`readiness` "copied") or from `moving` ("moved")."""

    disk: Id
    slices: Annotated[list[SliceNumber], msgspec.Meta(max_length=SLICES)]
    readiness: SliceReadiness
    to: Annotated[int, msgspec.Meta(ge=1)]
    step: int
