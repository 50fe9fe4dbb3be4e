"""Reports are read from their beginnings, and from nothing that is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dfc.jobs.records import found_in, report_name, validation_of

KINDS = ("truncated", "broken", "split", "duplicate", "missing", "undecodable")
NASTY = 'x",\n "problems": {"<b>\u202e'


def written(problems: dict[str, list[dict[str, Any]]], counts: dict[str, int] | None = None, **more: Any) -> bytes:
    """A report as `validate` writes it."""
    found = {
        "valid": not problems, "shards": 1, "other_objects": 0, "samples": 599, **more,
        "counts": dict.fromkeys(KINDS, 0) | (counts or {kind: len(some) for kind, some in problems.items()}),
        "problems": {kind: problems.get(kind, []) for kind in KINDS},
    }  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def test_problems_are_counted_by_kind() -> None:
    content = written({"duplicate": [{"shard": "b/x.tar", "key": NASTY, "first": "b/x.tar"}]}, {"duplicate": 600})
    assert found_in("validate", content) == "600 problems (600 duplicate) in 1 shard with 599 samples"
    assert found_in("validate", written({})) == "no problems in 1 shard with 599 samples"
    other = written({"missing": [{"shard": "b/x.tar"}]}, {"missing": 1, "split": 2}, other_objects=1)
    assert found_in("validate", other) == (
        "3 problems (2 split, 1 missing) in 1 shard with 599 samples; 1 object not named like a shard"
    )


def test_the_beginning_of_a_report_has_the_counts() -> None:
    content = written({"missing": [{"shard": f"b/{NASTY}.tar", "key": NASTY, "fields": [NASTY]}]})
    cut_at = content.index(b'\n "problems": {')
    whole = validation_of(content)
    assert [each.key for each in whole.problems["missing"]] == [NASTY]
    for at in range(len(content) - 1):
        found = validation_of(content[:at])
        if at <= cut_at:
            assert found is None
        elif at >= cut_at + len('\n "problems": {'):
            assert found.counts == whole.counts


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[" * 100_000, b"\xff", written({}, shards=-1), written({}, counts={"split": -1}), written({}, samples="7")],
)
def test_what_is_no_report_says_nothing(content: bytes) -> None:
    assert validation_of(content) is None
    assert found_in("validate", content) == ""
    assert found_in("stats", content) == ""


def test_counts_are_said_with_classes_if_they_were_counted() -> None:
    totals = {"shards": 3, "samples": 270, "stored_bytes": 1_200_000, "extensions": {}}
    end = b',"by_shard":[\n]}\n'
    assert found_in("stats", msgspec.json.encode(totals)[:-1] + end) == "3 shards, 270 samples, 1.2 MB"
    totals |= {"by": "cls", "without_class": 1, "classes": {"0": {"samples": 269, "bytes": 1}}}
    assert found_in("stats", msgspec.json.encode(totals)[:-1] + end) == (
        "3 shards, 270 samples, 1.2 MB; 1 class by cls, 1 sample without"
    )


def test_only_some_jobs_write_a_report() -> None:
    assert report_name("reshuffle", "r-%06d.tar", {}) == ""
    assert report_name("stats", "s.json", {"by": "cls"}) == "s.json"
    assert report_name("validate", "v.json", {"repair": False}) == "v.json"
    assert report_name("validate", "clean/", {"repair": True}) == "clean/report.json"
