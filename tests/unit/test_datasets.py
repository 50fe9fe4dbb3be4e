"""Shards grouped by their names."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import TooLarge
from dfc.listing import datasets as module
from dfc.listing.datasets import DatasetShards, DatasetTally, NumberedNames, names_beside, split
from dfc.listing.specs import expand
from dfc.wire.objects import DatasetInfo


def row(name: str, samples: int | None = 2, size: int = 10, modified_us: int = 0) -> module.Row:
    return name, size, "0" * 32, modified_us, samples, samples


def grouped(*names: str) -> list[DatasetInfo]:
    tally = DatasetTally()
    tally.add([row(name) for name in names])
    return tally.datasets()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("train-000017.tar", ("train-", "000017", ".tar")),
        ("a1/b2/train-3.tar.gz", ("a1/b2/train-", "3", ".tar.gz")),
        ("x-00001-of-00128.tar", ("x-", "00001", "-of-00128.tar")),
        ("x-07.tar.bz2", ("x-", "07", ".tar.bz2")),
        ("2024-01-05-003.tgz", ("2024-01-05-", "003", ".tgz")),
        ("12", ("", "12", "")),
        ("v2/readme.tar", ("v2/readme.tar", "", "")),
        ("a7/", ("a7/", "", "")),
    ],
)
def test_what_the_number_of_a_shard_is(name: str, parts: tuple[str, str, str]) -> None:
    assert split(name) == parts
    assert "".join(parts) == name


def test_shards_whose_names_differ_by_a_number_are_one_dataset() -> None:
    tally = DatasetTally()
    tally.add([row("t-000000.tar", 5, 100, 1_000_000), row("t-000002.tar", 6, 200, 3_000_000)])
    tally.add([row("t-000001.tar", 7, 300, 2_000_000), row("notes.txt", None), row("other.tar")])
    assert tally.datasets() == [
        DatasetInfo("other.tar", 1, 2, 10, "1970-01-01T00:00:00.000Z", [], 0),
        DatasetInfo("t-{000000..000002}.tar", 3, 18, 600, "1970-01-01T00:00:03.000Z", [], 0),
    ]


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["s-8.tar", "s-9.tar", "s-10.tar", "s-11.tar"], ["s-{8..11}.tar"]),
        (["s-098.tar", "s-099.tar", "s-100.tar"], ["s-{098..100}.tar"]),
        (["s-0.tar"], ["s-0.tar"]),
        (["s-00.tar", "s-000.tar"], ["s-00.tar", "s-000.tar"]),
        (["a/x-1.tar", "b/x-1.tar"], ["a/x-1.tar", "b/x-1.tar"]),
        (["x-0-of-2.tar", "x-1-of-2.tar", "x-0-of-3.tar"], ["x-0-of-3.tar", "x-{0..1}-of-2.tar"]),
    ],
)
def test_widths_and_places(names: list[str], patterns: list[str]) -> None:
    assert [each.pattern for each in grouped(*names)] == patterns


def test_what_is_missing_between_the_first_and_the_last_is_said() -> None:
    (found,) = grouped(*(f"s-{number:04d}.tar" for number in range(5, 50) if number not in (7, 20, 21)))
    assert (found.shards, found.missing, found.missing_count) == (42, ["0007", "0020", "0021"], 3)
    (found,) = grouped("s-1.tar", "s-1000000000.tar")
    assert (found.missing, found.missing_count) == ([], 0), "these numbers count something else"
    (found,) = grouped(*(f"s-{number}.tar" for number in range(0, 1000, 2)))
    assert (len(found.missing), found.missing[:2], found.missing_count) == (100, ["1", "3"], 499)


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=60), st.sampled_from([0, 4]), st.randoms())
def test_the_pattern_stands_for_all_of_them(numbers: set[int], width: int, order: random.Random) -> None:
    names = [f"d/s-{number:0{width}d}.tar" for number in numbers]
    order.shuffle(names)
    (found,) = grouped(*names)
    assert found.shards == len(numbers)
    assert set(names) <= set(expand(found.pattern))
    if found.missing_count == len(found.missing) and found.missing_count:
        missing = {f"d/s-{number}.tar" for number in found.missing}
        assert set(expand(found.pattern)) - missing == set(names)


def test_there_is_an_end_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DATASET_SHARDS_MAX", 3)
    with pytest.raises(TooLarge, match="more than 3 shards"):
        grouped("a-1.tar", "a-2.tar", "a-3.tar", "a-4.tar")
    monkeypatch.setattr(module, "DATASETS_MAX", 2)
    assert len(grouped("a.tar", "b.tar")) == 2
    with pytest.raises(TooLarge, match="more than 2 datasets"):
        grouped("a.tar", "b.tar", "c.tar")


@given(
    st.sets(st.integers(0, 2000), min_size=2, max_size=60), st.integers(0, 6), st.sampled_from(["t-", "a/b{c}@2-", "", "x*["])
)
def test_a_dataset_has_the_shards_that_its_pattern_says(numbers: set[int], width: int, before: str) -> None:
    names = [f"{before}{number:0{width}d}.tar" for number in sorted(numbers)]
    for found in grouped(*names):
        shards = DatasetShards(found.pattern)
        shards.add([row(name) for name in sorted([*names, f"{before}00000001.tar", "else.tar", f"{before}x.tar"])])
        shards.sort()
        assert len(shards) == found.shards
        assert all(shards.name(at).startswith(shards.prefix) for at in range(len(shards)))
        assert list(shards.numbers) == sorted(shards.numbers)
        assert {shards.name(at) for at in range(len(shards))} <= {*names, f"{before}00000001.tar"}
        assert shards.missing == found.missing_count
        assert all(shards.place(shards.name(at)) == at for at in range(len(shards)))
        assert sum(last - first + 1 for first, last in shards.runs()) == len(shards)
        chosen = expand(shards.spec())
        if isinstance(chosen, list):
            assert chosen == [shards.name(at) for at in range(min(len(shards), 100))]
        else:
            assert all(chosen.matches(shards.name(at)) for at in range(len(shards)))  # type: ignore[union-attr]


def test_a_plain_name_is_a_dataset_of_one() -> None:
    for shards in (DatasetShards("t-000.tar"), DatasetShards.single("t-{0..3}.tar")):
        name = shards.pattern
        shards.add([row(name), row("t-0001.tar"), row("t-1.tar")])
        assert (len(shards), shards.name(0), shards.place(name), shards.place("t-1.tar")) == (1, name, 0, None)
        assert expand(shards.spec()) == [name]


def test_a_dataset_keeps_checksums_in_its_order() -> None:
    shards = DatasetShards("s-{8..10}.tar")
    shards.add([("s-10.tar", 1, "a" * 32, 0, 1, 1), ("s-8.tar", 1, "b" * 32, 0, 1, 1)])
    shards.sort()
    assert [shards.checksum(at) for at in range(2)] == ["b" * 32, "a" * 32]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("set/x-000004.tar", "set/x-{000000..999999}.tar"),
        ("x-123456.tar", "x-{0..999999}.tar"),
        ("x-7.tar", "x-{0..9}.tar"),
        ("x-0.tar", "x-{0..9}.tar"),
        ("x-{1..2}-04.tar", "x-{1..2}-{00..99}.tar"),
        ("x-00001-of-00009.tar.gz", "x-{00000..99999}-of-00009.tar.gz"),
    ],
)
def test_a_shard_tells_the_names_of_the_others(name: str, pattern: str) -> None:
    names = NumberedNames.around(name)
    assert names.pattern == pattern
    assert NumberedNames.of(pattern) == names
    assert names.number(name) is not None
    assert names.is_around == (names.width == 0)
    assert NumberedNames.around("x.tar") is None


@pytest.mark.parametrize(
    ("form", "count", "number", "pattern"),
    [
        ("t-{:03d}.tar", 147, 120, "t-{000..146}.tar"),
        ("t-{:03d}.tar", 100, 99, "t-{000..099}.tar"),
        ("t-{:02d}.tar", 12, 10, "t-{00..11}.tar"),
        ("t-{:02d}.tar", 102, 100, "t-{100..101}.tar"),  # as the listing of datasets has them: a width is all there is
        ("t-{}.tar", 1500, 1200, "t-{0..1499}.tar"),
        ("t-{}.tar", 1500, 7, "t-{0..1499}.tar"),
        ("t-{}.tar", 1, 0, "t-0.tar"),
    ],
)
def test_a_shard_without_zeros_in_front_is_of_the_dataset_that_the_listing_has(
    form: str, count: int, number: int, pattern: str
) -> None:
    tally = DatasetTally()
    tally.add(row(form.format(at)) for at in range(count))
    names = NumberedNames.around(form.format(number))
    assert names.is_around == (form.format(number) != "t-099.tar")
    found = tally.around(names)
    for _ in range(2):
        assert found in tally.datasets()
    assert found.pattern == pattern
    assert tally.around(names._replace(before="other-")) is None


@pytest.mark.parametrize(
    ("name", "previous", "following"),
    [
        ("x-100.tar", ["x-099.tar", "x-99.tar"], ["x-101.tar"]),
        ("x-099.tar", ["x-098.tar"], ["x-100.tar"]),
        ("x-9.tar", ["x-8.tar"], ["x-10.tar"]),
        ("x-0.tar", [], ["x-1.tar"]),
        ("x-000.tar", [], ["x-001.tar"]),
        ("a1/x-15-of-20.tar", ["a1/x-14-of-20.tar"], ["a1/x-16-of-20.tar"]),
        ("x.tar", [], []),
    ],
)
def test_the_shards_beside_one(name: str, previous: list[str], following: list[str]) -> None:
    assert names_beside(name) == (previous, following)


def test_a_pattern_is_narrowed_to_what_is_there() -> None:
    shards = DatasetShards("x-{000..999}.tar")
    shards.add([(f"x-{number:03}.tar", 10, "0" * 32, 5, 3, 6) for number in (2, 4, 17)])
    assert shards.narrowed() == "x-{002..017}.tar"
    alone = DatasetShards("x-{000..999}.tar")
    alone.add([("x-002.tar", 10, "0" * 32, 5, 3, 6)])
    assert alone.narrowed() == "x-002.tar"
