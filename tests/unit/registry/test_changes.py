"""Changes of a registry's state: one order of versions, who may enter placement, silence, buckets. Values in, values out."""

from __future__ import annotations

import msgspec
import pytest
from registering import CLUSTER, Kept, said

from dfc.errors import BucketConflict, BucketDeleting, BucketNotFound, Conflict, NotFound
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, Labels
from dfc.placement.mapped import placement_of
from dfc.placement.roles import SLICES, LayoutSpec, roles
from dfc.registry import changes
from dfc.registry.changes import RegistryState, StepOvertaken, check_step
from dfc.registry.messages import is_known
from dfc.replication import transitions
from dfc.wire import PROTOCOL


@pytest.fixture
def registry():
    return Kept()


@pytest.fixture
def used(registry):
    """With a target and a bucket."""
    registry.say("t1", ("d1",))
    registry.create_bucket("b")
    return registry


def states(registry):
    return {node.id: node.state for node in registry.map.nodes}


def disk_states(registry):
    return {disk.id: disk.state for node in registry.map.nodes for disk in node.disks}


BUCKET = BucketEntry(id="b1", name="b")


def owners(registry):
    """The disks that take part in placement."""
    return {registry.map.owner(BUCKET, str(number)).disk.id for number in range(300)}


# --- nodes


def test_a_new_registry(registry):
    assert (registry.map.version, registry.map.nodes, registry.map.buckets) == (1, (), ())
    assert len(registry.map.cluster_id) == 16
    assert registry.map.owner(BUCKET, "x") is None


def test_the_first_targets_enter_placement_at_once(registry):
    answers = [registry.say(f"t{number}", (f"d{number}a", f"d{number}b")) for number in range(3)]
    assert answers == [1, 2, 3]
    assert registry.map.version == 4
    assert states(registry) == {"t0": "up", "t1": "up", "t2": "up"}
    assert owners(registry) == {"d0a", "d0b", "d1a", "d1b", "d2a", "d2b"}
    node = registry.map.node("t1")
    assert (node.url, node.advertise_url, node.role) == ("http://t1:1", "http://t1.example:1", "target")


def test_a_registration_that_brings_nothing_new_changes_nothing(registry):
    registry.say()
    before = registry.state
    fuller = (DiskEntry(id="d1", weight=1.0, capacity=200, used=50, objects=7),)
    assert is_known(registry.map, said(disks=fuller))
    registry.say(disks=fuller)
    assert registry.state is before
    assert is_known(registry.map, said(disks=())), "what its disks may do is up to the coordinator"
    learned = (DiskEntry(id="d1", weight=1.0, incarnation="first"),)
    for news in (said(url="http://new:1"), said(disks=("d1", "d2")), said(disks=learned), said(labels=Labels(zone="z"))):
        assert not is_known(registry.map, news)


def test_weights_are_fixed_when_a_disk_joins(registry):
    registry.say(disks=(DiskEntry(id="d1", weight=2.0),))
    registry.say(disks=(DiskEntry(id="d1", weight=9.0),), url="http://moved:1")
    assert registry.map.node("t1").disks[0].weight == 2.0


def test_labels_are_those_of_the_last_registration(registry):
    registry.say(labels=Labels(zone="row-1", host="h1"))
    assert registry.map.node("t1").domain == "zone row-1"
    version = registry.map.version
    registry.say(labels=Labels(zone="row-1", host="h1"))
    assert registry.map.version == version
    registry.say(labels=Labels(host="h2"))
    assert (registry.map.version, registry.map.node("t1").domain) == (version + 1, "host h2")


# --- failure domains


def replicas(registry, bucket):
    placement = placement_of(registry.map)
    return {name: roles(placement, bucket.id, name).replicas for name in map(str, range(300))}


def domains(registry):
    return {disk.id: disk.domain for node in registry.map.nodes for disk in node.disks}


@pytest.fixture
def copied(registry):
    """Three targets with a disk each, and a bucket with two copies."""
    registry.say_each(1, 2, 3)
    registry.create_bucket("b", copies=2)
    return registry


def test_other_labels_move_no_copies(copied):
    """Not without a step, and without the other disks having the rows: reads there would say that objects do not exist."""
    bucket, step = copied.map.bucket("b"), copied.map.step
    before = replicas(copied, bucket)
    for node in ("t1", "t2"):
        copied.say(node, (f"d{node[1]}",), labels=Labels(host="m1"))
    assert replicas(copied, bucket) == before
    assert (copied.map.step, copied.map.node("t1").domain) == (step, "host m1")
    assert domains(copied) == {"d1": "node t1", "d2": "node t2", "d3": "node t3"}
    version = copied.map.version
    copied.say("t1", ("d1",), labels=Labels(host="m1"))
    assert copied.map.version == version, "that is known by now"
    copied.say("t2", ("d2", "d4"), labels=Labels(host="m2"))
    assert replicas(copied, bucket) == before
    assert domains(copied)["d4"] == "host m2", "it holds nothing yet"


def test_a_map_of_before_places_as_it_did(copied):
    """Its disks have no failure domain of their own: that of their node counts, also when they are first heard of again."""
    nodes = []
    for at, node in enumerate(copied.map.nodes):
        disks = tuple(msgspec.structs.replace(disk, domain="") for disk in node.disks)
        nodes.append(msgspec.structs.replace(node, disks=disks, labels=Labels(zone=f"z{at // 2}")))
    copied.state = RegistryState(map=msgspec.structs.replace(copied.map, nodes=tuple(nodes)), last_number=3)
    bucket, before = copied.map.bucket("b"), replicas(copied, copied.map.bucket("b"))
    assert {disk.domain for disk in placement_of(copied.map).disks.values()} == {"zone z0", "zone z1"}
    copied.say("t1", ("d1",))
    copied.say("t9", ("d2",))
    assert replicas(copied, bucket) == before
    assert domains(copied) == {"d1": "zone z0", "d2": "zone z0", "d3": ""}


@pytest.mark.parametrize("copies", [{"copies": 2}, {"written": 2, "wanted": 2}, {"written": 2, "wanted": 1}, {"wanted": 2}])
def test_other_labels_count_as_soon_as_no_bucket_has_copies(registry, copies):
    registry.say_each(1, 2)
    bucket = registry.create_bucket("one")
    before = replicas(registry, bucket)
    registry.create_bucket("two", **copies)
    heartbeat = said("t1", ("d1",), labels=Labels(zone="z"))
    registry.apply(changes.join(heartbeat))
    assert is_known(registry.map, heartbeat)
    assert domains(registry)["d1"] == "node t1"
    registry.change_bucket("two", copies=1, written=0, wanted=0)
    assert not is_known(registry.map, heartbeat)
    registry.apply(changes.join(heartbeat))
    assert domains(registry) == {"d1": "zone z", "d2": "node t2"}
    assert is_known(registry.map, heartbeat)
    assert replicas(registry, bucket) == before, "one copy does not depend on it"


def test_a_disk_that_moves_keeps_its_copies_where_they_are(copied):
    before = replicas(copied, copied.map.bucket("b"))
    copied.say("t9", ("d1",), labels=Labels(host="m9"))
    assert replicas(copied, copied.map.bucket("b")) == before
    assert domains(copied)["d1"] == "node t1"
    copied.say("t1", ("d1",))
    assert replicas(copied, copied.map.bucket("b")) == before


def test_two_copies_of_an_object_do_not_come_to_one_node(copied):
    state = copied.state
    both = r"disk d1 was another target's.* disks of node t1 and node t2: target t2 cannot have both"
    with pytest.raises(Conflict, match=both):
        copied.say("t2", ("d1", "d2"))
    assert copied.state is state
    copied.say("t9", ("d1",))
    with pytest.raises(Conflict, match="Start another target"):
        copied.say("t9", ("d1", "d2"))
    copied.change_bucket("b", copies=1)
    copied.say("t9", ("d1", "d2"))
    assert domains(copied) == {"d1": "node t9", "d2": "node t9", "d3": "node t3"}


def test_disks_of_one_failure_domain_may_come_together(registry):
    for number in (1, 2, 3):
        registry.say(f"t{number}", (f"d{number}",), labels=Labels(zone=f"z{number // 2}"))
    registry.create_bucket("b", copies=2)
    before = replicas(registry, registry.map.bucket("b"))
    registry.say("t2", ("d3", "d2"), labels=Labels(zone="z1"))
    assert replicas(registry, registry.map.bucket("b")) == before


def test_the_group_of_a_disk_is_the_node_with_which_it_joined(registry):
    """Whatever the node says of it, and wherever the disk goes."""
    registry.say("t1", (DiskEntry(id="d1", weight=1.0, group="mine"), "d2"))
    registry.say("t2", ("d3",))
    registry.create_bucket("b")
    replicas = [registry.map.owner(BUCKET, str(number)).disk.id for number in range(100)]
    registry.say("t2", ("d3", "d2"))
    registry.say("t9", (DiskEntry(id="d1", weight=5.0, group="t9"),))
    disks = {disk.id: (node.id, disk.group) for node in registry.map.nodes for disk in node.disks}
    assert disks == {"d1": ("t9", "t1"), "d2": ("t2", "t1"), "d3": ("t2", "t2")}
    assert [registry.map.owner(BUCKET, str(number)).disk.id for number in range(100)] == replicas


def test_a_node_that_moves_keeps_its_number(registry):
    number = registry.say()
    version = registry.map.version
    assert registry.say(url="http://new:1") == number
    assert registry.map.version == version + 1
    assert registry.map.node("t1").url == "http://new:1"


def test_disks_of_another_cluster_are_refused(registry):
    with pytest.raises(Conflict):
        registry.say(cluster_id="other")
    assert registry.map.nodes == ()


def test_a_failed_disk_stays_in_placement(registry):
    """Its objects are unavailable, not placed elsewhere."""
    registry.say(disks=("d1", "d2"))
    registry.create_bucket("b")
    registry.say(disks=("d1", DiskEntry(id="d2", weight=1.0, state="failed")))
    assert disk_states(registry) == {"d1": "up", "d2": "failed"}
    assert owners(registry) == {"d1", "d2"}
    registry.say(disks=("d1",))  # not even mounted
    assert disk_states(registry) == {"d1": "up", "d2": "failed"}
    registry.say(disks=("d1", "d2"))
    assert disk_states(registry) == {"d1": "up", "d2": "up"}


# --- joining a cluster that may hold objects


def uses(registry) -> dict[str, str]:
    return {disk.id: disk.use for node in registry.map.nodes for disk in node.disks}


def test_a_target_that_comes_when_buckets_exist_holds_nothing_yet(used):
    step = used.map.step
    used.say("t2", ("d2",))
    assert states(used) == {"t1": "up", "t2": "up"}
    assert (owners(used), uses(used)) == ({"d1"}, {"d1": "in", "d2": "new"})
    assert (used.map.in_use(), sorted(used.map.placed())) == ({"d1"}, ["d1", "d2"])
    used.say("t2", ("d2",))  # its heartbeats change nothing of that
    used.say("t2", ("d2",), url="http://new:1")
    used.say("t3", ("d3",))
    assert (owners(used), uses(used)) == ({"d1"}, {"d1": "in", "d2": "new", "d3": "new"})
    assert used.map.step == step, "nobody's rights have changed"


def test_a_disk_that_is_added_when_buckets_exist_holds_nothing_yet(used):
    used.say("t1", ("d1", "d2"))
    assert states(used) == {"t1": "up"}
    assert (disk_states(used), uses(used)) == ({"d1": "up", "d2": "up"}, {"d1": "in", "d2": "new"})
    assert owners(used) == {"d1"}
    version = used.map.version
    used.say("t1", ("d1", "d2"))
    assert used.map.version == version


def test_what_has_joined_once_with_buckets_stays_outside_without_them(used):
    """It gets its share like any other, by a move that has nothing to do."""
    used.say("t2", ("d2",))
    used.remove_bucket("b", used.map.bucket("b").id)
    used.say("t3", ("d3",))
    assert (owners(used), uses(used)) == ({"d1"}, {"d1": "in", "d2": "new", "d3": "new"})


def test_what_disks_are_for_is_kept(registry):
    registry.say("t1", ("d1", "d2"))
    registry.create_bucket("b")
    step = registry.map.step
    registry.apply(changes.use_disks(["d2"], "out"))
    assert (uses(registry), owners(registry)) == ({"d1": "in", "d2": "out"}, {"d1", "d2"}), "its objects are there still"
    assert registry.map.step == step
    registry.say("t1", ("d1", "d2"), url="http://new:1")
    registry.say("t9", ("d1", "d2"))
    assert uses(registry) == {"d1": "in", "d2": "out"}
    version = registry.map.version
    registry.apply(changes.use_disks(["d2"], "out"))
    assert registry.map.version == version
    with pytest.raises(NotFound):
        registry.apply(changes.use_disks(["d2", "d8"], "in"))


def move(registry, *disks: str) -> None:
    """Take all steps of a move to these disks."""
    before = placement_of(registry.map)
    wanted = LayoutSpec(frozenset(disks))
    for change in (transitions.start_move(wanted), *[transitions.hand_over(list(range(SLICES)))] * 3):
        before = placement_of(registry.map)
        new = msgspec.structs.replace(change(before), step=before.step + 1)
        registry.apply(changes.take_step(before, new))
        assert placement_of(registry.map) == new
        is_moving = registry.map.is_moving
        assert {bucket.is_moving for bucket in registry.map.buckets} == {is_moving}
        assert all(bucket.has_several == is_moving for bucket in registry.map.buckets)
        registry.create_bucket(f"new-{new.step}")
        assert registry.map.bucket(f"new-{new.step}").is_moving == is_moving
    assert not registry.map.is_moving


def test_a_drained_disk_may_be_removed_and_no_other(registry):
    registry.say_each(1, 2)
    registry.create_bucket("b")
    registry.apply(changes.use_disks(["d2"], "out"))
    registry.mark_down("t2")
    for change in (changes.drop_disk("d2"), changes.remove_node("t2")):
        with pytest.raises(Conflict, match="may hold objects"):
            registry.apply(change)
    registry.say("t2", ("d2",))
    move(registry, "d1")
    assert (owners(registry), registry.map.in_use()) == ({"d1"}, {"d1"})
    with pytest.raises(Conflict, match="in use"):
        registry.apply(changes.drop_disk("d2"))
    registry.mark_down("t2")
    registry.apply(changes.remove_node("t2"))
    assert states(registry) == {"t1": "up"}


def test_a_disk_that_was_evicted_is_not_removed(registry):
    """Without it, objects of the other disk of its target would have other replicas by the same layout."""
    for target in ("t1", "t2", "t3"):
        registry.say(target, (f"{target}a", f"{target}b"))
    registry.create_bucket("b", copies=2)
    registry.say("t2", ("t2a",))
    registry.apply(changes.mark_evicted(["t2b"], evicted=True))
    disks = frozenset(placement_of(registry.map).disks)
    registry.move(LayoutSpec(disks, frozenset(("t2b",))))
    with pytest.raises(Conflict, match="may hold objects"):
        registry.apply(changes.drop_disk("t2b"))
    registry.remove_bucket("b", registry.map.bucket("b").id)
    registry.apply(changes.drop_disk("t2b"))
    (spec,) = placement_of(registry.map).layouts.values()
    assert spec == LayoutSpec(disks - {"t2b"})


def test_a_disk_that_is_removed_from_a_cluster_without_buckets_leaves_its_layouts(used):
    used.say("t2", ("d2",))
    move(used, "d1", "d2")
    for bucket in used.map.buckets:
        used.remove_bucket(bucket.name, bucket.id)
    used.mark_down("t2")
    used.apply(changes.remove_node("t2"))
    assert (owners(used), used.map.in_use()) == ({"d1"}, {"d1"})


def test_disks_that_move_to_another_node_stay_in_placement(registry):
    """The same disks under a new node id: what they hold is found at the new address."""
    registry.say("t1", ("d1", "d2"))
    registry.create_bucket("b")
    registry.say("t9", ("d1", "d2"))
    assert states(registry)["t9"] == "up"
    assert owners(registry) == {"d1", "d2"}
    assert registry.map.owner(BUCKET, "x").node.id == "t9"
    assert registry.map.node("t1").disks == ()
    assert [node.id for node in registry.map.targets()] == ["t9"]  # the old id is nobody's whose silence matters


def test_new_disks_that_move_to_another_node_stay_outside(used):
    used.say("t2", ("d2",))
    used.say("t1", ("d1", "d3"))
    used.say("t9", ("d2", "d3"))
    assert owners(used) == {"d1"}
    used.say("t9", ("d1", "d2", "d3"))
    assert states(used)["t9"] == "up"
    assert (owners(used), uses(used)) == ({"d1"}, {"d1": "in", "d2": "new", "d3": "new"})


def test_a_new_disk_that_is_missing_stays_outside(used):
    used.say("t1", ("d1", "d2"))
    used.say("t1", ("d1",), url="http://new:1")
    assert owners(used) == {"d1"}


# --- silence


def test_a_silent_target_is_down_and_comes_back(registry):
    registry.say_each(1, 2)
    registry.create_bucket("b")
    version = registry.map.version
    registry.mark_down("t2")
    registry.mark_down("t2")
    assert registry.map.version == version + 1
    assert states(registry) == {"t1": "up", "t2": "down"}
    assert owners(registry) == {"d1", "d2"}  # its objects answer 503, they do not move
    registry.say("t2", ("d2",))
    assert states(registry) == {"t1": "up", "t2": "up"}
    assert registry.map.version == version + 2


def test_what_a_silent_target_said_last_is_kept(registry):
    registry.say("t1", ("d1", "d2"))
    node = registry.map.node("t1")
    disks = tuple(msgspec.structs.replace(disk, used=7, state="failed") for disk in node.disks)
    last = msgspec.structs.replace(node, disks=disks, last_heartbeat="2023-11-14T22:13:20.000Z")
    registry.say("t1", ("d1",))  # d2 is missing since
    registry.step(transitions.declare_down({"t1"}), [last])
    found = registry.map.node("t1")
    assert (found.state, found.last_heartbeat) == ("down", "2023-11-14T22:13:20.000Z")
    assert [(disk.used, disk.state) for disk in found.disks] == [(7, "up"), (7, "failed")]  # states are not what it told of


def test_a_target_that_holds_nothing_goes_down_like_others(used):
    """It acts by the map, too."""
    used.say("t2", ("d2",))
    used.mark_down("t1", "t2")
    assert states(used) == {"t1": "down", "t2": "down"}
    assert [node.id for node in used.map.cover().missing] == ["t1"]


def test_a_step_for_another_placement_is_refused(registry):
    registry.say_each(1, 2)
    before = placement_of(registry.map)
    down = msgspec.structs.replace(transitions.declare_down({"t1"})(before), step=before.step + 1)
    with pytest.raises(StepOvertaken):
        registry.apply(changes.take_step(before, msgspec.structs.replace(down, step=before.step)))
    registry.say("t3", ("d3",))
    state = registry.state
    with pytest.raises(StepOvertaken):
        registry.apply(changes.take_step(before, down))
    assert registry.state is state


def test_a_step_of_which_nothing_can_be_stored_is_refused(registry):
    """The bucket was removed meanwhile. A step that is to change nothing is taken."""
    registry.say("t1", ("d1",))
    before = placement_of(registry.map)
    raised = transitions.want_copies("gone", 2)(before)
    with pytest.raises(StepOvertaken, match="not there any more"):
        registry.apply(changes.take_step(before, msgspec.structs.replace(raised, step=before.step + 1)))
    registry.apply(changes.take_step(before, msgspec.structs.replace(before, step=before.step + 1)))
    assert registry.map.step == before.step + 1


def test_a_step_is_counted_and_other_changes_are_not(used):
    assert used.map.step == 0
    used.mark_down("t1")
    assert used.map.step == 1
    used.create_bucket("c")
    assert used.map.step == 1


def test_a_target_that_is_back_stays_down_until_its_step(registry):
    registry.say("t1", ("d1",))
    registry.mark_down("t1")
    registry.apply(changes.expect_by("t1", 5000))
    before = registry.state
    registry.apply(changes.join(said("t1", ("d1",))))
    assert registry.state is before
    registry.apply(changes.join(said("t1", ("d1",), url="http://new:1")))
    assert (registry.map.node("t1").url, states(registry)) == ("http://new:1", {"t1": "down"})
    assert registry.map.node("t1").expected_by == 5000, "it may have a new address when it is back, and be restarted again"


def test_a_disk_that_another_node_has_now_is_down_until_its_step(registry):
    registry.say("t1", ("d1", "d2"))
    registry.say("t2", ("d3",))
    registry.mark_down("t1")  # the first step
    registry.create_bucket("b")
    registry.apply(changes.join(said("t2", ("d2", "d3"))))
    found = placement_of(registry.map).disks
    assert {disk.id: (disk.node, disk.status) for disk in found.values()} == {
        "d1": ("t1", "down"), "d2": ("t2", "down"), "d3": ("t2", "up"),
    }  # fmt: skip
    registry.step(transitions.bring_up("t2", {"d2": "", "d3": ""}))
    assert placement_of(registry.map).disks["d2"].status == "up"


def test_the_incarnation_of_a_disk_is_learned_once(registry):
    registry.say("t1", (DiskEntry(id="d1", weight=1.0),))
    registry.say("t1", (DiskEntry(id="d1", weight=1.0, incarnation="first"),))
    assert registry.map.node("t1").disks[0].incarnation == "first"
    registry.say("t1", (DiskEntry(id="d1", weight=1.0, incarnation="second"),))
    assert registry.map.node("t1").disks[0].incarnation == "first", "it is another disk: that takes a step"


# --- nodes and disks that are gone for good


def test_a_node_without_objects_can_be_removed(registry):
    registry.say_each(1, 2)
    with pytest.raises(NotFound):
        registry.apply(changes.remove_node("t3"))
    with pytest.raises(Conflict, match="stop it first"):
        registry.apply(changes.remove_node("t2"))
    registry.mark_down("t2")
    registry.create_bucket("b")
    with pytest.raises(Conflict, match="disk d2 may hold objects"):
        registry.apply(changes.remove_node("t2"))
    registry.say("t9", ("d2",))  # its disk was moved
    registry.apply(changes.remove_node("t2"))
    assert states(registry) == {"t1": "up", "t9": "up"}


def test_a_node_that_never_entered_can_be_removed(used):
    used.say("t2", ("d2",))
    with pytest.raises(Conflict, match="is up"):
        used.apply(changes.remove_node("t2"))
    used.mark_down("t2")
    used.apply(changes.remove_node("t2"))
    assert states(used) == {"t1": "up"}


def test_a_disk_without_objects_can_be_dropped(registry):
    registry.say("t1", ("d1", "d2", "d3"))
    with pytest.raises(NotFound):
        registry.apply(changes.drop_disk("d4"))
    with pytest.raises(Conflict, match="in use by node t1"):
        registry.apply(changes.drop_disk("d3"))
    registry.say("t1", ("d1", "d2"))
    registry.apply(changes.drop_disk("d3"))
    assert disk_states(registry) == {"d1": "up", "d2": "up"}
    registry.create_bucket("b")
    registry.say("t1", ("d1",))
    with pytest.raises(Conflict, match="disk d2 may hold objects"):
        registry.apply(changes.drop_disk("d2"))
    registry.say("t1", ("d1", "d2", "d5"))
    registry.say("t1", ("d1", "d2"))
    registry.apply(changes.drop_disk("d5"))  # it has not been taken in
    assert disk_states(registry) == {"d1": "up", "d2": "up"}


def test_numbers_of_nodes_are_not_given_again(registry):
    """Objects that a node has stored keep their versions: an equal one of another node would have no order with them."""
    assert registry.say_each(1, 2, 3) == [1, 2, 3]
    for node in ("t3", "t1"):
        registry.mark_down(node)
        registry.apply(changes.remove_node(node))
    assert registry.say("t4", ("d4",)) == 4
    assert registry.say("t3", ("d3",)) == 5


def test_when_all_numbers_are_given(registry, monkeypatch):
    monkeypatch.setattr(changes, "NODE_NUMBER_MAX", 3)
    registry.say_each(1, 2, 3)
    before = registry.state
    for _ in range(2):
        with pytest.raises(Conflict, match="no number"):
            registry.say("t4", ("d4",))
    assert registry.state is before
    assert registry.say("t2", ("d2",), url="http://elsewhere:1") == 2


def test_a_second_proxy_is_refused(registry):
    with pytest.raises(Conflict, match="p2 is not a target: proxies are known by"):
        registry.say("p2", (), role="proxy")
    assert registry.map.nodes == ()


# --- buckets


def test_buckets(registry):
    made = registry.create_bucket("b", durability="relaxed")
    assert (made.name, made.copies, made.durability, made.state) == ("b", 1, "relaxed", "active")
    assert made.created == "2023-11-14T22:13:20.000Z"
    version = registry.map.version
    assert registry.create_bucket("b", 2, durability="relaxed") == made
    assert registry.ensure_bucket("b", 3) == made
    assert registry.map.version == version
    with pytest.raises(BucketConflict):
        registry.create_bucket("b", durability="fsync")
    assert registry.change_bucket("b", durability="fsync").durability == "fsync"
    assert registry.change_bucket("b", durability="fsync") == registry.map.bucket("b")
    assert registry.map.version == version + 1
    registry.create_bucket("a")
    assert [bucket.name for bucket in registry.map.buckets] == ["a", "b"]
    with pytest.raises(BucketNotFound):
        registry.change_bucket("c", durability="fsync")


def test_a_bucket_made_anew_has_another_id(registry):
    first = registry.ensure_bucket("b")
    registry.change_bucket("b", state="deleting")
    with pytest.raises(BucketDeleting):
        registry.create_bucket("b")
    assert registry.ensure_bucket("b").state == "deleting"
    registry.remove_bucket("b", first.id)
    assert registry.map.bucket("b") is None
    second = registry.ensure_bucket("b", 2)
    assert second.id != first.id
    registry.remove_bucket("b", first.id)  # a late removal of the old one
    registry.remove_bucket("c", first.id)
    assert registry.map.bucket("b") == second


def test_checks_end_with_who_made_them(registry):
    for name in "abc":
        registry.create_bucket(name)
    before = registry.state
    assert registry.apply(changes.end_checks) is before
    registry.change_bucket("a", state="checking")
    registry.change_bucket("b", state="deleting")
    registry.apply(changes.end_checks)
    assert {found.name: found.state for found in registry.map.buckets} == {"a": "active", "b": "deleting", "c": "active"}


def test_a_change_leaves_what_it_does_not_touch(registry):
    """The same entries, so that whoever stores them finds what is new."""
    registry.say_each(1, 2)
    registry.create_bucket("a")
    nodes, (first,) = registry.map.nodes, registry.map.buckets
    registry.create_bucket("b")
    registry.mark_down("t2")
    assert registry.map.node("t1") is nodes[0]
    assert registry.map.bucket("a") is first


def test_a_map_reads_itself_back(registry):
    registry.say()
    registry.create_bucket("b")
    assert ClusterMap.decode(registry.map.encode()) == registry.map


@pytest.mark.parametrize(
    ("cluster_id", "version", "number"), [(CLUSTER, 1, 0), (CLUSTER, 3, 0), ("other", 2, 0), (CLUSTER, 2, -1)]
)
def test_what_is_no_step_is_not_stored(registry, cluster_id, version, number):
    new = RegistryState(map=ClusterMap(cluster_id=cluster_id, version=version), last_number=number)
    with pytest.raises(ValueError):
        check_step(registry.state, new)


def test_what_a_node_understands_is_known(registry):
    """A newer node than the proxy is refused, since that would overlook what it says."""
    registry.say("t1", protocol=PROTOCOL)
    assert [node.protocol for node in registry.map.nodes] == [PROTOCOL]
    with pytest.raises(Conflict, match="update the proxies first"):
        registry.say("t2", ("d2",), protocol=PROTOCOL + 1)
