"""Filters that change values, and what becomes of samples that they fail at."""

from __future__ import annotations

import logging

import pytest

import dfc.inputs.filters as df
from dfc.inputs.base import Counts, SampleBroken

SAMPLES = [{"__key__": key, "txt": value} for key, value in (("a", "1"), ("b", "x"), ("c", "3"))]
STORED = [{"__key__": key, "cls": value} for key, value in (("a", b"1"), ("b", b"x"), ("c", b"3"))]


def keys(found):
    return [sample["__key__"] for sample in found]


def test_map_changes_what_is_named():
    assert list(df.map(txt=str.upper)(SAMPLES))[1] == {"__key__": "b", "txt": "X"}
    assert SAMPLES[1]["txt"] == "x"


def test_map_leaves_out_with_a_warning_as_published(caplog):
    step = df.map(txt=int)
    with caplog.at_level(logging.WARNING, "dfc.inputs"):
        assert list(step(SAMPLES)) == [{"__key__": "a", "txt": 1}, {"__key__": "c", "txt": 3}]
    assert "sample 'b': the function for field 'txt' failed: ValueError: invalid literal" in caplog.text
    assert step.counts.samples_skipped == 1
    for fatal in (df.map(errors_are_fatal=True, txt=int), df.map(handler="raise", txt=int)):
        with pytest.raises(SampleBroken, match="sample 'b'") as caught:
            list(fatal(SAMPLES))
        assert isinstance(caught.value.__cause__, ValueError)


def test_map_of_a_missing_field():
    with pytest.raises(df.FieldMissing, match="sample 'a': has no field 'png'"):
        list(df.map(png=len)(SAMPLES))
    with pytest.raises(df.FieldMissing):
        list(df.map(png=len)([{"txt": "without a key"}]))
    assert next(iter(df.map(error_missing=False, png=len, txt=len)(SAMPLES))) == {"__key__": "a", "txt": 1}
    assert list(df.map(handler="skip", png=len)(SAMPLES)) == []


def test_transform_keeps_the_key():
    assert list(df.transform(lambda sample: {"n": len(sample)})(SAMPLES)) == [{"n": 2, "__key__": key} for key in "abc"]
    assert list(df.transform()(SAMPLES)) == SAMPLES
    assert keys(df.transform(lambda sample: sample if sample["txt"] != "x" else None)(SAMPLES)) == ["a", "c"]
    assert list(df.transform(sum)([(1, 2)])) == [3]
    assert keys(df.transform(lambda sample: {"n": int(sample["txt"])}, handler="skip")(SAMPLES)) == ["a", "c"]


def test_decode_and_its_handlers(caplog):
    with pytest.raises(SampleBroken, match="sample 'b': field 'cls' cannot be decoded"):
        list(df.decode()(STORED))
    counts = Counts()
    assert list(df.decode(handler="skip", counts=counts)(STORED)) == [{"__key__": "a", "cls": 1}, {"__key__": "c", "cls": 3}]
    assert counts.samples_skipped == 1
    with caplog.at_level(logging.WARNING, "dfc.inputs"):
        assert keys(df.decode(handler="warn")(STORED)) == ["a", "c"]
    assert "sample 'b'" in caplog.text
    assert keys(df.decode(handler=lambda problem: False)(STORED)) == ["a"], "end quietly"
    assert list(df.decode(False)(STORED)) == STORED
    assert list(df.decode({"cls": bytes.decode}, only="cls")(STORED))[1]["cls"] == "x"
    for wrong in ({"spec": "rgb9"}, {"handler": "sometimes"}):
        with pytest.raises(ValueError):
            list(df.decode(**wrong)(STORED))


def test_encode_is_the_way_back():
    samples = [{"__key__": "a", "cls": 1, "json": {"a": [1]}, "txt": "t"}]
    stored = list(df.encode()(samples))
    assert stored == [{"__key__": "a", "cls": b"1", "json": b'{"a": [1]}', "txt": b"t"}]
    assert list(df.decode()(stored)) == samples
    with pytest.raises(SampleBroken):
        list(df.encode()([{"__key__": "a", "pyd": 1}]))
    assert list(df.compose(df.encode(pickle=True), df.decode(pickle=True))([{"pyd": {1}}])) == [{"pyd": {1}}]


def test_a_library_that_is_missing_is_not_a_broken_sample():
    def function(value: str) -> str:
        raise ImportError("no such library")

    for step in (df.map(handler="skip", txt=function), df.transform(function, handler="skip")):
        with pytest.raises(ImportError):
            list(step(SAMPLES))


def test_the_end_of_a_source_is_not_an_error_and_stopiteration_is():
    def function(value: str) -> str:
        return next(iter(()))

    with pytest.raises(SampleBroken, match="StopIteration"):
        list(df.map(errors_are_fatal=True, txt=function)(SAMPLES))
