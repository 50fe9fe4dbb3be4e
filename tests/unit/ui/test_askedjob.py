"""What the page of a job says of what it was asked to do, of what it has found, and of the dataset that it has made."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dfc.listing.specs import OutputPattern, expand
from dfc.ui.jobfacts import PROBLEMS_SHOWN_MAX, TEXT_CHARS_MAX, described, made_by, shards_of, view_of
from dfc.wire.jobs import Job, JobOutput

NASTY = "\"'><img src=x onerror=alert(1)>"


def spec(source: Any, operation: str = "reshuffle", pattern: str = "r-%04d.tar", **options: Any) -> bytes:
    output = {"bucket": "out", "pattern": pattern}
    return msgspec.json.encode({"operation": operation, "input": source, "output": output, "options": options})


@pytest.mark.parametrize(
    ("shards", "text", "url"),
    [
        ("**", "in (all shards)", "/ui/buckets/in"),
        ("s-{000..003}.tar", "in/s-{000..003}.tar", "/ui/dataset?bucket=in&shards=s-%7B000..003%7D.tar"),
        ("d/s-*.tar", "in/d/s-*.tar", "/ui/buckets/in/datasets?prefix=d%2F"),
        ("x-{{0..1},{3..6}}.tar", "in/x-{{0..1},{3..6}}.tar", "/ui/buckets/in/datasets"),
        ("photos/", "in/photos/", "/ui/buckets/in/datasets?prefix=photos%2F"),
        ("one.tar", "in/one.tar", "/ui/dataset?bucket=in&shards=one.tar"),
        ("table.csv", "in/table.csv", "/in/table.csv"),
        (['"><b>.tar'], 'in/"><b>.tar', "/ui/dataset?bucket=in&shards=%22%3E%3Cb%3E.tar"),
        (["a.tar", "b.tar"], "in: 2 shards, such as a.tar", "/ui/buckets/in"),
    ],
)  # fmt: skip
def test_what_is_read_leads_to_its_page(shards: Any, text: str, url: str) -> None:
    asked = described(spec({"bucket": "in", "shards": shards}))
    assert [(each.text, each.url) for each in asked.inputs] == [(text, url)]


def test_much_is_cut() -> None:
    asked = described(spec([{"bucket": "in", "shards": f"{at}.tar"} for at in range(100)], keys="k" * 5000, none=None, seed=7))
    assert (len(asked.inputs), asked.more_inputs) == (8, 92)
    assert asked.reads.endswith("in/7.tar …")
    assert dict(asked.options)["seed"] == "7"
    assert len(dict(asked.options)["keys"]) < 300
    assert "none" not in dict(asked.options)


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 10_000, b"\xff", b'{"operation": 1}', spec({"bucket": "b"})[:-1]])
def test_a_spec_of_another_version_says_nothing(content: bytes) -> None:
    assert described(content) is None


@pytest.mark.parametrize(
    ("operation", "pattern", "shards", "url"),
    [
        ("reshuffle", "r-%04d.tar", 3, "/ui/dataset?bucket=out&shards=r-%7B0000..0002%7D.tar"),
        ("keys", "d/k.txt", 1, "/out/d/k.txt"),
        ("merge", "one-%02d.tar", 101, "/ui/buckets/out/datasets"),
    ],
)
def test_what_was_made_has_a_page(operation: str, pattern: str, shards: int, url: str) -> None:
    job = Job(id="1", operation=operation, state="succeeded", output=JobOutput(shards, 1, "d"))
    assert made_by(spec({"bucket": "in"}, operation, pattern), job).url == url
    assert made_by(spec({"bucket": "in"}, operation, pattern), replace(job, output=None)) is None


def test_a_report_is_shown_in_bounds() -> None:
    problems = [{"shard": "b/" + NASTY * 100, "key": NASTY * 100, "fields": ["x"] * 1000, "message": "m" * 9999}] * 1000
    counts = {"duplicate": 600, **{f"{number}" * 300: 1 for number in range(100)}}
    report = {"shards": 1, "other_objects": 0, "samples": 900, "counts": counts, "problems": {"duplicate": problems}}
    view = view_of("validate", msgspec.json.encode(report))
    assert view.is_bad
    assert len(view.problems) == 20
    assert (view.problems[0].name, view.problems[0].total) == ("duplicate", "600")
    assert len(view.problems[0].first) == PROBLEMS_SHOWN_MAX
    assert max(map(len, [view.said, *view.problems[0].first, *(each.name for each in view.problems)])) < 5 * TEXT_CHARS_MAX
    totals = {"shards": 1, "samples": 2, "stored_bytes": 3, "by": "y" * 999, "classes": {}}
    fields = {f"{number}" * 999: {"members": 1, "bytes": number, "smallest": 1, "largest": 1} for number in range(100)}
    counted = view_of("stats", msgspec.json.encode({**totals, "extensions": fields})[:-1] + b',"by_shard":[')
    assert not counted.is_bad
    assert len(counted.figures) == 4 + 20
    assert all(len(name) + len(value) < 2 * TEXT_CHARS_MAX for name, value in counted.figures)
    assert view_of("stats", b"{}") is None


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
