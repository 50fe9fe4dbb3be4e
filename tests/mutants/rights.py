"""Mistakes about who may act, and when: leases, steps, maps and the coordinator."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant, mutant

_COPIES: Final = "tests/unit/target/copies"
_LEDGER: Final = f"{_COPIES}/test_ledger.py"
_LISTED: Final = f"{_COPIES}/test_listed.py"
_RECEIVING: Final = f"{_COPIES}/test_receiving.py"
_SETTLING: Final = f"{_COPIES}/test_settling.py"
_UPKEEP: Final = f"{_COPIES}/test_upkeep.py"
_STEPS: Final = "tests/unit/proxy/test_steps.py"
_LOCAL: Final = "tests/unit/target/test_local.py"
_REGISTERING: Final = "tests/unit/target/test_registering.py"

RIGHTS: dict[str, Mutant] = {
    "lease by the wall clock": mutant(
        "dfc.registry.leases",
        "return time.clock_gettime(time.CLOCK_BOOTTIME)",
        "return time.time()",
        "tests/unit/registry/test_leases.py::test_the_clock_of_leases_goes_on_in_sleep_and_cannot_be_set",
    ),
    "lease by a clock that stops in sleep": mutant(
        "dfc.registry.leases",
        "return time.clock_gettime(time.CLOCK_BOOTTIME)",
        "return time.clock_gettime(time.CLOCK_MONOTONIC)",
        "tests/unit/registry/test_leases.py::test_the_clock_of_leases_goes_on_in_sleep_and_cannot_be_set",
    ),
    "silence by the wall clock": mutant(
        "dfc.proxy.heartbeats",
        "clock_s: Callable[[], float] = boot_s)",
        "clock_s: Callable[[], float] = time.time)",
        "tests/unit/proxy/test_steps.py::test_silence_is_counted_by_the_clock_of_leases",
    ),
    "a lease counts from the answer": mutant(
        "dfc.target.membership",
        "self._take_lease(answer, sent_s)",
        "self._take_lease(answer, boot_s())",
        "tests/unit/target/test_registering.py::test_a_lease_counts_from_when_the_heartbeat_was_sent",
    ),
    "a target that stops keeps its part": mutant(
        "dfc.target.membership",
        'return self._local.standing() == "up" and any(bucket.has_several for bucket in self._local.map.buckets)',
        "return False",
        f"{_REGISTERING}::test_a_target_leaves_when_others_can_take_over[up-buckets0-True]",
    ),
    "a target that leaves keeps its lease": mutant(
        "dfc.target.membership",
        "        local.lease.end()\n        local.why_no_lease = ",
        "        local.why_no_lease = ",
        f"{_REGISTERING}::test_a_target_that_leaves_has_no_lease_any_more",
    ),
    "a target leaves without a word": mutant(
        "dfc.target.membership",
        "entries, leaving=True)",
        "entries)",
        f"{_REGISTERING}::test_a_target_that_leaves_has_no_lease_any_more",
    ),
    "a heartbeat takes back that a target leaves": mutant(
        "dfc.servers.target",
        "            await asyncio.wait((self._heart,))\n            await self._membership.leave()\n",
        "            await self._membership.leave()\n",
        f"{_REGISTERING}::test_a_target_that_stops_leaves_first[True]",
    ),
    "acknowledged after the lease": mutant(
        "dfc.target.uploads",
        "        self._local.check_leased()  # the lease may have ended",
        "        # the lease may have ended",
        "tests/unit/target/test_objects.py::test_nothing_is_acknowledged_when_the_lease_has_ended_during_the_commit[small]",
        "Failed",
    ),
    "a delete acknowledged after the lease": mutant(
        "dfc.target.objects",
        "        self._local.check_leased()  # see OwnUploads\n",
        "",
        "tests/unit/target/test_objects.py::test_nothing_is_acknowledged_when_the_lease_has_ended_during_the_commit[small]",
        "Failed",
    ),
    "a primary writes without a lease": mutant(
        "dfc.target.copies.ledger",
        "        self._local.check_leased(commits=True)\n        self._local.check_bucket(bucket)\n",
        "        self._local.check_bucket(bucket)\n",
        f"{_LEDGER}::test_nothing_is_written_without_a_lease_or_before_settling",
        "Failed",
    ),
    "a member commits without a lease": mutant(
        "dfc.target.copies.receiving",
        "leased=self._local.is_leased)",
        "leased=True)",
        f"{_RECEIVING}::test_nothing_is_committed_without_a_lease",
    ),
    "a primary writes before it is settled": mutant(
        "dfc.target.copies.ledger",
        "            settled=self.is_settled(key.bucket_id, key.name, key.disk),\n            uncertain",
        "            settled=True,\n            uncertain",
        f"{_LEDGER}::test_nothing_is_written_without_a_lease_or_before_settling",
        "Failed",
    ),
    "a guard lets one copy pass where there are several": mutant(
        "dfc.target.local",
        "if alone and current is not None and current.has_several:",
        "if False:",
        f"{_LOCAL}::test_what_has_one_copy_is_not_committed_once_the_bucket_has_more",
        "Failed",
    ),
    "decided by an older map than the sender's": mutant(
        "dfc.target.copies.receiving",
        "        if sender.version <= self._local.map.version:\n",
        "        if True:\n",
        f"{_RECEIVING}::test_nothing_is_decided_by_an_older_map",
        "Failed",
    ),
    "a step is acknowledged before older commits are done": mutant(
        "dfc.target.local",
        "            await asyncio.gather(*(self.threads(disk).write(disk.settle) for disk in self.in_order()))\n",
        "",
        f"{_LOCAL}::test_a_map_is_decided_by_when_older_commits_are_done",
    ),
    "pending rows are told before older commits are done": mutant(
        "dfc.target.copies.receiving",
        "        await self._local.decide_by(self._local.map)\n",
        "",
        f"{_RECEIVING}::test_a_new_primary_hears_of_pending_rows_when_nothing_comes_for_the_old_one",
    ),
    "more copies are planned before older commits are done": mutant(
        "dfc.target.copies.background.upkeep",
        "        await self._local.decide_by(self._local.map)\n",
        "",
        f"{_UPKEEP}::test_what_was_committed_with_one_copy_is_planned_too",
    ),
    "an older map is taken": mutant(
        "dfc.target.local",
        "if new.version <= self.map.version or (",
        "if (",
        f"{_LOCAL}::test_only_newer_maps_of_the_same_cluster_are_taken",
    ),
    "a page of a listing without a lease": mutant(
        "dfc.target.listing",
        "        self._local.check_leased()\n        await self._check_step(step)\n",
        "        await self._check_step(step)\n",
        f"{_LISTED}::test_what_is_listed_and_counted_without_a_lease_is_not_told",
        "Failed",
    ),
    "a page of a listing of two steps": mutant(
        "dfc.target.listing",
        "        self._local.check_leased()\n        await self._check_step(step)\n",
        "        self._local.check_leased()\n",
        f"{_LISTED}::test_a_page_is_of_one_step",
        "Failed",
    ),
    "numbers of nodes are given again": Mutant(
        "dfc.registry.changes",
        (
            ("= base.last_number\n", "= max((node.number for node in base.map.nodes), default=0)\n"),
            ("if new.last_number < max((", "if 0 > max(("),
        ),
        "tests/unit/registry/test_changes.py::test_numbers_of_nodes_are_not_given_again",
    ),
}

COORDINATOR: dict[str, Mutant] = {
    "nobody waits for what a disk in doubt owes": mutant(
        "dfc.replication.transitions",
        'return incarnation.partition(".")[0]',
        "return incarnation",
        "tests/unit/replication/test_steps.py::test_a_disk_in_doubt_is_behind_all_others_and_they_stay_behind_it",
    ),
    "a disk in doubt waits for nobody who stopped before it": mutant(
        "dfc.replication.transitions",
        "(others - (asleep & set(long_gone)))",
        "(others - asleep)",
        "tests/unit/replication/test_steps.py::test_a_disk_in_doubt_is_behind_all_others_and_they_stay_behind_it",
    ),
    "a primary passes over a disk before all targets know": mutant(
        "dfc.proxy.steps",
        "while not planner.is_behind(primary, disk):",
        "while primary not in planner.placement.disks[disk].behind:",
        f"{_STEPS}::test_a_primary_is_answered_when_all_targets_know_who_is_behind_it",
    ),
    "a clean report of an older step counts": mutant(
        "dfc.proxy.steps",
        "if not planner.report_clean(disk, behind, step):",
        "if not planner.report_clean(disk, behind, planner.placement.step):",
        f"{_STEPS}::test_a_report_of_an_older_step_clears_nobody",
        "Failed",
    ),
    "a proxy takes a step that is not the coordinator any more": mutant(
        "dfc.proxy.steps",
        "await self._cluster.change(take_step(before, new, seen), fence=leadership)",
        "await self._cluster.change(take_step(before, new, seen))",
        f"{_STEPS}::test_who_leads_no_longer_takes_no_step",
    ),
    "a target that is being declared down gets a lease": mutant(
        "dfc.proxy.steps",
        "or said.starting or said.node_id in self._going:",
        "or said.starting:",
        f"{_STEPS}::test_one_that_is_being_marked_down_gets_none",
    ),
    "a target with a clock far ahead gets a lease": mutant(
        "dfc.proxy.registrations",
        "if ahead_s > CLOCK_AHEAD_S_MAX:",
        "if False:",
        f"{_STEPS}::test_one_whose_clock_is_far_ahead_gets_none",
    ),
    "what a newer target says is passed over": mutant(
        "dfc.registry.registration",
        "class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):",
        "class Registration(msgspec.Struct, frozen=True, kw_only=True):",
        "tests/unit/registry/test_registration.py::test_what_a_newer_target_says_is_refused_and_not_overlooked",
        "Failed",
    ),
}
