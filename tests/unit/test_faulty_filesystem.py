"""The faults themselves."""

from __future__ import annotations

from faulty_filesystem import kill, kill_after, places


def test_places_where_a_kill_after_a_call_differs_from_one_before_the_next() -> None:
    names = ["create", "write", "fdatasync", "pwrite", "commit", "unlink", "sync_directory"]
    assert places(names, kill) == list(range(7))
    assert places(names, kill_after) == [1, 3, 4, 6]
    assert places([], kill_after) == []
