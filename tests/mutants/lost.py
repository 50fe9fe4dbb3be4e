"""Mistakes about disks that are lost: whether they are given up, what comes back from them, and how long tombstones stay."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant, mutant

_RULES: Final = "tests/unit/replication/test_lost.py"
_STEPS: Final = "tests/unit/replication/test_steps.py"
_USELESS: Final = "tests/unit/target/copies/test_useless.py"
_DUTY: Final = "tests/unit/proxy/duties/test_lost.py"

LOST: dict[str, Mutant] = {
    "both disks that may have an object are given up": mutant(
        "dfc.replication.lost",
        "len(domains) == 1 and all(",
        "all(",
        f"{_RULES}::test_disks_of_one_domain_are_given_up_together",
        "TypeError",
    ),
    "a disk is given up while another one lacks something": mutant(
        "dfc.replication.lost",
        "bool(others) and all(disk.is_up and not disk.behind for disk in others)",
        "bool(others)",
        f"{_RULES}::test_all_others_have_to_be_well[change0]",
    ),
    "a layout gives up what it likes": mutant(
        "dfc.replication.steps",
        "is_up for each in lost) and is_lost_alone(self.placement, lost)",
        "is_up for each in lost)",
        f"{_STEPS}::test_a_lost_disk_is_given_up_without_being_heard",
    ),
    "a disk that is up is given up": mutant(
        "dfc.replication.steps",
        "return not any(self.placement.disks[each].is_up for each in lost) and",
        "return",
        f"{_STEPS}::test_a_disk_that_is_up_is_not_given_up",
    ),
    "a disk that is back early is not heard": mutant(
        "dfc.replication.steps",
        "return frozenset() if may_lose else gone - is_back",
        "return frozenset() if may_lose else gone",
        f"{_STEPS}::test_a_disk_that_is_back_early_has_to_report",
    ),
    "a second copy goes to others when a disk is no longer given up": mutant(
        "dfc.replication.steps",
        "        if copies.reading == 1 and any(spec.gone for spec",
        "        if False and any(spec.gone for spec",
        f"{_STEPS}::test_more_copies_than_one_wait_for_a_disk_that_is_given_up[1]",
    ),
    "a layout gets a number that one had before": mutant(
        "dfc.replication.transitions",
        "        slices = [SliceState(newest)] * len(slices)\n",
        "        slices = [SliceState(min(each.at for each in slices))] * len(slices)\n",
        f"{_STEPS}::test_no_layout_gets_a_number_that_one_had_before",
    ),
    "somebody waits for a disk that is given up": mutant(
        "dfc.replication.transitions",
        "if disk.id not in lost and not disk.behind.isdisjoint(lost)",
        "if disk.id not in absent and not disk.behind.isdisjoint(lost)",
        f"{_STEPS}::test_one_that_was_given_up_before_is_not_behind_a_lost_one",
    ),
    "a disk that was given up is removed": mutant(
        "dfc.registry.changes",
        "    if cluster_map.buckets and disk.id in used:\n",
        "    if cluster_map.buckets and disk.id in cluster_map.in_use():\n",
        "tests/unit/registry/test_changes.py::test_a_disk_that_was_given_up_is_not_removed",
        "Failed",
    ),
    "one copy goes to a disk that is given up": mutant(
        "dfc.replication.steps",
        "return frozenset() if may_lose else gone - is_back",
        "return gone - is_back",
        f"{_STEPS}::test_an_object_with_one_copy_does_not_go_to_a_disk_that_is_given_up[1-False]",
    ),
    "a disk that is back gets objects at once": mutant(
        "dfc.target.copies.background.useless",
        "        if not left:\n",
        "        if True:\n",
        f"{_USELESS}::test_nothing_goes_while_nobody_decides",
    ),
    "what is useless goes unasked": mutant(
        "dfc.target.copies.background.useless",
        "strict=False) if each.decides]",
        "strict=False)]",
        f"{_USELESS}::test_nothing_goes_while_nobody_decides",
    ),
    "what is useless goes while the disk is behind": mutant(
        "dfc.target.copies.background.useless",
        "place is not None and place.is_up and not place.behind and",
        "place is not None and place.is_up and",
        f"{_USELESS}::test_nothing_goes_while_the_disk_is_behind",
    ),
    "notes for a disk that was given up stay while it is away": mutant(
        "dfc.target.copies.background.upkeep",
        "            elif place.is_up or is_no_home(placement, place.id):\n",
        "            elif place.is_up:\n",
        f"{_USELESS}::test_notes_for_a_disk_that_was_given_up_go_while_it_is_away",
    ),
    "a target that is expected back is given up": mutant(
        "dfc.proxy.duties.lost",
        "disk: now_s if _is_expected(placed[disk].node, wall_s) else self._away.get(disk, now_s)",
        "disk: self._away.get(disk, now_s)",
        f"{_DUTY}::test_a_target_that_is_expected_back_is_not_given_up",
    ),
    "a disk that fails is not given up, since its target was expected to be down": mutant(
        "dfc.proxy.duties.lost",
        'return node.state == "down" and node.expected_by > wall_s',
        "return node.expected_by > wall_s",
        f"{_DUTY}::test_a_disk_that_fails_is_given_up_whatever_is_expected_of_its_target",
        "TimeoutError",
    ),
    "an old report counts": mutant(
        "dfc.registry.changes",
        "return lambda state: state if step not in (None, state.map.step) else mark(state)",
        "return mark",
        f"{_DUTY}::test_a_report_that_a_step_overtakes_counts_for_nothing",
    ),
    "tombstones go while objects move": mutant(
        "dfc.replication.lost",
        "return placement.is_moving or any(",
        "return any(",
        f"{_RULES}::test_when_tombstones_are_needed",
    ),
    "tombstones go while a disk is away": mutant(
        "dfc.target.copies.ledger",
        "until_s = math.inf if needs_tombstones(placement) else time.monotonic() + CALM_S",
        "until_s = time.monotonic() + CALM_S",
        "tests/unit/target/copies/test_ledger.py::test_tombstones_stay_while_a_disk_is_away_or_behind[away0]",
    ),
    "a disk that was away keeps what it has of removed buckets": mutant(
        "dfc.proxy.deletions",
        "await cluster.remove_bucket(bucket, disks - done, fence=fence)",
        "await cluster.remove_bucket(bucket, (), fence=fence)",
        "tests/unit/proxy/test_deletions.py::test_a_disk_that_was_away_removes_objects_of_removed_buckets_when_it_is_back",
    ),
}
