"""Small pictures of members over HTTP, of plain and compressed shards, by whoever is asked."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile

import httpx
import pytest
from harness import command_line, wait_for
from pictures import bomb, photo
from PIL import Image

from dfc.limits import THUMBNAILS_KEPT_S, THUMBNAILS_TOGETHER_MAX
from loadtest.processes import descendants

SHARD = "thumbnails-b/shard.tar"


@pytest.fixture(scope="module")
def members() -> list[tuple[str, bytes]]:
    return [
        ("a.jpg", photo((200, 10, 10))),
        ("a.cls", b"1"),
        ("b.JPG", photo((10, 10, 200), (100, 50))),
        ("b.seg.png", bomb(20_000)),
        ("a.jpg", photo((10, 200, 10))),
        ("c.jpg", photo((9, 9, 9))[:900]),
    ]


@pytest.fixture(scope="module")
def shard(http, make_tar, compress, members) -> str:
    for ending in (".tar", ".tar.gz"):
        assert http.put(f"/thumbnails-b/shard{ending}", content=compress(ending, make_tar(members))).is_success
    return f"/{SHARD}"


def opened(answer) -> Image.Image:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["x-content-type-options"] == "nosniff"
    return Image.open(io.BytesIO(answer.content))


@pytest.mark.parametrize("end", ["", ".gz"], ids=["plain", "gzip"])
@pytest.mark.parametrize("via", ["proxy", "owner", "other"])
def test_of_all_that_names_a_picture(http, nodes, shard, end, via):
    url = f"{nodes.url(via, 'thumbnails-b', 'shard.tar' + end)}{shard}{end}"
    for query, size in (
        ("number=0&ext=jpg&thumbnail=96", (96, 72)),
        ("sample=b&ext=jpg&thumbnail=384", (100, 50)),
        ("member=b.JPG&thumbnail=192", (100, 50)),
    ):
        assert opened(http.get(f"{url}?{query}")).size == size
    green = opened(http.get(f"{url}?number=2&ext=jpg&thumbnail=96")).getpixel((5, 5))
    assert green[1] > 150, "the second sample of that key has a picture of its own"


def test_validators_and_what_browsers_keep(http, shard):
    url = f"{shard}?number=0&ext=jpg&thumbnail=192"
    found = http.get(url)
    assert found.headers["cache-control"] == "private, no-cache"
    etag = found.headers["etag"]
    assert http.get(url, headers={"If-None-Match": etag}).status_code == 304
    assert http.get(url.replace("192", "96")).headers["etag"] != etag
    version = http.head(shard).headers["x-dfc-version"]
    assert "immutable" in http.get(f"{url}&version={version}").headers["cache-control"]
    assert "immutable" not in http.get(f"{url}&version=older").headers["cache-control"]
    head = http.head(url)
    assert (head.headers["content-length"], head.content) == (str(len(found.content)), b"")


def test_a_new_shard_has_new_pictures(http, make_tar):
    for colour in ((250, 0, 0), (0, 0, 250)):
        assert http.put("/thumbnails-b/new.tar", content=make_tar([("a.jpg", photo(colour))])).is_success
        found = opened(http.get("/thumbnails-b/new.tar?member=a.jpg&thumbnail=96")).getpixel((9, 9))
        assert abs(found[0] - colour[0]) < 20


def test_what_is_no_picture_is_said(http, shard, error_of):
    for query, word in (
        ("number=1&ext=seg.png", "too large"),
        ("member=a.cls", "its format is not known"),
        ("member=c.jpg", "truncated"),
    ):
        for _ in range(2):
            assert word in error_of(http.get(f"{shard}?{query}&thumbnail=96"), 422, "not_a_picture")


def unpacked(answer) -> list[tuple[str, bytes]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["x-content-type-options"] == "nosniff"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        return [(each.name, archive.extractfile(each).read()) for each in archive]


@pytest.mark.parametrize("end", ["", ".gz"], ids=["plain", "gzip"])
@pytest.mark.parametrize("via", ["proxy", "owner", "other"])
def test_several_in_one_answer(http, nodes, shard, end, via):
    """In the order asked for, each as it is by itself; or why there is none."""
    url = f"{nodes.url(via, 'thumbnails-b', 'shard.tar' + end)}{shard}{end}"
    for _ in range(2):
        found = unpacked(http.get(f"{url}?number=2,0,3,1,0&ext=JPG&thumbnail=192"))
        assert [name for name, _ in found] == ["000002.jpg", "000000.jpg", "000003.error.json", "000001.jpg", "000000.jpg"]
        for at, number in ((0, 2), (1, 0), (3, 1), (4, 0)):
            assert found[at][1] == http.get(f"{url}?number={number}&ext=jpg&thumbnail=192").content
        assert json.loads(found[2][1])["error"]["code"] == "not_a_picture"
    ((_, wrong), (_, missing)) = unpacked(http.get(f"{url}?number=1,2&ext=seg.png&thumbnail=96"))
    assert "too large" in json.loads(wrong)["error"]["message"]
    assert json.loads(missing)["error"]["code"] == "member_not_found"


def test_several_are_kept_for_a_version(http, shard):
    url = f"{shard}?number=0,1&ext=jpg&thumbnail=96"
    assert http.get(url).headers["cache-control"] == "private, no-cache"
    version = http.head(shard).headers["x-dfc-version"]
    assert "immutable" in http.get(f"{url}&version={version}").headers["cache-control"]
    assert "immutable" not in http.get(f"{url}&version=older").headers["cache-control"]
    for _ in range(2):  # not made yet, then an error
        url = f"{shard}?number=0,3&ext=jpg&thumbnail=384&version={version}"
        assert http.get(url).headers["cache-control"] == f"private, max-age={THUMBNAILS_KEPT_S}"
    head = http.head(url)
    assert (head.status_code, head.headers["content-type"], head.content) == (200, "application/x-tar", b"")


def test_several_that_cannot_be_asked(http, shard, error_of):
    many = ",".join("0" * (THUMBNAILS_TOGETHER_MAX + 1))
    for number in ("0,", ",0", "0,,1", "0,-1", "0,x", "0, 1", "0,1" + "0" * 15, many):
        error_of(http.get(shard, params={"number": number, "ext": "jpg", "thumbnail": "96"}), 400, "bad_request")
    for query in (
        "number=0,1&ext=jpg",
        "number=0,1&thumbnail=96",
        "number=0,1",
        "list=samples&start=0,1",
        "sample=a&number=0,1",
    ):
        error_of(http.get(f"{shard}?{query}"), 400, "bad_request")
    error_of(http.get(f"{shard}?number=0,4&ext=jpg&thumbnail=96"), 404, "sample_not_found")
    assert len(unpacked(http.get(f"{shard}?number={many[2:]}&ext=jpg&thumbnail=96"))) == THUMBNAILS_TOGETHER_MAX


@pytest.mark.parametrize(
    "query",
    ["thumbnail=96", "number=0&thumbnail=96", "sample=a&thumbnail=96", "list=samples&thumbnail=96", "member=a.jpg&thumbnail=97",
     "member=a.jpg&thumbnail=", "member=a.jpg&thumbnail=0", "member=a.jpg&version=1", "ext=jpg&thumbnail=96"],
)  # fmt: skip
def test_what_cannot_be_asked(http, shard, error_of, query):
    error_of(http.get(f"{shard}?{query}"), 400, "bad_request")


def test_what_is_not_there(http, shard, error_of):
    error_of(http.get(f"{shard}?number=99&ext=jpg&thumbnail=96"), 404, "sample_not_found")
    error_of(http.get(f"{shard}?number=0&ext=png&thumbnail=96"), 404, "member_not_found")
    error_of(http.put(f"{shard}?thumbnail=96", content=b""), 400, "bad_request")


def test_no_process_is_left_when_its_target_dies(start_cluster, make_tar):
    cluster = start_cluster(targets=1)
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=60) as client:
        client.put("/b/x.tar", content=make_tar([("a.jpg", photo((1, 2, 3)))])).raise_for_status()
        assert opened(client.get("/b/x.tar?member=a.jpg&thumbnail=96")).size == (96, 72)
    (pid,) = [pid for name, pid in cluster.children().items() if name.startswith("target")]
    found = [each for each in descendants(pid) if "dfc.jobs.sandbox.child" in command_line(each)]
    assert found
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any("sandbox.child" in command_line(each) for each in found), "the processes to end")
