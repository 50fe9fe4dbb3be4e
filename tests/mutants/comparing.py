"""Mistakes about copies that are compared: what is found, who is right, and what is touched."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Table, mutant

_RULES: Final = "tests/unit/replication/test_comparing.py"
_PAIRS: Final = "tests/unit/target/copies/test_comparing.py"

COMPARING: Final[Table] = {
    "dfc.replication.compare": {
        "compare repairs from the other replica rather than the primary": mutant(
            "    mine, theirs = second.primary.version, second.replica.version\n",
            "    mine, theirs = second.replica.version, second.primary.version\n",
            f"{_PAIRS}::test_each_difference_is_found_and_repaired_from_the_primary",
        ),
        "compare repairs what is newer than the primary's": mutant(
            "if theirs is None or theirs < mine:",
            "if theirs != mine:",
            f"{_PAIRS}::test_what_contradicts_the_primary_is_left_as_it_is",
        ),
        "compare believes a primary that has lost what it cannot have deleted": mutant(
            "theirs > forgotten else",
            "False else",
            f"{_RULES}::test_what_cannot_have_been_deleted_without_a_trace_was_lost_by_its_primary",
        ),
        "compare goes by one look": mutant(
            "if first != second or not", "if not", f"{_RULES}::test_nothing_is_concluded_from_what_is_on_its_way[replica0]"
        ),
        "compare takes what is pending at the replica to be there": mutant(
            " or not second.primary.is_sure or not second.replica.is_sure:",
            " or not second.primary.is_sure:",
            f"{_RULES}::test_nothing_is_concluded_from_what_is_on_its_way[replica1]",
        ),
        "compare does not see other bytes of the same version": mutant(
            "{version}\\0{checksum}", "{version}\\0", f"{_RULES}::test_one_object_that_differs_shows_in_its_slice[other bytes]"
        ),
        "compare goes by folds without counts": mutant(
            "if fold != theirs or count != their]",
            "if fold != theirs]",
            f"{_RULES}::test_one_object_that_differs_shows_in_its_slice[twice]",
        ),
    },
    "dfc.target.copies.compare": {
        "compare of a disk that does not answer finds all alike": mutant(
            'raise NotCompared(f"the target of disk {self._replica} does not answer")',
            "return kind()",
            f"{_PAIRS}::test_a_disk_that_falls_silent_in_the_middle_is_not_compared",
        ),
        "compare goes on with another placement": mutant(
            "        if self._ledger.placement.step != placement.step:\n",
            "        if False:\n",
            f"{_PAIRS}::test_what_was_found_by_an_older_map_does_not_count",
        ),
        "the copies of a primary that has lost its rows are set aside": mutant(
            "        if self._has_lost:\n", "        if False:\n", f"{_PAIRS}::test_a_primary_that_has_lost_many_costs_nothing"
        ),
    },
    "dfc.placement.map": {
        "rows of a bucket that is being deleted are set aside": mutant(
            'return bucket is not None and bucket.state != "deleting"',
            "return True",
            f"{_PAIRS}::test_rows_of_a_bucket_that_is_being_deleted_are_left_alone[between the looks]",
        ),
    },
    "dfc.storage.copies": {
        "what a primary does not know is dropped": mutant(
            "RemoveExcess(some, guard, keeps_blobs=True)",
            "RemoveExcess(some, guard)",
            "tests/unit/storage/test_excess.py::test_a_crash_before_a_file_is_set_aside_loses_nothing",
        ),
    },
    "dfc.target.copies.answers": {
        "what a primary does not know is set aside unasked": mutant(
            "strict=False) if each.knows_nothing]",
            "strict=False)]",
            f"{_PAIRS}::test_nothing_is_set_aside_if_the_primary_knows_it_when_the_replica_asks",
        ),
    },
}
