"""Filters for the fields of a sample."""

from __future__ import annotations

import pytest

import dfc.inputs.filters as df
from dfc.inputs.base import SampleBroken

A = {"__key__": "a", "__source__": "u", "jpg": 1, "cls": 2}
B = {"__key__": "b", "__source__": "u", "png": 3, "cls": 4}


def run(step, *samples):
    return list(step(list(samples)))


def test_with_keys_keeps_what_has_all():
    assert run(df.with_keys("jpg"), A, B) == [A]
    assert run(df.with_keys("cls", "jpg;png"), A, B) == [A, B]
    assert run(df.with_keys("jpg png"), A, B) == [A, B]
    assert run(df.with_keys("jpg", "png"), A, B) == []
    with pytest.raises(ValueError):
        df.with_keys(" ")


def test_rename_keeps_what_is_named():
    assert run(df.rename(image="jpg png"), A, B) == [
        {"__key__": "a", "__source__": "u", "image": 1},
        {"__key__": "b", "__source__": "u", "image": 3},
    ]
    assert run(df.rename(keep_meta=False, label="cls"), A) == [{"__key__": "a", "label": 2}]
    assert run(df.rename(keep_all=True, label="cls"), A) == [{**A, "label": 2}]
    assert run(df.copy(label="cls"), A) == [{**A, "label": 2}]
    assert run(df.rename(x="y"), {"y": 1}) == [{"x": 1}]
    assert A == {"__key__": "a", "__source__": "u", "jpg": 1, "cls": 2}


def test_a_field_that_is_missing():
    said = "sample 'b' of u: has no field 'jpg', only '__key__', '__source__', 'png', 'cls'"
    with pytest.raises(df.FieldMissing, match=said) as caught:
        run(df.rename(image="jpg"), A, B)
    assert (caught.value.key, caught.value.url) == ("b", "u")
    assert isinstance(caught.value, SampleBroken)
    assert len(run(df.rename(skip_missing=True, image="jpg"), A, B)) == 1
    assert run(df.rename(error_missing=False, image="jpg", label="cls"), B) == [{"__key__": "b", "__source__": "u", "label": 4}]
    skipping = df.copy(handler="skip", image="jpg")
    assert len(run(skipping, A, B)) == 1
    assert skipping.counts.samples_skipped == 1
    assert "has no field 'jpg'" in skipping.counts.errors[0]


def test_extract_and_to_tuple():
    assert run(df.extract("cls", "jpg;png"), A, B) == [(2, 1), (4, 3)]
    assert run(df.extract("jpg", "cls", error_missing=False), B) == [(None, 4)]
    assert run(df.to_tuple("jpg;png", "cls"), A, B) == [(1, 2), (3, 4)]
    assert run(df.to_tuple("jpg;png cls __key__"), A) == [(1, 2, "a")]
    assert run(df.to_tuple("cls"), A) == [(2,)]
    for step in (df.extract("jpg"), df.to_tuple("jpg", "cls")):
        with pytest.raises(df.FieldMissing):
            run(step, B)
    assert run(df.to_tuple("jpg", "cls", handler="skip"), A, B) == [(1, 2)]
    assert run(df.to_tuple("jpg", "cls", missing_is_error=False), B) == [(None, 4)]
    with pytest.raises(df.FieldMissing):
        run(df.to_tuple("x"), {"x": None})
    assert run(df.to_tuple("x", none_is_error=False), {"x": None}) == [(None,)]


def test_map_tuple():
    assert run(df.map_tuple(None, str), (1, 2, 3)) == [(1, "2", 3)]
    assert run(df.map_tuple(str, str, str), (1, 2)) == [("1", "2")]
    assert run(df.map_tuple(int, handler="skip"), ("1",), ("x",)) == [(1,)]


def test_annotate_looks_up():
    assert run(df.annotate({"a": {"extra": 9, "cls": 0}}), A, B) == [{**A, "extra": 9, "cls": 0}, B]
    assert run(df.annotate({4: {"name": "four"}}, key="cls"), A, B) == [A, {**B, "name": "four"}]
    assert run(df.annotate(lambda key: {"n": key * 2} if key == "a" else None), A, B) == [{**A, "n": "aa"}, B]
    with pytest.raises(df.FieldMissing):
        run(df.annotate({}, key="jpg"), B)


def test_patched_replaces():
    patch = {"__key__": "b", "cls": 7}
    assert run(df.patched(iter([patch])), A, B) == [A, patch]
    found = df.patched(iter([patch]))([A, B])
    assert list(found) == list(found) == [A, patch]
    with pytest.raises(ValueError, match="two patches for the key 'b'"):
        df.patched([patch, patch])
    with pytest.raises(ValueError, match="maxpatches=1"):
        df.patched([patch, A], maxpatches=1)
