"""The coordinator: one step after the other, and what each change makes of a placement."""

from __future__ import annotations

import msgspec
import pytest
from placements import BUCKET, place, placement, with_disk, with_slices

from dfc.placement.roles import Copies, LayoutSpec, SliceState
from dfc.replication.steps import LAYOUTS_MAX, ReadyReport, StepPlanner
from dfc.replication.transitions import bring_up, declare_down, hand_over, mark_out_of_sync, put_clean, start_move, want_copies

DISKS, NODES = ("n1a", "n2a", "n3a"), ("n1", "n2", "n3")
DOWN_S = 10.0


class Cluster:
    """A coordinator, and targets that acknowledge what they are told to; first those that are `up`."""

    def __init__(self, state=None, up=()):
        self.core = StepPlanner(state or placement(*DISKS), DOWN_S, 0.0)
        self.now = 0.0
        self.beat(*up)

    @property
    def state(self):
        return self.core.placement

    def beat(self, *nodes, step=None, incarnation="first"):
        step = self.state.step if step is None else step
        return [
            self.core.heartbeat(node, step, {d.id: incarnation for d in self.state.disks.values() if d.node == node}, self.now)
            for node in nodes
        ]

    def step(self, *nodes):
        """The next step, after these nodes have acknowledged the one before."""
        self.beat(*nodes)
        new = self.core.next_step(self.now)
        if new is not None:
            self.core.published(new)
        return new

    def ready(self, readiness, *disks, about=0, value=2):
        for disk in disks:
            self.core.report_ready(ReadyReport(readiness, disk, about, value), self.state.step)


@pytest.fixture
def cluster():
    return Cluster(up=NODES)


def test_nothing_happens_while_all_is_well(cluster):
    for _ in range(5):
        cluster.now += 5.0
        assert cluster.beat(*NODES) == [True] * 3
        assert cluster.step() is None


def test_a_silent_target_is_declared_down_after_its_lease(cluster):
    cluster.now = DOWN_S
    assert cluster.step("n1", "n2") is None, "silent for exactly the time"
    cluster.now += 0.1
    new = cluster.step()
    assert (new.step, new.disks["n3a"].status, new.disks["n3a"].down_step) == (2, "down", 2)
    assert cluster.core.waits_for() == ["n1", "n2"]


def test_a_new_coordinator_declares_nobody_down_at_once():
    cluster = Cluster()
    cluster.now = DOWN_S
    assert cluster.step() is None
    cluster.now += 0.1
    assert {d.status for d in cluster.step().disks.values()} == {"down"}


def test_the_next_step_waits_for_all_that_are_up(cluster):
    cluster.core.mark_out_of_sync("n1a", "n2a")
    assert cluster.step().disks["n2a"].out_of_sync_with == {"n1a"}
    assert not cluster.core.is_out_of_sync("n1a", "n2a"), "n3 may still read there"
    cluster.core.mark_out_of_sync("n1a", "n3a")
    assert cluster.step("n1", "n2") is None
    assert cluster.core.waits_for() == ["n3"]
    cluster.core.acknowledged("n3", 2)
    assert cluster.core.is_out_of_sync("n1a", "n2a")
    assert cluster.step().disks["n3a"].out_of_sync_with == {"n1a"}


def test_one_that_is_silent_is_not_waited_for(cluster):
    cluster.core.mark_out_of_sync("n1a", "n2a")
    cluster.step()
    cluster.now = DOWN_S + 0.1
    assert cluster.step("n1", "n2").disks["n3a"].status == "down"
    cluster.beat("n1", "n2")
    assert cluster.core.is_out_of_sync("n1a", "n2a")


def test_one_that_leaves_is_down_at_once_but_not_before_the_others_know_the_step_before(cluster):
    cluster.core.mark_out_of_sync("n1a", "n2a")
    cluster.step()
    cluster.core.leave("n3")
    assert cluster.step("n1") is None
    assert cluster.step("n2").disks["n3a"].status == "down"
    assert not cluster.core.is_busy


def test_a_target_that_cannot_acknowledge_a_step_comes_back_without_its_hung_disk():
    """n1 cannot acknowledge the step that puts n1a behind, since n1a hangs; and no step can call it failed before that."""
    cluster = Cluster(placement("n1a", "n1b", "n2a", "n3a"), up=NODES)
    cluster.core.mark_out_of_sync("n2a", "n1a")
    assert cluster.step().step == 2
    cluster.beat("n2", "n3")
    incarnations = {"n1b": "first"}
    assert cluster.core.heartbeat("n1", 1, incarnations, cluster.now)
    assert cluster.step() is None
    cluster.core.leave("n1")
    assert {each.status for each in cluster.step().disks_of("n1")} == {"down"}
    cluster.beat("n2", "n3")
    cluster.core.heartbeat("n1", 1, incarnations, cluster.now)
    new = cluster.step()
    assert (new.disks["n1a"].status, new.disks["n1b"].status) == ("failed", "up")


def test_a_heartbeat_takes_back_that_a_target_leaves(cluster):
    cluster.core.leave("n3")
    assert cluster.step("n3") is None
    cluster.core.leave("n9")  # nobody knows it
    assert not cluster.core.is_busy


def test_nobody_is_declared_down_before_the_others_know_the_step_before(cluster):
    cluster.core.mark_out_of_sync("n1a", "n2a")
    cluster.step()
    cluster.now = DOWN_S + 0.1
    cluster.beat("n1", step=2)
    cluster.beat("n2", step=1)
    assert cluster.step() is None, "n2 has a lease, and decides by step 1"
    assert cluster.step("n2").disks["n3a"].status == "down"


def test_a_disk_that_comes_back_is_up_and_out_of_sync(cluster):
    cluster.now = DOWN_S + 0.1
    cluster.step("n1", "n2")
    assert cluster.beat("n3") == [False], "no lease yet"
    back = cluster.step("n1", "n2").disks["n3a"]
    assert (back.status, back.out_of_sync_with) == ("up", {"n1a", "n2a"})
    assert cluster.beat("n3") == [True]


def test_one_that_has_gone_down_before_has_acknowledged_nothing_since():
    state = placement(place("n1a", status="down", down_step=3), "n2a", place("n3a", status="down", down_step=5), step=6)
    assert bring_up("n3", {"n3a": "first"})(state).disks["n3a"].out_of_sync_with == {"n2a"}
    assert bring_up("n1", {"n1a": "first"})(state).disks["n1a"].out_of_sync_with == {"n2a", "n3a"}


def test_with_one_copy_nobody_is_out_of_sync_unless_names_are_moving():
    """While a slice moves, writes go to both of its replicas."""
    away = place("n3a", status="down", down_step=5)
    state = msgspec.structs.replace(placement("n1a", "n2a", away, step=6), copies={BUCKET: Copies.of(1)})
    assert bring_up("n3", {"n3a": "first"})(state).disks["n3a"].out_of_sync_with == frozenset()
    moving = with_slices(state, SliceState(1, 1, "moving"))
    assert bring_up("n3", {"n3a": "first"})(moving).disks["n3a"].out_of_sync_with == {"n1a", "n2a"}


def test_a_target_that_has_just_joined_is_not_silent_yet(cluster):
    """However long this coordinator has been at work. If it were declared down, its disk would come back behind all others:
    with one of them lost, that one could not be given up any more."""
    cluster.now = 10 * DOWN_S
    cluster.beat(*NODES)
    state = cluster.state
    cluster.core.refresh(msgspec.structs.replace(state, disks={**state.disks, "n4a": place("n4a")}))
    assert cluster.step() is None
    cluster.now += DOWN_S - 0.1
    assert cluster.step(*NODES) is None
    cluster.now += 0.2
    assert cluster.step(*NODES).disks["n4a"].status == "down", "it has said nothing for so long"


def test_disks_of_one_target_are_not_out_of_sync_with_each_other():
    state = placement(place("n1a", status="down", down_step=1), "n1b", "n2a", step=2)
    assert bring_up("n1", {"n1a": "first"})(state).disks["n1a"].out_of_sync_with == {"n2a"}


def test_another_disk_under_an_id_is_down_first_and_then_compared(cluster):
    assert cluster.beat("n3", incarnation="second") == [False]
    assert cluster.step() is None, "it is not silent for long enough"
    cluster.now = DOWN_S + 0.1
    cluster.beat("n1", "n2")
    cluster.beat("n3", incarnation="second")
    assert cluster.step().disks["n3a"].status == "down"
    cluster.beat("n1", "n2")
    cluster.beat("n3", incarnation="second")
    back = cluster.step().disks["n3a"]
    assert (back.out_of_sync_with, back.incarnation) == ({"n1a", "n2a"}, "second")
    assert back.compare.startswith("second-")


def test_what_a_lost_disk_hinted_its_handoffs_may_have():
    away, lagging = place("n3a", status="down"), place("n2a", out_of_sync_with=frozenset(("n3a",)))
    state = placement("n1a", lagging, away, place("n4a", status="down"), "n2b", step=2)
    new = bring_up("n3", {"n3a": "second"})(state)
    assert new.disks["n2a"].out_of_sync_with == {"n1a", "n2b", "n4a"}, (
        "also one that is down, or of the same node, may have stood in"
    )
    assert new.disks["n3a"].out_of_sync_with == {"n1a", "n2a", "n2b", "n4a"}
    assert new.disks["n1a"].out_of_sync_with == frozenset(), "it was not out of sync with the lost one"


def test_a_disk_in_doubt_is_out_of_sync_with_all_others_and_they_stay_out_of_sync_with_it():
    """After a power loss it may lack its last rows, but it has all that it has hints for. Also those that stopped before it may
    have what it has lost."""
    away = place("n3a", status="down", down_step=5, incarnation="first.1")
    state = placement(
        place("n1a", status="down", down_step=3), place("n2a", out_of_sync_with=frozenset(("n3a",))), away, step=6
    )
    new = bring_up("n3", {"n3a": "first.2"})(state)
    assert (new.disks["n3a"].out_of_sync_with, new.disks["n3a"].compare) == ({"n1a", "n2a"}, "first.2-7"), (
        "it is compared anew each time"
    )
    assert new.disks["n2a"].out_of_sync_with == {"n3a"}
    assert bring_up("n3", {"n3a": "first.2"}, ["n1a", "n2a"])(state).disks["n3a"].out_of_sync_with == {"n2a"}, (
        "n1a was down for long"
    )
    one = msgspec.structs.replace(state, copies={BUCKET: Copies.of(1)})
    back = bring_up("n3", {"n3a": "first.2"})(one).disks["n3a"]
    assert (back.out_of_sync_with, back.compare, back.incarnation) == (frozenset(), "", "first.2"), (
        "nobody else can have its rows"
    )


@pytest.mark.parametrize("long_s", [0.0, 300.0, 1200.0])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_disk_in_doubt_does_not_wait_for_one_that_was_gone_for_long(long_s, is_new):
    cluster = Cluster(up=NODES)
    cluster.now = DOWN_S + 0.1
    assert cluster.step("n2", "n3").disks["n1a"].status == "down"
    cluster.beat("n2", "n3")
    cluster.now += long_s
    cluster.beat("n2", "n3")
    if is_new:
        cluster.core = StepPlanner(cluster.state, DOWN_S, cluster.now)
        cluster.beat("n2", "n3")
    cluster.now += DOWN_S + 0.1
    assert cluster.step("n2").disks["n3a"].status == "down"
    for _ in range(2):  # the second one is no reason to know less
        cluster.beat("n2")
        cluster.beat("n3", incarnation="first.1")
    assert cluster.step().disks["n3a"].out_of_sync_with == ({"n2a"} if long_s > 1000 and not is_new else {"n1a", "n2a"})


def test_who_is_out_of_sync_marks_nobody():
    state = placement("n1a", place("n2a", out_of_sync_with=frozenset(("n1a",))), "n3a")
    assert mark_out_of_sync("n1a", "n2a")(state) is state
    assert mark_out_of_sync("n3a", "n2a")(state).disks["n3a"].out_of_sync_with == {"n2a"}
    assert mark_out_of_sync("n2a", "n1a")(state) is state, "it is already"
    down = with_disk(state, "n3a", status="down")
    assert mark_out_of_sync("n3a", "n1a")(down) is down


def test_a_disk_is_read_again_when_it_is_in_sync(cluster):
    cluster.core.mark_out_of_sync("n1a", "n2a")
    cluster.step()
    cluster.beat(*NODES)
    assert not cluster.core.report_clean("n1a", "n2a", 1), "by a step that is over"
    assert cluster.core.report_clean("n1a", "n2a", 2)
    assert cluster.step().disks["n2a"].out_of_sync_with == frozenset()


def test_asking_again_withdraws_a_clean_report(cluster):
    cluster.core.mark_out_of_sync("n1a", "n2a")
    cluster.step()
    cluster.beat(*NODES)
    cluster.core.report_clean("n1a", "n2a", 2)
    cluster.core.mark_out_of_sync("n1a", "n2a")
    assert not cluster.core.is_out_of_sync("n1a", "n2a"), "a report may still be on its way"
    assert cluster.step().disks["n2a"].out_of_sync_with == {"n1a"}
    assert not cluster.core.report_clean("n1a", "n2a", 2)
    cluster.beat(*NODES)
    assert cluster.core.is_out_of_sync("n1a", "n2a")
    assert cluster.step() is None, "one step for one question"
    assert cluster.core.report_clean("n1a", "n2a", 3)
    assert cluster.step().disks["n2a"].out_of_sync_with == frozenset()


def test_a_report_that_had_to_wait_counts_for_nothing():
    """The disk that was reported clean is away in the meantime, and comes back in the same step as another one that had been
    back before the report."""
    cluster = Cluster(with_disk(placement(*DISKS, "n4a"), "n2a", out_of_sync_with=frozenset(("n1a",))), up=NODES)
    cluster.now += DOWN_S / 2
    cluster.beat(*NODES)
    cluster.now += DOWN_S / 2 + 1
    assert cluster.step().disks["n4a"].status == "down"
    cluster.beat(*NODES)
    cluster.beat("n4")
    assert cluster.core.report_clean("n1a", "n2a", cluster.state.step)
    cluster.now += DOWN_S + 1
    assert cluster.step("n1", "n3", "n4").disks["n2a"].status == "down", "the silent ones come first"
    back = cluster.step("n1", "n2", "n3", "n4")
    assert all(disk.is_up for disk in back.disks.values())
    assert cluster.step("n1", "n2", "n3", "n4") is None
    assert cluster.state.disks["n2a"].out_of_sync_with == {"n1a", "n3a", "n4a"}


def test_a_target_that_was_started_anew_has_reported_nothing():
    """It does not know whom its disks were to skip no more."""
    cluster = Cluster(with_disk(placement(*DISKS), "n2a", out_of_sync_with=frozenset(("n1a", "n3a"))), up=("n2", "n3"))

    def beat(process):
        cluster.core.heartbeat("n1", cluster.state.step, {"n1a": "first"}, cluster.now, process=process)

    def report(process):
        return cluster.core.report_clean("n1a", "n2a", cluster.state.step, process=process)

    beat("one")
    assert report("one")
    assert cluster.core.report_clean("n3a", "n2a", cluster.state.step)
    beat("two")
    assert not report("one"), "it was on its way"
    assert cluster.step().disks["n2a"].out_of_sync_with == {"n1a"}
    cluster.beat("n2", "n3")
    beat("two")
    assert report("two")
    assert cluster.step().disks["n2a"].out_of_sync_with == frozenset()


def test_the_last_one_to_be_clean_ends_a_comparison():
    state = placement("n1a", place("n2a", out_of_sync_with=frozenset(("n1a", "n3a")), compare="second"), "n3a")
    once = put_clean("n2a", "n1a")(state)
    assert once.disks["n2a"].compare == "second"
    assert put_clean("n2a", "n3a")(once).disks["n2a"].compare == ""


def test_a_move_goes_slice_by_slice_when_all_have_reported():
    cluster = Cluster(placement(*DISKS, slices=2), up=NODES)
    to = LayoutSpec(frozenset(("n1a", "n2a")))
    cluster.core.want_layout(to)
    new = cluster.step()
    assert new.slices == (SliceState(1, 2, "copying"),) * 2
    assert new.layouts[2] == to
    for phase, readiness in (("moving", "copied"), ("moved", "moved")):
        cluster.beat(*NODES)
        cluster.ready(readiness, *DISKS[:-1])
        cluster.core.report_ready(ReadyReport(readiness, DISKS[-1], 0, 2), cluster.state.step - 1)
        assert cluster.step() is None, "one of them spoke of an older step"
        cluster.ready(readiness, DISKS[-1])
        assert cluster.step().slices[0] == SliceState(1, 2, phase)
        assert cluster.state.slices[1] == SliceState(1, 2, "copying")
    assert cluster.step(*NODES).slices[0] == SliceState(2)
    assert set(cluster.state.layouts) == {1, 2}, "the other slice still has the old one"


@pytest.mark.parametrize("change", [{"status": "down"}, {"out_of_sync_with": frozenset(("n2a",))}])
def test_nothing_is_handed_over_while_a_disk_is_not_well(change):
    state = with_slices(placement(*DISKS), SliceState(1, 2, "moved"), to=frozenset(("n1a", "n2a")))
    cluster = Cluster(with_disk(state, "n1a", **change), up=NODES)
    cluster.step()
    assert cluster.state.slices[0].phase == "moved"


def test_marking_somebody_withdraws_the_reports_of_the_marker():
    state = with_slices(placement(*DISKS), SliceState(1, 2, "copying"), to=frozenset(("n1a", "n2a")))
    cluster = Cluster(state, up=NODES)
    cluster.ready("copied", *DISKS)
    cluster.core.mark_out_of_sync("n1a", "n2a")
    assert cluster.step().slices[0].phase == "copying", "the mark comes first"
    cluster.beat(*NODES)
    cluster.core.report_clean("n1a", "n2a", cluster.state.step)
    cluster.step()
    assert cluster.step(*NODES) is None, "n1a and n2a have to report again"


@pytest.mark.parametrize("other", ["n2a", "n1a"])
def test_what_a_disk_reports_while_it_is_out_of_sync_counts_for_nothing(other):
    """As a primary of names it may have to look what future replicas lack, once it is one."""
    state = with_slices(placement(*DISKS), SliceState(1, 2, "copying"), to=frozenset(("n1a", "n2a")))
    cluster = Cluster(with_disk(state, "n3a", out_of_sync_with=frozenset((other,))), up=NODES)
    cluster.ready("copied", *DISKS)
    cluster.core.report_clean(other, "n3a", cluster.state.step)
    assert cluster.step().disks["n3a"].out_of_sync_with == frozenset()
    assert cluster.step(*NODES) is None
    cluster.ready("copied", "n3a")
    assert cluster.step().slices == (SliceState(1, 2, "moving"),)


def test_copies_are_written_before_they_are_read():
    cluster = Cluster(placement(*DISKS, copies=1), up=NODES)
    cluster.core.want_copies(BUCKET, 2)
    assert cluster.step().copies_of(BUCKET) == Copies(1, 2, 2)
    cluster.beat(*NODES)
    for disk in DISKS:
        assert cluster.step() is None
        cluster.ready("raised", disk, about=BUCKET)
    assert cluster.step().copies_of(BUCKET) == Copies.of(2)
    cluster.beat(*NODES)
    cluster.core.want_copies(BUCKET, 1)
    assert cluster.step().copies_of(BUCKET) == Copies(1, 2, 1)
    assert cluster.step(*NODES).copies_of(BUCKET) == Copies.of(1)


def test_a_bucket_gets_down_to_one_copy_only_while_all_is_well():
    """Its disk is then read whatever it is behind of."""
    cluster = Cluster(with_disk(placement(*DISKS), "n1a", out_of_sync_with=frozenset(("n2a",))), up=NODES)
    cluster.core.want_copies(BUCKET, 1)
    assert cluster.step() is None
    cluster.core.report_clean("n2a", "n1a", cluster.state.step)
    assert cluster.step().disks["n1a"].out_of_sync_with == frozenset()
    assert cluster.step(*NODES).copies_of(BUCKET) == Copies(1, 2, 1)


@pytest.mark.parametrize("reading", [1, 2])
def test_a_raise_is_given_up_whatever_is_down(reading):
    """A disk that is down for good would keep it from ending. Then it begins anew, for less."""
    cluster = Cluster(placement(*DISKS, copies=reading), up=NODES)
    cluster.core.want_copies(BUCKET, reading + 2)
    assert cluster.step().copies_of(BUCKET) == Copies(reading, reading + 2, reading + 2)
    cluster.now = DOWN_S + 1
    assert cluster.step("n1", "n2").disks["n3a"].status == "down"
    cluster.beat("n1", "n2")
    cluster.core.want_copies(BUCKET, reading + 1)
    seen = []
    while (new := cluster.step()) is not None:
        seen.append(new.copies_of(BUCKET))
        cluster.beat("n1", "n2")
    assert seen == [Copies(reading, reading + 2, reading), Copies.of(reading), Copies(reading, reading + 1, reading + 1)]
    cluster.core.want_copies(BUCKET, reading)
    assert cluster.step().copies_of(BUCKET) == Copies(reading, reading + 1, reading)
    assert cluster.step("n1", "n2").copies_of(BUCKET) == Copies.of(reading)


def test_more_copies_wait_for_those_that_are_being_made():
    cluster = Cluster(placement(*DISKS, copies=1), up=NODES)
    cluster.core.want_copies(BUCKET, 2)
    cluster.step()
    cluster.beat(*NODES)
    cluster.core.want_copies(BUCKET, 3)
    assert cluster.step() is None
    state = cluster.state
    assert want_copies(BUCKET, 3)(state) is state
    lowered = want_copies(BUCKET, 1)(state)
    assert want_copies(BUCKET, 2)(lowered) is lowered


def test_what_is_wanted_waits_for_its_step_and_can_be_taken_back(cluster):
    first = cluster.core.want_copies(BUCKET, 3)
    second = cluster.core.want_copies(BUCKET, 1)
    cluster.core.withdraw(first)
    assert cluster.core.wishes() == [second]
    cluster.core.withdraw(second)
    assert cluster.step() is None
    cluster.core.want_copies(BUCKET, 3)
    cluster.core.want_copies(BUCKET, 2)
    assert cluster.step() is None, "it has two"
    assert cluster.core.wishes() == []


def test_changes_give_the_placement_back_where_nothing_changes():
    state = placement(*DISKS)
    assert declare_down({"n9"})(state) is state
    assert put_clean("n1a", "n2a")(state) is state
    assert bring_up("n1", {"n1a": "first"})(state) is state
    assert want_copies(BUCKET, 2)(state) is state
    assert hand_over([])(state).slices == state.slices


def test_layouts_that_nobody_uses_are_dropped():
    state = with_slices(placement(*DISKS), SliceState(1, 2, "moved"), to=frozenset(("n1a", "n2a")))
    assert set(hand_over([0])(state).layouts) == {2}
    assert msgspec.structs.replace(state, step=9).layouts == state.layouts


FEWER, OTHERS = LayoutSpec(frozenset(("n1a", "n2a"))), LayoutSpec(frozenset(("n2a", "n3a")))


def test_a_move_goes_on_to_what_is_wanted_by_then():
    slices = (SliceState(1, 2, "copying"), SliceState(1, 2, "moving"), SliceState(1, 2, "moved"), SliceState(2))
    state = msgspec.structs.replace(
        placement(*DISKS, slices=4), layouts={1: LayoutSpec(frozenset(DISKS)), 2: FEWER}, slices=slices
    )
    new = start_move(OTHERS)(state)
    copied = SliceState(1, 3, "copying")
    assert new.slices == (copied, copied, SliceState(1, 2, "moved"), SliceState(2, 3, "copying"))
    assert new.layouts == {1: LayoutSpec(frozenset(DISKS)), 2: FEWER, 3: OTHERS}
    assert hand_over([2])(new).slices[2] == SliceState(2, 3, "copying"), "it has arrived where it was to go before"


def test_a_move_that_is_taken_back():
    slices = (SliceState(1, 2, "copying"), SliceState(1, 2, "moving"), SliceState(1, 2, "moved"))
    state = msgspec.structs.replace(
        placement(*DISKS, slices=3), layouts={1: LayoutSpec(frozenset(DISKS)), 2: FEWER}, slices=slices
    )
    new = start_move(state.layouts[1])(state)
    assert new.slices == (SliceState(1), SliceState(1), SliceState(1, 2, "moved"))
    new = hand_over([2])(new)
    assert new.slices == (SliceState(1), SliceState(1), SliceState(2, 3, "copying")), "under a number of its own"
    for _ in range(3):
        new = hand_over([2])(new)
    assert (new.slices, new.layouts) == ((SliceState(3),) * 3, {3: state.layouts[1]})


def test_no_layout_gets_a_number_that_one_had_before():
    """A disk that has noted what future replicas lack does not do it again for the same number."""
    state = placement(*DISKS)
    away = start_move(FEWER)(state)
    back = start_move(state.layouts[1])(away)
    assert (back.slices, back.layouts) == ((SliceState(3),), {3: state.layouts[1]})
    assert start_move(FEWER)(back).slices == (SliceState(3, 4, "copying"),)


def test_the_same_disks_with_other_weights_are_another_layout():
    lighter = LayoutSpec(frozenset(DISKS), weights={"n3a": 0.5})
    cluster = Cluster(placement(*DISKS), up=NODES)
    cluster.core.want_layout(lighter)
    away = cluster.step()
    assert (away.slices, away.layouts[2]) == ((SliceState(1, 2, "copying"),), lighter)
    assert cluster.step(*NODES) is None, "this is on its way"
    further = start_move(LayoutSpec(frozenset(DISKS), weights={"n3a": 0.25}))(away)
    assert further.slices == (SliceState(1, 3, "copying"),)
    back = start_move(away.layouts[1])(away)
    assert (back.slices, back.layouts) == ((SliceState(3),), {3: away.layouts[1]}), "under a number of its own"


def test_only_so_many_layouts_are_in_force():
    layouts = {number: LayoutSpec(frozenset(DISKS[: number % 3 + 1])) for number in range(1, LAYOUTS_MAX + 1)}
    slices = (*map(SliceState, range(1, LAYOUTS_MAX)), SliceState(1, LAYOUTS_MAX, "copying"))
    cluster = Cluster(msgspec.structs.replace(placement(*DISKS), layouts=layouts, slices=slices), up=NODES)
    cluster.core.want_layout(LayoutSpec(frozenset(("n3a",))))
    assert cluster.step() is None


def without(disk):
    return LayoutSpec(frozenset(DISKS), frozenset((disk,)))


def test_a_lost_disk_is_evicted_without_being_heard():
    state = with_disk(placement(*DISKS), "n3a", status="down")
    cluster = Cluster(with_disk(state, "n2a", out_of_sync_with=frozenset(("n3a",))), up=("n1", "n2"))
    cluster.core.want_layout(without("n3a"))
    assert cluster.step() is None, "n2a may lack what only n3a has"
    cluster = Cluster(state)
    for phase, readiness in (("copying", "copied"), ("moving", "moved"), ("moved", None)):
        cluster.beat("n1", "n2")
        cluster.core.want_layout(without("n3a"))
        assert cluster.step().slices == (SliceState(1, 2, phase),)
        if readiness:
            cluster.ready(readiness, "n1a", "n2a")
    assert cluster.step("n1", "n2").slices == (SliceState(2),)
    assert cluster.state.layouts == {2: without("n3a")}


def test_a_disk_that_is_back_gets_objects_again_when_it_has_reported():
    state = msgspec.structs.replace(placement(*DISKS), layouts={1: without("n3a")})
    cluster = Cluster(state, up=NODES)
    cluster.core.want_layout(LayoutSpec(frozenset(DISKS)))
    assert cluster.step().slices == (SliceState(1, 2, "copying"),)
    cluster.beat(*NODES)
    cluster.ready("copied", "n1a", "n2a")
    assert cluster.step() is None, "it may have objects with one copy"
    cluster.ready("copied", "n3a")
    assert cluster.step().slices == (SliceState(1, 2, "moving"),)


@pytest.mark.parametrize(("copies", "is_handed_over"), [(1, False), (2, True)])
def test_an_object_with_one_copy_does_not_go_to_a_disk_that_is_evicted(copies, is_handed_over):
    """Nor away from one: it alone may have it."""
    spec = LayoutSpec(frozenset(("n1a", "n3a")), frozenset(("n3a",)))
    state = with_disk(with_slices(placement(*DISKS, copies=copies), SliceState(1, 2, "copying")), "n3a", status="down")
    state = msgspec.structs.replace(state, layouts={1: FEWER, 2: spec})
    cluster = Cluster(state, up=("n1", "n2"))
    cluster.ready("copied", "n1a", "n2a")
    assert (cluster.step() is not None) is is_handed_over


@pytest.mark.parametrize(("copies", "is_handed_over"), [(1, False), (2, True)])
def test_nor_does_it_by_other_weights_of_the_same_disks(copies, is_handed_over):
    lighter = LayoutSpec(frozenset(DISKS), frozenset(("n3a",)), {"n3a": 0.5})
    state = with_disk(with_slices(placement(*DISKS, copies=copies), SliceState(1, 2, "copying")), "n3a", status="down")
    cluster = Cluster(msgspec.structs.replace(state, layouts={1: without("n3a"), 2: lighter}), up=("n1", "n2"))
    cluster.ready("copied", "n1a", "n2a")
    assert (cluster.step() is not None) is is_handed_over


@pytest.mark.parametrize("copies", [1, 2])
def test_slices_do_not_wait_for_a_disk_that_leaves_for_good(copies):
    state = with_disk(with_slices(placement(*DISKS, copies=copies), SliceState(1, 2, "copying")), "n3a", status="down")
    state = msgspec.structs.replace(state, layouts={1: without("n3a"), 2: FEWER})
    for removing, is_handed_over in ((False, False), (True, True)):
        cluster = Cluster(with_disk(state, "n3a", removing=removing), up=("n1", "n2"))
        cluster.ready("copied", "n1a", "n2a")
        assert (cluster.step() is not None) is is_handed_over


def test_nor_for_one_that_was_evicted_where_they_have_come_to():
    """By the newest layout it has left, while these slices were still where it was only given up."""
    state = with_slices(placement(*DISKS, copies=2), SliceState(1, 2, "moved"))
    state = msgspec.structs.replace(state, layouts={1: FEWER, 2: without("n3a"), 3: LayoutSpec(frozenset(("n2a",)))})
    for removing, goes_on in ((False, False), (True, True)):
        cluster = Cluster(with_disk(state, "n3a", status="down", removing=removing), up=("n1", "n2"))
        found = cluster.step()
        assert (found is not None) is goes_on
        assert found is None or found.slices[0] == SliceState(2, 3, "copying")


def test_a_disk_that_leaves_for_good_is_not_brought_up():
    state = with_disk(placement("n1a", "n2a", "n3a", "n3b"), "n3a", status="failed", removing=True)
    state = msgspec.structs.replace(with_disk(state, "n3b", status="down"), layouts={1: without("n3a")})
    new = bring_up("n3", {"n3a": "first", "n3b": "first"})(state)
    assert {disk.id: disk.status for disk in new.disks.values()} == {"n1a": "up", "n2a": "up", "n3a": "failed", "n3b": "up"}
    cluster = Cluster(with_disk(state, "n3b", status="up"), up=("n1", "n2", "n3"))
    assert not cluster.core.is_busy
    assert cluster.step() is None


@pytest.mark.parametrize("left", ["n3a", "n9a"])
def test_whoever_is_out_of_sync_with_a_disk_that_leaves_for_good_is_out_of_sync_with_all_others(left):
    """Or behind one that has left."""
    state = with_disk(placement(*DISKS, "n4a"), "n3a", status="down", removing=True)
    state = with_disk(state, "n2a", out_of_sync_with=frozenset((left,)), compare="first")
    cluster = Cluster(state, up=("n1", "n2", "n4"))
    assert cluster.step().disks["n2a"].out_of_sync_with == {"n1a", "n4a"}
    assert cluster.step("n1", "n2", "n4") is None


def test_nobody_is_out_of_sync_with_a_disk_that_leaves_for_good():
    state = with_disk(placement(*DISKS), "n3a", status="down", removing=True, down_step=7)
    state = msgspec.structs.replace(with_disk(state, "n2a", status="down", down_step=5), layouts={1: FEWER})
    assert bring_up("n2", {"n2a": "first"})(state).disks["n2a"].out_of_sync_with == {"n1a"}
    assert bring_up("n2", {"n2a": "second"})(state).disks["n2a"].out_of_sync_with == {"n1a"}


def test_a_disk_that_is_back_early_has_to_report():
    """It may be the primary again, and alone know what future replicas lack."""
    state = with_slices(placement(*DISKS), SliceState(1, 2, "copying"))
    cluster = Cluster(msgspec.structs.replace(state, layouts={1: LayoutSpec(frozenset(DISKS)), 2: without("n3a")}), up=NODES)
    cluster.ready("copied", "n1a", "n2a")
    assert cluster.step() is None
    cluster.ready("copied", "n3a")
    assert cluster.step().slices == (SliceState(1, 2, "moving"),)


def test_slices_that_have_moved_do_not_wait_for_a_disk_that_was_evicted_since():
    state = with_disk(with_slices(placement(*DISKS), SliceState(1, 2, "moved")), "n3a", status="down")
    layouts = {1: LayoutSpec(frozenset(DISKS)), 2: OTHERS, 3: LayoutSpec(OTHERS.disks, frozenset(("n3a",)))}
    cluster = Cluster(msgspec.structs.replace(state, layouts=layouts), up=("n1", "n2"))
    assert cluster.step().slices == (SliceState(2, 3, "copying"),)


def test_a_disk_that_is_up_is_not_evicted():
    cluster = Cluster(placement(*DISKS), up=NODES)
    cluster.core.want_layout(without("n3a"))
    assert cluster.step() is None


def test_a_move_that_has_not_begun_is_taken_back():
    cluster = Cluster(placement(*DISKS), up=NODES)
    cluster.core.want_layout(FEWER)
    cluster.core.want_layout(None)
    assert cluster.step() is None


def test_who_is_out_of_sync_with_several_that_are_evicted_together():
    state = placement("n1a", place("n2a", domain="z"), place("n3a", domain="z"), place("n4a", domain="z"))
    state = with_disk(state, "n4a", out_of_sync_with=frozenset(("n2a", "n3a")))
    new = start_move(LayoutSpec(frozenset(state.disks), frozenset(("n2a", "n3a"))))(state)
    assert new.disks["n4a"].out_of_sync_with == {"n1a"}


def test_one_that_was_evicted_before_is_not_out_of_sync_with_a_lost_one():
    state = with_disk(placement(*DISKS, "n4a"), "n3a", out_of_sync_with=frozenset(("n2a",)))
    state = msgspec.structs.replace(state, layouts={1: LayoutSpec(frozenset(state.disks), frozenset(("n3a",)))})
    new = start_move(LayoutSpec(frozenset(state.disks), frozenset(("n2a", "n3a"))))(state)
    assert new.disks["n3a"].out_of_sync_with == {"n1a", "n4a"}


def test_whoever_is_out_of_sync_with_a_disk_that_is_lost_again():
    """It was to be taken in again."""
    gone = LayoutSpec(frozenset(DISKS), frozenset(("n2a",)))
    state = with_disk(with_slices(placement(*DISKS), SliceState(1, 2, "copying")), "n3a", out_of_sync_with=frozenset(("n2a",)))
    state = msgspec.structs.replace(state, layouts={1: gone, 2: LayoutSpec(frozenset(DISKS))})
    assert start_move(gone)(state).disks["n3a"].out_of_sync_with == {"n1a"}


def test_whoever_is_out_of_sync_with_a_disk_that_is_evicted():
    state = with_disk(placement("n1a", "n2a", place("n2b"), "n3a"), "n2b", out_of_sync_with=frozenset(("n2a",)))
    new = start_move(LayoutSpec(frozenset(state.disks), frozenset(("n2a",))))(state)
    assert new.disks["n2b"].out_of_sync_with == {"n1a", "n3a"}


def test_nobody_who_is_back_waits_for_a_disk_that_was_evicted():
    state = msgspec.structs.replace(placement("n1a", place("n2a", status="down"), "n3a"), layouts={1: without("n3a")}, step=5)
    assert bring_up("n2", {"n2a": "first"})(state).disks["n2a"].out_of_sync_with == {"n1a"}


def test_no_bucket_gets_down_to_one_copy_while_a_disk_is_evicted():
    cluster = Cluster(msgspec.structs.replace(placement(*DISKS), layouts={1: without("n3a")}), up=NODES)
    cluster.core.want_copies(BUCKET, 1)
    assert cluster.step() is None
    cluster.core.want_copies(BUCKET, 3)
    assert cluster.step() is not None


@pytest.mark.parametrize("copies", [1, 2])
def test_more_copies_than_one_wait_for_a_disk_that_is_evicted(copies):
    state = msgspec.structs.replace(placement(*DISKS, copies=copies), layouts={1: without("n3a")})
    cluster = Cluster(msgspec.structs.replace(state, copies={BUCKET: Copies(copies, copies + 1, copies + 1)}), up=NODES)
    cluster.ready("raised", "n1a", "n2a", about=BUCKET, value=copies + 1)
    assert (cluster.step() is None) == (copies == 1)
    cluster.ready("raised", "n3a", about=BUCKET, value=copies + 1)
    assert cluster.step() is None, "until it is no longer given up: then the replicas are others"
