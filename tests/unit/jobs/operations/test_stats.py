"""Counts and sizes of datasets, against what was put in."""

from __future__ import annotations

from pathlib import Path

import pytest
from folder_store import run_job
from job_shards import job, json_of, put, samples

from dfc.errors import BadRequest
from dfc.formats.base import SplitSample
from dfc.jobs.data.fields import NotAClass, class_of, parse_class_field
from dfc.jobs.operations import stats
from dfc.tar.header import TarError

DATA = Path(__file__).parents[3] / "data"


def result(folder, twice=False, **options):
    done = run_job(folder, job("stats", "stats.json", **options), twice=twice)
    return json_of(done.outputs["stats.json"])


def test_counts_by_extension_and_shard(tmp_path):
    put(tmp_path, "a.tar", samples("abc", jpg="x" * 10, cls="{number}"))
    put(tmp_path, "b.tgz", [*samples("de", jpg="x" * 30), ("README", b"no sample")])
    found = result(tmp_path)
    assert (found["shards"], found["samples"], found["members"], found["bytes"]) == (2, 5, 8, 3 * 11 + 60)
    assert found["extensions"] == {
        "cls": {"members": 3, "bytes": 3, "smallest": 1, "largest": 1, "sizes": [[1, 3]]},
        "jpg": {"members": 5, "bytes": 90, "smallest": 10, "largest": 30, "sizes": [[8, 3], [16, 2]]},
    }
    assert [(each["shard"], each["samples"]) for each in found["by_shard"]] == [("in/a.tar", 3), ("in/b.tgz", 2)]
    assert found["dropped_members"] == 1
    assert "classes" not in found


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
def test_counts_by_class(tmp_path, name):
    put(tmp_path, name, [*samples("abc", jpg="xx", cls="7\n"), *samples("de", cls="08"), ("f.jpg", b"yyyy")])
    found = result(tmp_path, by="cls", twice=True)
    assert found["classes"] == {"08": {"samples": 2, "bytes": 4}, "7": {"samples": 3, "bytes": 12}}
    assert found["without_class"] == 1


def test_counts_by_json(tmp_path):
    put(tmp_path, "a.tar", samples("abcd", json='{{"label": {{"of": [{number}, "x"]}}}}'))
    found = result(tmp_path, by="json:label.of.0")
    assert set(found["classes"]) == {"0", "1", "2", "3"}
    assert result(tmp_path, by="json:label.nothing")["without_class"] == 4


@pytest.mark.parametrize("by", [None, "cls"])
def test_a_split_sample_fails_or_is_joined_or_kept(tmp_path, by):
    put(tmp_path, "a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")])
    options = {} if by is None else {"by": by}
    with pytest.raises(SplitSample, match="'a' occurs again"):
        result(tmp_path, **options)
    assert result(tmp_path, on_split="keep", **options)["samples"] == 3
    assert result(tmp_path, on_split="join", **options)["samples"] == 2


def test_sizes_are_counted_by_doubling(tmp_path):
    put(tmp_path, "a.tar", [(f"{size}.txt", b"x" * size) for size in (0, 1, 2, 3, 4, 1023, 1024)])
    put(tmp_path, "b.tar", samples("ab", txt="xxx"))
    assert result(tmp_path)["extensions"]["txt"]["sizes"] == [[0, 1], [1, 1], [2, 4], [4, 1], [512, 1], [1024, 1]]


def test_no_samples_at_all(tmp_path):
    put(tmp_path, "a.tar", [])
    found = result(tmp_path, by="cls")
    assert (found["samples"], found["classes"], found["extensions"]) == (0, {}, {})


def test_real_shards(tmp_path):
    for name in ("mpdata.tar", "sample.tgz", "compressed.tar"):
        put(tmp_path, name, (DATA / name).read_bytes())
    found = result(tmp_path, by="cls")
    assert found["by_shard"][2]["samples"] == 90
    assert sum(each["samples"] for each in found["classes"].values()) + found["without_class"] == found["samples"]


def test_what_is_no_class_names_the_sample(tmp_path):
    put(tmp_path, "a.tar", samples("ab", cls="x" * 5000))
    with pytest.raises(NotAClass, match=r"in/a.tar: sample 'a'"):
        result(tmp_path, by="cls")


def test_too_many_classes_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(stats, "JOB_CLASSES_MAX", 3)
    put(tmp_path, "a.tar", samples("ab", cls="{key}"))
    put(tmp_path, "b.tar", samples("cd", cls="{key}"))
    with pytest.raises(stats.TooManyClasses):
        result(tmp_path, by="cls")


@pytest.mark.parametrize("options", [{"by": ""}, {"by": "a/b"}, {"by": "json:a..b"}, {"by": 3}, {"bye": "cls"}])
def test_bad_options(tmp_path, options):
    put(tmp_path, "a.tar", [])
    with pytest.raises(BadRequest):
        result(tmp_path, **options)


@pytest.mark.parametrize("pattern", ["s-%06d.json", "s/", "{part}.json"])
def test_one_object_comes_out(tmp_path, pattern):
    with pytest.raises(BadRequest, match="plain name"):
        run_job(tmp_path, job("stats", pattern))


def test_classes_of_values():
    assert class_of(parse_class_field("cls"), b" 3 \n") == "3"
    assert class_of(parse_class_field("json:a"), b'{"a": true}') == "true"
    assert class_of(parse_class_field("json:a"), b'{"a": null}') is None
    assert class_of(parse_class_field("cls"), None) is None
    assert class_of(parse_class_field("cls"), b"") == ""
    with pytest.raises(NotAClass, match="not JSON"):
        class_of(parse_class_field("json:a"), b"{")


def test_a_member_that_is_too_large_to_be_read(tmp_path, monkeypatch):
    put(tmp_path, "a.tar", samples("ab", json='{{"n": {number}}}'))
    monkeypatch.setattr(stats, "JOB_MEMBER_BYTES_MAX", 7)
    with pytest.raises(TarError, match=r"in/a\.tar: member 'a\.json' is too large"):
        result(tmp_path, by="json:n")
    assert result(tmp_path, by="json")["samples"] == 2
