"""A search that goes on: its pages together are the whole, whatever becomes of shards meanwhile; no token breaks anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inprocess import InProcess
from job_shards import samples, tar_of

from dfc.client import AsyncClient, Client
from dfc.errors import BadRequest
from dfc.limits import SEARCH_TOKEN_CHARS_MAX
from dfc.listing.search import token_of
from dfc.target import listing

BUCKET = "search-pages"
SHARDS = sorted([f"x-{number:02d}.tar" for number in range(10)] + ["sub/ü.tar", "y.tgz", "Z.tar"])
WAYS = {
    "key": lambda key, text: key == text,
    "key_prefix": lambda key, text: key.startswith(text),
    "key_contains": lambda key, text: text in key,
}


def keys_of(shard: str) -> list[str]:
    """With a key that comes again and again, as often as the shard's place says; none in some shards."""
    at = SHARDS.index(shard)
    return [key for number in range(at % 5) for key in (f"{at}/k{number}", "again")] + ["end"]


def shard_of(keys: list[str]) -> bytes:
    return tar_of(samples(keys, txt="{key}"))


@pytest.fixture(scope="module", autouse=True)
def stored(http, compress):
    for shard in SHARDS:
        content = shard_of(keys_of(shard))
        http.put(f"/{BUCKET}/{shard}", content=compress(".tgz", content) if shard.endswith(".tgz") else content)


def expected(way: str, text: str) -> list[tuple[str, int, str]]:
    return [(shard, number, key) for shard in SHARDS for number, key in enumerate(keys_of(shard)) if WAYS[way](key, text)]


def page(http, parameters: dict[str, Any], bucket: str = BUCKET) -> tuple[list[tuple[str, int, str]], dict[str, Any]]:
    answer = http.get(f"/v1/buckets/{bucket}/samples", params=parameters)
    assert answer.status_code == 200, answer.text
    *lines, end = [json.loads(line) for line in answer.text.splitlines()]
    return [(line["shard"], line["number"], line["key"]) for line in lines], end["end"]


def pages(
    http, parameters: dict[str, Any], bucket: str = BUCKET
) -> Iterator[tuple[list[tuple[str, int, str]], dict[str, Any]]]:
    token = {}
    while True:
        hits, end = page(http, {**parameters, **token}, bucket)
        yield hits, end
        if end["next_token"] is None:
            return
        token = {"token": end["next_token"]}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["again", "a", "3/k", "end", "none"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_together_are_the_whole(http, way, text, limit):
    whole, found, ends = expected(way, text), [], []
    for hits, end in pages(http, {way: text, "limit": limit}):
        assert len(hits) == min(limit, len(whole) - len(found))
        found += hits
        ends.append(end)
        assert end["shards"] == len(SHARDS)
        assert end["searched"] == (SHARDS.index(hits[-1][0]) + 1 if end["stopped"] else len(SHARDS))
    assert found == whole
    assert [end["stopped"] for end in ends] == ["limit"] * (len(ends) - 1) + [None]
    assert len(ends) == max(1, -(-len(whole) // limit))


@pytest.mark.parametrize("spec", ["x-*.tar", "x-@05.tar", json.dumps([*SHARDS, "none.tar", "y" * 3000])])
def test_pages_of_some_shards(http, spec):
    shards = SHARDS if "none" in spec else [name for name in SHARDS if name.startswith("x-")][: 5 if "@" in spec else None]
    found, unsearched = [], []
    for hits, end in pages(http, {"key_contains": "a", "shards": spec, "limit": 2}):
        found += hits
        unsearched += [each["shard"] for each in end["unsearched"]]
    assert found == [hit for hit in expected("key_contains", "a") if hit[0] in shards]
    assert unsearched == (["none.tar", "y" * 3000] if "none" in spec else [])  # each is said once


def test_a_token_is_the_same_at_every_node_and_for_every_search(http, nodes):
    hits, end = page(http, {"key": "again", "limit": 3})
    assert end["next_token"] == token_of((hits[-1][0], hits[-1][1] + 1))
    with Client(nodes.map.targets()[0].url) as client:
        result = client.find_samples(BUCKET, prefix="a", token=end["next_token"], limit=5)
    assert [(each.shard, each.number, each.key) for each in result.samples] == expected("key", "again")[3:8]


def test_shards_that_come_and_go_between_pages(http, bucket):
    names = [f"s{number:02d}.tar" for number in range(0, 40, 2)]
    for name in names:
        assert http.put(f"/{bucket}/{name}", content=shard_of(["k0", "a", "k1"])).status_code == 201
    for parameters in ({"key_prefix": "k"}, {"key_contains": "k"}):
        for cut in (1, 2, 5, 6):
            there = set(names)
            hits, end = page(http, {**parameters, "limit": cut}, bucket)
            last = hits[-1][0]
            before, after = f"s{int(last[1:3]) - 1:02d}.tar" if last > "s00.tar" else "r.tar", f"s{int(last[1:3]) + 1:02d}.tar"
            for name in (before, after):  # one that is passed by already, and one that is not
                http.put(f"/{bucket}/{name}", content=shard_of(["k8", "k9"])).raise_for_status()
            http.delete(f"/{bucket}/{last}").raise_for_status()
            rest, end = page(http, {**parameters, "limit": 1000, "token": end["next_token"]}, bucket)
            assert end["stopped"] is None
            stayed = sorted({after, *(name for name in there if name > last)})
            assert rest == [
                hit
                for name in stayed
                for hit in ([(name, 0, "k8"), (name, 1, "k9")] if name == after else [(name, 0, "k0"), (name, 2, "k1")])
            ]
            assert end["searched"] == end["shards"] == len(names) + 1
            for name in (before, after):
                http.delete(f"/{bucket}/{name}").raise_for_status()
            http.put(f"/{bucket}/{last}", content=shard_of(["k0", "a", "k1"])).raise_for_status()


def test_a_shard_that_has_become_shorter_or_no_shard(http, bucket):
    for name in ("a.tar", "b.tar"):
        http.put(f"/{bucket}/{name}", content=shard_of([f"k{number}" for number in range(9)])).raise_for_status()
    _, end = page(http, {"key_prefix": "k", "limit": 5}, bucket)
    for content in (shard_of(["k0"]), b"no tar", b""):
        http.put(f"/{bucket}/a.tar", content=content).raise_for_status()
        for way in ({"key_prefix": "k"}, {"key": "k0"}):
            rest, last = page(http, {**way, "token": end["next_token"]}, bucket)
            assert [hit[0] for hit in rest] == ["b.tar"] * len(rest)
            assert (len(rest), last["stopped"]) == (9 if "key_prefix" in way else 1, None)


def packed(value: object) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(value)).decode().rstrip("=")


def test_hostile_tokens(http, nodes, error_of):
    good = token_of(("x-01.tar", 1))
    tokens = [
        "", "x", "0", "-1", "../..", "%2e", "a b", "\0", "ü", "A" * SEARCH_TOKEN_CHARS_MAX, good + "A", good[:-1],
        good + "=", good.lower(),
        packed(["x-01.tar", -1]), packed(["x-01.tar", 1 << 62]), packed(["", 1]), packed(["x" * 1026, 1]), packed({"a": 1}),
        packed([[[[["x"]]]]]), packed(["x-01.tar", True]), packed(["x-01.tar", 1, 1]),
        urlsafe_b64encode(b"\x92" * 5000).decode(),
    ]  # fmt: skip
    for url, token in itertools.product((nodes.proxy, nodes.map.targets()[0].url), tokens):
        path = f"{url}/v1/buckets/{BUCKET}/samples"
        message = error_of(http.get(path, params={"key": "again", "token": token}), 400, "bad_request")
        assert message == "token must be the next_token of a search"
    path = f"/v1/buckets/{BUCKET}/samples"
    error_of(http.get(f"{path}?token={good}"), 400, "bad_request")
    error_of(http.get(f"{path}?key=again&token={good}&token={good}"), 400, "bad_request")
    assert http.get(f"{path}?key=again&token={'A' * 17_000}").status_code in (400, 414)
    for shard in ("../../etc/passwd", "\0", "x-01.tar/..", "~", "\U0010ffff" * 1000):  # a place that is not there
        hits, end = page(http, {"key": "again", "token": token_of((shard, 1 << 23))})
        assert hits == [hit for hit in expected("key", "again") if hit[0] > shard]
        assert end["stopped"] is None


# --- the client


def test_the_client_goes_on_until_all_is_found(nodes, monkeypatch):
    monkeypatch.setattr("dfc.client.search.SEARCH_LINES_MAX", 4)
    whole = expected("key_contains", "a")
    with Client(nodes.proxy) as client:
        result = client.find_samples(BUCKET, contains="a")
        assert [(each.shard, each.number, each.key) for each in result.samples] == whole
        assert (result.shards, result.searched, result.stopped, result.next_token) == (len(SHARDS), len(SHARDS), None, None)
        found: list[tuple[str, int, str]] = []
        token = None
        for limit in itertools.cycle((1, 3, 4, 9)):  # by hand
            result = client.find_samples(BUCKET, contains="a", limit=limit, token=token)
            found += [(each.shard, each.number, each.key) for each in result.samples]
            token = result.next_token
            assert (result.stopped == "limit") == (token is not None) == (len(found) < len(whole))
            if token is None:
                break
        assert found == whole
        reader = client.open_search(BUCKET, contains="a")
        assert len(list(itertools.islice(reader, 5))) == 5
        assert reader.result.stopped == "limit"
        assert len(list(reader)) == len(whole) - 5
        assert (reader.result.stopped, reader.result.samples) == (None, ())
        for limit in (0, -1):
            with pytest.raises(BadRequest, match="limit"):
                client.open_search(BUCKET, key="a", limit=limit)
        with pytest.raises(BadRequest, match="token"):
            client.find_samples(BUCKET, key="a", token="x")


def test_the_client_counts_what_was_not_searched_once(nodes, monkeypatch):
    monkeypatch.setattr("dfc.client.search.SEARCH_LINES_MAX", 3)
    names = [*SHARDS, *(f"none/{'y' * 100}-{number:04d}.tar" for number in range(150)), "zz.tar"]
    with Client(nodes.proxy) as client:
        result = client.find_samples(BUCKET, contains="a", shards=names)
        assert len(result.samples) == len(expected("key_contains", "a"))
        assert (result.shards, result.searched, result.unsearched_count) == (len(names), len(SHARDS), 151)
        assert (len(result.unsearched), result.stopped) == (100, None)
        first = client.find_samples(BUCKET, contains="a", shards=names, limit=2)
        assert (first.shards, first.stopped) == (len(names), "limit")
        rest = client.find_samples(BUCKET, contains="a", shards=names, token=first.next_token)
        assert first.samples + rest.samples == result.samples
        assert (rest.shards, first.unsearched_count, rest.unsearched_count) == (len(names), 150, 1)


async def test_the_asynchronous_client_goes_on(nodes, monkeypatch):
    monkeypatch.setattr("dfc.client.search.SEARCH_LINES_MAX", 5)
    async with AsyncClient(nodes.proxy) as client:
        reader = client.open_search(BUCKET, key="again")
        assert [(each.shard, each.number, each.key) async for each in reader] == expected("key", "again")
        assert (reader.result.searched, reader.result.stopped) == (len(SHARDS), None)
        result = await client.find_samples(BUCKET, key="again", limit=7)
        assert (len(result.samples), result.stopped) == (7, "limit")


# --- in one process: time that is over again and again


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with InProcess(tmp_path) as made:
        await made.start()
        for number in range(30):
            body = shard_of([f"{number:02d}-{sample}" for sample in range(20)])
            assert (await made.ask("PUT", f"/b/s{number:02d}.tar", body))[0] == 201
        yield made


async def test_a_search_that_runs_out_of_time_goes_on_inside_of_a_shard(own: InProcess, monkeypatch) -> None:
    """Each time it gets as far as chance says: every walk ends after some batches of some samples."""
    chance = random.Random(7)
    monkeypatch.setattr("dfc.tar.index.lines._BATCH_SAMPLES", 6)
    begin = listing.IndexWalk.__init__
    over = listing.IndexWalk._is_over

    def beginning(this, *given):
        begin(this, *given)
        this.steps_left = chance.randrange(1, 60)

    def ending(this):
        this.steps_left -= 1
        if this.steps_left < 0:
            this.stop()
        return over(this)

    monkeypatch.setattr(listing.IndexWalk, "__init__", beginning)
    monkeypatch.setattr(listing.IndexWalk, "_is_over", ending)
    answers = 0

    async def whole(query: str) -> list[tuple[str, int]]:
        nonlocal answers
        found: list[tuple[str, int]] = []
        token = ""
        while True:
            async with own.session.get(f"{own.url}/v1/buckets/b/samples?{query}{token}") as answer:
                assert answer.status == 200
                *lines, end = [json.loads(line) for line in (await answer.text()).splitlines()]
            answers += 1
            found += [(line["shard"], line["number"]) for line in lines]
            assert found == sorted(set(found))
            assert end["end"]["stopped"] in ("time", "limit", None)
            if end["end"]["next_token"] is None:
                return found
            token = f"&token={end['end']['next_token']}"

    for query, numbers in (
        ("key_contains=-", range(20)),
        ("key_contains=-1", (1, *range(10, 20))),
        ("key_prefix=2&limit=9", range(20)),
    ):
        shards = range(20, 30) if "prefix" in query else range(30)
        assert await whole(query) == [(f"s{shard:02d}.tar", number) for shard in shards for number in numbers]
    assert await whole("key=17-3") == [("s17.tar", 3)]
    assert answers > 12
    async with AsyncClient(own.url) as client:
        result = await client.find_samples("b", contains="-")
        assert (len(result.samples), result.searched, result.stopped) == (600, 30, None)


async def test_a_search_that_gets_nowhere_is_given_up(own: InProcess, monkeypatch) -> None:
    assert own.proxy is not None
    monkeypatch.setattr(own.proxy.uses.search, "_scan_s", 0.0)
    asked, real = 0, own.proxy.uses.search.find

    async def find(*given, **named):
        nonlocal asked
        asked += 1
        return await real(*given, **named)

    monkeypatch.setattr(own.proxy.uses.search, "find", find)
    async with AsyncClient(own.url) as client, asyncio.timeout(30):
        result = await client.find_samples("b", contains="-")
        assert (result.samples, result.searched, result.stopped) == ((), 0, "time")
        assert asked == 4
        monkeypatch.setattr(own.proxy.uses.search, "_scan_s", 20.0)
        assert len((await client.find_samples("b", contains="-", token=result.next_token)).samples) == 600
