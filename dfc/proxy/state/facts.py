"""What the state of a cluster is worked out from: the map, the last heartbeats, and what the coordinator waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.state import Placement
from dfc.proxy.heartbeats import Heard
from dfc.registry.registration import DiskNumbers
from dfc.replication.owed import are_roles_changing


@dataclass(frozen=True, kw_only=True)
class StateFacts:
    """Everything at one moment.

    `heard`: the targets that this proxy has heard, by id. `leads`: whether it is the coordinator. `waits_for`: targets that
    have not acknowledged the step of the map, which was taken `waits_s` ago. `listening_s`: for how long this proxy has been
    able to hear anybody. `raised`: by bucket id, how many disks have given the new homes of its objects everything. `may_move`:
    no job is active, so that slices may change their state. `wall_s`: the time in seconds since 1970. `registry_silent`: why
    the registry cannot be read and changed, if it cannot. `foreign`: targets of other clusters that ask to join, with the ids
    of these clusters.
    """

    map: ClusterMap
    heard: Mapping[str, Heard]
    leads: bool
    expected_targets: int
    listening_s: float
    waits_for: Sequence[str] = ()
    waits_s: float = 0.0
    raised: Mapping[str, int] | None = None
    may_move: bool = True
    wall_s: float = 0.0
    registry_silent: str = ""
    foreign: Mapping[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def placement(self) -> Placement:
        """The placement of the map."""
        return placement_of(self.map)

    @cached_property
    def numbers(self) -> dict[str, DiskNumbers]:
        """What the last heartbeats say about disks, by id; also of targets that are down by now."""
        return {each.id: each for heard in self.heard.values() for each in heard.said.numbers}

    def owed_to(self, disk: str, *, later: bool = False) -> int | None:
        """How much a disk lacks by the notes of others, or also what it is to have `later`, since objects move to it; None:
        nobody who has notes for it has been heard."""
        told = [heard.said for heard in self.heard.values() if heard.said.numbers]
        is_all = later or are_roles_changing(self.placement)
        found = [each.owed.get(disk, 0) + (each.owed_later.get(disk, 0) if is_all else 0) for each in told]
        return sum(found) if found else None
