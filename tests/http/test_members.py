"""Inside shards: members, samples and their listings, in plain and in compressed archives."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
from itertools import pairwise
from urllib.parse import quote

import httpx
import pytest

from dfc.client import Client

ENDINGS = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.lz4", ".tar.bz2", ".tar.xz")
LONG = "long/" + "n" * 200 + ".txt"
FILES = [
    ("a/0001.jpg", os.urandom(3000)),
    ("a/0001.cls", b"7"),
    ("a/0001.seg.PNG", b"png"),
    ("README", b"no sample"),
    ("a/0002.jpg", os.urandom(200_000)),  # more than one answer of the event loop
    ("a/0002.cls", b""),
    ("größe ä+b&c.txt", b"unicode"),
    (LONG, b"long"),
    (".hidden.txt", b"hidden"),
    ("__meta__/x.json", b"{}"),
    ("last.txt", b"last"),
]
BODIES = dict(FILES)
SAMPLES = {
    "a/0001": {"jpg": "a/0001.jpg", "cls": "a/0001.cls", "seg.png": "a/0001.seg.PNG"},
    "a/0002": {"jpg": "a/0002.jpg", "cls": "a/0002.cls"},
    "größe ä+b&c": {"txt": "größe ä+b&c.txt"},
    LONG[:-4]: {"txt": LONG},
    "last": {"txt": "last.txt"},
}


@pytest.fixture(scope="module")
def shards(http, make_tar, compress):
    """Paths of the same archive in every kind of compression."""
    tar = make_tar(FILES)
    paths = {}
    for ending in ENDINGS:
        paths[ending] = f"/members/shard{ending}"
        stored = http.put(paths[ending], content=compress(ending, tar))
        assert stored.status_code in (200, 201)
        assert stored.json()["warnings"] == ["3 members belong to no sample"]
        assert (stored.json()["members"], stored.json()["samples"]) == (len(FILES), len(SAMPLES))
    return paths


@pytest.fixture(params=ENDINGS)
def ending(request):
    return request.param


@pytest.fixture
def shard(shards, ending):
    return shards[ending]


def lines(answer):
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


# --- one member


def test_every_member(http, shard, nodes):
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        for name, body in FILES:
            for parameter in ("member", "archpath"):
                answer = http.get(f"{url}{shard}?{parameter}={quote(name)}")
                assert answer.status_code == 200
                assert answer.content == body
                assert answer.headers["Content-Length"] == str(len(body))
            head = http.head(f"{url}{shard}?member={quote(name)}")
            assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(body)))


def test_headers_of_a_member(http, shard, shards):
    answer = http.get(f"{shard}?member=a/0001.jpg")
    assert answer.headers["Content-Type"] == "image/jpeg"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox"
    assert "Last-Modified" in answer.headers
    etag = answer.headers["ETag"]
    assert etag != http.get(f"{shard}?member=a/0001.cls").headers["ETag"]
    assert etag != http.get(shard).headers["ETag"]
    for header in ({"If-None-Match": etag}, {"If-Modified-Since": answer.headers["Last-Modified"]}):
        again = http.get(f"{shard}?member=a/0001.jpg", headers=header)
        assert (again.status_code, again.content) == (304, b"")


def test_ranges_of_a_member(http, shards, nodes, error_of):
    for name in ("a/0001.jpg", "a/0002.jpg"):
        body = BODIES[name]
        for url in (nodes.proxy, nodes.owner("members", "shard.tar")):
            url = f"{url}{shards['.tar']}?member={name}"
            whole = http.get(url)
            assert whole.headers["Accept-Ranges"] == "bytes"
            for text, start, stop in (("0-9", 0, 10), ("100-", 100, len(body)), ("-7", len(body) - 7, len(body))):
                part = http.get(url, headers={"Range": f"bytes={text}"})
                assert part.status_code == 206
                assert part.content == body[start:stop]
                assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(body)}"
            bad = http.get(url, headers={"Range": f"bytes={len(body)}-"})
            error_of(bad, 416, "range_not_satisfiable")
            assert bad.headers["Content-Range"] == f"bytes */{len(body)}"
            held = http.get(url, headers={"Range": "bytes=0-0", "If-Range": whole.headers["ETag"]})
            assert held.status_code == 206
            lost = http.get(url, headers={"Range": "bytes=0-0", "If-Range": '"a"'})
            assert (lost.status_code, lost.content) == (200, body)


def test_ranges_are_ignored_in_compressed_shards(http, shards):
    for ending in ENDINGS[1:]:
        answer = http.get(f"{shards[ending]}?member=a/0001.jpg", headers={"Range": "bytes=0-9"})
        assert (answer.status_code, answer.content) == (200, BODIES["a/0001.jpg"])
        assert "Accept-Ranges" not in answer.headers


def test_missing_members(http, shard, error_of):
    for query in ("member=nothing", "member=A/0001.jpg", "member=a/0001", "member=", "member=./a/0001.jpg", "archpath=nothing"):
        error_of(http.get(f"{shard}?{query}"), 404, "member_not_found")


# --- samples


def test_every_sample_is_a_tar(http, shard, nodes):
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        for key, members in SAMPLES.items():
            answer = http.get(f"{url}{shard}?sample={quote(key)}")
            assert answer.status_code == 200
            assert answer.headers["Content-Type"] == "application/x-tar"
            assert answer.headers["Content-Length"] == str(len(answer.content))
            with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
                found = {member.name: archive.extractfile(member).read() for member in archive}
            assert found == {name: BODIES[name] for name in members.values()}
            head = http.head(f"{url}{shard}?sample={quote(key)}")
            assert head.headers["Content-Length"] == str(len(answer.content))


def batch_of(http, path, key):
    """The bytes that a batch gives of a sample."""
    _, bucket, name = path.split("/", 2)
    answer = http.post("/v1/batch", json={"items": [{"bucket": bucket, "object": name, "sample": key}]})
    assert answer.status_code == 200, answer.text
    return answer.content


def test_a_sample_is_the_same_bytes_alone_and_in_a_batch(http, shard, nodes):
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        for key in SAMPLES:
            assert http.get(f"{url}{shard}?sample={quote(key)}").content == batch_of(http, shard, key)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_headers_and_gaps_of_a_sample(http, bucket, compress, ending, form):
    """Owners, times, long names: nothing is made anew. What lies between its members is left out."""
    buffer = io.BytesIO()
    names = ["k.jpg", "k.cls", "noise", "d", "k.txt", f"{'long' * 20}/{'n' * 90}.x", f"{'long' * 20}/{'n' * 90}.y", "z.x"]
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.uid, info.gid, info.uname, info.mtime, info.mode = 1234, 55, "someone", 1_600_000_000 + number, 0o640
            if name == "d":
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
                continue
            info.size = number * 70_000
            archive.addfile(info, io.BytesIO(os.urandom(info.size)))
    content = buffer.getvalue()
    path = f"/{bucket}/s{ending}"
    assert http.put(path, content=compress(ending, content)).json()["samples"] == 3
    for key, wanted in (("k", ["k.jpg", "k.cls", "k.txt"]), (names[5][:-2], names[5:7]), ("z", ["z.x"])):
        answer = http.get(f"{path}?sample={key}")
        assert answer.content == batch_of(http, path, key)
        assert answer.content.endswith(bytes(1024))
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as found:
            assert [info.name for info in found] == wanted
            assert {(info.uid, info.gid, info.uname, info.mode) for info in found} == {(1234, 55, "someone", 0o640)}
        assert answer.headers["Content-Length"] == http.head(f"{path}?sample={key}").headers["Content-Length"]
        whole = ending == ".tar" and key != "k"
        assert ("Accept-Ranges" in answer.headers) == whole
        part = http.get(f"{path}?sample={key}", headers={"Range": "bytes=1-5"})
        assert (part.status_code, part.content) == ((206, answer.content[1:6]) if whole else (200, answer.content))


def test_ranges_and_conditions_of_a_sample(http, shards, nodes, error_of):
    for key in ("a/0001", "a/0002"):  # of 5 kB and of 200 kB
        for url in (nodes.proxy, nodes.owner("members", "shard.tar")):
            url = f"{url}{shards['.tar']}?sample={key}"
            whole = http.get(url)
            body, etag = whole.content, whole.headers["ETag"]
            size = len(body)
            assert whole.headers["Accept-Ranges"] == "bytes"
            assert http.head(url).headers["ETag"] == etag
            places = [
                (0, 10),
                (100, size),
                (size - 7, size),
                (size - 1030, size),
                (size - 1030, size - 1020),
                (size - 1024, size),
            ]
            for start, stop in [*places, (700, size - 1000), (0, size - 1024), (1, size - 1025)]:
                part = http.get(url, headers={"Range": f"bytes={start}-{stop - 1}"})
                assert (part.status_code, part.content) == (206, body[start:stop])
                assert part.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
            error_of(http.get(url, headers={"Range": f"bytes={size}-"}), 416, "range_not_satisfiable")
            assert http.get(url, headers={"If-None-Match": etag}).status_code == 304
            assert http.get(url, headers={"Range": "bytes=0-0", "If-Range": '"a"'}).content == body
    etags = {
        http.get(f"{shards['.tar']}?{what}").headers["ETag"] for what in ("sample=a/0001", "sample=a/0002", "member=a/0001.jpg")
    }
    assert len(etags) == 3


def test_samples_one_after_the_other_on_one_connection(nodes, shards, connect):
    """The end of an answer that the kernel sends is written by the node: nothing may come between or before."""
    connection = connect(nodes.owner("members", "shard.tar"))
    bodies = []
    for _ in range(3):
        for key in ("a/0002", "a/0001", "a/0002"):
            connection.request("GET", f"{shards['.tar']}?sample={key}")
            reply = connection.answer()
            assert reply.status == 200
            assert reply.body.endswith(bytes(1024))
            bodies.append(reply.body)
    assert len(set(bodies)) == 2


def test_one_member_of_a_sample(http, shard):
    for key, members in SAMPLES.items():
        for extension, name in members.items():
            answer = http.get(f"{shard}?sample={quote(key)}&ext={extension}")
            assert (answer.status_code, answer.content) == (200, BODIES[name])
    assert http.get(f"{shard}?sample=a/0001&ext=SEG.PNG").content == b"png"


def test_missing_samples(http, shard, error_of):
    for query in ("sample=nothing", "sample=README", "sample=", "sample=a/0003", "sample=.hidden"):
        error_of(http.get(f"{shard}?{query}"), 404, "sample_not_found")
    for query in ("sample=a/0001&ext=gif", "sample=a/0001&ext=png", "sample=a/0001&ext="):
        error_of(http.get(f"{shard}?{query}"), 404, "member_not_found")


def test_the_first_of_equal_keys(http, make_tar):
    http.put("/members/twice.tar", content=make_tar([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]))
    assert http.get("/members/twice.tar?sample=a&ext=txt").content == b"1"
    assert [line["key"] for line in lines(http.get("/members/twice.tar?list=samples"))] == ["a", "b", "a"]


def test_samples_by_their_ordinals(http, make_tar, error_of):
    """Exact where keys repeat."""
    http.put("/members/numbered.tar", content=make_tar([("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3"), ("a.cls", b"4")]))
    for number, bodies in enumerate(([b"1"], [b"2"], [b"3", b"4"])):
        with tarfile.open(fileobj=io.BytesIO(http.get(f"/members/numbered.tar?number={number}").content)) as whole:
            assert [whole.extractfile(member).read() for member in whole] == bodies
        assert http.get(f"/members/numbered.tar?number={number}&ext=TXT").content == bodies[0]
    assert http.get("/members/numbered.tar?number=0").content == http.get("/members/numbered.tar?sample=a").content
    for number in ("3", "999999999999"):
        error_of(http.get(f"/members/numbered.tar?number={number}"), 404, "sample_not_found")
    error_of(http.get("/members/numbered.tar?number=0&ext=cls"), 404, "member_not_found")
    for number in ("-1", "1.0", "", "x", "1" * 16, "%D9%A3"):
        error_of(http.get(f"/members/numbered.tar?number={number}"), 400, "bad_request")
    error_of(http.put("/members/numbered.tar?number=0", content=b""), 400, "bad_request")


# --- lists


def test_parts_of_lists(http, shard, error_of):
    for what in ("members", "samples"):
        answer = http.get(f"{shard}?list={what}")
        whole = lines(answer)
        assert answer.headers["x-dfc-samples"] == str(len(SAMPLES))
        for start in (0, 1, len(whole) - 1, len(whole), len(whole) + 5):
            assert lines(http.get(f"{shard}?list={what}&start={start}")) == whole[start:]
            assert lines(http.get(f"{shard}?list={what}&start={start}&limit=1")) == whole[start : start + 1]
    for query in (
        "list=samples&start=-1", "list=samples&start=x", "list=samples&limit=0", "list=samples&limit=10001",
        "list=offsets&start=1", "start=1", "limit=1", "sample=a&start=1", "number=1&limit=1", "number=1&list=samples",
        "number=1&sample=a",
    ):  # fmt: skip
        error_of(http.get(f"{shard}?{query}"), 400, "bad_request")


def test_list_members(http, shard, make_tar, nodes):
    archive = make_tar(FILES)
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        found = lines(http.get(f"{url}{shard}?list=members"))
        assert [line["name"] for line in found] == [name for name, _ in FILES]
        for line in found:
            assert line.keys() == {"name", "key", "ext", "offset", "size", "type"}
            assert line["type"] == "file"
            assert archive[line["offset"] : line["offset"] + line["size"]] == BODIES[line["name"]]
        keys = {line["name"]: (line["key"], line["ext"]) for line in found}
        assert keys["README"] == keys[".hidden.txt"] == keys["__meta__/x.json"] == (None, None)
        assert keys["a/0001.seg.PNG"] == ("a/0001", "seg.png")


def test_list_members_of_no_sample(http, shard, nodes, error_of):
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        answer = http.get(f"{url}{shard}?list=unsampled")
        wanted = [line for line in lines(http.get(f"{url}{shard}?list=members")) if line["key"] is None]
        assert lines(answer) == wanted
        assert {line["name"] for line in wanted} >= {"README", ".hidden.txt", "__meta__/x.json"}
        for what in ("members", "samples", "unsampled"):
            assert http.head(f"{url}{shard}?list={what}").headers["x-dfc-unsampled"] == str(len(wanted))
        for start in (0, wanted[0]["offset"], wanted[0]["offset"] + 1, wanted[-1]["offset"] + 1, 10**14):
            part = [line for line in wanted if line["offset"] >= start]
            assert lines(http.get(f"{url}{shard}?list=unsampled&start={start}")) == part
            assert lines(http.get(f"{url}{shard}?list=unsampled&start={start}&limit=1")) == part[:1]
        for query in ("start=-1", "start=x", f"start={'9' * 16}", "limit=0", "limit=10001", "ext=txt", "sample=a"):
            error_of(http.get(f"{url}{shard}?list=unsampled&{query}"), 400, "bad_request")
    with Client(nodes.proxy) as client:
        found = list(client.unsampled("members", shard.rpartition("/")[2], start=1, limit=2))
        assert [(each.name, each.key, each.offset) for each in found] == [(x["name"], None, x["offset"]) for x in wanted[:2]]


def test_list_samples(http, shard, make_tar):
    archive = make_tar(FILES)
    found = lines(http.get(f"{shard}?list=samples"))
    assert [line["key"] for line in found] == list(SAMPLES)
    for line in found:
        assert line.keys() == {"key", "members"}
        assert line["members"].keys() == SAMPLES[line["key"]].keys()
        for extension, place in line["members"].items():
            body = BODIES[SAMPLES[line["key"]][extension]]
            assert archive[place["offset"] : place["offset"] + place["size"]] == body


def test_a_long_list_is_streamed_whole(http, make_tar):
    files = [(f"{number:06d}.txt", b"") for number in range(5000)]
    stored = http.put("/members/long.tgz", content=gzip.compress(make_tar(files), 1))
    assert stored.json()["samples"] == 5000
    found = lines(http.get("/members/long.tgz?list=members"))
    assert [line["name"] for line in found] == [name for name, _ in files]


def test_what_is_no_file_is_listed_and_not_served(http, error_of):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("s", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE), ("f", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else "a.txt"
            archive.addfile(info)
        info = tarfile.TarInfo("a.txt")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    http.put("/members/kinds.tar", content=buffer.getvalue())
    found = {line["name"].rstrip("/"): line["type"] for line in lines(http.get("/members/kinds.tar?list=members"))}
    assert found == {"d": "directory", "s": "symlink", "h": "hardlink", "f": "fifo", "a.txt": "file"}
    for line in lines(http.get("/members/kinds.tar?list=members"))[:-1]:
        error_of(http.get(f"/members/kinds.tar?member={line['name']}"), 404, "member_not_found")
    assert http.get("/members/kinds.tar?member=a.txt").content == b"abc"


def test_shards_made_by_others(http, data):
    for name, samples in (("sample.tgz", 90), ("tendata.tar", 100), ("mpdata.tar", 100)):
        stored = http.put(f"/members/{name}", content=(data / name).read_bytes())
        assert (stored.json()["samples"], stored.json()["warnings"]) == (samples, [])
        assert len(lines(http.get(f"/members/{name}?list=samples"))) == samples
        with tarfile.open(data / name) as archive:
            for member in archive:
                if member.isfile():
                    assert http.get(f"/members/{name}?member={member.name}").content == archive.extractfile(member).read()


# --- bad questions


def test_bad_queries(http, shard, error_of):
    for query in (
        "list=",
        "list=all",
        "member=last.txt&sample=last",
        "member=last.txt&list=members",
        "member=last.txt&archpath=last.txt",
        "member=last.txt&ext=txt",
        "ext=txt",
        "member=last.txt&member=last.txt",
        "member=%ff",
    ):
        error_of(http.get(f"{shard}?{query}"), 400, "bad_request")


def test_objects_without_an_index(http, nodes, make_tar, error_of):
    http.put("/members/plain.txt", content=b"abc")
    http.put("/members/cut.tar", content=make_tar(FILES)[:-5000])
    for name in ("plain.txt", "cut.tar"):
        for query in ("member=last.txt", "sample=last", "list=members", "list=samples"):
            message = error_of(http.get(f"/members/{name}?{query}"), 409, "not_a_shard")
            assert name in message
    assert "offset" in error_of(http.get("/members/cut.tar?list=members"), 409, "not_a_shard")
    error_of(http.get("/members/none.tar?list=members"), 404, "object_not_found")


def test_queries_under_v1_objects(http, nodes, shards, error_of):
    owner = nodes.owner("members", "shard.tar")
    path = "/v1/objects/members/shard.tar"
    assert http.get(f"{owner}{path}?member=last.txt").content == b"last"
    assert http.get(f"{path}?member=last.txt&relay=1").content == b"last"
    moved = http.get(f"{path}?sample=last&ext=txt")
    assert moved.status_code == 307
    assert http.get(moved.headers["Location"]).content == b"last"
    error_of(http.get(f"{owner}{path}?unknown=1"), 400, "bad_request")
    error_of(http.get(f"{path}?unknown=1"), 400, "bad_request")


def test_a_replaced_shard_answers_from_the_new_one(http, make_tar, bucket):
    for number in range(5):
        http.put(f"/{bucket}/s.tar", content=make_tar([("x.txt", b"x" * number * 600), ("a.txt", b"%d" % number)]))
        assert http.get(f"/{bucket}/s.tar?member=a.txt").content == b"%d" % number


def test_what_is_inside_is_not_written(http, nodes, make_tar, bucket, error_of):
    """A member in the query of a write is a mistake that must not cost the whole shard."""
    tar = make_tar([("a.txt", b"1")])
    http.put(f"/{bucket}/s.tar", content=tar)
    for via in ("proxy", "owner", "other"):
        url = nodes.url(via, bucket, "s.tar")
        for query in ("member=a.txt", "archpath=a.txt", "sample=a", "sample=a&ext=txt", "list=members"):
            for size in (10, 300_000):
                error_of(http.put(f"{url}/{bucket}/s.tar?{query}", content=b"x" * size), 400, "bad_request")
            error_of(http.delete(f"{url}/{bucket}/s.tar?{query}"), 400, "bad_request")
            error_of(http.delete(f"{url}/v1/objects/{bucket}/s.tar?relay=1&{query}"), 400, "bad_request")
    assert http.get(f"/{bucket}/s.tar").content == tar


# --- where samples begin


def test_offsets_of_samples(http, shard, make_tar, nodes):
    archive = make_tar(FILES)
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        answer = http.get(f"{url}{shard}?list=offsets")
        assert answer.status_code == 200
        assert answer.headers["ETag"] == http.head(f"{url}{shard}").headers["ETag"]
        offsets = struct.unpack(f"<{len(SAMPLES) + 1}Q", answer.content)
        keys = []
        for start, end in pairwise(offsets):
            with tarfile.open(fileobj=io.BytesIO(archive[start:end] + bytes(1024))) as part:
                keys.append(part.getnames()[0])
        firsts = [next(iter(members.values())) for members in SAMPLES.values()]
        assert keys == firsts
        assert archive[offsets[-1] :].strip(b"\0") == b""  # the last file is of the last sample


def test_number_of_samples_is_told(http, shard, nodes):
    for url in (nodes.proxy, nodes.owner("members", shard.rpartition("/")[2])):
        for answer in (http.head(f"{url}{shard}"), http.get(f"{url}{shard}", headers={"Range": "bytes=0-9"})):
            assert answer.headers["X-DFC-Samples"] == str(len(SAMPLES))
    assert http.put("/members/plain.txt", content=b"text").status_code in (200, 201)
    assert "X-DFC-Samples" not in http.get("/members/plain.txt").headers


def test_offsets_of_a_shard_without_samples(http, make_tar):
    assert http.put("/members/none.tar", content=make_tar([("README", b"x")])).status_code in (200, 201)
    assert http.get("/members/none.tar?list=offsets").content == bytes(8)


# --- an index that another process has cut short


@pytest.mark.parametrize("query", ["member=002999.b", "sample=002999", "list=offsets", "list=members"])
def test_an_index_that_is_cut_short_while_it_is_open(http, nodes, bucket, make_tar, query):
    """Its target goes on, and has a new one at the second question at the latest."""
    tar = make_tar([(f"{number:06d}.{ending}", b"%d" % number) for number in range(3000) for ending in "ab"])
    http.put(f"/{bucket}/s.tar", content=tar)
    owner = nodes.owner(bucket, "s.tar")
    whole = http.get(f"{owner}/{bucket}/s.tar?{query}").content  # the index is open now
    http.put(f"/{bucket}/s.tar", content=tar)
    assert http.get(f"{owner}/{bucket}/s.tar?member=000000.a").content == b"0"
    located = http.get(f"{owner}/v1/node/locate", params={"bucket": bucket, "object": "s.tar"}).json()
    os.truncate(located["index_path"], 2 * 4096)
    try:
        answer = http.get(f"{owner}/{bucket}/s.tar?{query}")
    except httpx.RemoteProtocolError:  # the answer had begun
        assert query.startswith("list")
    else:
        assert (answer.status_code, answer.content) == (200, whole)
    assert http.get(f"{owner}/{bucket}/s.tar?{query}").content == whole
