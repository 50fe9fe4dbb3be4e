"""Mistakes of a disk: what is on the medium, and when; whose blobs may go; what is known of a row."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant, Table, mutant

_COPIES: Final = "tests/unit/storage/test_copies.py"
_DOUBT: Final = "tests/unit/storage/test_doubt.py"
_EXCESS: Final = "tests/unit/storage/test_excess.py"
_ON_THE_MEDIUM: Final = f"{_COPIES}::test_a_copy_is_on_the_medium_before_its_row"
_NO_ALARM: Final = f"{_EXCESS}::test_a_large_removal_whose_files_are_left_raises_no_alarm"

MEDIUM: Final[Table] = {
    "dfc.walcheck": {
        "a log ends at its first damaged frame": mutant(
            "    return TornLog(first_bad, frames, commits) if commits else None",
            "    return None",
            "tests/unit/test_walcheck.py::test_every_flip_before_the_last_commit_is_seen",
        ),
        "frames behind a damaged one are checked by what it should have been": mutant(
            "    is_ours = np.all(heads[:, 2:4]",
            "    is_ours = np.all(heads[:, 1:3]",
            "tests/unit/test_walcheck.py::test_where_it_is_and_what_comes_behind",
        ),
    },
    "dfc.storage.disk": {
        "a damaged log in the same boot is a power loss": mutant(
            "identity.last_opening(root).boot != boot",
            "True",
            "tests/unit/storage/test_torn_log.py::test_in_the_same_boot_it_is_damage_and_refused",
            "Failed",
        ),
        "a torn log is noted after other things are written": mutant(
            "        if catalog.torn is not None:\n",
            "        if False:\n",
            "tests/unit/storage/test_torn_log.py::test_a_crash_while_it_is_opened_forgets_no_damage",
        ),
    },
    "dfc.storage.upkeep.sweep": {
        "what may be objects is set aside after a torn log": mutant(
            "    elif complete and parts.catalog.may_have_lost_rows:",
            "    elif False:",
            "tests/unit/storage/test_torn_log.py::test_what_may_be_lost_is_not_touched",
        ),
        "orphans are deleted while objects may be lost": mutant(
            "    if parts.catalog.may_have_lost_rows:\n        return 0",
            "    if False:\n        return 0",
            "tests/unit/storage/test_torn_log.py::test_what_may_be_lost_is_not_touched",
        ),
        "removed blobs forgotten before their unlinks are synced": mutant(
            "            parts.filesystem.sync_all(parts.root)",
            "            pass",
            f"{_EXCESS}::test_a_removed_file_is_forgotten_when_its_unlink_is_on_the_medium",
        ),
    },
    "dfc.storage.upkeep.rebuild": {
        "a rebuild reads a damaged log before it is set aside": mutant(
            'if torn_log(f"{root}/{layout.CATALOG_FILE}") is not None:',
            "if False:",
            "tests/unit/storage/test_torn_log.py::test_a_rebuild_that_is_interrupted_forgets_no_damage",
            "Failed",
        ),
    },
    "dfc.filesystem": {
        "a registry whose log is damaged is used": mutant(
            "torn.commits > 1:", "False:", "tests/unit/registry/test_file.py::test_a_damaged_log_is_refused", "Failed"
        ),
        "a schema that is no text is opened": mutant(
            "is_text = all(text.isascii() for (text,) in texts)",
            "is_text = True",
            "tests/unit/test_database.py::test_one_whose_schema_is_no_text_is_refused",
            "Failed",
        ),
    },
    "dfc.storage.catalog.commit": {
        "what is synced after an epoch was told does not count": mutant(
            "self._told_epoch >= epoch:",
            "False:",
            "tests/unit/storage/test_epoch.py::test_one_that_is_put_back_says_less[True]",
        ),
        "an epoch is told that a power loss may take back": mutant(
            "if self._synchronous and self._told_epoch",
            "if self._told_epoch",
            "tests/unit/storage/test_epoch.py::test_what_a_power_loss_may_cost_does_not_count",
        ),
    },
    "dfc.storage.blobs.writer": {
        "no fsync of a small copy": mutant("durable=durable)", "durable=False)", f"{_ON_THE_MEDIUM}[small]"),
        "no fsync of a small upload": mutant(
            'blob.close(durable=durability == "fsync")',
            "blob.close(durable=False)",
            "tests/unit/storage/blobs/test_several.py::test_one_alone_is_synced_before_its_commit",
        ),
        "no fsync of a large copy": mutant(
            "self._blob.close(durable=self._durable, stays_cached=self._stays_cached)",
            "self._blob.close(durable=self._durable and self._supplied.version is None)",
            f"{_ON_THE_MEDIUM}[large]",
        ),
        "no fsync of the directories": mutant("parts.directories.sync_chain(directory)", "pass", f"{_ON_THE_MEDIUM}[small]"),
        "catalog row before the sync of a small blob": Mutant(
            (
                ('    found |= _close(parts, written, durable=durability == "fsync")\n', ""),
                (
                    "    return [found[place] for place in range(len(uploads))]\n",
                    '    _close(parts, written, durable=durability == "fsync")\n'
                    "    return [found[place] for place in range(len(uploads))]\n",
                ),
            ),
            f"{_ON_THE_MEDIUM}[small]",
        ),
        "catalog row before the sync of a large blob": Mutant(
            (
                ("            self._blob.close(durable=self._durable, stays_cached=self._stays_cached)\n", ""),
                (
                    "        parts.stats.puts += 1\n",
                    "        self._blob.close(durable=self._durable, stays_cached=self._stays_cached)\n"
                    "        parts.stats.puts += 1\n",
                ),
            ),
            f"{_ON_THE_MEDIUM}[large]",
        ),
    },
    "dfc.storage.catalog.copies": {
        "no sync of a copy's row": mutant(
            "self.durable = state.row is None or state.row.state != UNSYNCED",
            "self.durable = False",
            f"{_ON_THE_MEDIUM}[small]",
        ),
        "no sync of the hints of an acknowledged write": mutant(
            "self.durable = bool(hints)", "self.durable = False", f"{_COPIES}::test_a_write_is_made_certain_in_one_step"
        ),
    },
}

BLOBS: Final[Table] = {
    "dfc.storage.blobs.writer": {
        "a small copy that fails fails those beside it": mutant(
            "            found[place] = _kept(error)\n    found |= ",
            "            return [error] * len(uploads)\n    found |= ",
            "tests/unit/storage/blobs/test_several.py::test_one_of_them_that_is_refused_keeps_none_of_the_others",
        ),
        "a name that is not durable is that of one blob": mutant(
            "            for place in some:\n",
            "            for place in some[:1]:\n",
            "tests/unit/storage/blobs/test_several.py::test_an_error_of_the_disk_is_that_of_the_files_it_concerns[sync_directory-2]",
        ),
    },
    "dfc.target.copies.receive": {
        "rows that move stay in memory": mutant(
            "standing=standing, stays_cached=False)",
            "standing=standing)",
            "tests/unit/target/copies/test_receiving.py::test_rows_that_move_here_stay_out_of_memory",
        ),
    },
    "dfc.storage.catalog.copies": {
        "same version put twice: the blob is garbage": mutant(
            "stored = current.blob_id == row.blob_id or makes_good(row, current)",
            "stored = makes_good(row, current)",
            f"{_COPIES}::test_a_blob_that_is_the_object_already_is_no_garbage",
        ),
        "same version put twice: other bytes are taken": mutant(
            "            require_same(row, current)\n",
            "",
            f"{_COPIES}::test_one_version_with_two_contents_is_refused",
            "Failed",
        ),
        "orphan alarm by a large removal of excess rows": mutant(
            "            for row in () if self._keeps_blobs else leaving:\n                transaction.depart(row)\n",
            "",
            f"{_NO_ALARM}[surplus]",
        ),
        "orphan alarm by rows that were undone": mutant(
            "        for row in garbage:\n            transaction.depart(row)\n", "", f"{_NO_ALARM}[undone]"
        ),
    },
    "dfc.storage.catalog.changes": {
        "same version put twice: the blob replaces itself": mutant(
            "    elif current.blob_id != row.blob_id:",
            "    else:",
            f"{_COPIES}::test_a_blob_that_is_the_object_already_is_no_garbage",
        ),
    },
    "dfc.storage.upkeep.sweep": {
        "sweep takes a copy in flight": mutant(
            "        if file.blob_id >= before:\n",
            "        known = _footer_or_none(filesystem, path)\n        if known is not None and known.version >= before:\n",
            f"{_COPIES}::test_the_sweep_leaves_a_copy_alone_that_is_on_its_way",
        ),
        "orphan alarm by a large removal of a bucket": mutant(
            "        elif removed:\n",
            "        elif False:\n",
            "tests/unit/storage/upkeep/test_sweep.py::test_what_a_removal_of_a_bucket_left_is_no_alarm",
        ),
    },
    "dfc.storage.disk": {
        "a new blob gets the id of one that is to be unlinked": mutant(
            'clock.observe(f"{catalog.newest_us():014x}ffff")',
            "pass",
            f"{_EXCESS}::test_no_new_blob_gets_the_id_of_one_that_is_to_be_unlinked",
        ),
    },
    "dfc.storage.blobs.reader": {
        "a row that left and came back is quarantined": mutant(
            "if current.blob_id != row.blob_id:",
            "if current.version != row.version:",
            "tests/unit/storage/test_supplied.py::test_whoever_holds_the_row_of_the_lost_blob_is_told_of_the_new_one",
            "ObjectCorrupt",
        ),
    },
}

ROWS: Final[Table] = {
    "dfc.storage.catalog.commit": {
        "no note of what a power loss may cost": mutant(
            "            if transaction.leaves_doubt and self._catalog.relaxed_boot != self._boot:\n",
            "            if False:\n",
            f"{_DOUBT}::test_a_power_loss_that_may_have_cost_rows_makes_the_disk_another[own]",
        ),
        "the note of what a power loss may cost is lost with it": mutant(
            "        self._set_synchronous(True)\n",
            "        self._set_synchronous(False)\n",
            f"{_DOUBT}::test_the_note_is_durable_before_the_row",
        ),
        "a row can be read before it is known to be pending": Mutant(
            (
                ("            expected = marks.expect(transaction.marks)\n", ""),
                ("        self._log_pages += 3 ", "        marks.expect(transaction.marks)\n        self._log_pages += 3 "),
            ),
            f"{_COPIES}::test_a_row_is_known_to_be_pending_before_it_can_be_read",
        ),
    },
    "dfc.storage.disk": {
        "a kill counts as a power loss": mutant(
            "        if catalog.relaxed_boot not in (None, boot):\n",
            "        if catalog.relaxed_boot is not None:\n",
            f"{_DOUBT}::test_a_restart_of_the_process_alone_changes_nothing",
        ),
    },
    "dfc.storage.catalog.transaction": {
        "the doubt ends before all is synced": mutant(
            'if self.may_end_doubt and self._execute("SELECT 1 FROM unsynced LIMIT 1", ()).fetchone() is None:',
            "if self.may_end_doubt:",
            f"{_DOUBT}::test_what_is_not_synced_yet_keeps_the_note",
        ),
        "tombstones that somebody lacks are purged": mutant(
            '            " AND NOT EXISTS (SELECT 1 FROM hints AS o WHERE o.bucket = t.bucket AND o.name = t.name) LIMIT ?",\n',
            '            " LIMIT ?",\n',
            f"{_EXCESS}::test_a_tombstone_that_somebody_lacks_is_not_purged",
        ),
    },
    "dfc.storage.copies": {
        "others hear of what a power loss may have cost": mutant(
            "        if found is None or found.row is None or not found.row.unsynced:\n",
            "        if True:\n",
            f"{_DOUBT}::test_what_may_be_lost_is_looked_at_before_others_hear_of_it[True-True]",
        ),
    },
    "dfc.storage.catalog.copies": {
        "confirmed in another version": mutant(
            "    if transaction.pending(bucket_id, name) == version:\n",
            "    if transaction.pending(bucket_id, name):\n",
            f"{_COPIES}::test_a_write_is_made_certain_in_one_step",
        ),
        "a row that counts is undone": mutant(
            "if present != self._over or transaction.pending(bucket_id, name) != self._over:",
            "if present != self._over:",
            f"{_COPIES}::test_nothing_else_than_exactly_what_is_pending_is_undone",
        ),
        "a delete that comes late is undone by a power loss": mutant(
            "if present is not None and present > state.version:",
            "if False:",
            "tests/unit/storage/test_supplied.py::test_a_delete_below_a_relaxed_upload_is_not_undone_by_a_power_cut",
        ),
        "a bucket that was removed takes copies": mutant(
            "if transaction.bucket_number(bucket_id) is None and transaction.was_removed(bucket_id):",
            "if False:",
            f"{_COPIES}::test_a_bucket_that_was_removed_takes_nothing",
        ),
        "excess rows go that another disk lacks": mutant(
            "if transaction.pending(bucket_id, name) is not None or transaction.is_hinted(bucket_id, name):",
            "if False:",
            f"{_EXCESS}::test_excess_rows_go_if_they_are_still_what_they_were_and_nobody_needs_them",
        ),
        "a hint means the version that was delivered, whatever is here": mutant(
            "if _present(transaction, bucket_id, name) == version",
            "if True",
            f"{_EXCESS}::test_hints_are_kept_until_the_disk_has_what_is_here",
        ),
    },
    "dfc.replication.write": {
        "an upload that a conditional write overtook is acknowledged": mutant(
            "        return UploadOrder.OVERTAKEN\n",
            "        return UploadOrder.REPLACED\n",
            "tests/unit/storage/catalog/test_order.py::test_an_upload_that_a_conditional_write_overtook_is_refused",
            "Failed",
        ),
    },
}
