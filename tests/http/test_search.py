"""Search samples by their keys over many shards: by every way to ask, with keys of every kind, and what stops it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from inprocess import InProcess

from dfc.client import AsyncClient, Client, SampleMatch
from dfc.errors import BadRequest, BucketNotFound
from dfc.http.budget import SEARCHES
from dfc.limits import SEARCH_KEY_BYTES_MAX
from dfc.proxy.samples import SampleSearch
from dfc.target import listing

BUCKET = "search-b"
SHARDS = [f"train/x-{number:03d}.tar" for number in range(12)] + ["val.tgz", "sub/deep/v.tar.zst", "1.x@2.tar"]
ODD = ["a b&c=d", "../up", "new\nline", "%00", "ünï/日本", 'quo"te', "-dash", "x" * 200]


def keys_of(shard: str) -> list[str]:
    at = SHARDS.index(shard)
    return [f"k{at:02d}/{number}" for number in range(5)] + ["same"] + (ODD if at == 2 else [])


def expected(matches, shards=SHARDS):
    return [
        {"shard": shard, "number": number, "key": key, "members": {"jpg": number + 1, "cls": 1}}
        for shard in sorted(shards)
        for number, key in enumerate(keys_of(shard))
        if matches(key)
    ]


@pytest.fixture(scope="module", autouse=True)
def stored(http, make_tar, compress):
    for shard in SHARDS:
        files = [
            (f"{key}.{ext}", b"x" * (number + 1 if ext == "jpg" else 1))
            for number, key in enumerate(keys_of(shard))
            for ext in ("jpg", "cls")
        ]
        ending = next(ending for ending in (".tar.zst", ".tgz", ".tar") if shard.endswith(ending))
        assert http.put(f"/{BUCKET}/{quote(shard)}", content=compress(ending, make_tar(files))).status_code in (200, 201)
    http.put(f"/{BUCKET}/README.txt", content=b"no shard")
    http.put(f"/{BUCKET}/broken.tar", content=b"no tar")


def ask(http, url="", **parameters):
    """The lines of an answer, and what its end says."""
    answer = http.get(f"{url}/v1/buckets/{BUCKET}/samples", params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    *lines, end = [json.loads(line) for line in answer.text.splitlines()]
    assert end.keys() == {"end"}
    assert end["end"].keys() == {"found", "shards", "searched", "stopped", "next_token", "unsearched", "unsearched_count"}
    assert (end["end"]["stopped"] is None) == (end["end"]["next_token"] is None)
    assert end["end"]["found"] == len(lines)
    return lines, end["end"]


WAYS = {
    "key": lambda key, text: key == text,
    "key_prefix": lambda key, text: key.startswith(text),
    "key_contains": lambda key, text: text in key,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", ["k03/4", "same", "k1", "/2", "nothing", *ODD, "\n", "日", "\0", "../", "am", "JPG"])
def test_every_way_and_any_key(http, nodes, way, text):
    for url in ("", nodes.map.targets()[0].url):
        lines, end = ask(http, url, **{way: text})
        assert lines == expected(lambda key: WAYS[way](key, text))
        assert (end["shards"], end["searched"], end["stopped"], end["unsearched_count"]) == (len(SHARDS), len(SHARDS), None, 0)


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        ("train/", SHARDS[:12]),
        ("train/x-{003..005}.tar", SHARDS[3:6]),
        ("**/*.tar.zst", ["sub/deep/v.tar.zst"]),
        ('["1.x@2.tar", "val.tgz"]', ["1.x@2.tar", "val.tgz"]),
        ("none/", []),
    ],
)
def test_where(http, spec, shards):
    for way in WAYS:
        lines, end = ask(http, shards=spec, **{way: "same"})
        assert lines == expected(lambda key: key == "same", shards)
        assert (end["shards"], end["searched"]) == (len(shards), len(shards))


def test_the_number_of_a_hit_leads_to_the_sample(http):
    (line,), _ = ask(http, key="k02/3")
    answer = http.get(f"/{BUCKET}/{line['shard']}", params={"number": line["number"], "ext": "jpg"})
    assert answer.content == b"x" * line["members"]["jpg"]


def test_the_limit_gives_the_first_ones(http):
    for way in WAYS:
        lines, end = ask(http, limit=4, **{way: "same"})
        assert lines == expected(lambda key: key == "same")[:4]
        assert (end["stopped"], end["searched"], end["shards"]) == ("limit", 4, len(SHARDS))
        assert ask(http, limit=len(SHARDS), **{way: "same"})[1]["stopped"] is None


def test_named_shards_that_are_none_are_said(http):
    lines, end = ask(http, key="same", shards='["train/x-000.tar", "train/x-999.tar", "README.txt", "broken.tar", "../a"]')
    assert lines == expected(lambda key: key == "same", ["train/x-000.tar"])
    said = [(each["shard"], each["code"]) for each in end["unsearched"]]
    assert said == [
        ("../a", "object_not_found"), ("README.txt", "not_a_shard"), ("broken.tar", "not_a_shard"),
        ("train/x-999.tar", "object_not_found"),
    ]  # fmt: skip
    assert (end["shards"], end["searched"], end["unsearched_count"]) == (5, 1, 4)


@pytest.mark.parametrize("url", ["proxy", "target"])
def test_bad_queries(http, nodes, error_of, url):
    path = f"{nodes.proxy if url == 'proxy' else nodes.map.targets()[0].url}/v1/buckets/{BUCKET}/samples"
    for query in (
        "key=", "key_prefix=", "key_contains=", "key=a&key_prefix=b", "key=a&key=b", "key=a&fields=key", "limit=5", "key=%FF",
        f"key={'k' * (SEARCH_KEY_BYTES_MAX + 1)}", f"key_contains={'k' * 10_000}", "key=a&limit=0", "key=a&limit=10001",
        "key=a&limit=x", "key=a&unknown=1",
    ):  # fmt: skip
        error_of(http.get(f"{path}?{query}"), 400, "bad_request")
    assert http.get(f"{path}?key={'k' * SEARCH_KEY_BYTES_MAX}").status_code == 200
    error_of(http.get(f"{path}?key=a&shards=x-%7B000000.."), 400, "bad_shard_spec")
    error_of(http.get(f"{path}?key=a&shards=x@200000.tar"), 413, "too_large")
    error_of(http.get(path.replace(BUCKET, "no-such-bucket"), params={"key": "a"}), 404, "bucket_not_found")


def post(http, node, **change):
    asked = {"bucket": BUCKET, "query": {"how": "contains", "key": "a"}, "shards": SHARDS, "limit": 100, "budget_s": 2.0}
    return http.post(f"{node}/v1/node/search", content=msgspec.msgpack.encode({**asked, **change}))


def test_what_a_target_says_of_its_own(http, nodes, error_of):
    found: list[str] = []
    for node in nodes.map.targets():
        part = msgspec.msgpack.decode(post(http, node.url).content)
        here = {shard for shard in SHARDS if nodes.owner(BUCKET, shard) == node.url}
        assert {hit["shard"] for hit in part["hits"]} == here
        assert (part["searched"], part["stopped"]) == (len(here), None)
        assert {(each["shard"], each["code"]) for each in part["failed"]} == {(s, "elsewhere") for s in set(SHARDS) - here}
        found += here
        late = msgspec.msgpack.decode(post(http, node.url, budget_s=0.0).content)
        assert (late["hits"], late["searched"], late["stopped"]) == ([], 0, "time" if here else None)
        for change in ({"limit": 0}, {"budget_s": 99.0}, {"query": {"how": "regex", "key": "a"}}, {"query": None}, {"x": 1}):
            error_of(post(http, node.url, **change), 400, "bad_request")
        error_of(http.post(f"{node.url}/v1/node/search", content=b"\xc1"), 400, "bad_request")
        error_of(post(http, node.url, bucket="no-such-bucket"), 404, "bucket_not_found")
    assert sorted(found) == sorted(SHARDS)


# --- the client and the command


def test_by_the_client(nodes):
    with Client(nodes.proxy) as client:
        result = client.find_samples(BUCKET, key="k03/4")
        assert result.samples == (SampleMatch(shard="train/x-003.tar", number=4, key="k03/4", members={"jpg": 5, "cls": 1}),)
        assert (result.shards, result.searched, result.stopped, result.unsearched) == (len(SHARDS), len(SHARDS), None, ())
        assert len(client.find_samples(BUCKET, prefix="k0", limit=7).samples) == 7
        assert client.find_samples(BUCKET, prefix="k0", limit=7).stopped == "limit"
        assert [each.key for each in client.find_samples(BUCKET, contains="日").samples] == ["ünï/日本"]
        listed = client.find_samples(BUCKET, key="same", shards=[*SHARDS, "none.tar"])
        assert ([each.shard for each in listed.samples], listed.unsearched_count) == (sorted(SHARDS), 1)
        assert client.find_samples(BUCKET, key="k", shards=[]).shards == 0
        for wrong in ({}, {"key": "a", "prefix": "b"}):
            with pytest.raises(ValueError, match="one of key, prefix and contains"):
                client.find_samples(BUCKET, **wrong)
        for key in ("", "\udcff", "k" * 5000):
            with pytest.raises(BadRequest):
                client.find_samples(BUCKET, key=key)
        with pytest.raises(BucketNotFound):
            client.find_samples("no-such-bucket", key="a")


def test_lists_that_are_too_long_for_one_request(nodes):
    names = [*SHARDS, *(f"none/{'y' * 100}-{number:04d}.tar" for number in range(300))]
    with Client(nodes.proxy) as client:
        whole = client.find_samples(BUCKET, key="same", shards=names)
        assert [each.shard for each in whole.samples] == sorted(SHARDS)
        assert (whole.shards, whole.searched, whole.unsearched_count, whole.stopped) == (len(names), len(SHARDS), 300, None)
        first = client.find_samples(BUCKET, key="same", shards=names, limit=1)
        assert ([each.shard for each in first.samples], first.shards, first.stopped) == (["1.x@2.tar"], len(names), "limit")


async def test_by_the_asynchronous_client(nodes):
    async with AsyncClient(nodes.proxy) as client:
        result = await client.find_samples(BUCKET, contains="k11/", shards="train/", limit=3)
        assert [(each.shard, each.key) for each in result.samples] == [("train/x-011.tar", f"k11/{n}") for n in range(3)]


def run(nodes, *arguments):
    command = [sys.executable, "-m", "dfc", "find", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={"DFC_URL": nodes.proxy}, check=False)
    return done.returncode, done.stdout, done.stderr


def test_by_the_command(nodes):
    assert run(nodes, BUCKET, "k03/4") == (0, "train/x-003.tar\t4\tk03/4\tjpg=5 cls=1\n", "")
    code, out, error = run(nodes, f"{BUCKET}/train/", "k0", "--prefix", "--limit", "3")
    assert (code, out.count("\n")) == (0, 3)
    assert error == "dfc: stopped by the limit, after 1 of 12 shards\n"
    code, out, error = run(nodes, BUCKET, "日", "-c", "--json")
    line, end = [json.loads(each) for each in out.splitlines()]
    assert (code, line["key"], line["members"]) == (0, "ünï/日本", {"jpg": 11, "cls": 1})
    assert end["end"] == {
        "found": 1, "shards": 15, "searched": 15, "stopped": None, "unsearched_count": 0, "unsearched": [],
    }  # fmt: skip
    code, out, error = run(nodes, BUCKET, "k03/9")
    assert (code, out) == (3, "")
    assert "15 of 15 shards were searched" in error
    code, out, error = run(nodes, f"{BUCKET}/train/x-0{{10..14}}.tar", "k03/9")
    assert code == 4
    assert "train/x-014.tar was not searched" in error
    mistakes = ((BUCKET, "a", "-c", "-p"), ("", "a"), (BUCKET, "a{"), (BUCKET, ""))
    assert [run(nodes, *given)[0] for given in mistakes] == [2, 2, 3, 1]


# --- in one process: what takes time, and callers who go away


@pytest.fixture
async def own(tmp_path: Path, make_tar) -> AsyncIterator[InProcess]:
    async with InProcess(tmp_path) as made:
        await made.start()
        for number in range(40):
            body = make_tar([(f"{number:02d}-{sample}.txt", b"") for sample in range(3)])
            assert (await made.ask("PUT", f"/b/s{number:02d}.tar", body))[0] == 201
        yield made


async def lines_of(own: InProcess, query: str) -> tuple[int, list[dict]]:
    async with own.session.get(f"{own.url}/v1/buckets/b/samples?{query}") as answer:
        return answer.status, [json.loads(line) for line in (await answer.text()).splitlines()]


async def test_when_the_time_is_over_it_says_so(own: InProcess, monkeypatch) -> None:
    assert own.proxy is not None
    search = own.proxy.uses.search
    assert isinstance(search, SampleSearch)
    monkeypatch.setattr(search, "_scan_s", 0.0)
    status, (end,) = await lines_of(own, "key_contains=1")
    assert (status, end["end"]["stopped"], end["end"]["searched"], end["end"]["shards"]) == (200, "time", 0, 40)
    status, (hit, end) = await lines_of(own, "key=07-1")
    assert (status, hit["shard"], end["end"]["stopped"]) == (200, "s07.tar", None)


async def test_part_of_it_is_shown_when_the_time_is_over(own: InProcess, monkeypatch) -> None:
    monkeypatch.setattr(listing, "END_S", 0.0)
    searched, real = threading.Event(), listing.IndexWalk._search

    def slow(this, shard):
        if shard >= "s20":
            assert searched.wait(20)
        return real(this, shard)

    monkeypatch.setattr(listing.IndexWalk, "_search", slow)
    assert own.proxy is not None
    monkeypatch.setattr(own.proxy.uses.search, "_scan_s", 1.0)
    status, lines = await lines_of(own, "key_prefix=1")
    searched.set()
    end = lines.pop()["end"]
    assert (status, end["stopped"], end["shards"], end["searched"]) == (200, "time", 40, 20)
    assert [line["shard"] for line in lines] == [f"s{number}.tar" for number in range(10, 20) for _ in range(3)]


async def test_when_the_client_goes_away_the_targets_stop(own: InProcess, monkeypatch) -> None:
    looked, stopped, go_on, real = [], [], threading.Event(), listing.IndexWalk._search

    def slow(this, shard):
        looked.append(shard)
        assert go_on.wait(20)
        return real(this, shard)

    monkeypatch.setattr(listing.IndexWalk, "_search", slow)
    stop = listing.IndexWalk.stop

    def stopping(this):
        stop(this)
        stopped.append(this)

    monkeypatch.setattr(listing.IndexWalk, "stop", stopping)
    assert own.proxy is not None
    monkeypatch.setattr(own.proxy.uses.search, "_scan_s", 20.0)
    asking = asyncio.create_task(lines_of(own, "key_contains=1"))
    async with asyncio.timeout(20):
        while len(looked) < 2:  # noqa: ASYNC110  (at both targets)
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while len(stopped) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    before = len(looked)
    go_on.set()
    assert (await lines_of(own, "key=07-1"))[0] == 200
    assert before == 2
    assert len(looked) <= before + 41
    assert own.proxy.server.bulk.budgets[SEARCHES].running == 0
