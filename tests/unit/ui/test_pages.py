"""What the page of a dataset computes of a listing, of samples and of reports."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import BadName, BadRequest
from dfc.jobs.records import report_of
from dfc.listing.datasets import DatasetShards
from dfc.proxy.samples import FieldPlace, SampleRow
from dfc.ui.datasetfacts import BAR_UNITS, LINES_MAX, ShardLines, Usual, class_histogram, fields_of, size_histograms
from dfc.ui.pages.dataset import ShownDataset, dataset_of, drawn, pages_of


def dataset(samples: dict[int, int], pattern: str = "t-{000..999}.tar") -> DatasetShards:
    shards = DatasetShards(pattern)
    shards.add([(f"t-{number:03}.tar", 100 * count, "0" * 32, number, count, count) for number, count in samples.items()])
    shards.sort()
    return shards


def test_samples_are_drawn_by_the_seed_from_all_shards() -> None:
    shards = dataset({0: 3, 1: 0, 2: 5, 7: 100})
    found = drawn(1, shards)
    assert found == drawn(1, shards)
    assert found != drawn(2, shards)
    assert len({each.ordinal for each in found}) == 12
    begins = [0, 3, 3, 8]
    for each in found:
        assert each.ordinal == begins[each.at] + each.number
        assert 0 <= each.number < shards.samples[each.at]
    everything = drawn(0, dataset({0: 3, 1: 0, 2: 5}))
    assert [(each.at, each.number) for each in everything] == [(0, 0), (0, 1), (0, 2), *((2, number) for number in range(5))]
    assert drawn(0, dataset({0: 0})) == []


def test_missing_numbers_are_lines_and_odd_shards_are_marked() -> None:
    lines = ShardLines("b", dataset({0: 10, 1: 10, 3: 2, 4: 10, 9: 10, 10: 10, 11: 30, 12: 10, 13: 10}))
    shown = lines.page(0)
    assert [line.name for line in shown if line.missing] == ["002", "005 to 008"]
    assert [(line.name, line.marks) for line in shown if line.marks] == [
        ("t-003.tar", "few samples, small"), ("t-011.tar", "many samples, large"),
    ]  # fmt: skip
    odd, count = lines.odd()
    assert ([line.name for line in odd], count) == (["t-003.tar", "t-011.tar"], 2)
    assert shown[0].url == "/ui/shard?bucket=b&object=t-000.tar"
    sparse = ShardLines("b", dataset({0: 10, 500: 10}))
    assert [line.missing for line in sparse.page(0)] == [0, 0], "the numbers count something else"


def test_a_table_has_pages() -> None:
    shards = dataset(dict.fromkeys([*range(150), *range(151, 251)], 3))
    lines = ShardLines("b", shards)
    assert len(lines.page(0)) == LINES_MAX
    assert [line.name for line in lines.page(100)][50:52] == ["150", "t-151.tar"]
    assert len(lines.page(200)) == 50
    assert lines.page(1000) == []
    place = ShownDataset("b", "t-{000..250}.tar", 100, 7)
    assert pages_of(place, 250) == [
        ("Previous shards", "/ui/dataset?bucket=b&shards=t-%7B000..250%7D.tar&start=0&seed=7#shards"),
        ("Next shards", "/ui/dataset?bucket=b&shards=t-%7B000..250%7D.tar&start=200&seed=7#shards"),
    ]


def test_fields_are_added_up() -> None:
    rows = [
        SampleRow("a", {"jpg": FieldPlace(0, 10), "cls": FieldPlace(0, 1)}),
        SampleRow("b", {"jpg": FieldPlace(0, 30), "cls": FieldPlace(0, 2), "json": FieldPlace(0, 0)}),
    ]
    jpg, cls, json = fields_of(rows, {"cls": b"7", "json": b'{"a":\n 1}'})
    assert (jpg.ext, jpg.samples, jpg.smallest, jpg.largest, jpg.total, jpg.type) == ("jpg", 2, 10, 30, 40, "picture")
    assert (cls.type, cls.shown) == ("whole number", "7")
    assert (json.type, json.shown, json.samples) == ("JSON", '{"a": 1}', 1)
    (cls,) = fields_of(rows[:1], {"cls": b"7"}, {}, {"cls": b"12"}, {"cls": b"7"})[1:]
    assert cls.shown == "7, 12"
    (text,) = fields_of([SampleRow("a", {"txt": FieldPlace(0, 99)})], {"txt": b"a text of a sample"}, {"txt": b"short"})
    assert text.shown == "a text of a sample"
    (text,) = fields_of([SampleRow("a", {"cls": FieldPlace(0, 3)})], {"cls": b"cat"})
    assert (text.type, text.is_plain) == ("text", True)


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({}, BadRequest),
        ({"bucket": "b"}, BadRequest),
        ({"bucket": "b", "shards": ""}, BadRequest),
        ({"bucket": "b", "shards": "x", "start": "-1"}, BadRequest),
        ({"bucket": "b", "shards": "x", "seed": "1e9"}, BadRequest),
        ({"bucket": "b", "shards": "x", "seed": "9" * 13}, BadRequest),
        ({"bucket": "../b", "shards": "x"}, BadName),
        ({"bucket": "b", "shards": "../x"}, BadName),
        ({"bucket": "b", "shards": "a\0{0..3}.tar"}, BadName),
        ({"bucket": "b", "shards": "x" * 2000}, BadName),
    ],
)
def test_an_address_that_names_no_dataset_is_refused(query: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        dataset_of(query)


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
    assert (found.shards, found.samples, found.stored_bytes, found.by) == (2, 7, 10_000, "cls")
    assert list(found.classes or ()) == ['","by_shard":[']


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b'{"shards":1,"by_shard":[]}', report(shards=-1), report(samples=10**4000), report(classes={"a": 1}),
        report()[:40], b"\xff" + report(),
    ],
)  # fmt: skip
def test_what_is_no_report_is_none(content: bytes) -> None:
    assert report_of(content) is None


def test_sizes_double_from_bar_to_bar() -> None:
    found = report_of(report())
    (histogram,) = size_histograms(found)
    assert histogram.title == "jpg"
    assert [(bar.label, bar.value) for bar in histogram.bars][-3:] == [
        ("1.02 kB to 2.05 kB", "4"), ("2.05 kB to 4.1 kB", "0"), ("4.1 kB to 8.19 kB", "2"),
    ]  # fmt: skip
    assert (histogram.bars[0].label, histogram.bars[0].length) == ("empty", BAR_UNITS // 4)
    assert len(histogram.bars) == 14
    assert class_histogram(found) is None


def test_sizes_of_what_is_always_small_say_nothing() -> None:
    small = {"members": 9, "bytes": 9, "smallest": 1, "largest": 2, "sizes": [[1, 9]]}
    assert size_histograms(report_of(report(extensions={"cls": small}))) == []


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=200))
def test_any_sizes_can_be_shown(sizes: list[tuple[int, int]]) -> None:
    extensions = {"x": {"members": 1, "bytes": 1, "smallest": 1, "largest": 100, "sizes": sizes}}
    for histogram in size_histograms(report_of(report(extensions=extensions))):
        assert 1 <= len(histogram.bars) <= 65
        assert all(0 <= bar.length <= BAR_UNITS for bar in histogram.bars)


def test_classes_are_in_the_order_that_people_expect() -> None:
    classes = {name: {"samples": 1, "bytes": 1} for name in ("10", "9", "b", "-1", "a")}
    histogram = class_histogram(report_of(report(by="cls", classes=classes)))
    assert [bar.label for bar in histogram.bars] == ["-1", "9", "10", "a", "b"]


def test_of_many_classes_the_largest_and_the_smallest_are_shown() -> None:
    classes = {str(n): {"samples": n, "bytes": 1} for n in range(1000)}
    histogram = class_histogram(report_of(report(by="cls", classes=classes)))
    assert (len(histogram.bars), histogram.left_out, histogram.cut) == (40, 960, 20)
    assert [histogram.bars[at].label for at in (0, 19, 20, 39)] == ["999", "980", "19", "0"]
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
