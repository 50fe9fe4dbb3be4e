"""Batch reads: items from anywhere in the cluster as one tar, in exactly the order asked for."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import tarfile

import msgspec
import pytest

from dfc.tar.scanner import Scanner

SHARDS = 12
SAMPLES = 30
VIAS = ["proxy", "target"]


def members_of(shard):
    """(name, bytes) of a shard's members, of sizes from nothing to more than a window."""
    draw = random.Random(shard)
    files = []
    for number in range(SAMPLES):
        key = f"{shard}/{number:04d}"
        files.append((f"{key}.jpg", draw.randbytes(draw.choice((0, 1, 511, 512, 513, 10_000, 70_000)))))
        files.append((f"{key}.cls", b"%d" % number))
    return files


@pytest.fixture(scope="module")
def stored(http, make_tar):
    """Shards on all targets; by name their members."""
    shards = {}
    for shard in range(SHARDS):
        files = members_of(shard)
        shards[f"s{shard}.tar"] = files
        assert http.put(f"/batch/s{shard}.tar", content=make_tar(files)).status_code in (200, 201)
    large = [("big/1.bin", random.Random(99).randbytes(3_000_000)), ("big/1.txt", b"x"), ("big/2.bin", b"y" * 1_048_576)]
    shards["large.tar"] = large
    http.put("/batch/large.tar", content=make_tar(large))
    assert http.put("/batch/plain.bin", content=os.urandom(100_000)).status_code in (200, 201)
    return shards


@pytest.fixture(params=VIAS)
def base(request, nodes):
    return nodes.proxy if request.param == "proxy" else nodes.map.targets()[0].url


@pytest.fixture
def ask(http, base):
    """`ask(items, on_missing=…)`: the answer."""

    def post(items, packed=False, **more):
        body = {"items": items, **more}
        if packed:
            content, kind = msgspec.msgpack.encode(body), "application/msgpack"
        else:
            content, kind = msgspec.json.encode(body), "application/json"
        return http.post(f"{base}/v1/batch", content=content, headers={"Content-Type": kind})

    return post


def unpack(answer):
    """(name, bytes) of the tar in an answer."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-tar"
    assert int(answer.headers["Content-Length"]) == len(answer.content)
    assert answer.content.endswith(bytes(1024))
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        return [(entry.name, archive.extractfile(entry).read()) for entry in archive]


def item(shard, **more):
    return {"bucket": "batch", "object": shard, **more}


def sample_of(shards, shard, number):
    return shards[shard][2 * number : 2 * number + 2]


def test_samples_by_number_in_the_order_asked_for(ask, stored):
    draw = random.Random(1)
    chosen = [(f"s{draw.randrange(SHARDS)}.tar", draw.randrange(SAMPLES)) for _ in range(2000)]
    expected = [member for shard, number in chosen for member in sample_of(stored, shard, number)]
    for packed in (False, True):
        assert unpack(ask([item(shard, number=number) for shard, number in chosen], packed)) == expected


def test_everything_in_order_is_the_shards_themselves(ask, stored):
    items = [item(f"s{shard}.tar", number=number) for shard in range(SHARDS) for number in range(SAMPLES)]
    assert unpack(ask(items)) == [member for shard in range(SHARDS) for member in stored[f"s{shard}.tar"]]


def test_every_kind_of_item(ask, http, stored):
    plain = http.get("/batch/plain.bin").content
    members = dict(stored["s3.tar"])
    items = [
        item("s3.tar", member="3/0007.jpg"),
        item("plain.bin"),
        item("s3.tar", sample="3/0005"),
        item("plain.bin", start=1000, length=10),
        item("plain.bin", start=99_990),
        item("plain.bin", start=99_990, length=1000),
        item("plain.bin", start=100_000),
        item("plain.bin", length=0),
        item("s3.tar", member="3/0001.cls", start=0, length=1),
        item("s3.tar", number=0),
        item("s3.tar", number=0),
        item("large.tar", number=0),
        item("large.tar", member="big/2.bin"),
        item("large.tar", member="big/1.bin", start=1_000_001, length=1_500_000),
    ]
    big = dict(stored["large.tar"])
    assert unpack(ask(items)) == [
        ("3/0007.jpg", members["3/0007.jpg"]),
        ("plain.bin", plain),
        *sample_of(stored, "s3.tar", 5),
        ("plain.bin", plain[1000:1010]),
        ("plain.bin", plain[99_990:]),
        ("plain.bin", plain[99_990:]),
        ("plain.bin", b""),
        ("plain.bin", b""),
        ("3/0001.cls", b"1"),
        *sample_of(stored, "s3.tar", 0),
        *sample_of(stored, "s3.tar", 0),
        *stored["large.tar"][:2],
        ("big/2.bin", big["big/2.bin"]),
        ("big/1.bin", big["big/1.bin"][1_000_001:2_500_001]),
    ]


def test_lengths_tell_the_items_apart(http, base, stored):
    draw = random.Random(3)
    chosen = [(f"s{draw.randrange(SHARDS)}.tar", draw.randrange(SAMPLES)) for _ in range(500)]
    items = [item(shard, number=number) for shard, number in chosen]
    items[100:100] = [item("gone.tar", number=0), item("s1.tar", number=SAMPLES)]
    body = msgspec.json.encode({"items": items, "on_missing": "skip"})
    answer = http.post(f"{base}/v1/batch?lengths=1", content=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/octet-stream")
    head = 8 * len(items)
    lengths = struct.unpack(f"<{len(items)}Q", answer.content[:head])
    assert head + sum(lengths) == len(answer.content)
    assert lengths[100:102] == (0, 0)
    at = head
    for length, (shard, number) in zip(lengths[:100] + lengths[102:], chosen, strict=True):
        with tarfile.open(fileobj=io.BytesIO(answer.content[at : at + length] + bytes(1024))) as archive:
            assert [(entry.name, archive.extractfile(entry).read()) for entry in archive] == sample_of(stored, shard, number)
        at += length
    for query, status in (("lengths=0", 200), ("lengths=2", 400), ("other=1", 400)):
        answer = http.post(f"{base}/v1/batch?{query}", content=b'{"items": []}')
        assert answer.status_code == status


def test_nothing_is_an_empty_tar(ask):
    assert unpack(ask([])) == []


def test_members_between_those_of_a_sample_are_left_out(ask, http, make_tar):
    long = "long/" + "n" * 150
    files = [
        ("a.x", b"1"),
        ("README", b"-"),
        ("a.y", b"2"),
        (".hidden.x", b"-"),
        ("b.x", b"3"),
        (f"{long}.x", b"4"),
        ("z", b"-"),
    ]
    http.put("/batch/mixed.tar", content=make_tar(files))
    assert unpack(ask([item("mixed.tar", number=number) for number in (2, 1, 0)])) == [
        (f"{long}.x", b"4"),
        ("b.x", b"3"),
        ("a.x", b"1"),
        ("a.y", b"2"),
    ]
    assert unpack(ask([item("mixed.tar", sample="a"), item("mixed.tar", member="README")])) == [
        ("a.x", b"1"),
        ("a.y", b"2"),
        ("README", b"-"),
    ]


@pytest.mark.parametrize("ending", [".tgz", ".tar.zst", ".tar.lz4", ".tar.bz2", ".tar.xz"])
def test_compressed_shards_are_decoded_once(ask, http, stored, make_tar, compress, ending):
    files = stored["s1.tar"]
    name = f"compressed{ending}"
    content = compress(ending, make_tar(files))
    http.put(f"/batch/{name}", content=content)
    numbers = [20, 3, 3, 29, 0]
    items = [item(name, number=number) for number in numbers]
    large = next(member for member, body in files if len(body) == 70_000)
    items += [item(name), item(name, member="1/0004.cls"), item(name, member=large, start=1, length=3)]
    assert unpack(ask(items)) == [
        *(member for number in numbers for member in sample_of(stored, "s1.tar", number)),
        (name, content),
        ("1/0004.cls", b"4"),
        (large, dict(files)[large][1:4]),
    ]


# --- what is not there


MISSING = [
    ({"bucket": "no-such-bucket", "object": "x"}, "bucket_not_found", "__missing__/no-such-bucket/x"),
    (item("nothing.tar", number=3), "object_not_found", "__missing__/batch/nothing.tar/3"),
    (item("s0.tar", number=SAMPLES), "sample_not_found", f"__missing__/batch/s0.tar/{SAMPLES}"),
    (item("s0.tar", sample="none"), "sample_not_found", "__missing__/batch/s0.tar/none"),
    (item("s0.tar", member="no/such"), "member_not_found", "__missing__/batch/s0.tar/no/such"),
    (item("s0.tar", number=2**63 - 1), "sample_not_found", f"__missing__/batch/s0.tar/{2**63 - 1}"),
]


@pytest.mark.parametrize(("missing", "code", "name"), MISSING, ids=[code + name[-8:] for _, code, name in MISSING])
def test_missing_items(ask, stored, error_of, missing, code, name):
    found = [item(f"s{number}.tar", number=number) for number in range(8)]
    items = [*found[:5], missing, *found[5:], missing]
    answer = ask(items)
    assert error_of(answer, 404, code).startswith("item 5: ")
    assert answer.headers["X-DFC-Item"] == "5"
    there = [sample_of(stored, f"s{number}.tar", number) for number in range(8)]
    assert unpack(ask(items, on_missing="skip")) == [member for sample in there for member in sample]
    marked = [*there[:5], [(name, b"")], *there[5:], [(name, b"")]]
    assert unpack(ask(items, on_missing="empty")) == [member for sample in marked for member in sample]


def test_the_first_missing_item_of_all_targets_is_named(ask, stored, error_of):
    for first in range(6):
        order = list(range(12))
        random.Random(first).shuffle(order)
        items = [item("s0.tar", number=0)] * first + [item(f"nothing-{number}") for number in order]
        assert f"item {first}: object 'nothing-{order[0]}' does not exist" in error_of(ask(items), 404, "object_not_found")


def test_conditions(ask, http, stored, error_of):
    etag = http.head("/batch/s2.tar").headers["ETag"]
    for good in (etag, etag.strip('"'), "*"):
        assert len(unpack(ask([item("s2.tar", number=1, if_match=good)]))) == 2
    items = [item("s1.tar", number=0), item("s2.tar", number=1, if_match="0" * 32)]
    for on_missing in ("fail", "skip", "empty"):
        assert "item 1" in error_of(ask(items, on_missing=on_missing), 412, "precondition_failed")


def test_what_cannot_be_asked_for(ask, http, stored, error_of):
    assert "item 1" in error_of(ask([item("s0.tar"), item("plain.bin", number=0)]), 409, "not_a_shard")
    assert "item 0" in error_of(ask([item("plain.bin", start=100_001)]), 416, "range_not_satisfiable")
    error_of(ask([item("s0.tar", member="0/0000.cls", start=2)]), 416, "range_not_satisfiable")
    for bad in (
        {"number": 0, "sample": "x"},
        {"member": "x", "number": 0},
        {"sample": "0/0000", "start": 0},
        {"number": 0, "length": 1},
        {"number": -1},
        {"number": 1.5},
        {"number": True},
        {"number": 2**64},
        {"start": -1},
        {"length": "1"},
        {"unknown": 1},
        {"object": 5},
    ):
        said = error_of(ask([item("s0.tar"), item("s0.tar") | bad]), 400, "bad_request")
        assert said.startswith("invalid batch: ")
        assert "`$.items[1]" in said
    for bad in ({"bucket": "-"}, {"bucket": ".."}, {"object": "a/../b"}, {"object": ""}, {"object": "x" * 1025}):
        error_of(ask([item("s0.tar") | bad]), 400, "bad_name")
    error_of(ask([item("s0.tar")], on_missing="ignore"), 400, "bad_request")
    error_of(ask([item("s0.tar")], more=1), 400, "bad_request")


def test_bodies(http, base, stored, error_of):
    url = f"{base}/v1/batch"
    for content in (b"", b"[]", b"{", b'{"items": 1}', b"\xff" * 10, b"[" * 100_000):
        error_of(http.post(url, content=content), 400, "bad_request")
        error_of(http.post(url, content=content, headers={"Content-Type": "application/msgpack"}), 400, "bad_request")
    many = msgspec.json.encode({"items": [item("s0.tar", number=0)] * 100_001})
    assert "100000" in error_of(http.post(url, content=many), 413, "too_large")
    error_of(http.post(url, content=b" " * (33 << 20)), 413, "too_large")
    error_of(http.get(url), 405, "method_not_allowed")
    error_of(http.post(url, content=b"{}", headers={"Origin": "http://evil.example"}), 403, "forbidden")
    assert unpack(http.post(url, content=iter([b'{"items"', b": []}"]))) == []


def test_a_full_list(ask, stored):
    items = [item(f"s{n % SHARDS}.tar", member=f"{n % SHARDS}/{n % 7:04d}.cls", start=None) for n in range(1000)]
    answer = ask(items * 100, packed=True)
    scanner = Scanner()
    entries = scanner.feed(answer.content)
    scanner.finish()
    assert len(entries) == 100_000
    assert all(answer.content[offset : offset + size] == b"%d" % (n % 1000 % 7) for n, (*_, offset, size) in enumerate(entries))


def test_the_part_of_a_target(http, nodes, stored, error_of):
    owner, other = nodes.owner("batch", "s0.tar"), nodes.other("batch", "s0.tar")
    body = msgspec.json.encode({"items": [item("s0.tar", number=4), item("s0.tar", member="0/0004.cls")]})
    answer = http.post(f"{owner}/v1/node/batch", content=body)
    size = int.from_bytes(answer.content[:4], "big")
    preamble = msgspec.msgpack.decode(answer.content[4 : 4 + size])
    lengths = memoryview(preamble["lengths"]).cast("Q").tolist()
    assert len(lengths) == 2
    assert sum(lengths) == len(answer.content) - 4 - size
    etag = http.head("/batch/s0.tar").headers["ETag"].strip('"')
    assert preamble["objects"] == [["batch", "s0.tar", etag]]
    error_of(http.post(f"{other}/v1/node/batch", content=body), 503, "unavailable")


def test_a_shard_that_was_replaced_is_read_as_it_is_now(ask, http, bucket, make_tar):
    for body in (b"old", b"newer"):
        http.put(f"/{bucket}/x.tar", content=gzip.decompress(gzip.compress(make_tar([("a.x", body)]))))
        assert unpack(ask([{"bucket": bucket, "object": "x.tar", "number": 0}])) == [("a.x", body)]
