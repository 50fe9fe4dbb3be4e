"""Mistakes about several proxies: a registry that others change, one that is made anew, and jobs that go on elsewhere."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Table, mutant

_RECOVERING: Final = "tests/unit/registry/test_recovering.py"
_LOG: Final = "tests/unit/proxy/jobs/test_shared.py"
_EPOCHS: Final = "tests/unit/proxy/test_epochs.py"
_INPUTS: Final = "tests/unit/proxy/jobs/test_inputs.py"
_STATE: Final = "tests/unit/proxy/test_troubles.py"

PROXIES: Final[Table] = {
    "dfc.proxy.jobs.inputs": {
        "a job takes inputs by several steps": mutant(
            '"step": step, ', "", f"{_INPUTS}::test_no_shard_is_left_out_when_a_step_is_taken_while_targets_are_asked"
        ),
        "the first replica says that a shard does not exist": mutant(
            "node = decider_of(cluster_map, bucket, name)",
            "node = cluster_map.owner(bucket, name).node",
            f"{_INPUTS}::test_a_named_shard_is_asked_for_where_it_is_decided_about",
            "ObjectNotFound",
        ),
    },
    "dfc.proxy.objects": {
        "a target that hangs keeps who lists keys": mutant(
            "(url, stall_s=NODE_LIST_STALL_S)",
            "(url, stall_s=300)",
            "tests/unit/proxy/test_keys.py::test_a_target_that_falls_silent_ends_the_stream",
            "TimeoutError",
        ),
        "keys of samples by several steps": mutant(
            ', "step": cluster_map.step}',
            "}",
            "tests/unit/proxy/test_keys.py::test_all_are_asked_again_when_one_is_at_another_step",
        ),
    },
    "dfc.target.listing": {
        "a target that looks for keys says nothing": mutant(
            "for _ in range(NODE_LIST_SIGNS_MAX):",
            "for _ in ():",
            "tests/unit/target/test_selection.py::test_while_a_list_takes_long_there_are_signs_of_it",
            "TimeoutError",
        ),
    },
    "dfc.proxy.duties": {
        "a disk that was put back is what it was": mutant(
            "if each.epoch <= before.epoch if is_new",
            "if each.epoch < before.epoch if is_new",
            f"{_EPOCHS}::test_which_disk_has_come_less_far[now3-found3]",
        ),
        "a heartbeat that comes late is a disk that was put back": mutant(
            " and each.now_us > before.now_us > 0:", ":", f"{_EPOCHS}::test_which_disk_has_come_less_far[now1-found1]"
        ),
        "a disk that was in doubt has another story": mutant(
            "life_of(self.incarnation) == life_of(other.incarnation)",
            "self.incarnation == other.incarnation",
            f"{_EPOCHS}::test_what_was_put_back_stays_so_until_it_says_that_it_is_another",
        ),
        "how far disks have come is written with each look": mutant(
            "msgspec.structs.replace(self._known[each], now_us=0)",
            "self._known[each]",
            f"{_EPOCHS}::test_nothing_is_written_while_nothing_happens",
        ),
        "how far disks have come is forgotten with the coordinator": mutant(
            "self._kept = self._registry.records(EPOCHS)",
            "self._kept = dict[str, bytes]()",
            f"{_EPOCHS}::test_the_next_coordinator_knows_it",
        ),
        "a target whose disk was put back gets a lease": mutant(
            "        if not why_older and not heartbeat.starting",
            "        if not heartbeat.starting",
            "tests/unit/proxy/test_registrations.py::test_a_target_whose_disk_was_put_back_gets_no_lease_and_is_told",
        ),
        "what only a disk had that was put back is denied": mutant(
            "if heartbeat.unaccepted and not heartbeat.leaving:",
            "if False:",
            "tests/unit/proxy/test_registrations.py::test_what_only_it_had_has_to_be_accepted",
        ),
        "a target with a newer map than the registry gets a lease": mutant(
            "        if map_version > version:\n",
            "        if False:\n",
            "tests/unit/proxy/test_steps.py::test_one_with_a_newer_map_than_the_registry_gets_none",
        ),
        "a copy of a target that runs is taken for it": mutant(
            "        await cluster.check_id_is_free(heartbeat, self._lease_s)\n",
            "",
            "tests/unit/proxy/test_registrations.py::test_a_copy_of_a_target_that_runs_is_refused",
            "Failed",
        ),
    },
    "dfc.proxy.jobs.runner": {
        "a job has succeeded whatever its targets have": mutant(
            "lost, is_last = await self._missing(self._names()), False",
            "lost, is_last = list[str](), False",
            "tests/unit/proxy/jobs/test_committing.py"
            "::test_a_job_whose_outputs_were_lost_before_others_had_them_fails_with_their_names",
        ),
    },
    "dfc.target.jobs": {
        "an older object counts as an output": mutant(
            "elif each.state is None or each.state.version < version:",
            "elif each.state is None:",
            "tests/unit/target/test_publishing.py::test_what_is_missing_is_told_only_for_certain",
        ),
        "a target that does not know has what is asked for": mutant(
            "if not each.speaks:",
            "if False:",
            "tests/unit/target/test_publishing.py::test_what_is_missing_is_told_only_for_certain",
        ),
    },
    "dfc.registry.etcd": {
        "an answer of etcd that comes late is another etcd": mutant(
            "self._is_restored or revision < before",
            "self._is_restored or revision < self._mirror.revision",
            "tests/unit/registry/test_etcd.py::test_an_answer_that_comes_late_is_no_other_etcd[reading everything]",
            "Unavailable",
        ),
    },
    "dfc.registry.offline": {
        "disks of a recovered registry are in sync": mutant(
            'incarnation=f"{life}.{_MARK}"',
            "incarnation=disk.incarnation",
            f"{_RECOVERING}::test_every_disk_comes_back_in_doubt[life.1]",
        ),
        "a disk of a recovered registry of which nobody knows what was on it is in sync": mutant(
            'down_step=step, out_of_sync_with=others, compare=f"{_MARK}-{step}")',
            "down_step=step)",
            f"{_RECOVERING}::test_every_disk_comes_back_in_doubt[]",
        ),
        "a recovered registry gives a version again": mutant(
            "version=found.version + VERSIONS_SKIPPED,",
            "version=found.version + 1,",
            f"{_RECOVERING}::test_every_disk_comes_back_in_doubt[life.1]",
        ),
        "a recovered registry gives numbers of nodes again": mutant(
            "last_number=max(each.last_number for each in known)",
            "last_number=newest.last_number",
            f"{_RECOVERING}::test_the_newest_counts",
        ),
        "a backup counts more than what targets know": mutant(
            "newest = max(known, key=lambda each: each.map.version)",
            "newest = known[-1]",
            f"{_RECOVERING}::test_the_newest_counts",
        ),
    },
    "dfc.proxy.cluster": {
        "a registry that is an old copy is changed": mutant(
            "            if version > self.version():\n                raise NoRegistry(",
            "            if False:\n                raise NoRegistry(",
            "tests/unit/proxy/test_cluster.py::test_a_registry_that_is_an_old_copy_is_not_changed_and_denies_nothing",
            "Failed",
        ),
        "a registry is changed before anybody was heard": mutant(
            "if left_s <= 0 and self._heartbeats.has_any:",
            "if left_s <= 0:",
            "tests/unit/proxy/test_cluster.py::test_just_after_the_start_a_heartbeat_is_waited_for",
            "Failed",
        ),
        "a target is refused because the disk of the registry is full": mutant(
            "            except NoSpace as error:  # of this proxy; the node asks again\n"
            "                raise NoRegistry(error.message) from error\n",
            "",
            "tests/unit/proxy/jobs/test_service.py::test_a_registry_that_cannot_be_written",
            "NoSpace",
        ),
        "whoever answers at the old address is the target": mutant(
            "return found == node_id if found else None",
            "return True",
            "tests/unit/proxy/test_registrations.py::test_a_target_that_was_started_anew_is_taken_at_once[another answers]",
            "IdInUse",
        ),
        "a target that does not answer has ended": mutant(
            "        except (TimeoutError, msgspec.DecodeError):\n            return None\n",
            "        except (TimeoutError, msgspec.DecodeError):\n            return False\n",
            "tests/unit/proxy/test_registrations.py::test_one_that_may_still_run_is_not_replaced_before_its_lease_is_over",
            "Failed",
        ),
        "two processes at one address take turns": mutant(
            "runs = True if self._returned.get(node_id) == heartbeat.process else None",
            "runs = False",
            "tests/unit/proxy/test_registrations.py::test_two_at_one_address_are_told_by_their_turns",
            "Failed",
        ),
    },
    "dfc.proxy.heartbeats": {
        "a proxy that hears no targets does not ask whether the registry is an old copy": mutant(
            "max(self._newest_version, reported.newest_version)",
            "self._newest_version",
            "tests/unit/proxy/test_cluster.py::test_just_after_the_start_a_heartbeat_is_waited_for",
        ),
        "one heartbeat tells that a registry is not old": mutant(
            "all(node_id in self._last or node_id in self._reported for node_id in node_ids)",
            "any(node_id in self._last or node_id in self._reported for node_id in node_ids)",
            "tests/unit/proxy/test_cluster.py::test_just_after_the_start_a_heartbeat_is_waited_for",
        ),
    },
    "dfc.replication.transitions": {
        "a recovered disk is taken to have been compared for an earlier return": mutant(
            'f"{incarnation}-{placement.step + 1}"', "incarnation", f"{_RECOVERING}::test_each_recovery_is_compared_anew"
        ),
    },
    "dfc.proxy.jobs.log": {
        "a job is published that its log does not know of": mutant(
            "            log.record = record\n            await self._flush(record.id, log)\n",
            "            log.record = record\n",
            f"{_LOG}::test_the_next_one_knows_what_the_first_has_written",
        ),
    },
    "dfc.proxy.facts": {
        "a target may be stopped while another one lacks writes": mutant(
            "if place.id in own or not place.is_up or place.out_of_sync_with}",
            "if place.id in own or not place.is_up}",
            f"{_STATE}::test_a_target_must_not_be_stopped_that_has_what_nothing_else_has",
        ),
    },
    "dfc.http.server": {
        "a node that drains hangs up on the others": mutant(
            "for each in self._all_connections() if not each.is_internal]",
            "for each in self._all_connections()]",
            "tests/unit/http/test_server.py::test_nodes_are_answered_until_the_requests_of_clients_have_finished",
            "IncompleteReadError",
        ),
        "a write that was given up while the node stood still is carried out": mutant(
            "                exchange.check_not_given_up()\n",
            "                pass\n",
            "tests/unit/http/test_server.py::test_a_write_that_was_given_up_in_a_pause_is_not_carried_out[empty]",
        ),
    },
    "dfc.proxy.jobs.service": {
        "jobs that a stopping proxy leaves behind are swept": mutant(
            "not leadership.is_held or self.is_stopping or self._may_publish(job_id)",
            "not leadership.is_held or self._may_publish(job_id)",
            "tests/unit/proxy/jobs/test_service.py::test_nothing_is_swept_by_who_stops",
        ),
    },
    "dfc.addresses": {
        "writes are sent to an address that hangs": mutant(
            "if limit_s is not None and begun_s - self._answered_s.get(url, -ANSWERED_S) >= ANSWERED_S:",
            "if False:",
            "tests/unit/test_addresses.py::test_nothing_is_sent_to_one_that_hangs[False]",
        ),
    },
    "dfc.registry.embedded": {
        "nobody is told that the registry cannot be written": mutant(
            "                self._note_written(why)\n",
            "",
            "tests/unit/proxy/jobs/test_service.py::test_a_registry_that_cannot_be_written",
            "ValueError",
        ),
    },
    "dfc.http.exchange": {
        "a body that was given up while the node stood still is taken": mutant(
            "        await self._receive(sink, threads)\n        self.check_not_given_up()\n",
            "        await self._receive(sink, threads)\n",
            "tests/unit/http/test_server.py::test_a_body_that_was_given_up_in_a_pause_is_not_taken",
        ),
        "a pause is forgotten as soon as the event loop goes on": mutant(
            " or self._ended_s > now_s - seconds - AFTER_S",
            "",
            "tests/unit/http/test_pauses.py::test_a_pause_is_seen_while_it_lasts_and_for_what_it_may_have_held_up",
        ),
    },
    "dfc.target.membership": {
        "a target takes an older map than that on its disks": mutant(
            "if kept is not None and kept.version > known.version:",
            "if False:",
            "tests/unit/target/test_registering.py::test_a_newer_map_on_the_disks_is_not_given_up_for_that_of_the_registry[c-9-9]",
        ),
        "a write does not wait for the map that has its bucket": mutant(
            "if not self._tasks or bucket_id in self._kept.get(disk_id, ()):",
            "if True:",
            "tests/unit/target/test_keptmap.py::test_a_write_waits_for_the_map_with_its_bucket",
        ),
    },
    "dfc.http.answers": {
        "an answer for which there are no descriptors is cut off": mutant(
            "if not self._is_begun and isinstance(error, OSError) and error.errno in EXHAUSTED:",
            "if False:",
            "tests/unit/http/test_server.py::test_a_large_answer_for_which_there_are_no_descriptors_is_refused",
            "IncompleteReadError",
        ),
    },
    "dfc.engine.link": {
        "workers take tasks from anybody": mutant(
            "        if not is_safe:\n",
            "        if False:\n",
            "tests/cluster/test_scheduler.py::test_workers_take_no_tasks_from_just_anybody",
        ),
    },
}
