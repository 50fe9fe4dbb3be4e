"""Which jobs may not run at the same time, by the names that they could write."""

from __future__ import annotations

import pytest

from dfc.listing.specs import OutputPattern, may_meet


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("train-%06d.tar", "train-%06d.tar", True),
        ("train-%06d.tar", "train-%04d.tar", True),
        ("train-%06d.tar", "train-1%05d.tar", True),
        ("x%01d-1", "x1-%01d", True),
        ("train-%06d.tar", "train-%06d.parquet", False),
        ("train-%06d.tar", "val-%06d.tar", False),
        ("train-%06d.tar", "train-000007.tar", True),
        ("train-%06d.tar", "train-x.tar", False),
        ("a.json", "a.json", True),
        ("a.json", "b.json", False),
        ("tree/", "tree/a-%02d.tar", True),
        ("tree/", "trees/a", False),
        ("{part}-%06d.tar", "train-%06d.tar", True),
    ],
)
def test_patterns_that_could_name_one_object(one, other, meet):
    assert may_meet(OutputPattern(one), OutputPattern(other)) is meet
    assert may_meet(OutputPattern(other), OutputPattern(one)) is meet


@pytest.mark.parametrize(
    ("other", "others", "meet"),
    [
        ("d-%04d.idx", (), True),
        ("d-000003.idx", (), True),
        ("e-%04d.rec", ("d-000003.idx",), True),
        ("e-%04d.idx", (), False),
        ("d-%04d.tar", (), False),
    ],
)
def test_outputs_beside_those_of_the_pattern_count_too(other, others, meet):
    records = OutputPattern("d-%06d.rec", ("d-%06d.idx",))
    assert may_meet(records, OutputPattern(other, others)) is meet
    assert may_meet(OutputPattern(other, others), records) is meet
