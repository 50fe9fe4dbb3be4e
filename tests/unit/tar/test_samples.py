"""The rule for keys, against the regular expression that it replaces, and how neighbours become samples."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.limits import SAMPLE_RECORDS_MAX
from dfc.tar.header import DIRECTORY, FILE
from dfc.tar.samples import NO_KEY, SampleGrouper, split_key

RULE = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$", re.DOTALL)
META = re.compile(r"__[^/]*__($|/)")
NAMES = st.text(alphabet="ab./_É", max_size=12)


def by_rule(name: str) -> tuple[str, str] | None:
    if name.rpartition("/")[2].startswith(".") or META.match(name):
        return None
    match = RULE.match(name)
    return (match[1], match[2].lower()) if match else None


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.jpg", ("a", "jpg")),
        ("dir.x/a.seg.PNG", ("dir.x/a", "seg.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("../b/a.cls", ("../b/a", "cls")),
        ("a.", ("a", "")),
        ("d/._x.jpg", None),
        (".hidden", None),
        ("d/.jpg", None),
        ("README", None),
        ("d.x/noext", None),
        ("d/", None),
        ("", None),
        ("__meta__", None),
        ("__meta__/a.json", None),
        ("d/__meta__/a.json", ("d/__meta__/a", "json")),
        ("__init__.py", ("__init__", "py")),
        ("__a.txt", ("__a", "txt")),
    ],
)
def test_examples(name, parts):
    assert split_key(name) == parts == by_rule(name)


@given(NAMES)
def test_same_as_the_regular_expression(name):
    assert split_key(name) == by_rule(name)


@given(st.lists(NAMES, max_size=20), st.integers(1, 5))
def test_the_fast_way_agrees_with_split_key_in_pieces_of_any_size(names, size):
    grouper = SampleGrouper()
    chars: list[int] = []
    starts: list[int] = []
    for begin in range(0, len(names), size):
        more = grouper.cut(names[begin : begin + size], [FILE] * size)
        chars += more[0]
        starts += [begin + start for start in more[1]]
    expected = [split_key(name) for name in names]
    assert chars == [NO_KEY if parts is None else len(parts[0]) for parts in expected]
    assert (chars, starts) == SampleGrouper().cut(names, [FILE] * len(names))


def starts(*names: str) -> list[int]:
    return SampleGrouper().cut(names, [FILE] * len(names))[1]


def test_neighbours_with_one_key_are_one_sample():
    assert starts("a.jpg", "a.cls", "b.jpg", "b.cls", "b.seg.png") == [0, 2]


def test_what_belongs_to_no_sample_separates_nothing():
    assert starts("a.jpg", "README", "._a.jpg", "a.cls") == [0]
    assert SampleGrouper().cut(["a.jpg", "d.x/", "a.cls"], [FILE, DIRECTORY, FILE]) == ([1, NO_KEY, 1], [0])


def test_a_repeated_extension_begins_a_new_sample():
    assert starts("a.jpg", "a.cls", "a.JPG", "a.cls") == [0, 2]


def test_a_key_that_comes_back_begins_a_new_sample():
    assert starts("a.jpg", "b.jpg", "a.cls") == [0, 1, 2]


def test_one_sample_spans_a_bounded_number_of_members():
    names = [f"a.{number}" for number in range(2 * SAMPLE_RECORDS_MAX + 1)]
    assert starts(*names) == [0, SAMPLE_RECORDS_MAX, 2 * SAMPLE_RECORDS_MAX]
    gap = ["a.x"] + ["README"] * (SAMPLE_RECORDS_MAX - 1)
    assert starts(*gap[:-1], "a.y") == [0]
    assert starts(*gap, "a.y") == [0, SAMPLE_RECORDS_MAX]


def test_one_by_one():
    grouper = SampleGrouper()
    assert [grouper.starts_sample(name) for name in ("a.x", "a.y", "README", "a.z", "b.x")] == [True, False, False, False, True]
