"""The command line of `dfc bench-input`, and what it says about figures; the measuring itself is tested elsewhere."""

from __future__ import annotations

import pytest

from dfc.cli.bench import ADVICE, NAMES, _parse_workers, _spec, verdicts
from dfc.cli.measure import PARTS, Measured, Report, default_workers
from dfc.cli.session import Exit, UsageMistake


def test_numbers_of_processes():
    assert _parse_workers("") == default_workers()
    assert _parse_workers("4,1,1") == [1, 4]
    for wrong in ("0", "1,", "x", "65", "-1", "1.5", "²"):
        with pytest.raises(UsageMistake):
            _parse_workers(wrong)


@pytest.mark.parametrize(
    ("typed", "spec"),
    [
        ("imagenet/train-@000147.tar", "dfc:imagenet/train-@000147.tar"),
        ("train.tar", "dfc:train.tar"),
        ("http://host/b/x-*.tar", "http://host/b/x-*.tar"),
        ("dfc:b/x.tar", "dfc:b/x.tar"),
        ("/data/x.tar", "/data/x.tar"),
        ("./x.tar", "./x.tar"),
        ("s3://b/x.tar", "s3://b/x.tar"),
    ],
)
def test_names_are_those_of_the_cluster(typed, spec):
    assert _spec(typed) == spec


def test_the_verdict_names_the_weakest_part_and_what_helps():
    measured = [
        Measured(1, {"parser": 9000.0, "link": 20_000.0}, {"loader": 8100.0}),
        Measured(2, {"parser": 18_000.0, "link": 12_000.0}, {"loader": 9000.0}),
    ]
    lines = verdicts(Report(5, 1000.0, None, None, 2, measured))
    assert lines == [
        "1 process: the bottleneck is parsing with 9,000 samples/s by itself; the loader reaches 90% of that",
        "2 processes: the bottleneck is the link with 12,000 samples/s by itself; the loader reaches 75% of that",
        ADVICE["link"],
    ]


def test_every_part_has_a_name():
    assert set(NAMES) == set(PARTS)
    assert set(ADVICE) <= set(PARTS)


def test_wrong_commands(dfc, fake):
    assert dfc("bench-input", "b/x.tar", "--workers", "none").code == Exit.USAGE
    assert dfc("bench-input", "b/x.tar", "--seconds", "0").code == Exit.USAGE
