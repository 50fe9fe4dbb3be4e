"""Numbers of samples by key."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dfc.inputs.mapstyle import KeyIndex, hash_of


@given(st.lists(st.text(max_size=3)))
def test_all_numbers_of_a_key_are_found_the_lowest_first(keys: list[str]) -> None:
    hashes = np.array([hash_of(key) for key in keys], dtype=np.uint64)
    index = KeyIndex(hashes, np.arange(len(keys), dtype=np.int64))
    assert len(index) == len(keys)
    for key in {*keys, "none of these"}:
        assert index.numbers(key).tolist() == [number for number, other in enumerate(keys) if other == key]


def test_keys_that_are_no_utf_8_have_a_hash() -> None:
    assert hash_of("\udcff") != hash_of("\udcfe")
