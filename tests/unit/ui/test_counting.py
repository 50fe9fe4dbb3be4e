"""The report that the page of a dataset proposes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dfc.listing.specs import OutputPattern
from dfc.ui.traces import counting, report_for


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("toy/train-{000..146}.tar", "toy/train.stats.json"),
        ("{0..3}.tar", "stats.json"),
        ("a/{0..3}.tar.zst", "a/stats.json"),
        ("one-006.tar.gz", "one-006.stats.json"),
        ("100%-{0..3}.tar", ""),
        ("%04d-{0..3}.tar", ""),
        ("{part}.tar", ""),
        ("x" * 1020 + ".tar", ""),
    ],
)
def test_a_report_is_called_as_its_shards(pattern: str, name: str) -> None:
    assert report_for(pattern) == name
    assert not name or OutputPattern(name).name() == name


def test_classes_are_counted_if_there_are_some_and_an_old_report_is_replaced() -> None:
    assert counting("b", "x-{0..3}.tar", ["jpg"], None) == {"output_bucket": "b", "pattern": "x.stats.json"}
    report: Any = SimpleNamespace(job=SimpleNamespace(bucket="b"), name="x.stats.json")
    assert counting("b", "x-{0..3}.tar", ["cls", "jpg"], report) == {
        "output_bucket": "b", "pattern": "x.stats.json", "option.by": "cls", "overwrite": "on",
    }  # fmt: skip
    assert "overwrite" not in counting("c", "x-{0..3}.tar", [], report)
