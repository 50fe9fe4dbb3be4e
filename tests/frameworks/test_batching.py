"""Samples to batches and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dfc.inputs.filters as df
from dfc.inputs.base import SampleBroken

SAMPLES = [
    {
        "__key__": f"k{number}",
        "png": np.full((4, 5, 3), number, np.float32),
        "cls": number,
        "txt": f"t{number}",
        "w": number / 2,
    }
    for number in range(5)
]


def test_arrays_are_stacked_numbers_become_an_array_and_all_else_a_list():
    found = df.collate(SAMPLES)
    assert list(found) == list(SAMPLES[0])
    assert (found["png"].shape, found["png"].dtype) == ((5, 4, 5, 3), np.float32)
    assert found["png"][3, 0, 0, 0] == 3
    assert (found["cls"].tolist(), found["cls"].dtype) == ([0, 1, 2, 3, 4], np.int64)
    assert (found["w"].tolist(), found["w"].dtype) == ([0, 0.5, 1, 1.5, 2], np.float64)
    assert found["txt"] == ["t0", "t1", "t2", "t3", "t4"]
    assert found["__key__"] == ["k0", "k1", "k2", "k3", "k4"]


def column(*values: object, **options: bool) -> object:
    return df.collate([{"x": value} for value in values], **options)["x"]


def test_arrays_of_different_shapes_stay_a_list():
    one, other = np.zeros((2, 3)), np.ones((2, 4))
    found = column(one, other)
    assert isinstance(found, list)
    assert found[0] is one
    assert found[1] is other
    grown = column(one, other, expand=True)
    assert grown.shape == (2, 2, 4)
    assert (grown[0] == 0).all()
    assert (grown[1] == 1).all()
    assert isinstance(column(one, np.zeros(3), expand=True), list)


def test_scalars_of_every_kind():
    assert column(True, False).dtype == np.bool_
    assert column(1, 2.5).tolist() == [1, 2.5]
    assert column(np.float32(1), np.float32(2)).dtype == np.float32
    assert column(1, None) == [1, None]
    assert column(1, "a") == [1, "a"]
    assert column(1 << 70, 1) == [1 << 70, 1]
    assert column(1 << 63, -1) == [1 << 63, -1], "no float equals them both"
    assert column(np.array(1), np.array(2)).tolist() == [1, 2]
    assert column(None, None) == [None, None]
    assert column(b"a", b"b") == [b"a", b"b"]
    assert column([1], [2]) == [[1], [2]]


def test_what_is_not_to_be_combined():
    one, other = np.zeros(2), np.ones(2)
    assert isinstance(column(one, other, combine_tensors=False), list)
    assert column(1, 2, combine_scalars=False) == [1, 2]


def test_tensors_are_stacked():
    import torch

    found = column(torch.zeros(2, 3), torch.ones(2, 3))
    assert found.shape == (2, 2, 3)
    assert isinstance(column(torch.zeros(2), torch.zeros(3)), list)
    assert isinstance(column(torch.zeros(2), None), list)
    assert isinstance(column(torch.zeros(2), torch.zeros(2), combine_tensors=False), list)


def test_tuples_become_tuples_of_columns():
    pictures, labels = df.collate([(np.zeros(2), 1), (np.ones(2), 2)])
    assert pictures.shape == (2, 2)
    assert labels.tolist() == [1, 2]
    assert df.collate([1, 2]).tolist() == [1, 2]


def test_a_sample_that_lacks_a_field_is_named():
    for samples in (
        [{"__key__": "a", "cls": 1}, {"__key__": "b"}],
        [{"__key__": "b"}, {"__key__": "a", "cls": 1}],
        [{"__key__": "a", "cls": 1}, {"__key__": "b", "png": 1}],
    ):
        with pytest.raises(SampleBroken, match="sample 'b': has no field 'cls'"):
            df.collate(samples)
    with pytest.raises(
        SampleBroken, match=r"'c': has no field 'jpg', unlike others .*: use fields=\[\"jpg;png\", …\] in the loader"
    ):
        df.collate([{"__key__": "a", "jpg": 1}, {"__key__": "b", "jpg": 1}, {"__key__": "c", "png": 1}])
    with pytest.raises(SampleBroken, match="sample 'odd': has a field 'extra'"):
        df.collate([*SAMPLES, {**SAMPLES[0], "__key__": "odd", "extra": 1}])
    with pytest.raises(ValueError):
        df.collate([])


@pytest.mark.parametrize("name", ["batch", "batched"])
def test_batches_of_a_size(name):
    make = getattr(df, name)
    assert [len(batch["cls"]) for batch in make(2)(SAMPLES)] == [2, 2, 1]
    assert [len(batch["cls"]) for batch in make(2, partial=False)(SAMPLES)] == [2, 2]
    assert [len(batch["cls"]) for batch in make(batchsize=5)(SAMPLES)] == [5]
    assert [len(batch["cls"]) for batch in make()(SAMPLES * 5)] == [20, 5]
    assert list(make(2)([])) == []
    assert isinstance(next(iter(make(2, combine_scalars=False)(SAMPLES)))["cls"], list)
    assert isinstance(next(iter(make(2, combine_tensors=False)(SAMPLES)))["png"], list)
    for wrong in (0, -1):
        with pytest.raises(ValueError):
            make(wrong)


def test_a_batch_is_given_as_soon_as_it_is_full():
    source = iter(SAMPLES)
    assert next(df.batch(2)(source))["cls"].tolist() == [0, 1]
    assert next(source)["cls"] == 2


@given(st.integers(1, 7), st.integers(0, 12))
def test_unbatch_gives_the_samples_again(size, count):
    samples = (SAMPLES * 3)[:count]
    found = list(df.compose(df.batch(size), df.unbatch())(samples))
    assert len(found) == count
    for one, other in zip(found, samples, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_unbatch_of_other_batches():
    assert list(df.unbatch()([(np.arange(2), ["a", "b"])])) == [(0, "a"), (1, "b")]
    assert list(df.compose(df.batch(2), df.unbatch())([1, 2, 3])) == [1, 2, 3]
    shared = {"x": [1, 2], "name": "both", "scale": np.float32(2)}
    assert list(df.unbatch()([shared])) == [{"x": 1, "name": "both", "scale": 2}, {"x": 2, "name": "both", "scale": 2}]
    with pytest.raises(SampleBroken):
        list(df.unbatch()([{"name": "none"}]))
