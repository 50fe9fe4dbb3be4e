"""What jobs ask of targets: staged outputs, where inputs lie, and their indexes. The calls are for nodes, not for clients."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from urllib.parse import quote

import pytest
from harness import wait_for

from dfc.jobs.tasks import decode_blocks
from dfc.tar.index.reader import ShardIndex


@pytest.fixture
def job(cluster):
    """The name of a job that the proxy does not know, and does not sweep any more."""
    wait_for(cluster.has_swept, "the proxy to have swept")
    return f"job-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def stage(http, nodes, bucket, job):
    """`stage(name, body, temporary=…)`: a PUT at the owner; the answer."""
    assert http.put(f"/v1/buckets/{bucket}").status_code == 201  # as when a job is accepted

    def put(name, body, temporary=False, **more):
        return http.put(url_of(nodes, job, bucket, name, temporary), content=body, **more)

    return put


def url_of(nodes, job, bucket, name, temporary=False):
    base = nodes.owner(bucket, name)
    return f"{base}/v1/node/staged/{job}/{bucket}/{quote(name)}" + ("?temporary=1" if temporary else "")


def everywhere(http, nodes, method, path):
    answers = [http.request(method, f"{node.url}{path}") for node in nodes.map.targets()]
    assert all(answer.status_code == 200 for answer in answers), [answer.text for answer in answers]
    return [answer.json() for answer in answers]


def test_a_job_from_staging_to_publishing(http, nodes, bucket, job, stage, make_tar, error_of):
    tar = make_tar([("a.jpg", b"x" * 3000), ("a.cls", b"1"), ("b.jpg", b"y")])
    big = os.urandom(300_000)
    answer = stage("dir/out ä.tar", tar)
    assert answer.status_code == 201
    facts = answer.json()
    assert (facts["size"], facts["samples"], facts["members"], facts["warnings"]) == (len(tar), 2, 3, [])
    assert stage("big.bin", iter([big[:1000], big[1000:]])).json()["size"] == len(big)
    assert stage("big.bin", b"scratch", temporary=True).status_code == 201
    assert stage("dir/out ä.tar", tar).status_code == 200
    for url in (nodes.proxy, nodes.owner(bucket, "big.bin")):
        error_of(http.get(f"{url}/{bucket}/big.bin"), 404, "object_not_found")
    assert http.get(f"/v1/buckets/{bucket}/objects").json()["objects"] == []
    url = url_of(nodes, job, bucket, "big.bin")
    assert http.get(url).content == big
    part = http.get(url, headers={"Range": "bytes=1000-1009", "If-Match": f'"{http.get(url).headers["ETag"][1:-1]}"'})
    assert (part.status_code, part.content) == (206, big[1000:1010])
    assert http.get(url_of(nodes, job, bucket, "big.bin", temporary=True)).content == b"scratch"
    totals = [found[job] for found in everywhere(http, nodes, "GET", "/v1/node/staged") if job in found]
    assert sum(total["objects"] for total in totals) == 3
    assert all(0 <= total["oldest_s"] < 60 for total in totals)
    prepared = [
        each for found in everywhere(http, nodes, "POST", f"/v1/node/staged/{job}/prepare") for each in found["objects"]
    ]
    assert sorted((each["bucket"], each["object"], each["size"]) for each in prepared) == [
        (bucket, "big.bin", len(big)),
        (bucket, "dir/out ä.tar", len(tar)),
    ]
    for published in (2, 0):
        done = everywhere(http, nodes, "POST", f"/v1/node/staged/{job}/publish")
        assert sum(each["objects"] for each in done) == published
    assert http.get(f"/{bucket}/big.bin").content == big
    assert http.get(f"/{bucket}/{quote('dir/out ä.tar')}?member=a.cls").content == b"1"
    assert not any(job in found for found in everywhere(http, nodes, "GET", "/v1/node/staged"))
    error_of(stage("late", b"x"), 409, "job_cancelled")


def test_a_discarded_job_leaves_nothing(http, nodes, bucket, job, stage, error_of):
    stage("x", b"1")
    stage("t", b"2", temporary=True)
    assert sum(each["discarded"] for each in everywhere(http, nodes, "DELETE", f"/v1/node/staged/{job}")) == 2
    assert sum(each["discarded"] for each in everywhere(http, nodes, "DELETE", f"/v1/node/staged/{job}")) == 0
    error_of(http.get(url_of(nodes, job, bucket, "x")), 404, "object_not_found")
    message = error_of(stage("x", b"3"), 409, "job_cancelled")
    assert job in message
    done = everywhere(http, nodes, "POST", f"/v1/node/staged/{job}/publish")
    assert sum(each["objects"] for each in done) == 0


def test_bad_calls(http, nodes, bucket, job, stage, error_of):
    other = nodes.other(bucket, "x")
    error_of(http.put(f"{other}/v1/node/staged/{job}/{bucket}/x", content=b"1"), 503, "unavailable")
    owner = nodes.owner(bucket, "x")
    for path in (f"-{job}/{bucket}/x", f"{'j' * 65}/{bucket}/x", f"a%2fb/{bucket}/x", f"{job}/{bucket}/../x", f"{job}/v1/x"):
        assert http.put(f"{owner}/v1/node/staged/{path}", content=b"1").status_code in (400, 404), path
    error_of(http.put(f"{owner}/v1/node/staged/{job}/{bucket}/x?temporary=2", content=b"1"), 400, "bad_request")
    error_of(http.put(f"{owner}/v1/node/staged/{job}/{bucket}/x?foo=1", content=b"1"), 400, "bad_request")
    wrong = {"X-DFC-Checksum": "xxh3-128=" + "0" * 32}
    error_of(stage("x", b"1", headers=wrong), 422, "checksum_mismatch")
    error_of(http.get(url_of(nodes, job, bucket, "x")), 404, "object_not_found")
    error_of(http.delete(f"{owner}/v1/node/staged/a%2fb"), 400, "bad_name")


def test_shards_of_a_spec(http, nodes, bucket, make_tar, compress, error_of):
    tar = make_tar([("a.x", b"1"), ("README", b"2"), ("b.x", b"3"), ("a.y", b"4")])
    for name in ("s/0.tar", "s/1.tgz", "s/2.tar", "other.tar"):
        http.put(f"/{bucket}/{name}", content=compress(name[name.index(".") :], tar))
    http.put(f"/{bucket}/s/notes.txt", content=b"hello")

    def ask(shards, **more):
        found = []
        for node in nodes.map.targets():
            answer = http.get(f"{node.url}/v1/node/shards", params={"bucket": bucket, "shards": shards, **more})
            assert answer.status_code == 200, answer.text
            part = [shard for block in decode_blocks(answer.content) for shard in block]
            assert all(shard.node == node.id for shard in part)
            found += part
        return sorted(found, key=lambda shard: shard.name)

    shards = ask("s/")
    assert [shard.name for shard in shards] == ["s/0.tar", "s/1.tgz", "s/2.tar"]
    for shard in shards:
        assert (shard.samples, shard.members, shard.repeated, shard.dropped) == (3, 4, 1, 1)
        assert shard.content_size == len(tar)
        assert shard.kind == ("gz" if shard.name.endswith("tgz") else "tar")
        head = http.head(f"/{bucket}/{shard.name}")
        assert (shard.size, shard.checksum) == (int(head.headers["Content-Length"]), head.headers["ETag"][1:-1])
    assert [shard.name for shard in ask('["other.tar", "s/0.tar"]')] == ["other.tar", "s/0.tar"]
    unread = [shard for shard in ask("s/", any="1") if not shard.is_indexed]
    assert [shard.name for shard in unread] == ["s/notes.txt"]
    owner = nodes.owner(bucket, "s/notes.txt")
    answer = http.get(f"{owner}/v1/node/shards", params={"bucket": bucket, "shards": "s/notes.txt"})
    assert "s/notes.txt" in error_of(answer, 409, "not_a_shard")
    answer = http.get(f"{nodes.owner(bucket, 'none.tar')}/v1/node/shards", params={"bucket": bucket, "shards": "none.tar"})
    error_of(answer, 404, "object_not_found")


def test_where_a_shard_lies(http, nodes, bucket, job, stage, make_tar, error_of):
    tar = make_tar([("a.x", b"1" * 1000)])
    stored = http.put(f"/{bucket}/a.tar", content=tar).json()
    owner = nodes.owner(bucket, "a.tar")
    query = {"bucket": bucket, "object": "a.tar", "version": stored["version"]}
    found = http.get(f"{owner}/v1/node/locate", params=query).json()
    assert (found["size"], found["version"]) == (len(tar), stored["version"])
    assert Path(found["path"]).read_bytes()[: len(tar)] == tar
    index = http.get(f"{owner}/v1/node/index", params=query)
    assert index.content == Path(found["index_path"]).read_bytes()
    Path(found["index_path"]).unlink()
    assert http.get(f"{owner}/v1/node/index", params=query).content == index.content
    for path in ("locate", "index"):
        changed = {**query, "version": "0" * 18}
        error_of(http.get(f"{owner}/v1/node/{path}", params=changed), 412, "precondition_failed")
        error_of(http.get(f"{owner}/v1/node/{path}", params={"bucket": bucket}), 400, "bad_request")
        other = nodes.other(bucket, "a.tar")
        error_of(http.get(f"{other}/v1/node/{path}", params=query), 503, "unavailable")
    staged = stage("part", b"12345", temporary=True).json()
    query = {"bucket": bucket, "object": "part", "job": job, "temporary": "1"}
    found = http.get(f"{nodes.owner(bucket, 'part')}/v1/node/locate", params=query).json()
    assert (found["version"], found["index_path"]) == (staged["version"], None)
    assert Path(found["path"]).read_bytes()[:5] == b"12345"
    query["temporary"] = "0"
    error_of(http.get(f"{nodes.owner(bucket, 'part')}/v1/node/locate", params=query), 404, "object_not_found")
    opened = ShardIndex.open(found_index(http, nodes, bucket))
    assert opened.sample_count == 1
    opened.close()


def found_index(http, nodes, bucket):
    """The path of the index of `a.tar`, as a worker learns it."""
    query = {"bucket": bucket, "object": "a.tar"}
    path: str = http.get(f"{nodes.owner(bucket, 'a.tar')}/v1/node/locate", params=query).json()["index_path"]
    return path
