"""What has gone wrong, or would have, where copies met a disk and a registry that were made for one: by each trap, the mutants
and the tests that keep it from coming back."""

from __future__ import annotations

from typing import Final

_COPIES: Final = "tests/unit/storage/test_copies.py"
_SUPPLIED: Final = "tests/unit/storage/test_supplied.py"
_EXCESS: Final = "tests/unit/storage/test_excess.py"

TRAPS: Final[dict[str, tuple[str, ...]]] = {
    "storing the version that is there discards its own blob": (
        "same version put twice: the blob is garbage",
        "same version put twice: the blob replaces itself",
        "same version put twice: other bytes are taken",
        f"{_COPIES}::test_the_version_that_is_here_comes_again_and_the_object_stays",
        f"{_SUPPLIED}::test_a_version_that_is_here_already_may_come_again_as_it_was",
    ),
    "the sweep sets a copy aside while it is received, since its version is older than the opening of the disk": (
        "sweep takes a copy in flight",
        f"{_SUPPLIED}::test_the_sweep_leaves_alone_what_arrives_with_an_old_version",
        f"{_SUPPLIED}::test_the_sweep_knows_drawn_ids_of_files_with_hashed_names",
    ),
    "the thread that unlinks large blobs unlinks one that has come again": (
        "a new blob gets the id of one that is to be unlinked",
        f"{_COPIES}::test_what_is_unlinked_late_is_not_what_has_come_again",
        f"{_SUPPLIED}::test_a_disk_draws_no_id_that_it_has_drawn_before",
    ),
    "many rows that are removed without their files raise the orphan alarm and stop the sweep": (
        "orphan alarm by a large removal of excess rows",
        "orphan alarm by rows that were undone",
        "orphan alarm by a large removal of a bucket",
        "removed blobs forgotten before their unlinks are synced",
        "tests/crash/test_copies.py::test_excess_rows_whose_removal_was_killed_raise_no_alarm",
        "tests/crash/test_copies.py::test_excess_rows_whose_removal_lost_power_raise_no_alarm",
        "tests/crash/test_kill.py::test_a_bucket_of_many_objects_whose_removal_was_killed",
    ),
    "a reader quarantines a row that left and came back": (
        "a row that left and came back is quarantined",
        f"{_SUPPLIED}::test_a_reader_of_the_lost_blob_does_not_quarantine_the_new_one",
    ),
    "a node gets the number of one that is gone, and its versions are not unique": (
        "numbers of nodes are given again",
        "tests/unit/registry/test_changes.py::test_when_all_numbers_are_given",
    ),
    "a proxy takes a registration apart from what it does not know": (
        "what a newer target says is passed over",
        "tests/unit/registry/test_registration.py::test_a_proxy_understands_targets_of_before",
        "tests/unit/registry/test_registration.py::test_targets_pass_over_what_a_newer_proxy_answers",
    ),
    "a commit is decided by what held when its upload began": (
        "a primary writes without a lease",
        "a primary writes before it is peered",
        "a member commits without a lease",
        "a guard lets one copy pass where there are several",
        "acknowledged after the lease",
        "decided by an older map than the sender's",
        "a step is acknowledged before older commits are done",
        "tests/unit/target/test_local.py::test_the_guard_decides_by_the_map_of_the_commit",
        "tests/unit/target/copies/test_receiving.py::test_the_map_may_change_while_a_body_comes",
    ),
    "a row in memory is served by a disk that may not serve it": (
        "a row in memory is served whoever reads it",
        "a row in memory that was undone while it was read is served",
        "tests/unit/storage/catalog/test_cache.py::test_a_reader_cannot_put_back_what_a_commit_has_changed_meanwhile",
    ),
    "a tombstone is purged that a disk which is away has not got": (
        "tombstones that somebody lacks are purged",
        "tests/cluster/test_copies.py::test_what_is_deleted_while_a_replica_is_away_stays_deleted",
    ),
}
