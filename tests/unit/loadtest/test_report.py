"""Percentiles, sums, rates, ratios and the words they are printed in."""

from __future__ import annotations

import pytest

from loadtest.bench.row import Row, alternated, format_figure, median_ratio
from loadtest.report import Recorder, format_bytes, format_seconds, percentile, summarize


def test_percentiles_are_nearest_rank():
    ordered = [float(value) for value in range(1, 101)]
    assert percentile(ordered, 0.50) == 50
    assert percentile(ordered, 0.95) == 95
    assert percentile(ordered, 0.99) == 99
    assert percentile([3.0], 0.99) == 3
    assert percentile([], 0.5) == 0


def test_a_summary_adds_up_workers():
    first, second = Recorder(), Recorder()
    first.success(0.1, 100)
    second.success(0.3, 200)
    second.errors["timeout"] += 2
    result = summarize("get", [first, second], 2.0)
    assert (result.operations, result.bytes_moved, result.connections) == (2, 300, 2)
    assert (result.bytes_per_s, result.requests_per_s) == (150, 1)
    assert (result.p50_s, result.max_s) == (0.1, 0.3)
    assert result.as_json()["errors"] == {"timeout": 2}


@pytest.mark.parametrize(
    ("value", "text"), [(999, "999 B"), (12_300, "12.3 kB"), (4_560_000, "4.56 MB"), (3_210_000_000, "3.21 GB")]
)
def test_bytes_in_words(value, text):
    assert format_bytes(value) == text


def test_seconds_in_words():
    assert format_seconds(0.0123) == "12.30 ms"
    assert format_seconds(2.5) == "2.50 s"


def test_pairs_alternate_their_order():
    calls = []

    def measure(name: str, value: float):
        calls.append(name)
        return value

    ours, theirs = alternated(3, lambda: measure("a", 2.0), lambda: measure("b", 1.0))
    assert "".join(calls) == "abbaab"
    assert (ours, theirs) == ([2.0] * 3, [1.0] * 3)
    assert median_ratio(ours, theirs) == 2


def test_a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians():
    assert median_ratio([1.0, 10.0, 9.0], [1.0, 5.0, 3.0]) == 2.0


def make_row(reached: float, required: float | None, *, at_most: bool = False) -> Row:
    return Row("name", "what", "measured", "beside", reached, required, "x", at_most)


def test_a_row_passes_or_misses():
    assert make_row(1.0, 1.0).passed
    assert not make_row(0.99, 1.0).passed
    assert make_row(0.99, 1.0, at_most=True).passed
    assert not make_row(1.01, 1.0, at_most=True).passed
    assert make_row(0.0, None).passed
    assert make_row(1.5, 1.0, at_most=True).requirement == "≤ 1.00 x"
    assert make_row(1.5, 1.0).as_json()["passed"] is True


def test_figures_in_words():
    assert format_figure(12345.6, "/s") == "12,346 /s"
    assert format_figure(81.2, "MB") == "81 MB"
    assert format_figure(3.14, "%") == "3.1 %"
