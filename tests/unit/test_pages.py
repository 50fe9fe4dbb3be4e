"""Merging pages of several places: never a gap, never a repeat, whatever share of the names each page has."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.listing.pages import Page, after_prefix, listed, merge_pages, rfc3339

NAMES = st.text(alphabet="ab/é日🙂\uffff", min_size=1, max_size=4)
# A name is in one place; common prefixes are in several.
PLACES = st.dictionaries(NAMES, st.integers(0, 3), max_size=25).map(
    lambda placed: [{name for name, place in placed.items() if place == number} for number in range(4)]
)


def in_bytes(names):
    return sorted(names, key=str.encode)


def row(name):
    return (name, len(name), "0" * 32, 0, None, None)


def page_of(names, limit, delimiter=""):
    """The first `limit` entries of one place's names: rows, and prefixes when there is a delimiter."""
    entries = in_bytes({entry_of(name, delimiter) for name in names})
    shown = entries[:limit]
    rows = [row(entry) for entry in shown if not (delimiter and entry.endswith(delimiter))]
    prefixes = [entry for entry in shown if delimiter and entry.endswith(delimiter)]
    return Page(rows, prefixes, len(entries) > limit)


def entry_of(name, delimiter):
    head, found, _ = name.partition(delimiter) if delimiter else (name, "", "")
    return head + found


def entries_of(page):
    return in_bytes([entry[0] for entry in page.rows] + page.prefixes)


@given(PLACES, st.lists(st.integers(1, 10), min_size=4, max_size=4), st.integers(1, 40), st.sampled_from(["", "/"]))
def test_a_merged_page_is_the_beginning_of_everything(places, limits, limit, delimiter):
    everything = in_bytes({entry_of(name, delimiter) for names in places for name in names})
    pages = [page_of(names, share, delimiter) for names, share in zip(places, limits, strict=False)]
    merged = merge_pages(pages, limit)
    shown = entries_of(merged)
    assert shown == everything[: len(shown)]
    assert len(shown) <= limit
    assert [entry[0] for entry in merged.rows] == in_bytes(entry[0] for entry in merged.rows)
    assert merged.prefixes == in_bytes(set(merged.prefixes))
    assert merged.more or shown == everything
    if any(page.rows or page.prefixes for page in pages):
        assert shown or merged.more


@given(PLACES, st.integers(1, 6), st.integers(1, 30), st.sampled_from(["", "/"]))
def test_page_after_page_shows_each_entry_once(places, share, limit, delimiter):
    position, found = "", []
    for _ in range(100):
        left = [{n for n in place if entry_of(n, delimiter).encode() > position.encode()} for place in places]
        merged = merge_pages([page_of(place, share, delimiter) for place in left], limit)
        found += entries_of(merged)
        if not merged.more:
            break
        assert merged.last.encode() > position.encode()
        position = merged.last
    assert found == in_bytes({entry_of(name, delimiter) for names in places for name in names})


def test_order_of_code_points_is_order_of_bytes():
    names = ["\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff", "a", "é"]
    merged = merge_pages([Page([row(name)], [], False) for name in names], 10)
    assert [entry[0] for entry in merged.rows] == in_bytes(names)


def test_the_last_entry_of_a_page():
    assert Page([], [], False).last == ""
    assert Page([row("a")], ["b/"], False).last == "b/"
    assert Page([row("c")], ["b/"], False).last == "c"


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_after_prefix_is_the_least_bound(left, right):
    try:
        prefix = left.decode()
    except UnicodeDecodeError:
        return
    bound = after_prefix(prefix)
    assert (bound is None) == (prefix == "")
    if bound is not None:
        assert (left + right) < bound
        assert not bound.startswith(left)
        assert right.startswith(left) or (right < left or right >= bound)


@pytest.mark.parametrize(
    ("microseconds", "text"), [(0, "1970-01-01T00:00:00.000Z"), (1_700_000_000_999_999, "2023-11-14T22:13:20.999Z")]
)
def test_times(microseconds, text):
    assert rfc3339(microseconds) == text
    assert listed([("a", 1, "c", microseconds, 2, 3)])[0].modified == text
    assert rfc3339(time.time_ns() // 1000)[:10] == time.strftime("%Y-%m-%d", time.gmtime())
