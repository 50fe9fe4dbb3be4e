"""What the page of a dataset computes of a listing and of samples."""

from __future__ import annotations

import pytest

from dfc.errors import BadName, BadRequest
from dfc.listing.datasets import DatasetShards
from dfc.proxy.samples import FieldPlace, SampleRow
from dfc.ui.datasetfacts import LINES_MAX, ShardLines, fields_of
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
