"""A proxy searches: each shard is asked for at one target, what one cannot search at another, and what cannot be is said."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from registering import target_entry

from dfc import limits
from dfc.addresses import Refusals
from dfc.errors import BadShardSpec, BucketNotFound, ObjectCorrupt, TooLarge, Unavailable
from dfc.http.retry import RemoteError
from dfc.limits import SEARCH_LOOKUP_S
from dfc.listing.pages import Page
from dfc.listing.search import ELSEWHERE, KeyQuery, SampleHit, SearchPart, SearchRequest
from dfc.placement.map import BucketEntry, ClusterMap, NodeEntry
from dfc.proxy import samples
from dfc.proxy.samples import SampleSearch
from dfc.wire.objects import UnsearchedShard

SHARDS = [f"s{number}.tar" for number in range(8)]
ALL = KeyQuery("contains", "k")


class FakeCluster:
    """Three targets. `readers_of`: which of them a shard can be read from, in order; `says`: what one says of a shard, if it
    is no hit; `answers`: what one answers in all, an exception or (status, body)."""

    def __init__(self) -> None:
        self.readers_of = {name: [f"t{at % 3}", f"t{(at + 1) % 3}"] for at, name in enumerate(SHARDS)}
        self.says: dict[tuple[str, str], UnsearchedShard] = {}
        self.answers: dict[str, object] = {}
        self.asked: list[tuple[str, SearchRequest]] = []
        self.unindexed = ["notes.txt", "broken.tar"]
        self.control = self
        self.map = ClusterMap(cluster_id="c", version=1)

    def bucket(self, name: str) -> BucketEntry:
        if name != "b":
            raise BucketNotFound("no")
        return BucketEntry(id="id", name=name)

    async def newest(self) -> int:
        return 1

    def readers(self, bucket: BucketEntry, name: str) -> list[NodeEntry]:
        found = self.readers_of.get(name, ["t0"])
        if not found:
            raise Unavailable("target t9, which holds this object, is down")
        return [target_entry(each) for each in found]

    def targets_of(self, bucket_id: str, by: ClusterMap) -> list[NodeEntry]:
        return [target_entry("t0")]

    async def ask_all(self, ask, nodes):
        return [await ask(each) for each in nodes]

    async def call(self, method: str, url: str, kind: type[Page], *, bytes_max: int) -> Page:
        """A page of a listing."""
        prefix = parse_qs(urlsplit(url).query).get("prefix", [""])[0]
        rows = [(name, 1, "", 0, 5, 5) for name in SHARDS] + [(name, 1, "", 0, None, None) for name in self.unindexed]
        return Page(sorted(row for row in rows if row[0].startswith(prefix)), [], False)

    async def fetch(self, method, url, body, headers, *, long, bytes_max):
        assert (method, urlsplit(url).path, headers["Content-Type"]) == ("POST", "/v1/node/search", "application/msgpack")
        name, asked = urlsplit(url).netloc, msgspec.msgpack.decode(body, type=SearchRequest)
        self.asked.append((name, asked))
        await asyncio.sleep(0)
        answer = self.answers.get(name)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            status, content = answer  # type: ignore[misc]
            return status, "", content
        part = SearchPart([], 0, None, [], [])
        for shard in asked.shards:
            said = self.says.get((name, shard))
            if said is None:
                part.hits.append(SampleHit(shard, 1, "k", {"jpg": (512, 9)}))
            else:
                (part.missing if said.code == "object_not_found" else part.failed).append(said)
        searched = len(part.hits)
        return 200, "application/msgpack", msgspec.msgpack.encode(msgspec.structs.replace(part, searched=searched))


def failing(shard: str, code: str = "storage_failed") -> UnsearchedShard:
    return UnsearchedShard(shard, code, f"{code} of {shard}")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(samples, "ROUND_S", 0.001)
    return FakeCluster()


@pytest.fixture
def search(cluster: FakeCluster) -> SampleSearch:
    return SampleSearch(cluster, Refusals())  # type: ignore[arg-type]


def error_body(code: str, message: str = "m") -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}).encode()


async def test_each_target_is_asked_once_for_what_it_has(cluster: FakeCluster, search: SampleSearch) -> None:
    found = await search.find("b", ALL, limit=50)
    assert [hit.shard for hit in found.hits] == SHARDS
    assert (found.shards, found.searched, found.stopped, found.unsearched) == (8, 8, None, [])
    assert {target: asked.shards for target, asked in cluster.asked} == {
        "t0": ["s0.tar", "s3.tar", "s6.tar"], "t1": ["s1.tar", "s4.tar", "s7.tar"], "t2": ["s2.tar", "s5.tar"],
    }  # fmt: skip
    assert {(asked.bucket, asked.query, asked.limit) for _, asked in cluster.asked} == {("b", ALL, 51)}
    assert all(0 < asked.budget_s <= 2.0 for _, asked in cluster.asked)
    assert len(cluster.asked) == 3


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        (None, SHARDS),
        ("**", SHARDS),
        ("s[1-3].tar", SHARDS[1:4]),
        ("s{5,1,5}.tar", ["s1.tar", "s5.tar"]),
        ("s@2.tar", ["s0.tar", "s1.tar"]),
        ('["s7.tar"]', ["s7.tar"]),
        ("none/", []),
        ("x*", []),
    ],
)
async def test_where_to_search(cluster: FakeCluster, search: SampleSearch, spec: str | None, shards: list[str]) -> None:
    found = await search.find("b", ALL, spec)
    assert [hit.shard for hit in found.hits] == shards
    assert (found.shards, found.searched) == (len(shards), len(shards))


async def test_bad_questions(cluster: FakeCluster, search: SampleSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BucketNotFound):
        await search.find("no", ALL)
    with pytest.raises(BadShardSpec):
        await search.find("b", ALL, "a{")
    monkeypatch.setattr(limits, "SEARCH_SHARDS_MAX", 7)
    for spec in (None, "s@8.tar"):
        with pytest.raises(TooLarge, match="at most 7 shards"):
            await search.find("b", ALL, spec)
    assert cluster.asked == []


@pytest.mark.parametrize("how", ["exact", "contains"])
async def test_a_target_that_is_gone_is_made_up_for_by_copies(cluster: FakeCluster, search: SampleSearch, how: str) -> None:
    cluster.answers["t1"] = Unavailable("cannot reach http://t1: ClientConnectorError")
    found = await search.find("b", KeyQuery(how, "k"))  # type: ignore[arg-type]
    assert [hit.shard for hit in found.hits] == SHARDS
    assert (found.searched, found.unsearched) == (8, [])
    at_others = Counter(shard for target, asked in cluster.asked if target != "t1" for shard in asked.shards)
    assert at_others == Counter(SHARDS)


async def test_without_copies_it_is_said_which_shards_were_not_looked_through(
    cluster: FakeCluster, search: SampleSearch
) -> None:
    cluster.readers_of = {name: readers[:1] for name, readers in cluster.readers_of.items()} | {"s0.tar": []}
    cluster.answers["t1"] = Unavailable("cannot reach http://t1: ClientConnectorError")
    found = await search.find("b", ALL)
    assert [hit.shard for hit in found.hits] == ["s2.tar", "s3.tar", "s5.tar", "s6.tar"]
    assert [each.shard for each in found.unsearched] == ["s0.tar", "s1.tar", "s4.tar", "s7.tar"]
    assert (found.searched, found.stopped) == (4, None)
    with pytest.raises(Unavailable, match=r"'s0.tar' cannot be searched: target t9"):
        await search.find("b", KeyQuery("exact", "k"))


async def test_a_damaged_shard_is_an_error_of_its_own_for_a_look_up(cluster: FakeCluster, search: SampleSearch) -> None:
    for target in ("t2", "t0"):
        cluster.says[target, "s2.tar"] = failing("s2.tar", "object_corrupt")
    with pytest.raises(ObjectCorrupt, match=r"'s2.tar' cannot be searched: object_corrupt"):
        await search.find("b", KeyQuery("exact", "k"))
    found = await search.find("b", ALL)
    assert (len(found.hits), found.unsearched) == (7, [failing("s2.tar", "object_corrupt")])


async def test_what_one_cannot_read_another_copy_may_have(cluster: FakeCluster, search: SampleSearch) -> None:
    cluster.says["t2", "s2.tar"] = failing("s2.tar")
    found = await search.find("b", KeyQuery("exact", "k"))
    assert [hit.shard for hit in found.hits] == SHARDS
    assert [(target, asked.shards) for target, asked in cluster.asked[3:]] == [("t0", ["s2.tar"])]


async def test_shards_that_are_asked_for_again_are_in_order(cluster: FakeCluster, search: SampleSearch) -> None:
    """A target that stops says how far it came: of those before, none may be left out."""
    cluster.readers_of = {name: [f"t{at % 2}", "t2"] for at, name in enumerate(SHARDS)}
    cluster.answers |= {"t0": Unavailable("gone"), "t1": Unavailable("gone")}
    found = await search.find("b", ALL)
    assert [hit.shard for hit in found.hits] == SHARDS
    assert [asked.shards for target, asked in cluster.asked if target == "t2"] == [SHARDS]


async def test_the_time_for_a_look_up_is_never_more_than_a_target_takes(
    cluster: FakeCluster, search: SampleSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a clock passes a power of two, 30 s from now can be 30.000000000000455 s away."""
    loop = asyncio.get_running_loop()
    now = next(now for now in (8163 + at / 1000 for at in range(9999)) if now + SEARCH_LOOKUP_S - now > SEARCH_LOOKUP_S)
    monkeypatch.setattr(loop, "time", lambda: now)
    found = await search.find("b", KeyQuery("exact", "k"))
    assert len(found.hits) == len(SHARDS)


async def test_a_shard_that_moves_is_found_when_it_has_arrived(cluster: FakeCluster, search: SampleSearch) -> None:
    cluster.readers_of["s4.tar"] = ["t1"]
    cluster.says["t1", "s4.tar"] = failing("s4.tar", ELSEWHERE)
    real = cluster.readers

    def readers(bucket: BucketEntry, name: str) -> list[NodeEntry]:
        if name == "s4.tar" and len(cluster.asked) >= 5:
            cluster.readers_of["s4.tar"] = ["t2"]
        return real(bucket, name)

    cluster.readers = readers
    found = await search.find("b", ALL)
    assert [hit.shard for hit in found.hits] == SHARDS
    assert found.unsearched == []


async def test_a_shard_that_is_nowhere_is_given_up(cluster: FakeCluster, search: SampleSearch) -> None:
    for target in ("t1", "t2"):
        cluster.says[target, "s4.tar"] = failing("s4.tar", ELSEWHERE)
    found = await search.find("b", ALL)
    assert [each.shard for each in found.unsearched] == ["s4.tar"]
    assert sum("s4.tar" in asked.shards for _, asked in cluster.asked) == samples.ROUNDS_MAX


async def test_named_shards_that_do_not_exist_are_no_error(cluster: FakeCluster, search: SampleSearch) -> None:
    missing = UnsearchedShard("none.tar", "object_not_found", "no")
    cluster.says["t0", "none.tar"] = missing
    for query in (ALL, KeyQuery("exact", "k")):
        found = await search.find("b", query, '["s1.tar", "none.tar"]')
        assert ([hit.shard for hit in found.hits], found.unsearched) == (["s1.tar"], [missing])
        assert (found.shards, found.searched) == (2, 1)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [((404, error_body("bucket_not_found")), BucketNotFound), ((400, error_body("bad_request")), RemoteError)],
)
async def test_mistakes_are_passed_on(
    cluster: FakeCluster, search: SampleSearch, answer: object, kind: type[Exception]
) -> None:
    cluster.answers["t1"] = answer
    with pytest.raises(kind):
        await search.find("b", ALL)


@pytest.mark.parametrize("answer", [(500, b"oops"), (200, b"\xc1"), (200, msgspec.msgpack.encode({"hits": 3}))])
async def test_answers_that_make_no_sense_are_like_none(cluster: FakeCluster, search: SampleSearch, answer: object) -> None:
    cluster.answers["t1"] = answer
    found = await search.find("b", ALL)
    assert [hit.shard for hit in found.hits] == SHARDS


async def test_the_limit(cluster: FakeCluster, search: SampleSearch) -> None:
    found = await search.find("b", ALL, limit=3)
    assert ([hit.shard for hit in found.hits], found.stopped, found.searched) == (SHARDS[:3], "limit", 3)
    assert (await search.find("b", ALL, limit=8)).stopped is None


async def test_a_target_that_does_not_answer_in_time_is_not_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "ANSWER_S", 0.01)
    real = cluster.fetch

    async def fetch(method, url, *given, **named):
        if "//t1/" in url:
            await asyncio.Event().wait()
        return await real(method, url, *given, **named)

    cluster.fetch = fetch
    found = await SampleSearch(cluster, Refusals(), scan_s=0.01).find("b", ALL)  # type: ignore[arg-type]
    assert [hit.shard for hit in found.hits] == [name for name in SHARDS if cluster.readers_of[name][0] != "t1"]
    assert (found.stopped, found.searched) == (None, 5)
    assert {(each.shard, each.message) for each in found.unsearched} == {
        (name, "target t1 did not answer in time") for name in ("s1.tar", "s4.tar", "s7.tar")
    }


async def test_the_time_of_targets_is_said(cluster: FakeCluster, search: SampleSearch) -> None:
    part = SearchPart([SampleHit("s4.tar", 0, "k", {})], 1, "time", reached=("s4.tar", 5))
    cluster.answers["t1"] = 200, msgspec.msgpack.encode(part)
    found = await search.find("b", ALL)
    assert (found.stopped, found.searched, found.shards, found.reached) == ("time", 4, 8, ("s4.tar", 5))
    assert [hit.shard for hit in found.hits] == ["s0.tar", "s2.tar", "s3.tar", "s4.tar"]
    del cluster.answers["t1"]
    rest = await search.find("b", ALL, start=found.reached)
    assert (rest.stopped, rest.searched, rest.shards, rest.reached) == (None, 8, 8, None)
    assert [hit.shard for hit in rest.hits] == SHARDS[4:]  # what is in s4.tar before 5, the fake target does not leave out
    assert {asked.start for _, asked in cluster.asked[3:]} == {("s4.tar", 5)}


async def test_it_goes_on_whatever_became_of_the_shards(cluster: FakeCluster, search: SampleSearch) -> None:
    for start, first in ((("s3.tar", 0), 3), (("s3", 7), 3), (("s3.tar~", 7), 4), (("", 0), 0), (("z", 0), 8)):
        found = await search.find("b", ALL, start=start)
        assert [hit.shard for hit in found.hits] == SHARDS[first:]
        assert (found.searched, found.shards, found.stopped) == (8, 8, None)


async def test_shards_that_moved_when_the_time_was_over_are_searched_by_who_goes_on(cluster: FakeCluster) -> None:
    cluster.says["t1", "s4.tar"] = failing("s4.tar", ELSEWHERE)
    cluster.says["t0", "s3.tar"] = failing("s3.tar")
    found = await SampleSearch(cluster, Refusals(), scan_s=0.0).find("b", ALL)  # type: ignore[arg-type]
    assert [hit.shard for hit in found.hits] == ["s0.tar", "s1.tar", "s2.tar"]
    assert (found.stopped, found.searched, found.reached) == ("time", 3, ("s4.tar", 0))
    assert found.unsearched == [failing("s3.tar")]


async def test_a_search_that_is_cancelled_leaves_nothing(cluster: FakeCluster, search: SampleSearch) -> None:
    begun, real = asyncio.Event(), cluster.fetch

    async def fetch(*given, **named):
        begun.set()
        await asyncio.Event().wait()

    cluster.fetch = fetch
    task = asyncio.create_task(search.find("b", ALL))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
    cluster.fetch = real
    assert len((await search.find("b", ALL)).hits) == 8
