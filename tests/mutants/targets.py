"""Mistakes of targets: when a write is acknowledged, what is served and denied, and what is done about copies."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant, Table, mutant

_COPIES: Final = "tests/unit/target/copies"
_RECEIVING: Final = f"{_COPIES}/test_receiving.py"
_PEERING: Final = f"{_COPIES}/test_peering.py"
_STORING: Final = f"{_COPIES}/test_storing.py"
_LEDGER: Final = f"{_COPIES}/test_ledger.py"
_UPKEEP: Final = f"{_COPIES}/test_upkeep.py"
_COMING: Final = f"{_COPIES}/test_coming.py"
_REPAIRING: Final = f"{_COPIES}/test_repairing.py"
_DELIVERIES: Final = f"{_COPIES}/test_deliveries.py"
_PUBLISHING: Final = "tests/unit/target/test_publishing.py"
_WRITING: Final = f"{_COPIES}/test_writing.py"
_LOCAL: Final = "tests/unit/target/test_local.py"

WRITES: Final[Table] = {
    "dfc.target.publishing": {
        "outputs of a job have one copy until they are published": mutant(
            "return [each for each in (*found.members, *found.handoffs) if each != disk.id and each in placed]",
            "return []",
            "tests/unit/target/test_publishing.py::test_an_output_is_wherever_a_write_of_its_name_would_go_before_it_is_published",
            "ValueError",
        ),
        "outputs of a job have no copies on handoff replicas": mutant(
            "(*found.members, *found.handoffs)",
            "found.members",
            "tests/unit/target/test_publishing.py::test_an_output_is_wherever_a_write_of_its_name_would_go_before_it_is_published",
        ),
        "an output counts when it is published": mutant(
            "        await self._until_replicated(disk)\n        while left := self._left(disk, job):",
            "        while left := ():",
            f"{_STORING}::test_outputs_are_published_with_copies",
        ),
    },
    "dfc.storage.catalog.changes": {
        "a copy of an output is kept for a job that is over": mutant(
            "if _ended(transaction, self._owner.job):",
            "if False:",
            "tests/unit/target/copies/test_receiving.py::test_a_copy_of_an_output_that_must_not_be_kept[the job is over]",
            "Failed",
        ),
    },
    "dfc.target.copies.objects": {
        "acknowledged before the members' commit": mutant(
            "return result, await self._writes.until_replicated(written.task, key, written.version, until_s)",
            "return result, None",
            f"{_STORING}::test_who_waits_too_long_for_copies_is_told",
            "Failed",
        ),
        "a client that leaves takes its write with it": mutant(
            "        result, written = await asyncio.shield(begun)\n",
            "        result, written = await begun\n",
            f"{_STORING}::test_a_client_that_leaves_during_the_commit_has_written",
            "TimeoutError",
        ),
        "a write fails when the map has just changed": mutant(
            "            except NotPeered:\n                await self._until_peered(key, until_s)\n",
            "            except NotPeered:\n                raise\n",
            f"{_STORING}::test_a_write_waits_for_what_others_have_when_the_map_has_just_changed[large]",
            "NotPeered",
        ),
    },
    "dfc.target.copies.writes": {
        "a member that refuses counts": mutant(
            "(self._writing.committed if taken else self._writing.failed)(to)",
            "self._writing.committed(to)",
            f"{_WRITING}::test_a_refusal_is_no_copy",
        ),
        "a member that lacks the body counts": mutant(
            'return outcome == "taken"',
            'return outcome in ("taken", "unknown", None)',
            f"{_WRITING}::test_a_stream_that_breaks_off_is_tried_again",
        ),
        "an acknowledged write leaves no hint for who lacks it": mutant(
            "        if instruction.hints:\n", "        if False:\n", f"{_WRITING}::test_all_others_are_away"
        ),
    },
    "dfc.replication.write": {
        "replicated without a required member": mutant(
            "if not missing and self._copies(placement) >= self._enough(placement, found, wanted):",
            "if self._copies(placement) >= self._enough(placement, found, wanted):",
            "tests/unit/replication/test_write.py::test_both_layouts_of_a_move_must_have_it",
        ),
        "a copy is waited for that is down by now": mutant(
            "if each in placement.up and not self._is_lost(each)",
            "if not self._is_lost(each)",
            "tests/unit/replication/test_write.py::test_one_that_has_committed_and_is_down_by_now_is_not_waited_for",
        ),
    },
    "dfc.target.copies.receive": {
        # It looks twice: before it takes a body that was sent ahead, and where nothing else can come between.
        "a member says that it has what it lacks": Mutant(
            (
                ("if verdict.commits or (state is not None", "if (state is not None"),
                ('return "unknown" if verdict.commits else "taken"', 'return "taken"'),
            ),
            f"{_RECEIVING}::test_a_large_row_is_wanted_with_its_body",
        ),
        "a member has what it is undoing": mutant(
            "        verdict = await threads.go_on(disk.copies.meet, item.bucket_id, item.name, decide)\n",
            "",
            f"{_RECEIVING}::test_a_large_row_that_is_being_undone_is_not_here",
        ),
        "small copies are stored as relaxed ones": mutant(
            "disk.copies.adopt_small, copies, items[0].durability)",
            'disk.copies.adopt_small, copies, "relaxed")',
            f"{_RECEIVING}::test_a_copy_is_as_durable_as_the_sender_wants[small]",
        ),
        "large copies are stored as relaxed ones": mutant(
            "await self._receive(item.key, body, supplied, expected, item.durability, ",
            'await self._receive(item.key, body, supplied, expected, "relaxed", ',
            f"{_RECEIVING}::test_a_copy_is_as_durable_as_the_sender_wants[large]",
        ),
        "a member makes no hints for replicas that are away": mutant(
            "hints = tuple(hints_after_commit(placement, found, item.to))",
            "hints = ()",
            f"{_RECEIVING}::test_replicas_that_are_away_are_hinted",
        ),
    },
    "dfc.storage.blobs.writer": {
        "a large upload fails when its bucket gets more copies": mutant(
            "self._committing = self._aborted or not isinstance(error, OtherCondition)",
            "self._committing = True",
            f"{_STORING}::test_a_bucket_gets_more_copies_in_the_middle_of_a_write[large]",
            "RuntimeError",
        ),
        "a blob stays that was given up while it could have been committed otherwise": mutant(
            "self._committing = self._aborted or not isinstance(error, OtherCondition)",
            "self._committing = not isinstance(error, OtherCondition)",
            "tests/unit/storage/blobs/test_writer.py::"
            "test_an_upload_that_may_be_committed_otherwise_is_kept[aborted meanwhile]",
        ),
    },
}

READS: Final[Table] = {
    "dfc.target.local": {
        "404 while a replica is away: nobody is a reader": mutant(
            "        if not readers:\n",
            "        if False:\n",
            f"{_STORING}::test_a_name_without_a_reader_is_unavailable",
            "Failed",
        ),
        "404 while a replica is away: the disk is missing": mutant(
            '            raise Unavailable(f"disk {owner.disk.id} of this target is missing", retry_after_s=5)\n',
            "            return None\n",
            f"{_LOCAL}::test_owners",
            "Failed",
        ),
        "404 without a lease": mutant(
            "        except NotFound:\n            self.check_leased()\n            raise\n",
            "        except NotFound:\n            raise\n",
            f"{_LOCAL}::test_nothing_is_denied_without_a_lease",
            "ObjectNotFound",
        ),
    },
    "dfc.placement.roles": {
        "404 while a replica is away: the other one is out of sync": mutant(
            "if disks[each].is_up and not disks[each].out_of_sync_with])",
            "if disks[each].is_up])",
            "tests/unit/placement/test_roles.py::test_a_disk_that_is_behind_is_written_and_not_read",
        ),
    },
    "dfc.target.copies.objects": {
        "404 while a replica is away: the new primary is not peered": mutant(
            "                missing = error\n            found = self._ledger",
            "                missing = error\n                raise\n            found = self._ledger",
            f"{_STORING}::test_an_unsettled_name_is_not_served",
            "ObjectNotFound",
        ),
        "404 for a job or a named shard while a delete may be undone": mutant(
            "                missing = error\n            self.check_served(disk, bucket_id, name)\n",
            "                missing = error\n",
            f"{_STORING}::test_a_look_up_says_only_what_counts",
            "ObjectNotFound",
        ),
        "a row that was undone while it was looked up is given to a job": mutant(
            "            if undone == disk.copies.undone:  # else",
            "            if True:  # else",
            f"{_STORING}::test_a_look_up_is_repeated_when_a_row_was_undone_meanwhile",
            "Failed",
        ),
        "a row that was undone while it was read is served": mutant(
            "if verdict is ReadVerdict.SERVE and undone == disk.copies.undone:",
            "if verdict is ReadVerdict.SERVE:",
            f"{_STORING}::test_a_row_that_is_undone_while_it_is_read_is_not_served",
            "Failed",
        ),
    },
    "dfc.target.batch": {
        "404 in a batch of what is not peered": mutant(
            "        except ObjectNotFound:\n            self._check_served(disk, bucket_id, name)\n",
            "        except ObjectNotFound:\n",
            "tests/unit/target/test_resolving.py::test_what_does_not_count_for_certain_is_neither_served_nor_missing[fail]",
        ),
        "a batch has what does not count for certain": mutant(
            "                self._check_served(disk, bucket_id, name)  # after the last look-up\n",
            "",
            "tests/unit/target/test_resolving.py::test_what_does_not_count_for_certain_is_neither_served_nor_missing[fail]",
            "Failed",
        ),
    },
    "dfc.proxy.cluster": {
        "an answer of all targets is short while one is down": mutant(
            "        if cover.missing:\n",
            "        if False:\n",
            "tests/unit/proxy/test_cluster.py::test_a_target_that_is_down",
            "Failed",
        ),
        "a listing is short while both replicas are away": mutant(
            "        if len(unread) >= bucket.copies:\n",
            "        if len(unread) > bucket.copies:\n",
            "tests/unit/proxy/test_cluster.py::test_with_copies_as_many_targets_may_be_down_as_leave_one_of_each_object",
            "Failed",
        ),
    },
    "dfc.replication.write": {
        "a pending row is served by a reader that is not the primary": mutant(
            "return ReadVerdict.ASK_PRIMARY if pending else ReadVerdict.SERVE",
            "return ReadVerdict.SERVE",
            f"{_STORING}::test_a_row_that_the_primary_does_not_have_is_not_served",
            "Failed",
        ),
    },
    "dfc.target.objects": {
        "a row in memory that was undone while it was read is served": mutant(
            "self._copied.may_serve(disk, bucket.id, path.name) and undone == disk.copies.undone)",
            "self._copied.may_serve(disk, bucket.id, path.name))",
            f"{_STORING}::test_a_row_that_is_undone_while_it_is_read_is_not_served",
        ),
        "a row in memory is served whoever reads it": mutant(
            "if bucket.has_several and not (self._copied.may_serve(disk, bucket.id, path.name)"
            " and undone == disk.copies.undone):",
            "if False:",
            f"{_STORING}::test_what_is_in_memory_is_served_by_the_same_rules",
        ),
        "a condition is decided by a write that may be undone": mutant(
            "return  # what is there now may be undone",
            "pass",
            f"{_STORING}::test_a_condition_is_not_decided_by_a_write_that_may_be_undone",
        ),
    },
}

UPKEEP: Final[Table] = {
    "dfc.replication.recovery": {
        "what a job publishes is undone": mutant(
            "return Resolution.OFFER if published and (theirs is None or theirs < own) else Resolution.REVERT",
            "return Resolution.REVERT",
            f"{_UPKEEP}::test_what_a_job_publishes_stays_until_its_primary_has_it[None]",
        ),
        "what a job publishes gives way to what may be undone": mutant(
            "if changed or (not replicated and (published or theirs in (own, None))):",
            "if changed or (not certain and theirs in (own, None)):",
            f"{_UPKEEP}::test_what_a_job_publishes_follows_its_primary_from_then_on[replaced]",
        ),
        "another primary meanwhile counts for nothing": mutant(
            "(*self._since, before) if len",
            "self._since if len",
            "tests/unit/replication/test_recovery.py::test_a_primary_that_is_one_again_peers_first",
        ),
        "steps that were missed count for nothing": mutant(
            "        if before is None or placement.step != before.step + 1:\n",
            "        if before is None:\n",
            "tests/unit/replication/test_recovery.py::test_after_steps_that_are_not_known_nothing_is_peered",
        ),
    },
    "dfc.target.publishing": {
        "a publication ends while primaries lack outputs": mutant(
            "while left := self._left(disk, job):",
            "while left := ():",
            f"{_PUBLISHING}::test_publishing_is_given_up_in_time_if_no_primary_takes_an_output",
            "Failed",
        ),
        "an output is taken without a guard": mutant(
            "standing = guarded.check_guard()",
            "standing = Standing(0, pending=True)",
            f"{_PUBLISHING}::test_a_target_that_cannot_take_an_output_leaves_everything_as_it_is[no lease]",
        ),
    },
    "dfc.target.copies.ledger": {
        "an output is published in place of what may be undone": mutant(
            "if pending:\n            raise Unavailable",
            "if False:\n            raise Unavailable",
            f"{_PUBLISHING}::test_nothing_is_published_in_place_of_what_may_be_undone",
            "Failed",
        ),
        "reported clean only when nobody writes": mutant(
            "        self.left.discard(key)\n",
            "        pass\n",
            f"{_UPKEEP}::test_nobody_is_reported_before_the_writes_that_are_on_their_way_are_over",
        ),
        "reports wait on in another step": mutant(
            "            while ending.left and self.placement is placement:\n",
            "            while ending.left:\n",
            f"{_UPKEEP}::test_a_report_ends_with_its_step",
        ),
        "excess rows go by an older map": mutant(
            "        if self.placement is not placement:\n            raise PlacementChanged",
            "        if False:\n            raise PlacementChanged",
            f"{_UPKEEP}::test_a_map_that_changes_meanwhile_removes_nothing",
        ),
        "ranks of before are taken for those of now": mutant(
            "return self.ranked.get(disk, FIRST_LAYOUT) == self.placement.stable_layout",
            "return self.ranked.get(disk, FIRST_LAYOUT) > 0",
            f"{_COMING}::test_rows_get_their_ranks_when_all_has_moved",
        ),
        "what a bucket with more copies waits for is all that moves": mutant(
            "return disk if keeps_out_of_sync(found, disk) else later(disk)",
            "return disk",
            f"{_COMING}::test_more_copies_do_not_wait_for_what_moves",
        ),
    },
    "dfc.target.copies.receive": {
        "what a job publishes is like any other row at others": mutant(
            "Standing(standing.rank, True, hints, item.job)",
            "Standing(standing.rank, True, hints)",
            f"{_UPKEEP}::test_what_a_job_publishes_stays_until_its_primary_has_it[None]",
        ),
    },
    "dfc.storage.catalog.changes": {
        "marks of a job stay when it is over": mutant(
            "transaction.end_publication(self._job)",
            "pass",
            "tests/unit/storage/test_copies.py::test_a_disk_remembers_what_a_job_publishes_until_it_counts_or_is_replaced",
        ),
    },
    "dfc.target.copies.peering": {
        "peered before everybody has answered": mutant(
            "            if answer is None:\n                return False\n",
            "            if answer is None:\n"
            "                self._ledger.peering.answered(node.id, step)\n"
            "                return True\n",
            f"{_PEERING}::test_names_wait_until_all_others_have_answered",
        ),
        "peered before a row has come": mutant(
            "                    self._ledger.peering.expect(*name)\n",
            "",
            f"{_PEERING}::test_a_row_that_is_slow_to_come_keeps_only_its_name_waiting",
        ),
    },
    "dfc.target.copies.upkeep": {
        "an answer that is late undoes a row": Mutant(
            (
                ("changed=has_changed(), replicated", "changed=False, replicated"),
                ("            if has_changed():\n", "            if False:\n"),
            ),
            f"{_UPKEEP}::test_an_answer_is_nothing_when_a_row_has_come_meanwhile[same]",
        ),
        "a row that comes while another is fetched is undone": mutant(
            "            if has_changed():\n",
            "            if False:\n",
            f"{_UPKEEP}::test_an_answer_is_nothing_when_a_row_has_come_meanwhile[fetched]",
        ),
        "a row is undone by whoever is not sure": mutant(
            "                if each.decides:\n",
            "                if True:\n",
            f"{_UPKEEP}::test_a_row_stays_pending_until_its_primary_is_sure",
        ),
        "reported clean before it is required again": mutant(
            "        cleared.add(other)  #", "        #", f"{_UPKEEP}::test_a_disk_that_has_caught_up_is_reported"
        ),
        "reported clean whatever has come meanwhile": mutant(
            "if not is_clean or not await self._ledger.until_over(self._disk.id) or await self._still_has_hints(other):",
            "if not is_clean or not await self._ledger.until_over(self._disk.id):",
            f"{_UPKEEP}::test_what_comes_while_a_disk_is_asked_withholds_the_report[note]",
        ),
        "reported clean while a write is on its way": mutant(
            "if not is_clean or not await self._ledger.until_over(self._disk.id) or await self._still_has_hints(other):",
            "if not is_clean or await self._still_has_hints(other):",
            f"{_UPKEEP}::test_what_comes_while_a_disk_is_asked_withholds_the_report[write]",
        ),
        "reported clean although it was passed over since": mutant(
            "if self._ledger.placement is placement and other in cleared:",
            "if self._ledger.placement is placement:",
            f"{_UPKEEP}::test_what_comes_while_a_disk_is_asked_withholds_the_report[passed over]",
        ),
        "a disk that came back empty gets no hints": mutant(
            "            async for hints in walk_names(self._threads, self._disk, partial(self._belonging_to, other.id)):\n"
            "                if hints:\n"
            "                    await self._threads.go_on(self._disk.copies.add_hints, hints)\n",
            "",
            f"{_UPKEEP}::test_a_disk_that_came_back_empty_gets_all_that_belongs_to_it",
        ),
        "a disk that came back empty gets hints for what does not belong to it": mutant(
            "for name, found in named if disk in found.everywhere]",
            "for name, found in named]",
            f"{_UPKEEP}::test_a_disk_that_came_back_empty_gets_all_that_belongs_to_it",
        ),
        "reported clean before it was compared": mutant(
            "if not await self._compare(place) or ",
            "if ",
            f"{_UPKEEP}::test_a_disk_that_came_back_empty_is_not_clean_before_it_was_compared[write]",
        ),
        "a disk that came back empty twice is compared once": mutant(
            "        if other.compare and self._compared.get(other.id) != other.compare:\n",
            "        if other.compare and other.id not in self._compared:\n",
            f"{_UPKEEP}::test_each_disk_that_came_back_empty_is_compared_once",
        ),
        "a disk is compared before all is peered": mutant(
            " or self._disk.id not in place.out_of_sync_with or not self._ledger.peering.is_done:\n",
            " or self._disk.id not in place.out_of_sync_with:\n",
            f"{_UPKEEP}::test_a_disk_that_came_back_empty_is_not_clean_before_it_was_compared[settling]",
        ),
        "a disk is compared while a write is on its way": mutant(
            "            if not await self._ledger.until_over(self._disk.id):\n                return False\n",
            "",
            f"{_UPKEEP}::test_a_disk_that_came_back_empty_is_not_clean_before_it_was_compared[write]",
        ),
        "what takes the place of a tombstone is the first replica's": mutant(
            "revert_to, writer, version, guard=guard, rank=rank, pending=pending)",
            "revert_to, writer, version, guard=guard, pending=pending)",
            f"{_UPKEEP}::test_a_row_that_its_primary_does_not_have_is_undone[older-tombstone]",
        ),
        "damaged objects stay damaged": mutant(
            "        if self._disk.copies.has_damaged:\n",
            "        if False:\n",
            f"{_REPAIRING}::test_all_damaged_objects_are_repaired",
        ),
        "a row refuses for ever what waits for it": mutant(
            "                if each.decides:\n",
            "                if each.speaks:\n",
            f"{_UPKEEP}::test_a_row_gives_way_to_one_that_waits_for_it[one]",
        ),
        "a row that gives way counts what it gives way to": mutant(
            "        pending = not reply.speaks\n",
            "        pending = False\n",
            f"{_UPKEEP}::test_a_row_gives_way_to_one_that_waits_for_it[one]",
        ),
        "what a member lacks does not keep it out of sync": mutant(
            "if not names and are_roles_changing(self._ledger.placement):",
            "if False:",
            f"{_COMING}::test_a_disk_is_not_out_of_sync_for_want_of_what_moves_to_it",
        ),
        "a disk stays out of sync while others write": mutant(
            "            if self._deliveries.has_just_tried(whom, names) or await self._deliveries.deliver(whom):\n",
            "            if True:\n",
            f"{_UPKEEP}::test_hints_that_come_all_the_time_do_not_keep_a_disk_out_of_sync",
        ),
    },
    "dfc.target.copies.deliveries": {
        "a hint is dropped unasked": mutant(
            "given = {row for row, outcome in zip(sent, outcomes, strict=True) if outcome is True}",
            "given = set(missing)",
            f"{_DELIVERIES}::test_a_refusal_keeps_the_hint",
        ),
        "a row is given that was on its way when it was read": mutant(
            "if each.key in spoke and self._ledger.speaks(each.key):",
            "if self._ledger.speaks(each.key):",
            f"{_DELIVERIES}::test_a_row_with_a_write_on_its_way_is_not_given[before]",
        ),
        "a row is given that may have been replaced": mutant(
            "if each.key in spoke and self._ledger.speaks(each.key):",
            "if each.key in spoke:",
            f"{_DELIVERIES}::test_a_row_with_a_write_on_its_way_is_not_given[after]",
        ),
        "a hint is handed over and dropped": mutant(
            "            await self._peers.hand_over(primary, [CopyKey(hinted_disk(whom), *row.key[1:]) for row in left])\n",
            "            await self._peers.hand_over(primary, [CopyKey(hinted_disk(whom), *row.key[1:]) for row in left])\n"
            "            await self._drop_hints(placement, whom, left)\n",
            f"{_DELIVERIES}::test_another_holder_asks_and_tells_the_primary",
        ),
        "a hint of an object that is long gone stays for ever": mutant(
            "        if forgotten:\n",
            "        if False:\n",
            f"{_DELIVERIES}::test_a_row_of_which_its_primary_knows_nothing_goes_with_its_hint",
        ),
        "a row goes to a disk without its mark": mutant(
            'is_pending = kind == "direct" and self._disk.copies.is_pending(*row.key[1:])',
            "is_pending = False",
            f"{_DELIVERIES}::test_without_a_primary_a_holder_gives_what_it_has",
        ),
        "a disk that does not answer gets all its hints tried": mutant(
            "            if self._peers.reached.of(to).is_silent_since(before):\n",
            "            if False:\n",
            f"{_DELIVERIES}::test_a_disk_that_does_not_answer_is_left_alone_for_a_while",
        ),
        "moves that are paused go on": mutant(
            "        while not rests(self._local.map, whom):\n",
            "        while True:\n",
            f"{_COMING}::test_while_moves_are_paused_nothing_is_sent_to_future_replicas",
        ),
        "moves have no limit": mutant(
            "sent = self._within_limit(whom, missing, batch)",
            "sent = missing",
            f"{_COMING}::test_objects_move_no_faster_than_they_may",
        ),
        "copies that were lost wait for other moves": mutant(
            "        if not is_restoring(self._ledger.placement):\n",
            "        if True:\n",
            f"{_COMING}::test_copies_that_were_lost_do_not_wait_for_what_moves",
            "TimeoutError",
        ),
        "objects with one copy left come in the order of hints": mutant(
            "or 0 < how < least):", "):", f"{_COMING}::test_the_others_wait_while_objects_with_one_copy_left_do"
        ),
        "what keeps a disk out of sync is limited": mutant(
            "if whom != to and is_limited(placement, found, to) and ",
            "if is_limited(placement, found, to) and ",
            f"{_COMING}::test_what_keeps_a_disk_out_of_sync_is_not_limited",
            "TimeoutError",
        ),
        "hints rest when nothing moves any more": mutant(
            "if whom == hinted_disk(whom) or not placement.is_moving or not is_paused(cluster_map):",
            "if whom == hinted_disk(whom) or not is_paused(cluster_map):",
            f"{_COMING}::test_hints_do_not_rest_when_nothing_moves",
        ),
    },
    "dfc.target.copies.messages": {
        "a row goes because its primary has not said that it has it": mutant(
            "return self.is_known and self.state is None and self.speaks and self.is_replicated",
            "return self.is_known and self.state is None",
            f"{_DELIVERIES}::test_a_row_stays_with_its_hint_until_its_primary_is_sure[is not certain]",
        ),
    },
    "dfc.target.copies.walks": {
        "more copies are reported while a write is on its way": mutant(
            "        if not await self._ledger.until_over(self._disk.id) or await self._has_urgent_hints():\n",
            "        if await self._has_urgent_hints():\n",
            f"{_UPKEEP}::test_more_copies_are_reported_when_the_writes_on_their_way_are_over[write]",
        ),
        "excess rows go unasked": mutant(
            "gone = [row for row, told_of in answers.items() if recovery.may_remove(told_of)]",
            "gone = list(answers)",
            f"{_UPKEEP}::test_a_row_goes_when_all_replicas_have_it",
        ),
        "an excess row goes that may be the only sound one": mutant(
            "        and not reply.is_damaged\n",
            "",
            f"{_REPAIRING}::test_an_excess_row_stays_while_a_replica_has_lost_its_bytes",
            "AssertionError",
        ),
        "slices are reported while rows have hints": mutant(
            "            if number not in hinted and state.to is not None:\n",
            "            if state.to is not None:\n",
            f"{_COMING}::test_slices_are_not_reported_while_anything_is_hinted",
        ),
        "slices are reported while a write is on its way": mutant(
            "        if not await self._ledger.until_over(self._disk.id):\n            return 0.0\n",
            "",
            f"{_COMING}::test_slices_are_not_reported_while_a_write_is_on_its_way",
        ),
        "future replicas get nothing": mutant(
            "if (needed.raised or needed.copying) and not await",
            "if needed.raised and not await",
            f"{_COMING}::test_future_replicas_get_what_they_lack",
        ),
        "hints of a disk that died with them are not made again": mutant(
            "return cls(raised, copying, (disks, gone, placement.step if raised else 0))",
            "return cls(raised, copying, (gone, placement.step if raised else 0))",
            f"{_COMING}::test_handing_over_needs_no_second_walk",
        ),
        "what has moved away goes before its replica has it": mutant(
            "gone = [row for row, told_of in answers.items() if recovery.may_remove(told_of)]",
            "gone = list(answers)",
            f"{_COMING}::test_what_has_moved_away_goes_when_its_replica_has_it",
        ),
        "what moves to a disk keeps it out of sync": mutant(
            "[(later(each), bucket_id, name) for each, _, name in moving]",
            "[(each, bucket_id, name) for each, _, name in moving]",
            f"{_COMING}::test_a_disk_is_not_out_of_sync_for_want_of_what_moves_to_it",
        ),
    },
    "dfc.target.copies.peers": {
        "repaired from a copy whose bytes are wrong": mutant(
            "expected = ExpectedChecksums(xxh3_128=state.checksum)\n            supplied",
            "expected = ExpectedChecksums()\n            supplied",
            f"{_COPIES}/test_peers.py::test_a_body_is_fetched_only_if_it_is_sound[wrong]",
        ),
    },
    "dfc.target.copies.objects": {
        "repaired from a copy that is damaged itself": mutant(
            "if reply is None or reply.is_damaged or reply.state != wanted:",
            "if reply is None or reply.state != wanted:",
            f"{_REPAIRING}::test_bytes_are_taken_only_of_the_same_version_and_sound[damaged]",
        ),
        "repaired from another version": mutant(
            "if reply is None or reply.is_damaged or reply.state != wanted:",
            "if reply is None or reply.is_damaged or reply.state is None:",
            f"{_REPAIRING}::test_bytes_are_taken_only_of_the_same_version_and_sound[newer]",
        ),
        "a repair brings back what was replaced": mutant(
            "AdoptVerdict(taken=present == wanted.version, standing=Standing(rank, pending=True))",
            "AdoptVerdict(taken=True, commits=True, standing=Standing(rank, pending=True))",
            f"{_REPAIRING}::test_what_was_removed_while_its_bytes_are_fetched_stays_away",
        ),
        "a repair confirms what is pending": mutant(
            "standing=Standing(rank, pending=True))",
            "standing=Standing(rank))",
            f"{_REPAIRING}::test_a_row_that_is_pending_stays_pending",
        ),
    },
    "dfc.target.objects": {
        "a read of damaged bytes does not wait until they are repaired": mutant(
            "if is_repaired or not await self._copied.repair(place, name):",
            "if True:",
            f"{_STORING}::test_damaged_bytes_are_repaired_while_they_are_read[known-small]",
            "ObjectCorrupt",
        ),
    },
    "dfc.replication.steps": {
        "slices are handed over without reports": mutant(
            "            if all(ReadyReport(readiness, disk",
            "            if any(ReadyReport(readiness, disk",
            "tests/unit/proxy/test_steps.py::test_nothing_is_handed_over_before_all_have_reported",
        ),
        "slices are handed over while jobs run": mutant(
            "(self._moved(now_s) if may_move else None)",
            "self._moved(now_s)",
            "tests/unit/proxy/test_steps.py::test_slices_are_handed_over_only_in_calm_times[a job is running]",
        ),
        "slices are handed over while a disk is away": mutant(
            "ready = [number for number in self._handovers(now_s) if self._is_calm(placement.slices[number])][:HANDOVERS_MAX]",
            "ready = list(self._handovers(now_s))[:HANDOVERS_MAX]",
            "tests/unit/proxy/test_steps.py::test_slices_are_handed_over_only_in_calm_times[a target is down]",
        ),
        "reports of a disk that is out of sync count": mutant(
            "if step == self.placement.step and _out_of_sync_with(self.placement, report.disk) == frozenset():",
            "if step == self.placement.step:",
            "tests/unit/replication/test_steps.py::test_what_a_disk_reports_while_it_is_out_of_sync_counts_for_nothing[n2a]",
        ),
    },
    "dfc.registry.changes": {
        "a bucket that is made while slices move has one disk": mutant(
            "bucket if bucket.is_moving == is_moving else",
            "bucket if True else",
            "tests/unit/registry/test_changes.py::test_a_drained_disk_may_be_removed_and_no_other",
        ),
    },
    "dfc.target.copies.writes": {
        "a write that is handed over meanwhile fails": mutant(
            "return task.result() or await self._learned(key, version, until_s)",
            "return task.result() or await self._learned(key, version, 0.0)",
            f"{_WRITING}::test_whoever_decides_by_then_is_asked_for_the_outcome[has it]",
            "CopiesMissing",
        ),
        "a write that is not sure counts when it is handed over": mutant(
            "if reply is not None and reply.speaks and reply.is_replicated:",
            "if reply is not None:",
            f"{_WRITING}::test_whoever_decides_by_then_is_asked_for_the_outcome[is not sure]",
            "Failed",
        ),
    },
    "dfc.proxy.duties": {
        "slices are handed over while moves are paused": mutant(
            "self.may_move() and not is_paused(self._cluster.map)",
            "self.may_move()",
            "tests/unit/proxy/test_steps.py::test_slices_are_handed_over_only_in_calm_times[moves are paused]",
        ),
    },
    "dfc.http.relay": {
        "the rest of an answer is that of another version": mutant(
            '            and response.header(b"etag") == self.etag\n',
            "",
            "tests/unit/http/test_spliced.py::test_nothing_else_is_taken_for_the_rest",
            "Failed",
        ),
    },
    "dfc.proxy.buckets": {
        "counts by the replicas of before a move are exact": mutant(
            "UNRANKED not in counts and ",
            "",
            "tests/unit/proxy/test_cluster.py::test_counts_are_exact_only_if_all_are_by_the_replicas_of_now",
        ),
    },
    "dfc.inputs.uploads": {
        "complete shards are not stored when a program fails": mutant(
            "cancel_futures=at_once",
            "cancel_futures=True",
            "tests/unit/inputs/test_destinations.py::test_who_stops_waits_for_what_no_thread_has_begun_unless_at_once[False]",
        ),
    },
}
