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
_CHANGES: Final = "tests/unit/registry/test_changes.py"
_STEPS: Final = "tests/unit/proxy/duties/test_steps.py"
_LOCAL: Final = "tests/unit/target/test_local.py"
_REGISTERING: Final = "tests/unit/target/test_registering.py"

RIGHTS: dict[str, Mutant] = {
    "calls between nodes want no token": mutant(
        "dfc.http.router",
        'object.__setattr__(self, "internal", self.pattern.startswith(NODE_PATHS))',
        'object.__setattr__(self, "internal", False)',
        "tests/unit/api/test_routes.py::test_calls_between_nodes_are_below_one_path",
    ),
    "lists of batch reads have no budget": mutant(
        "dfc.batch.gate",
        "            if size and self.bytes + size > self._bytes_max:",
        "            if False:",
        "tests/unit/batch/test_gate.py::test_long_lists_come_in_turn_and_short_ones_wait_for_none",
    ),
    "lists that wait keep short ones out": mutant(
        "dfc.batch.gate",
        "(place.size and len(self._waiting) >= BATCHES_MAX)",
        "len(self._waiting) >= BATCHES_MAX",
        "tests/unit/batch/test_gate.py::test_those_that_wait_keep_no_short_list_out",
        "Unavailable",
    ),
    "a client takes all the room there is for lists": mutant(
        "dfc.batch.gate",
        "if size and (is_full or not has_share):",
        "if size and is_full:",
        "tests/unit/batch/test_gate.py::test_no_client_gets_more_than_half_unless_it_is_alone_with_one",
    ),
    "an answer of another node has no end": mutant(
        "dfc.http.calls.peer",
        "        if len(content) > bytes_max:",
        "        if False:",
        "tests/unit/http/calls/test_peer.py::test_no_more_of_an_answer_is_read_than_the_caller_takes",
        "Failed",
    ),
    "what a node cannot mean is an error of ours": mutant(
        "dfc.http.calls.peer",
        "(msgspec.MsgspecError, UnicodeDecodeError, RecursionError)",
        "(msgspec.MsgspecError, RecursionError)",
        "tests/unit/http/calls/test_peer.py::test_an_answer_that_nobody_would_give_is_no_error_of_ours",
        "UnicodeDecodeError",
    ),
    "a status that HTTP does not have is passed on": mutant(
        "dfc.http.relay",
        "if response.status > 599:",
        "if False:",
        "tests/unit/http/test_relay.py::test_a_status_that_http_does_not_have_is_not_passed_on",
        "JSONDecodeError",
    ),
    "a node sends the clients of another one elsewhere": mutant(
        "dfc.http.relay",
        "if leads and not self._redirects and",
        "if False and",
        "tests/unit/http/test_relay.py::test_no_node_sends_clients_elsewhere",
    ),
    "pages of others may show what is stored": mutant(
        "dfc.http.answers",
        "Server: dfc\\r\\n{OWN_PAGES}\\r\\nDate",
        "Server: dfc\\r\\nDate",
        "tests/unit/http/test_access.py::test_every_answer_is_for_pages_of_this_node",
        "KeyError",
    ),
    "an object becomes a service worker": mutant(
        "dfc.http.access",
        'elif "Service-Worker" in exchange.headers:',
        "elif False:",
        "tests/unit/http/test_access.py::test_nothing_becomes_a_service_worker",
        "JSONDecodeError",
    ),
    "a page that came without TLS acts on a node behind it": mutant(
        "dfc.http.access",
        '(scheme == "http" and not is_by_tls(exchange))',
        'scheme == "http"',
        "tests/unit/http/test_access.py::test_a_page_that_came_without_tls_is_not_ours_where_others_come_by_tls",
    ),
    "a cache gives to all what a session has read": mutant(
        "dfc.http.answers",
        "        if exchange.in_session:",
        "        if False:",
        "tests/unit/http/test_access.py::test_what_a_session_has_read_is_kept_by_no_cache_on_the_way",
        "KeyError",
    ),
    "a JPEG may have any number of scans": mutant(
        "dfc.inputs.fields.images",
        "    if scans > INPUT_IMAGE_SCANS_MAX:",
        "    if False:",
        "tests/frameworks/test_images.py::test_a_jpeg_of_very_many_scans_is_refused_before_any_pixel",
        "Failed",
    ),
    "a list of a server names local files by a colon": mutant(
        "dfc.inputs.sources.specs",
        'name if name.startswith("/") else f"./{name}"',
        "name",
        "tests/unit/inputs/sources/test_specs.py::test_shards_files_of_a_server_name_no_files_and_no_commands",
        "BadShardSpec",
    ),
    "a key ends the line that it is on": mutant(
        "dfc.cli.session",
        "return plain(text) if sys.stdout.isatty() else _BREAKS.sub",
        "return text if not sys.stdout.isatty() else _BREAKS.sub",
        "tests/unit/cli/test_session.py::test_a_key_is_one_field_of_one_line",
    ),
    "a node passes on what belongs to no answer": mutant(
        "dfc.http.relay",
        "return Answer(response.status, body[:length], headers)",
        "return Answer(response.status, body, headers)",
        "tests/unit/http/test_relay.py::test_what_comes_behind_an_answer_belongs_to_nobody",
    ),
    "an idle connection is told that its request is late": mutant(
        "dfc.http.server",
        "elif data and not in_body:",
        "elif not in_body:",
        "tests/unit/http/test_server.py::test_no_head_has_begun_where_nothing_came",
    ),
    "a request is late because the node stood still": mutant(
        "dfc.http.server",
        "() if self.bulk.pauses.within(0.0) else self._all_connections()",
        "self._all_connections()",
        "tests/unit/http/test_server.py::test_a_head_that_came_while_the_process_stood_still_is_in_time",
    ),
    "a target's part of the shards is of any step": mutant(
        "dfc.target.local",
        "if step not in (None, self.map.step):",
        "if False:",
        "tests/unit/target/test_selection.py::test_it_answers_by_the_step_that_is_asked_for_only",
        "Failed",
    ),
    "a target's part of the shards may lack what was moved away meanwhile": mutant(
        "dfc.target.selection",
        "        if self.share(bucket_id) != share:",
        "        if False:",
        "tests/unit/target/test_selection.py::test_it_is_whole_if_nothing_of_its_part_was_moved_away_meanwhile",
        "Failed",
    ),
    "who leaves with the last proxy lacks what nobody could write": mutant(
        "dfc.proxy.duties.steps",
        "if not self._is_last and self._speaks_now(said):",
        "if self._speaks_now(said):",
        f"{_STEPS}::test_who_leaves_with_the_last_proxy_is_part_of_the_same_end",
    ),
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
        "tests/unit/proxy/duties/test_steps.py::test_silence_is_counted_by_the_clock_of_leases",
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
        "            await asyncio.gather(*(self._until_decides(disk, taken.version) for disk in self.in_order()))\n",
        "",
        f"{_LOCAL}::test_a_map_is_decided_by_when_older_commits_are_done",
    ),
    "pending rows are told before older commits are done": mutant(
        "dfc.target.copies.receiving",
        "        await _in_time(self._local.decide_by(self._local.map))\n",
        "",
        f"{_RECEIVING}::test_a_new_primary_hears_of_pending_rows_when_nothing_comes_for_the_old_one",
    ),
    "a failed disk is waited for": mutant(
        "dfc.target.local",
        "            if self._has_failed(disk):\n                return\n",
        "",
        f"{_LOCAL}::test_a_disk_that_has_failed_by_the_map_is_not_waited_for",
        "TimeoutError",
    ),
    "who waits for a disk joins those who asked by an older map": mutant(
        "dfc.target.threads",
        "        self._through[disk.id] = version\n",
        "        self._through[disk.id] = self._map_version()\n",
        f"{_LOCAL}::test_what_was_decided_while_a_disk_was_waited_for_is_waited_for_too",
    ),
    "a failed disk is up before its late commit": mutant(
        "dfc.target.local",
        'report._replace(state="failed") if is_late or ',
        'report._replace(state="failed") if ',
        f"{_LOCAL}::test_a_failed_disk_is_up_again_when_nothing_of_before_is_under_way",
    ),
    "a bucket is empty before failed disks are done": mutant(
        "dfc.target.listing",
        "            await self._local.until_all_commits_are_done()\n",
        "            pass\n",
        f"{_LOCAL}::test_who_counts_for_a_deletion_waits_for_failed_disks_too",
        "Failed",
    ),
    "a disk is settled before older commits are done": mutant(
        "dfc.target.copies.receiving",
        "        await self._local.until_old_commits_are_done(disk)\n        before",
        "        before",
        f"{_RECEIVING}::test_a_disk_is_settled_when_no_row_of_an_older_step_can_come",
    ),
    "a disk is settled while rows are pending": mutant(
        "dfc.target.copies.receiving",
        "        while before and self._ledger.placement.step == placement.step:\n",
        "        while False:\n",
        f"{_RECEIVING}::test_whether_a_disk_is_settled",
        "Failed",
    ),
    "a disk is settled by a map that is replaced": mutant(
        "dfc.target.copies.receiving",
        "        return self._ledger.placement.step == placement.step\n",
        "        return True\n",
        f"{_RECEIVING}::test_a_disk_is_not_settled_by_an_older_step",
    ),
    "more copies are planned before older commits are done": mutant(
        "dfc.target.copies.background.coming",
        "        await self._local.until_old_commits_are_done(self._disk)\n",
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
        "        self._local.check_leased()\n        await self._local.check_step(step)\n",
        "        await self._local.check_step(step)\n",
        f"{_LISTED}::test_what_is_listed_and_counted_without_a_lease_is_not_told",
        "Failed",
    ),
    "a page of a listing of two steps": mutant(
        "dfc.target.listing",
        "        self._local.check_leased()\n        await self._local.check_step(step)\n",
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
        "dfc.proxy.duties.steps",
        "while not planner.is_behind(primary, disk):",
        "while primary not in planner.placement.disks[disk].behind:",
        f"{_STEPS}::test_a_primary_is_answered_when_all_targets_know_who_is_behind_it",
    ),
    "a disk that comes back is behind nobody": mutant(
        "dfc.replication.transitions",
        "behind=disk.behind | (others - asleep)",
        "behind=disk.behind",
        "tests/unit/replication/test_steps.py::test_a_disk_that_comes_back_is_up_and_behind",
    ),
    "a clean report of an older step counts": mutant(
        "dfc.proxy.duties.steps",
        "if not planner.report_clean(said.disk, said.behind, said.step, process=said.process):",
        "if not planner.report_clean(said.disk, said.behind, planner.placement.step, process=said.process):",
        f"{_STEPS}::test_a_report_of_an_older_step_clears_nobody",
        "Failed",
    ),
    "a clean report that had to wait counts": mutant(
        "dfc.replication.steps",
        '        self._queue = [each for each in self._queue if each.key[0] != "clean"]  # ',
        "        # ",
        "tests/unit/replication/test_steps.py::test_a_report_that_had_to_wait_counts_for_nothing",
    ),
    "a clean report of the process before counts": mutant(
        "dfc.replication.steps",
        "or (heard is not None and heard.process != process)",
        "",
        "tests/unit/replication/test_steps.py::test_a_target_that_was_started_anew_has_reported_nothing",
    ),
    "a proxy takes a step that is not the coordinator any more": mutant(
        "dfc.proxy.duties.steps",
        "await self._cluster.change(take_step(before, new, seen), fence=leadership)",
        "await self._cluster.change(take_step(before, new, seen))",
        f"{_STEPS}::test_who_leads_no_longer_takes_no_step",
    ),
    "a target that is being declared down gets a lease": mutant(
        "dfc.proxy.duties.steps",
        "or said.starting or said.node_id in self._going:",
        "or said.starting:",
        f"{_STEPS}::test_one_that_is_being_marked_down_gets_none",
    ),
    "what was refused happens later": mutant(
        "dfc.proxy.duties.steps",
        "            planner.withdraw(wish)  # nobody",
        "            pass  # nobody",
        f"{_STEPS}::test_what_was_refused_does_not_happen_later",
    ),
    "a wish that waits outlives another": mutant(
        "dfc.proxy.buckets",
        "        if copies is not None:  # also",
        "        if copies is not None and copies != bucket.goal:  # also",
        f"{_STEPS}::test_a_wish_that_waits_is_taken_back_by_another",
    ),
    "who gives up takes the wish of another along": mutant(
        "dfc.replication.steps",
        "if self._wishes.get(wish.bucket_id) is wish:",
        "if wish.bucket_id in self._wishes:",
        "tests/unit/replication/test_steps.py::test_what_is_wanted_waits_for_its_step_and_can_be_taken_back",
    ),
    "what is wanted of a bucket outlives it": Mutant(
        "dfc.proxy.duties.steps",
        (("                planner.withdraw(wish)\n        planner", "                pass\n        planner"),),
        f"{_STEPS}::test_what_is_wanted_of_a_bucket_that_is_removed_is_dropped",
    ),
    "a step that the map cannot show is taken": mutant(
        "dfc.registry.changes",
        "if not nodes and not buckets and not moves and msgspec",
        "if False and msgspec",
        "tests/unit/registry/test_changes.py::test_a_step_of_which_nothing_can_be_stored_is_refused",
        "Failed",
    ),
    "a raise cannot be given up": mutant(
        "dfc.replication.steps",
        "elif now.reading < now.wanted and count < now.wanted:",
        "elif False:",
        "tests/unit/replication/test_steps.py::test_a_raise_is_given_up_whatever_is_down[1]",
    ),
    "a raise waits for who keeps it from ending": mutant(
        "dfc.proxy.buckets",
        "counts(bucket.id, incomplete=True)",
        "counts(bucket.id)",
        f"{_STEPS}::test_a_raise_is_given_up_while_a_target_is_down",
        "Unavailable",
    ),
    "a process of before says that a target leaves": mutant(
        "dfc.proxy.duties.steps",
        "said.process != speaker.process or ",
        "",
        f"{_STEPS}::test_that_one_leaves_is_not_believed_from_a_process_of_before[late0-last0]",
    ),
    "an old message says that a target leaves": mutant(
        "dfc.proxy.duties.steps",
        " or 0 < said.now_us < speaker.now_us):",
        "):",
        f"{_STEPS}::test_that_one_leaves_is_not_believed_from_a_process_of_before[late1-last1]",
    ),
    "leases before the step of the office before": mutant(
        "dfc.proxy.duties.steps",
        "        await self._cluster.confirm(leadership)\n",
        "",
        f"{_STEPS}::test_a_step_of_the_office_before_comes_before_any_lease",
    ),
    "a target with a clock far ahead gets a lease": mutant(
        "dfc.proxy.registrations",
        "if ahead_s > CLOCK_AHEAD_S_MAX:",
        "if False:",
        f"{_STEPS}::test_one_whose_clock_is_far_ahead_gets_none",
    ),
    "other labels move copies": mutant(
        "dfc.registry.changes",
        "if disk_id not in placed or not holds_copies:",
        "if True:",
        f"{_CHANGES}::test_other_labels_move_no_copies",
    ),
    "a disk that moves takes the failure domain of its new node": mutant(
        "dfc.registry.changes",
        "taken.update((disk.id, disk) for disk in _with_domains(node, moved))",
        "taken.update((disk.id, disk) for disk in moved)",
        f"{_CHANGES}::test_a_map_of_before_places_as_it_did",
    ),
    "two copies of an object come to one node": mutant(
        "dfc.registry.changes",
        "if came and len(domains) > 1:",
        "if False:",
        f"{_CHANGES}::test_two_copies_of_an_object_do_not_come_to_one_node",
        "Failed",
    ),
    "labels never take effect": mutant(
        "dfc.registry.registration",
        "return cluster_map.has_copies or all(node.domain_of(disk) == node.domain for disk in node.disks)",
        "return True",
        f"{_CHANGES}::test_other_labels_count_as_soon_as_no_bucket_has_copies[copies0]",
    ),
    "what a newer target says is passed over": mutant(
        "dfc.registry.registration",
        "class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):",
        "class Registration(msgspec.Struct, frozen=True, kw_only=True):",
        "tests/unit/registry/test_registration.py::test_what_a_newer_target_says_is_refused_and_not_overlooked",
        "Failed",
    ),
}
