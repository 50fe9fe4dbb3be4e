"""Reports of broken datasets, and what repairing leaves of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from folder_store import run_job
from job_shards import job, json_of, members_of, put, samples, tar_of
from pictures import encoded
from PIL import Image

from dfc.errors import BadRequest
from dfc.jobs.operations import validate

DATA = Path(__file__).parents[3] / "data"


def png(size=(4, 4)):
    return encoded(Image.new("RGB", size, "red"))


def report_of(folder, twice=False, memory_bytes=64 << 20, **options):
    done = run_job(folder, job("validate", "report.json", **options), twice=twice, memory_bytes=memory_bytes)
    return json_of(done.outputs["report.json"])


def repaired(folder, twice=False, **options):
    """The report, and the clean shards by name."""
    done = run_job(folder, job("validate", "clean/", repair=True, **options), twice=twice)
    shards = {name.removeprefix("clean/"): content for name, content in done.outputs.items()}
    return json_of(shards.pop("report.json")), shards


def test_a_clean_dataset_is_valid(tmp_path):
    put(tmp_path, "a.tar", samples("abc", png=png(), cls="1", json="{{}}"))
    put(tmp_path, "b.tgz", samples("de", png=png(), cls="1"))
    put(tmp_path, "notes.txt", b"no shard")
    found = report_of(tmp_path, require=["png", "CLS"], twice=True)
    assert found["valid"]
    assert (found["shards"], found["samples"], found["other_objects"]) == (2, 5, 1)
    assert set(found["counts"].values()) == {0}


def test_every_kind_of_problem_is_named(tmp_path):
    put(tmp_path, "a.tar", [*samples("ab", jpg=png(), cls="1"), ("a.txt", b"again"), ("c.cls", b"1"), ("b.cls", b"9")])
    put(tmp_path, "b.tar", [*samples("c", jpg=png(), cls="1"), ("d.jpg", png()[:40]), ("d.json", b"{")])
    put(tmp_path, "c.tar", tar_of(samples("xyz", jpg=png(), cls="1"))[:5000])
    put(tmp_path, "d.tar", b"no archive at all" * 100)
    found = report_of(tmp_path, require=["jpg"])
    assert found["counts"] == {"truncated": 1, "broken": 1, "split": 1, "duplicate": 2, "missing": 2, "undecodable": 2}
    problems = found["problems"]
    assert problems["split"] == [{"shard": "in/a.tar", "key": "a"}]
    assert problems["duplicate"] == [
        {"shard": "in/a.tar", "key": "b", "first": "in/a.tar"},
        {"shard": "in/b.tar", "key": "c", "first": "in/a.tar"},
    ]
    assert [(each["key"], each["fields"]) for each in problems["missing"]] == [("b", ["jpg"]), ("c", ["jpg"])]
    assert [(each["key"], each["fields"]) for each in problems["undecodable"]] == [("d", ["jpg"]), ("d", ["json"])]
    assert problems["truncated"][0]["shard"] == "in/c.tar"
    assert problems["truncated"][0]["offset"] > 0
    assert problems["broken"][0] == {"shard": "in/d.tar", "message": "not a tar archive: no header", "offset": 0}


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
def test_repair_leaves_a_valid_dataset(tmp_path, name):
    broken = tar_of([*samples("ab", jpg=png(), cls="1"), ("c.jpg", b"bad"), ("a.txt", b"again"), *samples("wxyz", jpg=png())])
    broken = broken[: -(10240 + 700)]
    put(tmp_path, name, gzip.compress(broken, mtime=0)[:-10] if name.endswith("gz") else broken)
    put(tmp_path, "b.tar", samples("bq", jpg=png(), cls="2"))
    found, shards = repaired(tmp_path, require=["jpg"], twice=True)
    assert not found["valid"]
    kept = members_of(shards[name])
    assert [member for member, _ in kept[:5]] == ["a.jpg", "a.cls", "a.txt", "b.jpg", "b.cls"]
    assert "c.jpg" not in dict(kept)
    assert [member for member, _ in members_of(shards["b.tar"])] == ["q.jpg", "q.cls"]
    for shard, content in shards.items():
        put(tmp_path / "again", shard, content)
    assert report_of(tmp_path / "again", require=["jpg"])["valid"]


@pytest.mark.parametrize(("kept", "is_cut", "left"), [(4 * 512, False, "ab"), (4 * 512 - 1, True, "a"), (3 * 512, True, "a")])
def test_an_archive_is_truncated_when_a_member_is_not_when_its_end_is(tmp_path, kept, is_cut, left):
    content = tar_of(samples("ab", txt="x"))
    put(tmp_path, "a.tar", content[:kept])
    found, shards = repaired(tmp_path)
    assert found["counts"]["truncated"] == is_cut
    assert members_of(shards["a.tar"]) == [(f"{key}.txt", b"x") for key in left]


def test_duplicates_do_not_depend_on_memory(tmp_path):
    for shard in range(4):
        put(tmp_path, f"{shard}.tar", samples([f"{key:06d}" for key in range(shard * 50, shard * 50 + 80)], txt="x"))
    reports = [report_of(tmp_path, memory_bytes=memory) for memory in (64 << 20, 40_000, 2_000)]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0]["counts"]["duplicate"] == 90
    assert [each["key"] for each in reports[0]["problems"]["duplicate"][:2]] == ["000050", "000051"]


def test_problems_are_named_up_to_a_bound_and_counted_beyond(tmp_path, monkeypatch):
    monkeypatch.setattr(validate, "JOB_PROBLEMS_MAX", 5)
    for name in ("a.tar", "b.tar"):
        put(tmp_path, name, samples([f"{key:03d}" for key in range(40)], txt="x"))
    found = report_of(tmp_path, require=["jpg"])
    assert (found["counts"]["duplicate"], found["counts"]["missing"]) == (40, 80)
    assert [each["key"] for each in found["problems"]["duplicate"]] == ["000", "001", "002", "003", "004"]
    assert len(found["problems"]["missing"]) == 5


def test_a_bomb_is_undecodable(tmp_path):
    put(tmp_path, "a.tar", [("a.png", png((9000, 9000)))])
    found = report_of(tmp_path)
    assert "is too large" in found["problems"]["undecodable"][0]["message"]


def test_without_decoding_nothing_but_indexes_is_read(tmp_path):
    put(tmp_path, "a.tar", [("a.png", b"bad")])
    assert report_of(tmp_path, decode=False)["valid"]


def test_real_shards(tmp_path):
    for name in ("mpdata.tar", "sample.tgz", "compressed.tar"):
        put(tmp_path, name, (DATA / name).read_bytes())
    put(tmp_path, "cut.tar", (DATA / "tendata.tar").read_bytes()[:1_000_000])
    found, shards = repaired(tmp_path)
    assert found["counts"]["truncated"] == 1
    assert sum(len(members_of(content)) for content in shards.values()) > 90


@pytest.mark.parametrize(
    ("pattern", "options"),
    [("r-%06d.json", {}), ("r/", {}), ("r.json", {"repair": True}), ("r.json", {"require": ["a/b"]}), ("r.json", {"on": 1})],
)
def test_bad_specs(tmp_path, pattern, options):
    put(tmp_path, "a.tar", [])
    with pytest.raises(BadRequest):
        run_job(tmp_path, job("validate", pattern, **options))
