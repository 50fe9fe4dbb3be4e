"""Pages of a target: prefixes rolled up by seeks, against a naive model of the names on its disks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.listing.pages import Page, merge_pages
from dfc.target import listing
from dfc.target.listing import list_page

NAMES = st.text(alphabet="ab/-é", min_size=1, max_size=6)


def page_of(disks: Any, *asked: Any) -> Page:
    """A page of a target with so many disks."""
    return merge_pages([list_page(disk, *asked) for disk in disks], asked[-1])


class FakeDisk:
    """A disk's `list_tuples` over a set of names, the slow way. Counts the rows it gives."""

    def __init__(self, names):
        self.names = sorted(names, key=str.encode)
        self.given = 0

    def list_tuples(self, bucket_id, *, prefix="", start_after="", after_prefix=False, limit, ranks="first"):
        assert bucket_id == "b"
        found = [
            (name, len(name), "0" * 32, 0, None, None)
            for name in self.names
            if name.startswith(prefix)
            and name.encode() > start_after.encode()
            and not (after_prefix and start_after and name.startswith(start_after))
        ][:limit]
        self.given += len(found)
        return found


def expected(names, prefix, start_after, delimiter):
    entries = set()
    for name in names:
        if name.startswith(prefix):
            at = name.find(delimiter, len(prefix)) if delimiter else -1
            entries.add(name if at < 0 else name[: at + 1])
    return sorted((entry for entry in entries if entry.encode() > start_after.encode()), key=str.encode)


def all_of(disks, prefix, position, delimiter, limit):
    """The names and prefixes of page after page."""
    found = list[str]()
    for _ in range(200):
        page = page_of(disks, "b", prefix, position, delimiter, limit)
        assert len(page.rows) + len(page.prefixes) <= limit
        assert page.last != position or not page.more
        found += sorted([row[0] for row in page.rows] + page.prefixes, key=str.encode)
        if not page.more:
            return found
        position = page.last or position
    raise AssertionError("pages without end")


@given(
    st.dictionaries(NAMES, st.integers(0, 2), max_size=30),
    st.text(alphabet="ab/é", max_size=3),
    st.text(alphabet="ab/é", max_size=4),
    st.sampled_from(["", "/", "a"]),
    st.integers(1, 8),
    st.integers(1, 4),
)
def test_pages_against_the_model(placed, prefix, start_after, delimiter, limit, probe):
    disks = [FakeDisk([name for name, place in placed.items() if place == number]) for number in range(3)]
    wanted = expected(placed, prefix, start_after, delimiter)
    before, listing.PROBE_ROWS = listing.PROBE_ROWS, probe
    try:
        assert all_of(disks, prefix, start_after, delimiter, limit) == wanted
    finally:
        listing.PROBE_ROWS = before


def test_a_large_folder_costs_one_seek():
    disk = FakeDisk([f"{letter}/{number:05d}" for letter in "abcd" for number in range(5000)] + ["z"])
    page = page_of([disk], "b", "", "", "/", 100)
    assert (page.prefixes, [row[0] for row in page.rows], page.more) == (["a/", "b/", "c/", "d/"], ["z"], False)
    assert disk.given < 10 * listing.PROBE_ROWS


def test_a_page_says_whether_there_is_more():
    disk = FakeDisk(["a", "b/1", "b/2", "c"])
    assert not page_of([disk], "b", "", "", "/", 10).more
    assert page_of([disk], "b", "", "", "/", 2).more
    assert page_of([disk], "b", "", "b/", "/", 10).rows[0][0] == "c"
    assert not page_of([disk], "b", "nothing", "", "", 10).more


LINEAGES = [f".dfc/jobs/{number:05}.json" for number in range(3000)]
SEEN = [".a", ".dfb", ".dfc-x", ".dfc0", "a", "b/1", "b/2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("prefix", "start_after", "delimiter", "wanted"),
    [
        ("", "", "", SEEN),
        ("", "", "/", [".a", ".dfb", ".dfc-x", ".dfc0", "a", "b/"]),
        (".d", "", "", [".dfb", ".dfc-x", ".dfc0"]),
        (".dfc", "", "/", [".dfc-x", ".dfc0"]),
        ("", ".dfc/jobs/00100.json", "", [".dfc0", "a", "b/1", "b/2"]),
        ("", "", ".", ["."]),
        (".dfc/", ".dfc/jobs/02997.json", "", LINEAGES[2998:]),
        (".dfc/", "", "/", [".dfc/jobs/"]),
    ],
)
def test_own_objects_are_shown_only_to_who_asks_for_them(prefix, start_after, delimiter, wanted, limit):
    wanted = sorted(wanted, key=str.encode)
    if delimiter == ".":
        wanted = [".", "a", "b/1", "b/2"]
    disk = FakeDisk(LINEAGES + SEEN)
    assert all_of([disk], prefix, start_after, delimiter, limit) == wanted
    assert disk.given < 20 * listing.PROBE_ROWS, "however many they are, they cost a seek"
