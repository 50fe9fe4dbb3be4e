"""What is wrong with a cluster, from the map, the last heartbeats and what the coordinator waits for. Pure.

Not knowing is a problem, too. docs/operations.md has a paragraph for each code (a test keeps it so).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from dfc.logs import timestamp
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.placement.mapped import is_paused, is_waiting
from dfc.proxy.facts import StateFacts
from dfc.proxy.heartbeats import LastHeartbeat
from dfc.registry.messages import Registration
from dfc.wire.status import MissingCopies

Severity = Literal["critical", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")  # the worst first
BEAT_OLD_S: Final = 3.0  # heartbeats come every second
NEWER_S: Final = 5.0  # a proxy hears of a change by another one within a second
ACKNOWLEDGED_S: Final = 5.0  # a step takes a fraction of a second
CLOCK_OFF_S: Final = 60.0  # worth a look; an hour costs a target its lease


class TroubleKind(NamedTuple):
    """How bad a problem is, and what an operator can do."""

    severity: Severity
    what_to_do: str


KINDS: Final[dict[str, TroubleKind]] = {
    "no_target_up": TroubleKind("critical", "start the targets, and look at their logs if they do not join"),
    "cluster_not_ready": TroubleKind("critical", "start the targets that are missing, or correct the setting expected_targets"),
    "no_coordinator": TroubleKind("critical", "wait some seconds; if it stays, look at the proxy's log and restart the proxy"),
    "registry_silent": TroubleKind(
        "critical",
        "if etcd does not answer, bring a majority of its members back, and look at the network to them; if the disk of the"
        " registry is full, or the quota of etcd, make space: the proxies go on by themselves. Otherwise do what the message"
        " says",
    ),
    "registry_old": TroubleKind(
        "critical",
        "stop all proxies, and run `dfc registry recover --replace`: see docs/operations.md before you do anything else",
    ),
    "targets_foreign": TroubleKind(
        "critical",
        "if they are in the wrong place, correct their proxy_url. If this proxy has lost its registry, stop it and run"
        " `dfc registry recover --replace`: see docs/operations.md",
    ),
    "id_in_use": TroubleKind(
        "critical",
        "stop the copy, and find out which of the two is the one to keep; if both are to be targets, empty the disks and the"
        " directory of the copy first",
    ),
    "disk_rolled_back": TroubleKind(
        "critical",
        "find out who has put back a snapshot or backup. If objects with one copy are lost, put back a newer state if there is"
        " one, or accept the loss: see docs/operations.md. Otherwise wait: others give the disk what it lacks",
    ),
    "objects_unavailable": TroubleKind(
        "critical",
        "bring the targets or disks back that are down: nothing else has these objects. If none is down, wait until all"
        " disks that are up are in sync",
    ),
    "objects_one_replica_left": TroubleKind(
        "critical",
        "bring the targets or disks that are down back; until then, touch none of the others. Disks that stay away for"
        " out_after_s are evicted, and their objects get new copies elsewhere",
    ),
    "target_down": TroubleKind("warning", "start the target, or repair its machine or network; it catches up by itself"),
    "disk_down": TroubleKind("warning", "look at the target's log, and bring the disk back into its settings"),
    "disk_failed": TroubleKind(
        "warning", "read the target's log and the kernel's, repair or replace the disk, restart the target"
    ),
    "disk_full": TroubleKind("warning", "delete objects, or add space to the file system; deletes work on a full disk"),
    "objects_quarantined": TroubleKind(
        "warning",
        "`dfc scrub status` names the objects; those that another disk has are repaired within minutes: upload the others"
        " again, or delete them",
    ),
    "log_torn": TroubleKind(
        "warning",
        "if the machine has not lost power, stop the target and run `dfc disk rebuild`; otherwise `dfc disk accept`, or if all"
        " objects have copies, wait",
    ),
    "orphan_alarm": TroubleKind("warning", "run `dfc disk check` on the disk before anything else; its catalog may be wrong"),
    "copies_contradict": TroubleKind(
        "warning",
        "`dfc cluster check` names the objects; read what docs/operations.md says about it before you touch any, then upload"
        " the right ones again",
    ),
    "too_few_domains": TroubleKind("warning", "restart the targets that are down, or follow the hint in the message"),
    "step_unacknowledged": TroubleKind("warning", "look at the target that is named: it is slow, hangs, or cannot be reached"),
    "heartbeat_old": TroubleKind("warning", "look at the target's load, its disks, and the network to the proxy"),
    "heartbeat_missing": TroubleKind("warning", "check that the target is running and that its proxy_url points at this proxy"),
    "clock_wrong": TroubleKind("warning", "set the clock that is wrong, and run NTP or chrony on all machines"),
    "disk_out_of_sync": TroubleKind(
        "warning", "wait: it catches up by itself. After an hour, bring back the disks in out_of_sync_with, or replace them"
    ),
    "labels_differ": TroubleKind(
        "warning",
        "set `zone` and `host_label` of the target as they were and restart it; if they are right as they are, know that copies"
        " are placed by the old ones in this version",
    ),
    "disk_evicted": TroubleKind(
        "warning",
        "nothing for objects with several copies; bring the disk back for those with one, and to have its space again",
    ),
    "disk_removing": TroubleKind("info", "none: this finishes automatically; the disk must not be used again under its id"),
    "move_waits": TroubleKind("warning", "bring back what is named; copying goes on meanwhile, and all objects are served"),
    "rebalance_paused": TroubleKind("info", "`dfc cluster rebalance resume` lets it go on"),
    "moving": TroubleKind("info", "none: this finishes automatically; `dfc cluster status --watch` shows how far it is"),
    "disk_new": TroubleKind(
        "info", "nothing, or with the setting rebalance = manual: `dfc cluster activate` the disk or its target"
    ),
    "disk_drained": TroubleKind(
        "info", "stop its target, or leave it out of that, then `dfc cluster remove` it; or `dfc cluster activate` it again"
    ),
    "copies_raising": TroubleKind(
        "info", "none: this finishes automatically while all targets are up; `dfc bucket set` with the old number gives it up"
    ),
}


class Trouble(NamedTuple):
    """One problem. `subject`: the id of a target or disk, or the name of a bucket; empty if it is about all. `since`: when it
    began, if the facts tell."""

    code: str
    subject: str
    message: str
    since: str = ""

    @property
    def severity(self) -> Severity:
        return KINDS[self.code].severity


def find_troubles(facts: StateFacts, tally: MissingCopies) -> list[Trouble]:
    """Find all problems, the worst first, then in the order of `KINDS`, then by subject."""
    found = [*_of_cluster(facts), *_of_copies(tally), *_of_step(facts)]
    for node in facts.map.nodes:
        found += _of_target(facts, node)
    found += _of_buckets(facts)
    found += _of_move(facts)
    order = {code: at for at, code in enumerate(KINDS)}
    return sorted(found, key=lambda each: (SEVERITIES.index(each.severity), order[each.code], each.subject))


def _of_cluster(facts: StateFacts) -> Iterator[Trouble]:
    targets = facts.map.targets()
    if len(targets) < facts.expected_targets and not facts.map.layouts:
        yield Trouble(
            "cluster_not_ready",
            "",
            f"{len(targets)} of {facts.expected_targets} expected targets have joined; nothing can be stored before that",
        )
    if targets and not any(node.state == "up" for node in targets):
        yield Trouble("no_target_up", "", f"none of the {len(targets)} targets is up")
    elif targets and facts.leads and facts.listening_s > BEAT_OLD_S and not facts.last_heartbeats:
        yield Trouble("no_target_up", "", f"none of the {len(targets)} targets has been heard since this proxy began to listen")
    if not facts.leads:
        yield Trouble(
            "no_coordinator", "", "no proxy is the coordinator: targets get no leases, so that writes stop within seconds"
        )
    if facts.registry_silent:
        yield Trouble("registry_silent", "", f"the registry cannot be read or changed: {facts.registry_silent}")
    newest = max((each.heartbeat.map_version for each in facts.last_heartbeats.values() if _knows_newer(each)), default=0)
    if newest > facts.map.version and not facts.registry_silent:
        yield Trouble(
            "registry_old",
            "",
            f"targets know version {newest} of the cluster map, and the registry has only {facts.map.version}: it is an old"
            " copy, so those targets get no leases, and nothing is changed",
        )
    if facts.foreign:
        node, cluster_id = min(facts.foreign.items())
        more = f" and {len(facts.foreign) - 1} more ask" if len(facts.foreign) > 1 else " asks"
        yield Trouble(
            "targets_foreign",
            "",
            f"target {node}{more} to join, but {'they are' if len(facts.foreign) > 1 else 'it is'} of cluster"
            f" {cluster_id or '(none)'}, and this is cluster {facts.map.cluster_id}",
        )
    for node_id, url in sorted(facts.twins.items()):
        yield Trouble(
            "id_in_use", node_id, f"a second process at {url} says that it is target {node_id}, which runs: it is refused"
        )

    for _, last in sorted(facts.last_heartbeats.items()):
        for disk in last.heartbeat.rolled_back:
            yield Trouble("disk_rolled_back", disk, _rolled_back(last.heartbeat, disk))


def _rolled_back(heartbeat: Registration, disk: str) -> str:
    so = "it is compared with others, and not read until it has what they have"
    if disk in heartbeat.unaccepted:
        so = "objects with one copy are lost or old there, and its target writes nothing until somebody accepts that"
    return f"disk {disk} of target {heartbeat.node_id} was put back to an earlier state, or has lost rows: {so}"


def _knows_newer(heard: LastHeartbeat) -> bool:
    """Whether a target has a newer map than the registry, and not just for a moment, while this proxy has not heard of it."""
    return heard.newer_s > NEWER_S and heard.age_s <= BEAT_OLD_S


def _of_copies(tally: MissingCopies) -> Iterator[Trouble]:
    about = "about " if tally.estimated else ""
    if tally.unavailable:
        what = "1 object has" if tally.unavailable == 1 else f"{tally.unavailable} objects have"
        yield Trouble("objects_unavailable", "", f"{about}{what} no copy that can be read now (503)")
    if tally.one_left:
        what = "1 object has" if tally.one_left == 1 else f"{tally.one_left} objects have"
        yield Trouble("objects_one_replica_left", "", f"{about}{what} one copy left: the next failure may cost them")


def _of_step(facts: StateFacts) -> Iterator[Trouble]:
    if facts.waits_s <= ACKNOWLEDGED_S:
        return
    for node_id in facts.waits_for:
        yield Trouble(
            "step_unacknowledged",
            node_id,
            f"target {node_id} has not acknowledged step {facts.map.step} for {facts.waits_s:.0f} s; the next one waits",
        )


def _of_target(facts: StateFacts, node: NodeEntry) -> Iterator[Trouble]:
    if node.role != "target":
        return
    heard = facts.last_heartbeats.get(node.id)
    if node.state == "down":
        if not node.disks or not all(_is_drained(facts, disk.id) for disk in node.disks):
            yield Trouble("target_down", node.id, _down(facts, node), node.last_heartbeat)
        return  # what its disks are like follows from that; a drained target is stopped before it is removed
    elif heard is None:
        if facts.leads and facts.listening_s > BEAT_OLD_S:  # others hear nobody
            yield Trouble("heartbeat_missing", node.id, f"target {node.id} has not been heard since this proxy began to listen")
    else:
        yield from _of_heartbeat(node, heard)
    yield from _of_labels(facts, node)
    for disk in node.disks:
        if disk.id in facts.placement.disks:
            yield from _of_disk(facts, node, disk)


def _down(facts: StateFacts, node: NodeEntry) -> str:
    last = f"; it was last heard at {node.last_heartbeat}" if node.last_heartbeat else ""
    back = f"; it is not evicted before {timestamp(node.expected_by)}" if node.expected_by > facts.wall_s else ""
    return f"target {node.id} ({node.url}) is down{last}{back}"


def _of_labels(facts: StateFacts, node: NodeEntry) -> Iterator[Trouble]:
    """Labels other than those by which its disks are placed. A disk from another node that had none is as good in this one."""
    placed = facts.placement.disks
    domains = sorted({placed[disk.id].domain for disk in node.disks if disk.id in placed} - {node.domain})
    if domains and not all(each.startswith("node ") for each in (*domains, node.domain)):
        yield Trouble(
            "labels_differ",
            node.id,
            f"target {node.id} says that it is in the failure domain '{node.domain}', but its disks are placed as in"
            f" '{domains[0]}': labels take effect only while no bucket has copies",
        )


def _of_heartbeat(node: NodeEntry, heard: LastHeartbeat) -> Iterator[Trouble]:
    if heard.age_s > BEAT_OLD_S:
        yield Trouble("heartbeat_old", node.id, f"target {node.id} was last heard {heard.age_s:.0f} s ago")
    if abs(heard.clock_ahead_s) > CLOCK_OFF_S:
        way = f"{abs(heard.clock_ahead_s):.0f} s {'ahead of' if heard.clock_ahead_s > 0 else 'behind'} most others"
        yield Trouble("clock_wrong", node.id, f"the clock of target {node.id} is {way}")


def _of_disk(facts: StateFacts, node: NodeEntry, disk: DiskEntry) -> Iterator[Trouble]:
    place, numbers = facts.placement.disks[disk.id], facts.numbers.get(disk.id)
    of = f"disk {disk.id} of target {node.id}"
    if place.status == "down":
        yield Trouble("disk_down", disk.id, f"{of} is down")
    elif place.status == "failed":
        yield Trouble("disk_failed", disk.id, f"{of} accepts no writes: its error budget is used up, or it does not answer")
    if place.is_up and place.out_of_sync_with:
        hints = facts.hints_for(disk.id)
        rest = "" if hints is None else f" ({hints} objects and deletes to go)"
        others = "1 other disk has" if len(place.out_of_sync_with) == 1 else f"{len(place.out_of_sync_with)} other disks have"
        yield Trouble(
            "disk_out_of_sync", disk.id, f"{of} may lack writes, and is not read until {others} given it everything{rest}"
        )
    if numbers is None:
        return
    if numbers.is_full:
        yield Trouble("disk_full", disk.id, f"{of} is full: uploads of its objects are answered 507")
    if numbers.quarantined:
        what = "1 object" if numbers.quarantined == 1 else f"{numbers.quarantined} objects"
        yield Trouble("objects_quarantined", disk.id, f"{of} has {what} whose bytes are gone or wrong")
    if numbers.orphan_alarm:
        yield Trouble("orphan_alarm", disk.id, f"{of} has more files without a row than a crash can explain")
    if numbers.log_torn:
        yield Trouble("log_torn", disk.id, f"the catalog of {of} has lost its last commits, since its log was damaged")
    if numbers.divergence_alarms:
        count = numbers.divergence_alarms
        what = "1 copy on another disk contradicts" if count == 1 else f"{count} copies on other disks contradict"
        yield Trouble(
            "copies_contradict", disk.id, f"{what} what {of} has as the primary: newer, of other content, or not known to it"
        )


def _of_move(facts: StateFacts) -> Iterator[Trouble]:
    placement = facts.placement
    if placement.is_moving:
        done = sum(state.to is None for state in placement.slices)
        yield Trouble("moving", "", f"objects are moved to other disks: {done} of {len(placement.slices)} parts are done")
        waits_for = move_waits_for(facts)
        if waits_for and not is_paused(facts.map):
            yield Trouble("move_waits", "", f"the move waits for {', '.join(waits_for)}")
    if facts.map.rebalance.paused and (placement.is_moving or is_waiting(facts.map)):
        until = "" if is_paused(facts.map) else "; what had begun goes on until copies that were lost are restored"
        yield Trouble("rebalance_paused", "", f"objects are not moved to other disks, because moves are paused{until}")
    for disk, owner in facts.map.placed().items():
        of = f"disk {disk} of target {owner.node.id}"
        if owner.disk.removing:
            yield Trouble("disk_removing", disk, f"{of} is lost, and forgotten when all objects are moved to others")
        elif owner.disk.evicted:
            yield Trouble("disk_evicted", disk, _evicted(facts, of, disk))
        if owner.disk.use == "new":
            yield Trouble("disk_new", disk, f"{of} has joined, and holds no objects yet")
        elif _is_drained(facts, disk) and not owner.disk.removing:
            stopped = ", and is stopped" if owner.node.state == "down" else ""
            yield Trouble("disk_drained", disk, f"{of} holds no live objects and can be removed{stopped}")


def _is_drained(facts: StateFacts, disk: str) -> bool:
    """Whether no layout that counts has this disk any more, because all was moved away from it."""
    owner = facts.map.placed().get(disk)
    return owner is not None and owner.disk.use == "out" and disk not in facts.map.in_use()


def _evicted(facts: StateFacts, of: str, disk: str) -> str:
    if facts.placement.disks[disk].is_up:
        return f"{of} had been evicted and is back: it drops what others have, and then gets objects again"
    return f"{of} was away for so long that objects with several copies get them on other disks"


def move_waits_for(facts: StateFacts) -> list[str]:
    """What keeps slices that move from changing their state: disks that are not up or lack something, and jobs."""
    placement = facts.placement
    used = set(facts.map.in_use()) - placement.layouts[max(placement.layouts)].gone
    used = {disk for disk in used if not placement.disks[disk].removing}
    disks = [disk for disk in used if not placement.disks[disk].is_up or placement.disks[disk].out_of_sync_with]
    waits_for = [f"disk {disk}" for disk in sorted(disks)]
    return waits_for if facts.may_move else [*waits_for, "jobs that are queued or running"]


def _of_buckets(facts: StateFacts) -> Iterator[Trouble]:
    for bucket in facts.map.buckets:
        if bucket.goal > bucket.copies:
            done = (facts.raised or {}).get(bucket.id, 0)
            yield Trouble(
                "copies_raising",
                bucket.name,
                f"objects of bucket {bucket.name} get {bucket.goal} copies instead of {bucket.copies}:"
                f" {done} of {len(facts.placement.disks)} disks are done",
            )
    up, all_of_them = _domains(facts.map, only_up=True), _domains(facts.map, only_up=False)
    for goal in sorted({bucket.goal for bucket in facts.map.buckets}):
        buckets = [bucket for bucket in facts.map.buckets if bucket.goal == goal]
        if goal > max(1, up):
            yield Trouble("too_few_domains", buckets[0].name, _too_few(buckets, goal, up, all_of_them))


def _too_few(buckets: list[BucketEntry], goal: int, up: int, all_of_them: int) -> str:
    more = f" and {len(buckets) - 1} more" if len(buckets) > 1 else ""
    return (
        f"objects of bucket {buckets[0].name}{more} are to have {goal} copies, but disks in {up} of {all_of_them}"
        f" failure domains are up: what is written now has fewer copies, or is refused{_what_to_lower(buckets, up)}"
    )


def _what_to_lower(buckets: list[BucketEntry], up: int) -> str:
    """Say how to lower copies where that works while disks are down: to as many as are read, or to two and more."""
    for bucket in buckets:
        fewer = bucket.copies if bucket.copies < bucket.goal else min(up, bucket.goal - 1)
        if fewer > 1 or fewer == bucket.copies < bucket.goal:
            return f"; `dfc bucket set {bucket.name} --copies {fewer}` makes do with fewer"
    return ""


def _domains(cluster_map: ClusterMap, *, only_up: bool) -> int:
    """The number of failure domains, or of those with a disk that is up."""
    placed = cluster_map.placed().values()
    return len({each.domain for each in placed if not only_up or (each.node.state, each.disk.state) == ("up", "up")})
