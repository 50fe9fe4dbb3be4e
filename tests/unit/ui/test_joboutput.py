"""Where the page of a job leads to: the dataset that the job has made."""

from __future__ import annotations

import pytest

from dfc.listing.specs import OutputPattern, expand
from dfc.ui.jobfacts import shards_of


@pytest.mark.parametrize("text", ["train-%06d.tar", "a/%01dd.tar", "%09d.tar", "d/%03d.tar.zst"])
@pytest.mark.parametrize("shards", [1, 3, 101])
def test_the_pattern_names_the_outputs_and_nothing_else(text: str, shards: int) -> None:
    pattern = OutputPattern(text)
    assert expand(shards_of(pattern, shards)) == [pattern.name(number) for number in range(shards)]


@pytest.mark.parametrize(
    ("text", "others", "shards"),
    [
        ("{part}-%06d.tar", (), 3),
        ("tree/", (), 3),
        ("keys.txt", (), 1),
        ("train-%06d.tar", ("train-%06d.idx",), 6),
        ("train-%06d.tar", (), 0),
        ("what?-%06d.tar", (), 2),
        ("x[1]-%06d.tar", (), 2),
        ("x@10-%06d.tar", (), 2),
        ("wide-%02d.tar", (), 101),
        ("table-%06d.parquet", (), 4),  # which are no shards
        ("%09d", (), 2),
    ],
)
def test_what_is_no_sequence_has_no_pattern(text: str, others: tuple[str, ...], shards: int) -> None:
    assert shards_of(OutputPattern(text, others), shards) == ""
