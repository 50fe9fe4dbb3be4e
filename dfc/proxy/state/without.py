"""What could not be read any more if a target were stopped now. Pure."""

from __future__ import annotations

import msgspec

from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import placement_of
from dfc.proxy.state.facts import StateFacts
from dfc.proxy.state.tally import count_copies


class Without(msgspec.Struct, frozen=True):
    """How many objects could not be read without a node; none: it may be stopped. `estimated`: about so many."""

    node: str
    unreadable: int = 0
    estimated: bool = False


def without(facts: StateFacts, node: NodeEntry) -> Without:
    """Work out what only this target has that can be read now. Never too few: where an estimate is needed and says none, it is
    one."""
    if node.state != "up" or not {disk.id for disk in node.disks} & set(facts.map.in_use()):
        return Without(node.id)
    single = _single(facts, node)
    numbers = [facts.numbers.get(disk.id) for disk in node.disks]
    alone = sum(each.alone for each in numbers if each is not None) if single else 0
    is_unsure = single and None in numbers
    risky = _risky(facts, node)
    if not risky:
        return Without(node.id, max(alone, int(is_unsure)), is_unsure)
    later = count_copies(_stopped(facts, node))
    lost = later.unavailable - count_copies(facts).unavailable
    has_any = any(each is None or each.first for each in facts.numbers.values()) or not facts.numbers
    return Without(node.id, max(lost, alone, int(has_any)), True)


def _single(facts: StateFacts, node: NodeEntry) -> bool:
    """Whether objects with one copy may be on its disks."""
    return any(bucket.copies == 1 for bucket in facts.map.buckets)


def _risky(facts: StateFacts, node: NodeEntry) -> bool:
    """Whether some object with several copies may have no other that can be read. The copies of each are in as many failure
    domains, so as long as fewer of these are unreadable, each object is readable."""
    placement = facts.placement
    used = {disk for disk in facts.map.may_hold_copies() if disk in placement.disks}
    own = {disk.id for disk in node.disks}
    places = [placement.disks[disk] for disk in used]
    unread = {place.domain for place in places if place.id in own or not place.is_up or place.behind}
    several = [bucket.copies for bucket in facts.map.buckets if bucket.copies > 1]
    return bool(several) and len(unread) >= min(several)


def _stopped(facts: StateFacts, node: NodeEntry) -> StateFacts:
    """The facts of when the target is down."""
    step = max(1, facts.map.step)
    disks = tuple(msgspec.structs.replace(disk, down_step=disk.down_step or step) for disk in node.disks)
    down = msgspec.structs.replace(node, state="down", disks=disks)
    nodes = tuple(down if each.id == node.id else each for each in facts.map.nodes)
    cluster_map: ClusterMap = msgspec.structs.replace(facts.map, nodes=nodes)
    assert placement_of(cluster_map)
    return StateFacts(
        map=cluster_map,
        heard=facts.heard,
        leads=facts.leads,
        expected_targets=facts.expected_targets,
        listening_s=facts.listening_s,
    )
