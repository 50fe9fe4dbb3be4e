"""List keys: the samples of a whole bucket, selected by every kind of shard spec."""

from __future__ import annotations

import json

import pytest

BUCKET = "keys"
SHARDS = [f"train-{number:06d}.tar" for number in range(6)] + [
    "val-0.tar",
    "val-1.tgz",
    "sub/a.tar",
    "sub/b.tar",
    "sub/deep/c.tar.zst",
    "1.x@2.tar",
]


def members_of(shard):
    """Three samples of two members; the sizes tell them apart."""
    stem = f"k{SHARDS.index(shard)}"
    return [(f"{stem}-{number}.{ext}", b"x" * (number + 1)) for number in range(3) for ext in ("jpg", "cls")]


def expected(*shards):
    """The lines that a query gives for these shards, sorted."""
    lines = [
        {"shard": shard, "key": f"k{SHARDS.index(shard)}-{number}", "members": {"jpg": number + 1, "cls": number + 1}}
        for shard in shards
        for number in range(3)
    ]
    return sorted(lines, key=str)


@pytest.fixture(scope="module", autouse=True)
def stored(http, make_tar, compress):
    for shard in SHARDS:
        ending = next(ending for ending in (".tar.zst", ".tgz", ".tar") if shard.endswith(ending))
        assert http.put(f"/{BUCKET}/{shard}", content=compress(ending, make_tar(members_of(shard)))).status_code in (200, 201)
    http.put(f"/{BUCKET}/README.txt", content=b"no shard")
    http.put(f"/{BUCKET}/broken.tar", content=b"no tar")


def ask(http, url="", **parameters):
    answer = http.get(f"{url}/v1/buckets/{BUCKET}/samples", params=parameters)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return sorted((json.loads(line) for line in answer.text.splitlines()), key=str)


TRAIN = SHARDS[:6]


@pytest.mark.parametrize(
    ("spec", "shards"),
    [
        ("train-000003.tar", TRAIN[3:4]),
        ("train-{000000..000005}.tar", TRAIN),
        ("train-{000001..000005..2}.tar", TRAIN[1::2]),
        ("train-@000006.tar", TRAIN),
        ("train-@000002.tar", TRAIN[:2]),
        ("{train-000001,val-0}.tar", [TRAIN[1], "val-0.tar"]),
        ("train-*.tar", TRAIN),
        ("train-00000[0-2].tar", TRAIN[:3]),
        ("train-00000?.tar", TRAIN),
        ("*.tar", [*TRAIN, "val-0.tar", "1.x@2.tar"]),
        ("*.tgz", ["val-1.tgz"]),
        ("sub/", ["sub/a.tar", "sub/b.tar", "sub/deep/c.tar.zst"]),
        ("sub/*", ["sub/a.tar", "sub/b.tar"]),
        ("sub/**", ["sub/a.tar", "sub/b.tar", "sub/deep/c.tar.zst"]),
        ("**", SHARDS),
        ("{sub/,val-*}", ["sub/a.tar", "sub/b.tar", "sub/deep/c.tar.zst", "val-0.tar", "val-1.tgz"]),
        ('["val-0.tar", "sub/a.tar"]', ["val-0.tar", "sub/a.tar"]),
        ('["1.x@2.tar"]', ["1.x@2.tar"]),
        ("nothing-*.tar", []),
        ("nothing/", []),
        (None, SHARDS),
    ],
    ids=str,
)
def test_every_kind_of_spec(http, nodes, spec, shards):
    query = {} if spec is None else {"shards": spec}
    for url in ("", nodes.map.targets()[0].url):
        assert ask(http, url, **query) == expected(*shards)
        short = [{"shard": line["shard"], "key": line["key"]} for line in expected(*shards)]
        assert ask(http, url, **query, fields="key") == sorted(short, key=str)


def test_the_keys_of_one_shard_come_in_its_order(http):
    answer = http.get(f"/v1/buckets/{BUCKET}/samples", params={"shards": "train-@000006.tar", "fields": "key"})
    by_shard: dict[str, list[str]] = {}
    for line in answer.text.splitlines():
        by_shard.setdefault(json.loads(line)["shard"], []).append(json.loads(line)["key"])
    assert all(keys == sorted(keys) and len(keys) == 3 for keys in by_shard.values())


def test_bad_queries(http, nodes, error_of):
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        path = f"{url}/v1/buckets/{BUCKET}/samples"
        for spec in ("", "x-{000000..", "a}", "x@0.tar", "x-{0..99999999}.tar", '["a"', '["a", 1]', "@9999999999.tar"):
            error_of(http.get(path, params={"shards": spec}), 400, "bad_shard_spec")
        error_of(http.get(path, params={"fields": "all"}), 400, "bad_request")
        error_of(http.get(path, params={"unknown": "1"}), 400, "bad_request")
        error_of(http.get(f"{url}/v1/buckets/no-such-bucket/samples"), 404, "bucket_not_found")


def test_named_shards_must_be_there_and_be_shards(http, nodes, error_of):
    for url in (nodes.proxy, nodes.map.targets()[0].url):
        path = f"{url}/v1/buckets/{BUCKET}/samples"
        missing = error_of(http.get(path, params={"shards": "train-@000007.tar"}), 404, "object_not_found")
        assert "train-000006.tar" in missing
        for name in ("README.txt", "broken.tar"):
            assert name in error_of(http.get(path, params={"shards": name}), 409, "not_a_shard")


def test_many_keys_are_streamed_whole(http, bucket, make_tar):
    for shard in range(4):
        files = [(f"{shard}-{number:05d}.txt", b"") for number in range(2000)]
        http.put(f"/{bucket}/{shard}.tar", content=make_tar(files))
    answer = http.get(f"/v1/buckets/{bucket}/samples", params={"fields": "key"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len({line["key"] for line in lines}) == len(lines) == 8000
