"""The change to a registry's state that gives disks other weights; see `dfc.registry.changes`."""

from __future__ import annotations

from collections.abc import Collection

from dfc.errors import BadRequest
from dfc.limits import WEIGHT_MAX, WEIGHT_MIN
from dfc.placement.weights import share_out
from dfc.registry.changes import Change, RegistryState, mark_disks


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
