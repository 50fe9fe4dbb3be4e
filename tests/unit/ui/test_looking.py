"""The look for what jobs left is bounded, and what cannot be read does not end it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dfc.errors import Unavailable
from dfc.listing.datasets import DatasetShards
from dfc.listing.pages import ListingQuery, Page
from dfc.proxy.samples import ObjectHead
from dfc.ui import traces
from dfc.ui.traces import Looked

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
    assert found.report is not None
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
