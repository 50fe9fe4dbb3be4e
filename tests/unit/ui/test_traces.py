"""What jobs left about a dataset: looked for in bounds, read to its end or cut, true or made up; the report to propose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import Unavailable
from dfc.listing.datasets import DatasetShards
from dfc.listing.pages import ListingQuery, Page
from dfc.listing.specs import OutputPattern
from dfc.proxy.samples import ObjectHead
from dfc.ui import traces
from dfc.ui.traces import JobTrace, Linked, Looked, counting, report_for, trace_of

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


Entries = list[dict[str, Any]]


def left(inputs: list[Entries], outputs: Entries, operation: str = "sort", pattern: str = "x.json", **spec: Any) -> bytes:
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
    assert (found.made, found.same, found.reads, found.report) == (4, 4, False, None)
    assert (found.operation, found.label, found.url, found.record) == (
        "sort", "l", f"/ui/jobs/{ID}", f"/b/.dfc/jobs/{ID}.json",
    )  # fmt: skip
    assert found.inputs == [
        Linked("raw/a.tar", "/ui/dataset?bucket=raw&shards=a.tar"),
        Linked("raw/s-{1..2}.tar", "/ui/dataset?bucket=raw&shards=s-%7B1..2%7D.tar"),
    ]
    other = traced(left([read("a.tar")], written(NAMES[1], NAMES[0], "else.tar")))
    assert (other.made, other.same) == (2, 0), "they are other ones by now"


def test_a_job_of_another_bucket_wrote_other_shards() -> None:
    found = traced(left([read("a.tar")], written(*NAMES)), bucket="c")
    assert (found.made, found.reads) == (0, False)


def test_a_job_that_read_the_shards_is_a_use_and_a_report_knows_whether_it_is_old() -> None:
    content = left([read(*NAMES)], written("stats.json", samples=0), "stats", "stats.json")
    found = traced(content, bucket="reports")
    assert (found.made, found.reads, found.report, found.is_old) == (0, True, ("stats.json", "0" * 32), False)
    assert found.outputs == [Linked("reports/stats.json", "/reports/stats.json")]
    assert traced(content, shards=dataset(list(reversed(NAMES)))).is_old
    fewer = traced(left([read(*NAMES[:3])], written("s"), "stats", "s"))
    assert (fewer.report, fewer.is_old) == (("s", "0" * 32), True)
    more = traced(left([read(*NAMES, "else.tar")], written("s"), "stats", "s"))
    assert more.report is None, "it counts others, too"
    assert (more.covers, more.is_old) == (True, False)
    assert not found.covers
    assert not traced(left([read(*NAMES[:3], "else.tar")], written("s"), "stats", "s")).covers, "not all of them"
    other = traced(left([read(*reversed(NAMES), "else.tar")], written("s"), "stats", "s"))
    assert (other.covers, other.is_old) == (True, True)


@pytest.mark.parametrize("operation", ["stats", "sort"])
def test_what_is_cut_tells_as_much_as_there_is(operation: str) -> None:
    content = left([read(*NAMES)], written(*NAMES), operation, "t-%03d.tar", output={"bucket": "b", "pattern": "t-%03d.tar"})
    inputs, outputs = content.index(b'"inputs"'), content.index(b'"outputs"')
    for at in range(inputs + len('"inputs": ['), len(content)):
        found = traced(content[:at], is_whole=False)
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
        assert (found.report, found.is_old) == (("s.json", ""), is_old)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[" * 10_000, b"\xff\xfe", json.dumps({"operation": 1, "created": "", "spec": {}}).encode(),
        left([read("a.tar")], [], input=7),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_cannot_be_read_is_none(content: bytes, is_whole: bool) -> None:
    assert traced(content, is_whole=is_whole) is None


def test_names_that_are_made_up_lead_nowhere() -> None:
    bad = [{"bucket": "../x", "name": "a.tar"}, {"bucket": "b", "name": "../../etc"}, {"bucket": "v1", "name": "a.tar"}]
    found = traced(left([[*read(*NAMES), *bad]], [{"name": "//evil.example/x"}, {"name": "a\nb"}]))
    assert [each.text for each in found.inputs] == ["b/t-{000..003}.tar"]
    assert found.outputs == []
    assert traced(left([read(*NAMES)], [], label="x"), bucket="b") is not None
    odd = trace_of(left([read(*NAMES)], []), is_whole=True, place=("b", ".dfc/jobs/../x.json"), bucket="b", shards=dataset())
    assert odd.url == "", "a job has an id"


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_can_be_there(content: bytes, is_whole: bool) -> None:
    traced(content, is_whole=is_whole)


@pytest.mark.parametrize("pattern", ["../../../node/figures", "", "a//b", "nul\0", "x/../y.json", "a%2e%2e/../b", "y" * 2000])
def test_a_record_cannot_name_a_report_that_is_no_object(pattern: str) -> None:
    found = traced(left([read(*NAMES)], [], operation="stats", pattern=pattern))
    assert (found.reads, found.report) == (True, None)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("toy/train-{000..146}.tar", "toy/train.stats.json"),
        ("{0..3}.tar", "stats.json"),
        ("a/{0..3}.tar.zst", "a/stats.json"),
        ("one-006.tar.gz", "one-006.stats.json"),
        ("100%-{0..3}.tar", ""),
        ("%04d-{0..3}.tar", ""),
        ("{part}.tar", ""),
        ("x" * 1020 + ".tar", ""),
    ],
)
def test_a_report_is_called_as_its_shards(pattern: str, name: str) -> None:
    assert report_for(pattern) == name
    assert not name or OutputPattern(name).name() == name


def test_classes_are_counted_if_there_are_some_and_an_old_report_is_replaced() -> None:
    assert counting("b", "x-{0..3}.tar", ["jpg"], None) == {"output_bucket": "b", "pattern": "x.stats.json"}
    report: Any = SimpleNamespace(job=SimpleNamespace(bucket="b"), name="x.stats.json")
    assert counting("b", "x-{0..3}.tar", ["cls", "jpg"], report) == {
        "output_bucket": "b", "pattern": "x.stats.json", "option.by": "cls", "overwrite": "on",
    }  # fmt: skip
    assert "overwrite" not in counting("c", "x-{0..3}.tar", [], report)


SHARDS = DatasetShards("t.tar")
SHARDS.add([("t.tar", 10, "a" * 32, 5, 3, 6)])
OWN, OTHER = "own", "other-00"


def record(operation: str, created: str, output: str = "x", checksum: str = "c") -> bytes:
    read = {"bucket": OWN, "name": "t.tar", "checksum": "a" * 32, "size": 10, "samples": 3}
    spec = {"input": {"bucket": OWN, "shards": "t.tar"}, "output": {"bucket": OTHER, "pattern": output}}
    written = [{"name": output, "checksum": checksum, "samples": 0}]
    return msgspec.json.encode(
        {"operation": operation, "created": created, "spec": spec, "inputs": [[read]], "outputs": written}
    )


def report(samples: int) -> bytes:
    totals = {"shards": 1, "samples": samples, "stored_bytes": 10, "extensions": {}}
    return msgspec.json.encode(totals)[:-1] + b',"by_shard":[]}'


class Store:
    """The use cases of a proxy, as far as a look uses them. Objects that are None cannot be read; exceptions are raised."""

    def __init__(self, objects: dict[tuple[str, str], bytes | None], buckets: int = 1) -> None:
        self.objects = objects
        self.names = [OWN, *(f"other-{number:02}" for number in range(buckets))]
        self.listed: list[str] = []
        self.reading = self.most = self.reads = 0
        self.hangs = False

    def cluster_map(self) -> Any:
        return SimpleNamespace(buckets=[SimpleNamespace(name=name, created=name) for name in self.names])

    def bucket_id(self, bucket: str) -> str:
        return bucket

    async def page(self, query: ListingQuery, limit: int) -> Page:
        self.listed.append(query.bucket_id)
        names = sorted(name for bucket, name in self.objects if bucket == query.bucket_id and name.startswith(query.prefix))
        rows = [(name, 1, "", at, None, None) for at, name in enumerate(names) if name > query.start_after]
        return Page(rows[:limit], [], len(rows) > limit)  # type: ignore[arg-type]

    async def head(self, bucket: str, name: str, limit: int) -> ObjectHead:
        self.reads += 1
        self.reading += 1
        self.most = max(self.most, self.reading)
        try:
            await asyncio.sleep(0 if not self.hangs or self.reads < 3 else 3600)
            content = self.objects[bucket, name]
            if content is None:
                raise Unavailable("not now")
            return ObjectHead(content[:limit], "c", len(content))
        finally:
            self.reading -= 1


async def look(store: Store) -> Looked:
    uses: Any = SimpleNamespace(admin=store, listings=store, shards=store)
    return await traces.JobTraces(uses).look(OWN, SHARDS)


def job(number: int) -> str:
    return f".dfc/jobs/{number:022x}.json"


async def test_the_newest_are_read_a_few_at_a_time_and_half_beside_the_dataset() -> None:
    objects: dict[tuple[str, str], bytes | None] = {(OWN, job(n)): record("sort", f"{n:04}") for n in range(500)}
    objects |= {(OTHER, job(n)): record("keys", f"{n:04}") for n in range(500)}
    store = Store(objects, buckets=100)
    found = await look(store)
    assert (found.looked_at, found.known, found.buckets, found.all_buckets) == (64, 500, 32, 101)
    assert not found.is_whole
    assert store.most == traces.LINEAGE_READS
    assert [each.created for each in found.uses] == [f"{n:04}" for n in range(499, 435, -1)], (
        "the oldest bucket is not looked into"
    )
    store = Store(objects)
    found = await look(store)
    assert (found.looked_at, found.known) == (64, 1000)
    assert sum(each.operation == "keys" for each in found.uses) == 32


async def test_what_cannot_be_read_is_counted_and_the_rest_is_found() -> None:
    found = await look(Store({(OWN, job(1)): None, (OWN, job(2)): b"{}", (OTHER, job(3)): record("sort", "1")}))
    assert (found.looked_at, found.unread, found.is_whole) == (3, 2, False)
    assert [each.operation for each in found.uses] == ["sort"]
    assert (await look(Store({(OTHER, job(3)): record("sort", "1")}))).is_whole


async def test_a_look_that_takes_too_long_ends_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "LINEAGE_LOOK_S", 0.3)
    store = Store({(OWN, job(n)): record("sort", str(n)) for n in range(20)})
    store.hangs = True
    found = await look(store)
    assert (found.looked_at, len(found.uses), found.is_whole) == (2, 2, False)
    assert store.reading == 0, "nothing goes on"


async def test_the_newest_report_that_is_still_there_is_shown() -> None:
    objects: dict[tuple[str, str], bytes | None] = {
        (OWN, job(1)): record("stats", "1", "old.json"), (OTHER, "old.json"): report(1), (OWN, "old.json"): report(2),
        (OWN, job(2)): record("stats", "2", "gone.json"), (OWN, "gone.json"): None,
        (OWN, job(3)): record("stats", "3", "replaced.json", "another"), (OWN, "replaced.json"): report(3),
    }  # fmt: skip
    found = await look(Store(objects))
    assert (found.report.name, found.report.totals.samples, found.report.is_old) == ("old.json", 2, False)
    objects[OWN, "old.json"] = b"no report"
    assert (await look(Store(objects))).report is None


async def test_of_very_many_also_the_last_days_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "LINEAGE_LISTED_MAX", 10)
    now = f"{int(traces.time.time() * 1e6):014x}"
    objects: dict[tuple[str, str], bytes | None] = {(OWN, job(n)): record("sort", "old") for n in range(30)}
    objects[OWN, f".dfc/jobs/{now}deadbeef.json"] = record("keys", "new")
    found = await look(Store(objects))
    assert (found.looked_at, found.known, found.is_whole) == (11, 12, False)
    assert found.uses[0].operation in ("keys", "sort")
    assert {each.operation for each in found.uses} == {"keys", "sort"}
