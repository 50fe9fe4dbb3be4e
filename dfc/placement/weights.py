"""Weights of disks: which share of all objects each disk is to hold, and holds. Pure.

A disk joins with the weight of its size. What an operator gives it later is in its entry, and counts from the layout on to
which objects are moved for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of


def wanted_weights(cluster_map: ClusterMap) -> dict[str, float]:
    """Return the weights of the disks that are to have another one than they joined with."""
    return {disk: owner.disk.goal for disk, owner in cluster_map.placed().items() if owner.disk.goal != owner.disk.weight}


def present_weights(cluster_map: ClusterMap) -> dict[str, float]:
    """Return by which weight each disk in placement holds its objects now; while they move, that of before."""
    placement = placement_of(cluster_map)
    numbers = sorted(placement.layouts)
    found = {}
    for disk in placement.disks:
        number = next((each for each in numbers if disk in placement.layouts[each].disks), None)
        found[disk] = cluster_map.placed()[disk].disk.goal if number is None else placement.weight_in(number, disk)
    return found


def share_out(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Return weights in the same proportions, whose sum is this total."""
    all_of_them = math.fsum(weights.values())
    return {disk: total * (weight / all_of_them) for disk, weight in weights.items()}
