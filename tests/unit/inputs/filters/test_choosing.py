"""Filters that let some samples through."""

from __future__ import annotations

import io

import numpy as np
import pytest

import dfc.inputs.filters as df
from dfc.inputs.base import SampleBroken

SAMPLES = [
    {"__key__": f"{word}/{number}", "txt": word, "cls": number, "raw": word.encode()}
    for number, word in enumerate(("cat", "dog", "cow"))
]


def keys(step, samples=SAMPLES):
    return [sample["__key__"] for sample in step(samples)]


def test_grep_finds():
    assert keys(df.grep(txt="^c")) == ["cat/0", "cow/2"]
    assert keys(df.grep(raw="o", __key__="2$")) == ["cow/2"]
    assert keys(df.grep(cls="1")) == ["dog/1"]
    assert keys(df.grep(_not=True, txt="^c")) == ["dog/1"]
    assert keys(df.grep(_not=True, txt="^c", cls="1")) == []
    assert keys(df.grep()) == keys(df.identity())
    assert keys(df.grep(raw="x"), [{"__key__": "a", "raw": b"\xff"}]) == []


def test_select_asks():
    assert keys(df.select(cls=lambda value: value > 0)) == ["dog/1", "cow/2"]
    assert keys(df.select(lambda sample: "o" in sample["txt"], cls=lambda value: value < 2)) == ["dog/1"]
    assert keys(df.select()) == keys(df.identity())


@pytest.mark.parametrize("step", [df.grep(png="x"), df.select(png=bool), df.check(png=bool)])
def test_a_missing_field_is_an_error(step):
    with pytest.raises(df.FieldMissing, match="has no field 'png'"):
        list(step(SAMPLES))


@pytest.mark.parametrize("make", [df.grep, df.select, df.check])
def test_or_what_the_handler_says(make):
    step = make(_handler="skip", png="x" if make is df.grep else bool)
    assert keys(step, [*SAMPLES, {"__key__": "last", "png": "x"}]) == ["last"]
    assert step.counts.samples_skipped == 3


def test_check_holds_or_raises():
    assert keys(df.check(cls=lambda value: value >= 0)) == keys(df.identity())
    with pytest.raises(SampleBroken, match="sample 'cow/2': field 'cls' failed its check"):
        keys(df.check(cls=lambda value: value < 2))
    with pytest.raises(SampleBroken, match="sample 'cat/0': a filter failed"):
        keys(df.check(cls=lambda value: 1 / value))


def test_unique_raises_or_leaves_out():
    twice = [*SAMPLES, SAMPLES[1]]
    found = df.unique("txt", error=False)(twice)
    assert [sample["txt"] for sample in found] == [sample["txt"] for sample in found] == ["cat", "dog", "cow"]
    with pytest.raises(SampleBroken, match="sample 'dog/1': field 'txt' has the same value"):
        keys(df.unique("txt"), twice)
    with pytest.raises(df.FieldMissing):
        keys(df.unique("png"))
    assert keys(df.unique("png", skip_missing=True)) == []
    again = [sample["__key__"] for sample in df.unique("txt", rekey=True)(SAMPLES)]
    assert len(set(again)) == 3
    assert all(len(key) == 32 for key in again)
    assert SAMPLES[0]["__key__"] == "cat/0"


def test_unique_tells_values_apart():
    values = [b"a", "a", 1, 1.0, True, None, [1], {"a": 1}, (2, 1)]
    values += [np.arange(2), np.arange(2.0), np.arange(2).reshape(1, 2), np.float32(1)]
    samples = [{"x": value} for value in values]
    assert len(list(df.unique("x")(samples))) == len(values)
    assert len(list(df.unique("x", error=False)(samples + samples))) == len(values)


def test_info_shows_what_passes():
    file = io.StringIO()
    sample = {"__key__": "a", "png": np.zeros((2, 3), np.float32), "raw": b"12345", "txt": "t" * 100}
    assert list(df.info(file=file)([sample, sample])) == [sample, sample]
    shown = ["# sample 0", "__key__ 'a'", "png float32 (2, 3)", "raw 5 bytes", "txt '" + "t" * 59]
    assert file.getvalue().splitlines() == shown
    file = io.StringIO()
    list(df.info(every=2, file=file)([(number,) for number in range(5)]))
    assert file.getvalue().splitlines() == ["# sample 0", "0 0", "# sample 2", "0 2", "# sample 4", "0 4"]
    with pytest.raises(ValueError):
        df.info(-1)


def test_info_goes_to_standard_output(capsys):
    list(df.info()([{"a": 1}]))
    assert capsys.readouterr().out == "# sample 0\na 1\n"
