"""Histograms of reports, and what is far from the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.jobs.records import report_of
from dfc.ui.datasetfacts import BAR_UNITS, Usual, class_histogram, size_histograms


def report(**changed: Any) -> bytes:
    sizes = [[0, 1], [1024, 4], [4096, 2]]
    extensions = {
        "cls": {"members": 7, "bytes": 7, "smallest": 1, "largest": 1},
        "jpg": {"members": 7, "bytes": 9000, "smallest": 0, "largest": 5000, "sizes": sizes},
    }
    totals = {"shards": 2, "samples": 7, "members": 14, "bytes": 9, "stored_bytes": 10_000, "extensions": extensions, **changed}
    return json.dumps(totals, separators=(",", ":")).encode()[:-1] + b',"by_shard":[\n{"shard":"a"'  # cut here, or not


def test_a_report_is_read_up_to_its_shards() -> None:
    found = report_of(report(by="cls", classes={'","by_shard":[': {"samples": 7, "bytes": 1}}))
    assert found is not None
    assert (found.shards, found.samples, found.stored_bytes, found.by) == (2, 7, 10_000, "cls")
    assert list(found.classes or ()) == ['","by_shard":[']


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"shards":1,"by_shard":[]}',
        report(shards=-1),
        report(samples=10**4000),
        report(classes={"a": 1}),
        report()[:40],
        b"\xff" + report(),
    ],
)
def test_what_is_no_report_is_none(content: bytes) -> None:
    assert report_of(content) is None


def test_sizes_double_from_bar_to_bar() -> None:
    found = report_of(report())
    assert found is not None
    (histogram,) = size_histograms(found)
    assert histogram.title == "jpg"
    assert [(bar.label, bar.value) for bar in histogram.bars][-3:] == [
        ("1.02 kB to 2.05 kB", "4"), ("2.05 kB to 4.1 kB", "0"), ("4.1 kB to 8.19 kB", "2"),
    ]  # fmt: skip
    assert (histogram.bars[0].label, histogram.bars[0].length) == ("empty", BAR_UNITS // 4)
    assert len(histogram.bars) == 14
    assert class_histogram(found) is None


def test_sizes_of_what_is_always_small_say_nothing() -> None:
    found = report_of(report(extensions={"cls": {"members": 9, "bytes": 9, "smallest": 1, "largest": 2, "sizes": [[1, 9]]}}))
    assert found is not None
    assert size_histograms(found) == []


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=200))
def test_any_sizes_can_be_shown(sizes: list[tuple[int, int]]) -> None:
    extensions = {"x": {"members": 1, "bytes": 1, "smallest": 1, "largest": 100, "sizes": sizes}}
    found = report_of(report(extensions=extensions))
    assert found is not None
    for histogram in size_histograms(found):
        assert 1 <= len(histogram.bars) <= 65
        assert all(0 <= bar.length <= BAR_UNITS for bar in histogram.bars)


def test_classes_are_in_the_order_that_people_expect() -> None:
    found = report_of(report(by="cls", classes={name: {"samples": 1, "bytes": 1} for name in ("10", "9", "b", "-1", "a")}))
    assert found is not None
    histogram = class_histogram(found)
    assert histogram is not None
    assert [bar.label for bar in histogram.bars] == ["-1", "9", "10", "a", "b"]


def test_of_many_classes_the_largest_and_the_smallest_are_shown() -> None:
    found = report_of(report(by="cls", classes={str(n): {"samples": n, "bytes": 1} for n in range(1000)}))
    assert found is not None
    histogram = class_histogram(found)
    assert histogram is not None
    assert (len(histogram.bars), histogram.left_out, histogram.cut) == (40, 960, 20)
    assert (histogram.bars[0].label, histogram.bars[19].label, histogram.bars[20].label, histogram.bars[39].label) == (
        "999", "980", "19", "0",
    )  # fmt: skip
    assert histogram.bars[0].length == BAR_UNITS


@pytest.mark.parametrize(
    ("values", "far"),
    [
        ([100, 100, 100, 40], {40: "few"}),
        ([100, 100, 101, 99, 130, 60], {130: "many", 60: "few"}),
        ([100, 90, 110, 80, 120], {}),
        ([10, 200, 3000, 500, 40, 900], {3000: "many"}),
        ([1, 1000, 5], {}),
        ([0, 0, 0, 0, 7], {7: "many"}),
        ([], {}),
    ],
)
def test_what_is_far_from_the_median_is_marked(values: list[int], far: dict[int, str]) -> None:
    usual = Usual.of(values)
    assert {value: mark for value in values if (mark := usual.mark(value, "few", "many"))} == far
