"""Mistakes about disks that are lost: whether they are given up, what comes back from them, and how long tombstones stay."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Table, mutant

_RULES: Final = "tests/unit/replication/test_lost.py"
_STEPS: Final = "tests/unit/replication/test_steps.py"
_STALE: Final = "tests/unit/target/copies/test_stale.py"
_REMOVING: Final = "tests/unit/placement/test_removing.py"
_WEIGHTS: Final = "tests/unit/placement/test_weights.py"
_DUTY: Final = "tests/unit/proxy/test_lost.py"

LOST: Final[Table] = {
    "dfc.replication.recovery": {
        "both disks that may have an object are evicted": mutant(
            "len(domains) == 1 and all(", "all(", f"{_RULES}::test_disks_of_one_domain_are_evicted_together", "TypeError"
        ),
        "a disk is evicted while another one lacks something": mutant(
            "bool(others) and all(disk.is_in_sync for disk in others)",
            "bool(others)",
            f"{_RULES}::test_all_others_have_to_be_well[change0]",
        ),
        "tombstones go while objects move": mutant(
            "return placement.is_moving or any(", "return any(", f"{_RULES}::test_when_tombstones_are_needed"
        ),
    },
    "dfc.replication.steps": {
        "a layout gives up what it likes": mutant(
            "is_up for each in lost) and is_lost_alone(self.placement, lost)",
            "is_up for each in lost)",
            f"{_STEPS}::test_a_lost_disk_is_evicted_without_being_heard",
        ),
        "a disk that is up is evicted": mutant(
            "return not any(self.placement.disks[each].is_up for each in lost) and",
            "return",
            f"{_STEPS}::test_a_disk_that_is_up_is_not_evicted",
        ),
        "a disk that is back early is not heard": mutant(
            "(frozenset() if may_lose else gone - is_back)",
            "(frozenset() if may_lose else gone)",
            f"{_STEPS}::test_a_disk_that_is_back_early_has_to_report",
        ),
        "a second copy goes to others when a disk is no longer evicted": mutant(
            "        if copies.reading == 1 and any(spec.gone for spec",
            "        if False and any(spec.gone for spec",
            f"{_STEPS}::test_more_copies_than_one_wait_for_a_disk_that_is_evicted[1]",
        ),
        "a target that has just joined is silent": mutant(
            "self._known_s.setdefault(node, now_s) if heard",
            "self._began_s if heard",
            f"{_STEPS}::test_a_target_that_has_just_joined_is_not_silent_yet",
        ),
        "one copy goes to a disk that is evicted": mutant(
            "(frozenset() if may_lose else gone - is_back)",
            "(gone - is_back)",
            f"{_STEPS}::test_an_object_with_one_copy_does_not_go_to_a_disk_that_is_evicted[1-False]",
        ),
        "one copy moves by other weights from a disk that is evicted": mutant(
            "gone and not at.ranks_like(to) and",
            "gone and at.disks != to.disks and",
            f"{_STEPS}::test_nor_does_it_by_other_weights_of_the_same_disks[1-False]",
        ),
        "a move waits for a disk that is removed for good": mutant(
            "return removed | (", "return (", f"{_STEPS}::test_slices_do_not_wait_for_a_disk_that_leaves_for_good[1]"
        ),
        "a move waits for one that was evicted where slices have come to": mutant(
            "each in at.gone | to.gone if ",
            "each in at.gone if ",
            f"{_STEPS}::test_nor_for_one_that_was_evicted_where_they_have_come_to",
        ),
        "somebody is out of sync with a disk that was removed": mutant(
            "        if changed != self.placement:\n            return _numbered(self.placement, changed)\n",
            "",
            f"{_STEPS}::test_whoever_is_out_of_sync_with_a_disk_that_leaves_for_good_is_out_of_sync_with_all_others[n9a]",
            "AttributeError",
        ),
    },
    "dfc.replication.transitions": {
        "a layout gets a number that one had before": mutant(
            "        slices = [SliceState(newest)] * len(slices)\n",
            "        slices = [SliceState(min(each.at for each in slices))] * len(slices)\n",
            f"{_STEPS}::test_no_layout_gets_a_number_that_one_had_before",
        ),
        "somebody waits for a disk that is evicted": mutant(
            "if disk.id not in lost and not disk.out_of_sync_with.isdisjoint(lost)",
            "if disk.id not in absent and not disk.out_of_sync_with.isdisjoint(lost)",
            f"{_STEPS}::test_one_that_was_evicted_before_is_not_out_of_sync_with_a_lost_one",
        ),
        "a disk that is removed for good is brought up": mutant(
            "disk in incarnations and not place.removing:",
            "disk in incarnations:",
            f"{_STEPS}::test_a_disk_that_leaves_for_good_is_not_brought_up",
        ),
    },
    "dfc.registry.changes": {
        "a disk that was evicted is removed": mutant(
            "    return bool(cluster_map.buckets) and disk.id in used\n",
            "    return bool(cluster_map.buckets) and disk.id in cluster_map.in_use()\n",
            "tests/unit/registry/test_changes.py::test_a_disk_that_was_evicted_is_not_removed",
            "Failed",
        ),
        "an old report counts": mutant(
            "return lambda state: state if step not in (None, state.map.step) else mark(state)",
            "return mark",
            f"{_DUTY}::test_a_report_that_a_step_overtakes_counts_for_nothing",
        ),
        "a disk that was removed for good joins again": mutant(
            "for disk in registration.disks) if registration.starting else ()",
            "for disk in registration.disks) if False else ()",
            "tests/unit/registry/test_removing.py::test_it_is_refused_from_then_on",
            "Failed",
        ),
    },
    "dfc.target.copies.walks": {
        "a disk that is back gets objects at once": mutant(
            "        if not left:\n", "        if True:\n", f"{_STALE}::test_nothing_goes_while_nobody_decides"
        ),
        "what is stale goes unasked": mutant(
            "strict=False) if each.decides]", "strict=False)]", f"{_STALE}::test_nothing_goes_while_nobody_decides"
        ),
        "what is stale goes while the disk is out of sync": mutant(
            "place is not None and place.is_up and not place.out_of_sync_with and",
            "place is not None and place.is_up and",
            f"{_STALE}::test_nothing_goes_while_the_disk_is_out_of_sync",
        ),
    },
    "dfc.target.copies.upkeep": {
        "hints for a disk that was evicted stay while it is away": mutant(
            "            elif place.is_up or is_no_replica(placement, place.id):\n",
            "            elif place.is_up:\n",
            f"{_STALE}::test_hints_for_a_disk_that_was_evicted_go_while_it_is_away",
        ),
    },
    "dfc.proxy.duties": {
        "a target that is expected back is evicted": mutant(
            "disk: now_s if _is_expected(placed[disk].node, wall_s) else self._away.get(disk, now_s)",
            "disk: self._away.get(disk, now_s)",
            f"{_DUTY}::test_a_target_that_is_expected_back_is_not_evicted",
        ),
        "a disk that fails is not evicted, since its target was expected to be down": mutant(
            'return node.state == "down" and node.expected_by > wall_s',
            "return node.expected_by > wall_s",
            f"{_DUTY}::test_a_disk_that_fails_is_evicted_whatever_is_expected_of_its_target",
            "TimeoutError",
        ),
    },
    "dfc.target.copies.ledger": {
        "tombstones go while a disk is away": mutant(
            "until_s = math.inf if needs_tombstones(placement) else time.monotonic() + CALM_S",
            "until_s = time.monotonic() + CALM_S",
            "tests/unit/target/copies/test_ledger.py::test_tombstones_stay_while_a_disk_is_away_or_out_of_sync[away0]",
        ),
    },
    "dfc.placement.mapped": {
        "weights change while only a lost disk may have an object": mutant(
            "        disks, weights = newest.disks, newest.weights\n",
            "        disks = newest.disks\n",
            f"{_WEIGHTS}::test_weights_wait_while_moves_are_paused_or_only_a_lost_disk_may_have_an_object",
        ),
        "weights change while moves are paused": mutant(
            "newest.disks, evicted, newest.weights, stays",
            "newest.disks, evicted, wanted_weights(cluster_map), stays",
            f"{_WEIGHTS}::test_weights_wait_while_moves_are_paused_or_only_a_lost_disk_may_have_an_object",
        ),
        "a disk leaves before others have its copies": mutant(
            "if all(disk not in spec.disks - spec.gone for spec in specs)",
            "if specs",
            f"{_REMOVING}::test_it_is_given_up_first_and_then_leaves",
        ),
        "a disk leaves while moves are paused": mutant(
            ", stays=newest.disks)", ")", f"{_REMOVING}::test_nobody_leaves_while_moves_are_paused"
        ),
    },
    "dfc.placement.map": {
        "a layout forgets its weights in the map": mutant(
            "_layout(by_id, each.disks, each.weights)",
            "_layout(by_id, each.disks, {})",
            f"{_WEIGHTS}::test_the_map_and_its_placement_agree_about_weights",
        ),
    },
    "dfc.proxy.admin": {
        "what is on a lost disk is lost unasked": mutant(
            "        if losses and not accept_loss:\n",
            "        if losses and False:\n",
            "tests/unit/proxy/test_removing.py::test_objects_with_one_copy_are_not_lost_unasked",
            "Failed",
        ),
    },
    "dfc.proxy.buckets": {
        "a disk that was away keeps what it has of removed buckets": mutant(
            "await cluster.remove_bucket(bucket, disks - done, fence=fence)",
            "await cluster.remove_bucket(bucket, (), fence=fence)",
            "tests/unit/proxy/test_deletions.py::test_a_disk_that_was_away_removes_objects_of_removed_buckets_when_it_is_back",
        ),
    },
}
