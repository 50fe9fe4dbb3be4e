"""Changes to a registry's state by which a lost disk is removed for good; see `dfc.registry.changes`."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from dfc.errors import Conflict
from dfc.limits import REMOVED_DISKS_MAX
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.registry.changes import Change, Draft, RegistryState, mark_disks


def remove_lost(disk_ids: Collection[str]) -> Change:
    """Give up these disks, and move everything to a layout without them, whatever is lost by that; none of them is brought up
    again. NotFound; Conflict if one of them is up."""

    def change(state: RegistryState) -> RegistryState:
        up = placement_of(state.map).up.intersection(disk_ids)
        if up:
            raise Conflict(f"disk {', '.join(sorted(up))} is up: drain it instead, or stop its target if it is lost")
        return mark_disks({disk: {"given_up": True, "removing": True, "use": "out"} for disk in disk_ids})(state)

    return change


def forgettable(cluster_map: ClusterMap) -> set[str]:
    """Return the disks that are removed for good and that no layout has any more."""
    used = {disk for layout in cluster_map.layouts for disk in layout.disks}
    return {disk for disk, owner in cluster_map.placed().items() if owner.disk.removing and disk not in used}


def forget_removed(state: RegistryState) -> RegistryState:
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
