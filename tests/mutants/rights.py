"""Mistakes about who may act, and when: leases, steps, maps and the coordinator."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant, Table, mutant

_COPIES: Final = "tests/unit/target/copies"
_LEDGER: Final = f"{_COPIES}/test_ledger.py"
_LISTED: Final = f"{_COPIES}/test_listed.py"
_RECEIVING: Final = f"{_COPIES}/test_receiving.py"
_PEERING: Final = f"{_COPIES}/test_peering.py"
_UPKEEP: Final = f"{_COPIES}/test_upkeep.py"
_CHANGES: Final = "tests/unit/registry/test_changes.py"
_STEPS: Final = "tests/unit/proxy/test_steps.py"
_LOCAL: Final = "tests/unit/target/test_local.py"
_REGISTERING: Final = "tests/unit/target/test_registering.py"

RIGHTS: Final[Table] = {
    "dfc.http.faces": {
        "calls between nodes want no token": mutant(
            'object.__setattr__(self, "internal", self.pattern.startswith(NODE_PATHS))',
            'object.__setattr__(self, "internal", False)',
            "tests/unit/api/test_routes.py::test_calls_between_nodes_are_below_one_path",
        ),
        "an object becomes a service worker": mutant(
            'elif "Service-Worker" in exchange.headers:',
            "elif False:",
            "tests/unit/http/test_access.py::test_nothing_becomes_a_service_worker",
            "JSONDecodeError",
        ),
        "a page that came without TLS acts on a node behind it": mutant(
            '(scheme == "http" and not is_by_tls(exchange))',
            'scheme == "http"',
            "tests/unit/http/test_access.py::test_a_page_that_came_without_tls_is_not_ours_where_others_come_by_tls",
        ),
    },
    "dfc.http.budget": {
        "bytes have no budget": mutant(
            "            if size and self.bytes + size > kind.bytes_max:",
            "            if False:",
            "tests/unit/http/test_budget.py::test_what_is_long_comes_in_turn_and_what_is_short_waits_for_none",
        ),
        "what waits for bytes keeps out who needs none": mutant(
            "(may_wait and len(self._waiting) >= kind.places)",
            "len(self._waiting) >= kind.places",
            "tests/unit/http/test_budget.py::test_those_that_wait_for_bytes_keep_nobody_out_who_needs_none",
            "Unavailable",
        ),
        "a client takes all the bytes there are": mutant(
            "not (size and held and held + size > self.kind.bytes_max // 2)",
            "True",
            "tests/unit/http/test_budget.py::test_no_client_gets_more_than_half_unless_it_is_alone_with_one",
        ),
        "a client takes all the places there are": mutant(
            "return not client or self._places_of[client] < self.kind.places * 3 // 4",
            "return True",
            "tests/unit/http/test_budget.py::test_no_client_gets_more_than_three_quarters_of_the_places",
        ),
    },
    "dfc.http.server": {
        "a place is kept when the answer is sent": mutant(
            "                request.leave()",
            "                pass",
            "tests/unit/http/test_server.py::test_a_place_is_held_until_the_answer_is_sent",
            "TimeoutError",
        ),
        "a whole answer holds what was asked for": mutant(
            "exchange.place.shrink(len(answer.body))",
            "pass",
            "tests/unit/http/test_server.py::test_what_is_known_to_be_less_makes_room",
        ),
        "no node is heard when clients have all connections": mutant(
            "if not found[0].internal:",
            "if True:",
            "tests/unit/http/test_server.py::test_nodes_are_heard_when_clients_have_all_connections",
        ),
        "clients take the connections of nodes": mutant(
            "if not found[0].internal:",
            "if False:",
            "tests/unit/http/test_server.py::test_nodes_are_heard_when_clients_have_all_connections",
        ),
        "strangers take the room of who asks": mutant(
            "self.stats.connections - len(self.extra) >= self.connections_max",
            "self.stats.connections > self.connections_max",
            "tests/unit/http/test_server.py::test_others_beyond_the_limit_do_not_take_the_room_of_who_asks",
        ),
        "who says nothing keeps nodes out": mutant(
            "            timeout_s = min(timeout_s, NODE_CONNECTION_S)",
            "            pass",
            "tests/unit/http/test_server.py::test_who_says_nothing_does_not_stay_beyond_the_limit",
            "TimeoutError",
        ),
        "what is refused keeps nodes out": mutant(
            "                connection.turned_away = True",
            "                connection.turned_away = True\n                del self.extra[connection]",
            "tests/unit/http/test_server.py::test_what_is_left_of_a_refused_request_keeps_no_node_out",
        ),
        "an idle connection is told that its request is late": mutant(
            "elif data and not in_body:",
            "elif not in_body:",
            "tests/unit/http/test_server.py::test_no_head_has_begun_where_nothing_came",
        ),
        "a request is late because the node stood still": mutant(
            "() if self.bulk.pauses.within(0.0) else self._all_connections()",
            "self._all_connections()",
            "tests/unit/http/test_server.py::test_a_head_that_came_while_the_process_stood_still_is_in_time",
        ),
    },
    "dfc.http.exchange": {
        "who has gone is worked for": mutant(
            "            self.open_transport()  # a client",
            "            pass  # a client",
            "tests/unit/http/test_server.py::test_who_goes_while_it_waits_is_not_worked_for",
            "TimeoutError",
        ),
        "long bodies take no place": mutant(
            "self.place is None and self._is_long(limit_bytes) and not self.is_internal",
            "False",
            "tests/unit/http/test_server.py::test_a_long_body_takes_a_place_before_it_is_read",
            "TimeoutError",
        ),
        "a slow sender keeps the room of others": mutant(
            "asyncio.timeout(None if self.place is None else BODY_S)",
            "asyncio.timeout(None)",
            "tests/unit/http/test_server.py::test_a_body_that_has_a_place_has_to_come_in_time",
            "TimeoutError",
        ),
    },
    "dfc.wire": {
        "two threads of a client look at a struct at once": mutant(
            "with _preparing, suppress(",
            "with suppress(",
            "tests/unit/test_structs.py::test_threads_of_a_client_look_at_a_struct_one_after_the_other",
        ),
    },
    "dfc.http.node": {
        "threads meet structs that msgspec is just looking at": mutant(
            "        prepare_structs()\n", "", "tests/unit/test_structs.py::test_a_node_prepares_them_before_it_has_threads"
        ),
    },
    "dfc.api.shared": {
        "a listing takes no room": mutant(
            "    await exchange.enter(LISTINGS, room_of(listings, query, limit))\n",
            "",
            "tests/unit/api/test_listings.py::test_a_page_takes_room_for_its_rows",
        ),
    },
    "dfc.http.peer": {
        "an answer of another node has no end": mutant(
            "        if len(content) > bytes_max:",
            "        if False:",
            "tests/unit/http/test_peer.py::test_no_more_of_an_answer_is_read_than_the_caller_takes",
            "Failed",
        ),
        "what a node cannot mean is an error of ours": mutant(
            "(msgspec.MsgspecError, UnicodeDecodeError, RecursionError)",
            "(msgspec.MsgspecError, RecursionError)",
            "tests/unit/http/test_peer.py::test_an_answer_that_nobody_would_give_is_no_error_of_ours",
            "UnicodeDecodeError",
        ),
    },
    "dfc.http.relay": {
        "a status that HTTP does not have is passed on": mutant(
            "if response.status > 599:",
            "if False:",
            "tests/unit/http/test_relay.py::test_a_status_that_http_does_not_have_is_not_passed_on",
            "JSONDecodeError",
        ),
        "a node sends the clients of another one elsewhere": mutant(
            "if leads and not self._redirects and",
            "if False and",
            "tests/unit/http/test_relay.py::test_no_node_sends_clients_elsewhere",
        ),
        "a node passes on what belongs to no answer": mutant(
            "return Answer(response.status, body[:length], headers)",
            "return Answer(response.status, body, headers)",
            "tests/unit/http/test_relay.py::test_what_comes_behind_an_answer_belongs_to_nobody",
        ),
    },
    "dfc.http.answers": {
        "pages of others may show what is stored": mutant(
            "Server: dfc\\r\\n{OWN_PAGES}\\r\\nDate",
            "Server: dfc\\r\\nDate",
            "tests/unit/http/test_access.py::test_every_answer_is_for_pages_of_this_node",
            "KeyError",
        ),
        "a cache gives to all what a session has read": mutant(
            "        if exchange.in_session:",
            "        if False:",
            "tests/unit/http/test_access.py::test_what_a_session_has_read_is_kept_by_no_cache_on_the_way",
            "KeyError",
        ),
    },
    "dfc.inputs.images": {
        "a JPEG may have any number of scans": mutant(
            "    if scans > INPUT_IMAGE_SCANS_MAX:",
            "    if False:",
            "tests/frameworks/test_images.py::test_a_jpeg_of_very_many_scans_is_refused_before_any_pixel",
            "Failed",
        ),
        "a JPEG in a TIFF may have any number of scans": mutant(
            "    _check_parts(image, data)\n",
            "",
            "tests/frameworks/test_images.py::test_jpegs_in_a_tiff_have_as_few_scans",
            "Failed",
        ),
    },
    "dfc.inputs.sources.specs": {
        "a list of a server names local files by a colon": mutant(
            'name if name.startswith("/") else f"./{name}"',
            "name",
            "tests/unit/inputs/sources/test_specs.py::test_shards_files_of_a_server_name_no_files_and_no_commands",
            "BadShardSpec",
        ),
    },
    "dfc.cli.session": {
        "a key ends the line that it is on": mutant(
            "return plain(text) if sys.stdout.isatty() else _BREAKS.sub",
            "return text if not sys.stdout.isatty() else _BREAKS.sub",
            "tests/unit/cli/test_session.py::test_a_key_is_one_field_of_one_line",
        ),
    },
    "dfc.target.local": {
        "a target's part of the shards is of any step": mutant(
            "if step not in (None, self.map.step):",
            "if False:",
            "tests/unit/target/test_selection.py::test_it_answers_by_the_step_that_is_asked_for_only",
            "Failed",
        ),
        "a guard lets one copy pass where there are several": mutant(
            "if alone and current is not None and current.has_several:",
            "if False:",
            f"{_LOCAL}::test_what_has_one_copy_is_not_committed_once_the_bucket_has_more",
            "Failed",
        ),
        "a step is acknowledged before older commits are done": mutant(
            "            await asyncio.gather(*(self._until_decides(disk, taken.version) for disk in self.in_order()))\n",
            "",
            f"{_LOCAL}::test_a_map_is_decided_by_when_older_commits_are_done",
        ),
        "a failed disk is waited for": mutant(
            "            if self._has_failed(disk):\n                return\n",
            "",
            f"{_LOCAL}::test_a_disk_that_has_failed_by_the_map_is_not_waited_for",
            "TimeoutError",
        ),
        "a failed disk is up before its late commit": mutant(
            'report._replace(state="failed") if is_late or ',
            'report._replace(state="failed") if ',
            f"{_LOCAL}::test_a_failed_disk_is_up_again_when_nothing_of_before_is_under_way",
        ),
        "an older map is taken": mutant(
            "if new.version <= self.map.version or (", "if (", f"{_LOCAL}::test_only_newer_maps_of_the_same_cluster_are_taken"
        ),
    },
    "dfc.target.listing": {
        "a target's part of the shards may lack what was moved away meanwhile": mutant(
            "        if self.share(bucket_id) != share:",
            "        if False:",
            "tests/unit/target/test_selection.py::test_it_is_whole_if_nothing_of_its_part_was_moved_away_meanwhile",
            "Failed",
        ),
        "a bucket is empty before failed disks are done": mutant(
            "            await self._local.until_all_commits_are_done()\n",
            "            pass\n",
            f"{_LOCAL}::test_who_counts_for_a_deletion_waits_for_failed_disks_too",
            "Failed",
        ),
        "a page of a listing without a lease": mutant(
            "        self._local.check_leased()\n        await self._local.check_step(step)\n        return merge_pages",
            "        await self._local.check_step(step)\n        return merge_pages",
            f"{_LISTED}::test_what_is_listed_and_counted_without_a_lease_is_not_told",
            "Failed",
        ),
        "a page of a listing of two steps": mutant(
            "        self._local.check_leased()\n        await self._local.check_step(step)\n        return merge_pages",
            "        self._local.check_leased()\n        return merge_pages",
            f"{_LISTED}::test_a_page_is_of_one_step",
            "Failed",
        ),
    },
    "dfc.proxy.duties": {
        "who leaves with the last proxy lacks what nobody could write": mutant(
            "if not self._is_last and self._speaks_now(heartbeat):",
            "if self._speaks_now(heartbeat):",
            f"{_STEPS}::test_who_leaves_with_the_last_proxy_is_part_of_the_same_end",
        ),
    },
    "dfc.registry.base": {
        "lease by the wall clock": mutant(
            "return time.clock_gettime(time.CLOCK_BOOTTIME)",
            "return time.time()",
            "tests/unit/registry/test_leases.py::test_the_clock_of_leases_goes_on_in_sleep_and_cannot_be_set",
        ),
        "lease by a clock that stops in sleep": mutant(
            "return time.clock_gettime(time.CLOCK_BOOTTIME)",
            "return time.clock_gettime(time.CLOCK_MONOTONIC)",
            "tests/unit/registry/test_leases.py::test_the_clock_of_leases_goes_on_in_sleep_and_cannot_be_set",
        ),
    },
    "dfc.proxy.heartbeats": {
        "silence by the wall clock": mutant(
            "clock_s: Callable[[], float] = boot_s)",
            "clock_s: Callable[[], float] = time.time)",
            "tests/unit/proxy/test_steps.py::test_silence_is_counted_by_the_clock_of_leases",
        ),
    },
    "dfc.target.membership": {
        "a lease counts from the answer": mutant(
            "self._take_lease(answer, sent_s)",
            "self._take_lease(answer, boot_s())",
            "tests/unit/target/test_registering.py::test_a_lease_counts_from_when_the_heartbeat_was_sent",
        ),
        "a target that stops keeps its part": mutant(
            'return self._local.standing() == "up" and any(bucket.has_several for bucket in self._local.map.buckets)',
            "return False",
            f"{_REGISTERING}::test_a_target_leaves_when_others_can_take_over[up-buckets0-True]",
        ),
        "a target that leaves keeps its lease": mutant(
            "        local.lease.end()\n        local.why_no_lease = ",
            "        local.why_no_lease = ",
            f"{_REGISTERING}::test_a_target_that_leaves_has_no_lease_any_more",
        ),
        "a target leaves without a word": mutant(
            "entries, leaving=True)", "entries)", f"{_REGISTERING}::test_a_target_that_leaves_has_no_lease_any_more"
        ),
    },
    "dfc.servers.target": {
        "a heartbeat takes back that a target leaves": mutant(
            "            await asyncio.wait((self._heart,))\n            await self._membership.leave()\n",
            "            await self._membership.leave()\n",
            f"{_REGISTERING}::test_a_target_that_stops_leaves_first[True]",
        ),
    },
    "dfc.target.uploads": {
        "acknowledged after the lease": mutant(
            "        self._local.check_leased()  # the lease may have ended",
            "        # the lease may have ended",
            "tests/unit/target/test_objects.py::test_nothing_is_acknowledged_when_the_lease_has_ended_during_the_commit[small]",
            "Failed",
        ),
    },
    "dfc.target.objects": {
        "a delete acknowledged after the lease": mutant(
            "        self._local.check_leased()  # see OwnUploads\n",
            "",
            "tests/unit/target/test_objects.py::test_nothing_is_acknowledged_when_the_lease_has_ended_during_the_commit[small]",
            "Failed",
        ),
    },
    "dfc.target.copies.ledger": {
        "a primary writes without a lease": mutant(
            "        self._local.check_leased(commits=True)\n        self._local.check_bucket(bucket)\n",
            "        self._local.check_bucket(bucket)\n",
            f"{_LEDGER}::test_nothing_is_written_without_a_lease_or_before_peering",
            "Failed",
        ),
        "a primary writes before it is peered": mutant(
            "        peered = self.is_peered(key.bucket_id, key.name, key.disk)\n        refused",
            "        peered = True\n        refused",
            f"{_LEDGER}::test_nothing_is_written_without_a_lease_or_before_peering",
            "Failed",
        ),
    },
    "dfc.target.copies.receive": {
        "a member commits without a lease": mutant(
            "leased=self._local.is_leased)", "leased=True)", f"{_RECEIVING}::test_nothing_is_committed_without_a_lease"
        ),
        "decided by an older map than the sender's": mutant(
            "        if sender.version <= self._local.map.version:\n",
            "        if True:\n",
            f"{_RECEIVING}::test_nothing_is_decided_by_an_older_map",
            "Failed",
        ),
        "pending rows are told before older commits are done": mutant(
            "        await _in_time(self._local.decide_by(self._local.map))\n",
            "",
            f"{_RECEIVING}::test_a_new_primary_hears_of_pending_rows_when_nothing_comes_for_the_old_one",
        ),
        "a disk is resolved before older commits are done": mutant(
            "        await self._local.until_old_commits_are_done(disk)\n        before",
            "        before",
            f"{_RECEIVING}::test_a_disk_is_resolved_when_no_row_of_an_older_step_can_come",
        ),
        "a disk is resolved while rows are pending": mutant(
            "        while before and self._ledger.placement.step == placement.step:\n",
            "        while False:\n",
            f"{_RECEIVING}::test_whether_a_disk_is_resolved",
            "Failed",
        ),
        "a disk is resolved by a map that is replaced": mutant(
            "        return self._ledger.placement.step == placement.step\n",
            "        return True\n",
            f"{_RECEIVING}::test_a_disk_is_not_resolved_by_an_older_step",
        ),
    },
    "dfc.target.threads": {
        "who waits for a disk joins those who asked by an older map": mutant(
            "        self._through[disk.id] = version\n",
            "        self._through[disk.id] = self._map_version()\n",
            f"{_LOCAL}::test_what_was_decided_while_a_disk_was_waited_for_is_waited_for_too",
        ),
    },
    "dfc.target.copies.walks": {
        "more copies are planned before older commits are done": mutant(
            "        await self._local.until_old_commits_are_done(self._disk)\n",
            "",
            f"{_UPKEEP}::test_what_was_committed_with_one_copy_is_planned_too",
        ),
    },
    "dfc.registry.changes": {
        "numbers of nodes are given again": Mutant(
            (
                ("= base.last_number\n", "= max((node.number for node in base.map.nodes), default=0)\n"),
                ("if new.last_number < max((", "if 0 > max(("),
            ),
            "tests/unit/registry/test_changes.py::test_numbers_of_nodes_are_not_given_again",
        ),
    },
}

COORDINATOR: Final[Table] = {
    "dfc.replication.transitions": {
        "nobody waits for the hints of a disk in doubt": mutant(
            'return incarnation.partition(".")[0]',
            "return incarnation",
            "tests/unit/replication/test_steps.py::test_a_disk_in_doubt_is_out_of_sync_with_all_others_and_they_stay_out_of_sync_with_it",
        ),
        "a disk in doubt waits for nobody who stopped before it": mutant(
            "(others - (asleep & set(long_gone)))",
            "(others - asleep)",
            "tests/unit/replication/test_steps.py::test_a_disk_in_doubt_is_out_of_sync_with_all_others_and_they_stay_out_of_sync_with_it",
        ),
        "a disk that comes back is in sync": mutant(
            "out_of_sync_with=disk.out_of_sync_with | (others - asleep)",
            "out_of_sync_with=disk.out_of_sync_with",
            "tests/unit/replication/test_steps.py::test_a_disk_that_comes_back_is_up_and_out_of_sync",
        ),
    },
    "dfc.proxy.duties": {
        "a primary passes over a disk before all targets know": mutant(
            "while not planner.is_out_of_sync(primary, disk):",
            "while primary not in planner.placement.disks[disk].out_of_sync_with:",
            f"{_STEPS}::test_a_primary_is_answered_when_all_targets_know_who_is_behind_it",
        ),
        "a clean report of an older step counts": mutant(
            "if not planner.report_clean(report.disk, report.caught_up, report.step, process=report.process):",
            "if not planner.report_clean(report.disk, report.caught_up, planner.placement.step, process=report.process):",
            f"{_STEPS}::test_a_report_of_an_older_step_clears_nobody",
            "Failed",
        ),
        "a proxy takes a step that is not the coordinator any more": mutant(
            "await self._cluster.change(take_step(before, new, seen), fence=leadership)",
            "await self._cluster.change(take_step(before, new, seen))",
            f"{_STEPS}::test_who_leads_no_longer_takes_no_step",
        ),
        "a target that is being declared down gets a lease": mutant(
            "or heartbeat.starting or heartbeat.node_id in self._going:",
            "or heartbeat.starting:",
            f"{_STEPS}::test_one_that_is_being_marked_down_gets_none",
        ),
        "what was refused happens later": mutant(
            "            planner.withdraw(wish)  # nobody",
            "            pass  # nobody",
            f"{_STEPS}::test_what_was_refused_does_not_happen_later",
        ),
        "what is wanted of a bucket outlives it": Mutant(
            (("                planner.withdraw(wish)\n        planner", "                pass\n        planner"),),
            f"{_STEPS}::test_what_is_wanted_of_a_bucket_that_is_removed_is_dropped",
        ),
        "a process of before says that a target leaves": mutant(
            "heartbeat.process != speaker.process or ",
            "",
            f"{_STEPS}::test_that_one_leaves_is_not_believed_from_a_process_of_before[late0-last0]",
        ),
        "an old message says that a target leaves": mutant(
            " or 0 < heartbeat.now_us < speaker.now_us):",
            "):",
            f"{_STEPS}::test_that_one_leaves_is_not_believed_from_a_process_of_before[late1-last1]",
        ),
        "leases before the step of the office before": mutant(
            "        await self._cluster.confirm(leadership)\n",
            "",
            f"{_STEPS}::test_a_step_of_the_office_before_comes_before_any_lease",
        ),
        "a target with a clock far ahead gets a lease": mutant(
            "if ahead_s > CLOCK_AHEAD_S_MAX:", "if False:", f"{_STEPS}::test_one_whose_clock_is_far_ahead_gets_none"
        ),
    },
    "dfc.replication.steps": {
        "a clean report that had to wait counts": mutant(
            '        self._queue = [each for each in self._queue if each.key[0] != "clean"]  # ',
            "        # ",
            "tests/unit/replication/test_steps.py::test_a_report_that_had_to_wait_counts_for_nothing",
        ),
        "a clean report of the process before counts": mutant(
            "or (heard is not None and heard.process != process)",
            "",
            "tests/unit/replication/test_steps.py::test_a_target_that_was_started_anew_has_reported_nothing",
        ),
        "who gives up takes the wish of another along": mutant(
            "if self._wishes.get(wish.bucket_id) is wish:",
            "if wish.bucket_id in self._wishes:",
            "tests/unit/replication/test_steps.py::test_what_is_wanted_waits_for_its_step_and_can_be_taken_back",
        ),
        "a raise cannot be given up": mutant(
            "elif now.reading < now.wanted and count < now.wanted:",
            "elif False:",
            "tests/unit/replication/test_steps.py::test_a_raise_is_given_up_whatever_is_down[1]",
        ),
    },
    "dfc.proxy.buckets": {
        "a wish that waits outlives another": mutant(
            "        if copies is not None:  # also",
            "        if copies is not None and copies != bucket.goal:  # also",
            f"{_STEPS}::test_a_wish_that_waits_is_taken_back_by_another",
        ),
        "a raise waits for who keeps it from ending": mutant(
            "counts(bucket.id, incomplete=True))",
            "counts(bucket.id))",
            f"{_STEPS}::test_a_raise_is_given_up_while_a_target_is_down",
            "Unavailable",
        ),
    },
    "dfc.registry.changes": {
        "a step that the map cannot show is taken": mutant(
            "if not nodes and not buckets and not moves and msgspec",
            "if False and msgspec",
            "tests/unit/registry/test_changes.py::test_a_step_of_which_nothing_can_be_stored_is_refused",
            "Failed",
        ),
        "other labels move copies": mutant(
            "if disk_id not in placed or not holds_copies:", "if True:", f"{_CHANGES}::test_other_labels_move_no_copies"
        ),
        "a disk that moves takes the failure domain of its new node": mutant(
            "taken.update((disk.id, disk) for disk in _with_domains(node, moved))",
            "taken.update((disk.id, disk) for disk in moved)",
            f"{_CHANGES}::test_a_map_of_before_places_as_it_did",
        ),
        "two copies of an object come to one node": mutant(
            "if came and len(domains) > 1:",
            "if False:",
            f"{_CHANGES}::test_two_copies_of_an_object_do_not_come_to_one_node",
            "Failed",
        ),
    },
    "dfc.registry.messages": {
        "labels never take effect": mutant(
            "return cluster_map.has_copies or all(node.domain_of(disk) == node.domain for disk in node.disks)",
            "return True",
            f"{_CHANGES}::test_other_labels_count_as_soon_as_no_bucket_has_copies[copies0]",
        ),
        "what a newer target says is passed over": mutant(
            "class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):",
            "class Registration(msgspec.Struct, frozen=True, kw_only=True):",
            "tests/unit/registry/test_registration.py::test_what_a_newer_target_says_is_refused_and_not_overlooked",
            "Failed",
        ),
    },
}
