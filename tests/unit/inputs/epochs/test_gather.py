"""Numbers of samples over many shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.inputs.epochs.gather import Numbering


@given(st.lists(st.integers(0, 5), max_size=20))
def test_numbers_count_through_all_shards(counts: list[int]) -> None:
    numbering = Numbering(counts)
    expected = [(shard, ordinal) for shard, count in enumerate(counts) for ordinal in range(count)]
    assert numbering.count == len(expected)
    assert numbering.locate(np.arange(len(expected))) == expected
    assert [numbering.first_of(shard) for shard in range(len(counts))] == [sum(counts[:shard]) for shard in range(len(counts))]
    for wrong in (-1, len(expected)):
        with pytest.raises(IndexError):
            numbering.locate(np.array([wrong]))
