"""What jobs left about a dataset: read to its end or cut, true or made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.listing.datasets import DatasetShards
from dfc.ui.traces import JobTrace, Linked, trace_of

ID = "00064ad7bbd4a3deadbeef"
NAMES = [f"t-{number:03}.tar" for number in range(4)]


def dataset(names: Sequence[str] = NAMES, modified_us: int = 5) -> DatasetShards:
    shards = DatasetShards("t-{000..003}.tar")
    shards.add([(name, 10, f"{at:032x}", modified_us, 3, 6) for at, name in enumerate(names)])
    shards.sort()
    return shards


def read(*names: str, bucket: str = "b") -> list[dict[str, Any]]:
    return [
        {"bucket": bucket, "name": name, "version": "1", "checksum": f"{at:032x}", "size": 10, "samples": 3}
        for at, name in enumerate(names)
    ]


def written(*names: str, samples: int = 3) -> list[dict[str, Any]]:
    return [{"name": name, "checksum": f"{at:032x}", "size": 10, "samples": samples} for at, name in enumerate(names)]


def left(
    inputs: list[list[dict[str, Any]]],
    outputs: list[dict[str, Any]],
    operation: str = "sort",
    pattern: str = "x.json",
    **spec: Any,
) -> bytes:
    """What a job leaves, line by line as it does."""
    given = {"operation": operation, "input": {"bucket": "b", "shards": "**"}, "output": {"bucket": "b", "pattern": pattern}}
    head = {"id": ID, "operation": operation, "label": "l", "created": "2026-01-01T00:00:00.000Z", "spec": {**given, **spec}}
    entries = [b"\n[\n" + b",\n".join(map(msgspec.json.encode, some)) + b"]" for some in inputs]
    found = msgspec.json.encode(head)[:-1] + b',\n"inputs": [' + b",".join(entries)
    return found + b'],\n"outputs": [\n' + b",\n".join(map(msgspec.json.encode, outputs)) + b"]}\n"


def traced(content: bytes, *, is_whole: bool = True, bucket: str = "b", shards: DatasetShards | None = None) -> JobTrace | None:
    shards = dataset() if shards is None else shards
    return trace_of(content, is_whole=is_whole, place=(bucket, f".dfc/jobs/{ID}.json"), bucket="b", shards=shards)


def test_a_job_that_wrote_the_shards_is_where_they_came_from() -> None:
    found = traced(left([read("a.tar", bucket="raw"), read("s-1.tar", "s-2.tar", bucket="raw")], written(*NAMES)))
    assert found is not None
    assert (found.made, found.same, found.reads, found.report) == (4, 4, False, None)
    assert (found.operation, found.label, found.url, found.record) == (
        "sort", "l", f"/ui/jobs/{ID}", f"/b/.dfc/jobs/{ID}.json",
    )  # fmt: skip
    assert found.inputs == [
        Linked("raw/a.tar", "/ui/dataset?bucket=raw&shards=a.tar"),
        Linked("raw/s-{1..2}.tar", "/ui/dataset?bucket=raw&shards=s-%7B1..2%7D.tar"),
    ]
    other = traced(left([read("a.tar")], written(NAMES[1], NAMES[0], "else.tar")))
    assert other is not None
    assert (other.made, other.same) == (2, 0), "they are other ones by now"


def test_a_job_of_another_bucket_wrote_other_shards() -> None:
    found = traced(left([read("a.tar")], written(*NAMES)), bucket="c")
    assert found is not None
    assert (found.made, found.reads) == (0, False)


def test_a_job_that_read_the_shards_is_a_use_and_a_report_knows_whether_it_is_old() -> None:
    content = left([read(*NAMES)], written("stats.json", samples=0), "stats", "stats.json")
    found = traced(content, bucket="reports")
    assert found is not None
    assert (found.made, found.reads, found.report, found.is_old) == (0, True, ("stats.json", "0" * 32), False)
    assert found.outputs == [Linked("reports/stats.json", "/reports/stats.json")]
    newer = traced(content, shards=dataset(list(reversed(NAMES))))
    assert newer is not None
    assert newer.is_old
    fewer = traced(left([read(*NAMES[:3])], written("s"), "stats", "s"))
    assert fewer is not None
    assert fewer.report == ("s", "0" * 32)
    assert fewer.is_old
    more = traced(left([read(*NAMES, "else.tar")], written("s"), "stats", "s"))
    assert more is not None
    assert more.report is None, "it counts others, too"
    assert (more.covers, more.is_old) == (True, False)
    assert not found.covers
    some = traced(left([read(*NAMES[:3], "else.tar")], written("s"), "stats", "s"))
    assert some is not None
    assert not some.covers, "not all of them"
    other = traced(left([read(*reversed(NAMES), "else.tar")], written("s"), "stats", "s"))
    assert other is not None
    assert (other.covers, other.is_old) == (True, True)


@pytest.mark.parametrize("operation", ["stats", "sort"])
def test_what_is_cut_tells_as_much_as_there_is(operation: str) -> None:
    content = left([read(*NAMES)], written(*NAMES), operation, "t-%03d.tar", output={"bucket": "b", "pattern": "t-%03d.tar"})
    inputs, outputs = content.index(b'"inputs"'), content.index(b'"outputs"')
    for at in range(inputs + len('"inputs": ['), len(content)):
        found = traced(content[:at], is_whole=False)
        assert found is not None
        assert found.is_cut
        assert found.made, "by its pattern, if its outputs are not there"
        assert found.same <= 4
        if at > outputs:
            assert found.reads
            assert len(found.inputs) == 1
    for at in range(inputs):
        assert traced(content[:at], is_whole=False) is None


def test_a_cut_report_is_old_if_a_shard_is_newer() -> None:
    content = left([read(*NAMES)], [], "stats", "s.json")
    cut = content[: content.index(b'"outputs"')]
    for modified_us, is_old in ((5, False), (2**51, True)):
        found = traced(cut, is_whole=False, shards=dataset(modified_us=modified_us))
        assert found is not None
        assert (found.report, found.is_old) == (("s.json", ""), is_old)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b"\xff\xfe",
        json.dumps({"operation": 1, "created": "", "spec": {}}).encode(),
        left([read("a.tar")], [], input=7),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_cannot_be_read_is_none(content: bytes, is_whole: bool) -> None:
    assert traced(content, is_whole=is_whole) is None


def test_names_that_are_made_up_lead_nowhere() -> None:
    bad = [{"bucket": "../x", "name": "a.tar"}, {"bucket": "b", "name": "../../etc"}, {"bucket": "v1", "name": "a.tar"}]
    found = traced(left([[*read(*NAMES), *bad]], [{"name": "//evil.example/x"}, {"name": "a\nb"}]))
    assert found is not None
    assert [each.text for each in found.inputs] == ["b/t-{000..003}.tar"]
    assert found.outputs == []
    assert traced(left([read(*NAMES)], [], label="x"), bucket="b") is not None
    odd = trace_of(left([read(*NAMES)], []), is_whole=True, place=("b", ".dfc/jobs/../x.json"), bucket="b", shards=dataset())
    assert odd is not None
    assert odd.url == "", "a job has an id"


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_can_be_there(content: bytes, is_whole: bool) -> None:
    traced(content, is_whole=is_whole)


@pytest.mark.parametrize("pattern", ["../../../node/figures", "", "a//b", "nul\0", "x/../y.json", "a%2e%2e/../b", "y" * 2000])
def test_a_record_cannot_name_a_report_that_is_no_object(pattern: str) -> None:
    found = traced(left([read(*NAMES)], [], operation="stats", pattern=pattern))
    assert found is not None
    assert (found.reads, found.report) == (True, None)
