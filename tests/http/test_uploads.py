"""Uploads: framing, Expect, checksums, preconditions, lengths; with curl, http.client and raw sockets as senders."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import wait_for

from dfc.checksum import checksum_of

VIA = ("proxy", "owner", "other")
SMALL, LARGE = 1000, 300_000


def in_chunks(body: bytes, size: int) -> bytes:
    """The body in chunked framing."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def blobs(cluster, name: str) -> list[Path]:
    """The blobs of an object on all disks, of every version and bucket."""
    return [path for path in cluster.directory.glob(f"target-*/disk-*/objects/*/*/{name}@*") if path.suffix != ".idx"]


# --- framing


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize(("size", "chunk"), [(0, 1), (10, 3), (70_000, 1000), (1_000_000, 100_000), (1_000_000, 1_000_000)])
def test_chunked(connect, nodes, bucket, http, via, size, chunk):
    body = os.urandom(size)
    connection = connect(nodes.url(via, bucket, "x"))
    connection.request("PUT", f"/{bucket}/x", {"Transfer-Encoding": "chunked"})
    connection.send(in_chunks(body, chunk))
    reply = connection.answer()
    assert reply.status == 201
    assert http.get(f"/{bucket}/x").content == body
    connection.request("GET", "/v1/health")  # the connection is still in step
    assert connection.answer().status == 200


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("chunked", [False, True])
def test_expect_100_continue(connect, nodes, bucket, http, via, size, chunked):
    body = os.urandom(size)
    connection = connect(nodes.url(via, bucket, "x"))
    framing = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(size)}
    connection.request("PUT", f"/{bucket}/x", {"Expect": "100-continue", **framing})
    assert connection.head()[0] == 100
    connection.send(in_chunks(body, 50_000) if chunked else body)
    assert connection.answer().status == 201
    assert http.get(f"/{bucket}/x").content == body


def test_a_body_sent_without_waiting_for_100(connect, nodes, bucket, http):
    for via in VIA:
        for size in (SMALL, LARGE):
            body = os.urandom(size)
            connection = connect(nodes.url(via, bucket, "x"))
            connection.request("PUT", f"/{bucket}/x", {"Expect": "100-continue"}, body)
            status, _ = connection.head()
            assert (connection.answer().status if status == 100 else status) in (200, 201)
            assert http.get(f"/{bucket}/x").content == body


def test_bodies_that_come_in_small_pieces(connect, nodes, bucket, http):
    body = os.urandom(200_000)
    for via in VIA:
        connection = connect(nodes.url(via, bucket, "x"))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.request("PUT", f"/{bucket}/x", {"Content-Length": str(len(body))})
        for at in range(0, len(body), 4000):
            connection.send(body[at : at + 4000])
        assert connection.answer().status in (200, 201)
        assert http.get(f"/{bucket}/x").content == body


def test_put_without_a_body_stores_an_empty_object(connect, bucket, http):
    connection = connect()
    connection.request("PUT", f"/{bucket}/x")
    assert connection.answer().status == 201
    assert http.get(f"/{bucket}/x").content == b""


@pytest.mark.parametrize("via", VIA)
def test_many_uploads_at_once(nodes, bucket, http, via):
    bodies = {f"{number}": os.urandom(SMALL if number % 2 else LARGE) for number in range(40)}

    def put(name: str) -> int:
        return http.put(f"{nodes.url(via, bucket, name)}/{bucket}/{name}", content=bodies[name]).status_code

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(put, bodies)) == {201}
    assert all(http.get(f"/{bucket}/{name}").content == body for name, body in bodies.items())


def test_uploads_of_one_name_at_once_leave_one_of_them_whole(bucket, http, cluster):
    bodies = [os.urandom(LARGE) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda body: http.put(f"/{bucket}/raced", content=body), bodies))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    newest = max(answers, key=lambda answer: answer.json()["version"])
    stored = http.get(f"/{bucket}/raced")
    assert stored.content in bodies
    assert stored.headers["ETag"] == newest.headers["ETag"]


# --- curl


@pytest.mark.parametrize("size", [0, SMALL, LARGE, 3_000_000])
@pytest.mark.parametrize("follow", [[], ["-L"]])
@pytest.mark.parametrize("source", ["file", "stdin"])
def test_curl_uploads_into_the_web_namespace(curl, cluster, http, bucket, tmp_path, size, follow, source):
    body = os.urandom(size)
    path = tmp_path / "x.bin"
    path.write_bytes(body)
    what = ["-T", str(path)] if source == "file" else ["-X", "PUT", "-T", "-"]
    done = curl("-f", *follow, *what, f"{cluster.url}/{bucket}/x.bin", stdin=body if source == "stdin" else b"")
    assert done.returncode == 0, done.stderr
    assert http.get(f"/{bucket}/x.bin").content == body
    read = curl("-f", f"{cluster.url}/{bucket}/x.bin")
    assert (read.returncode, read.stdout) == (0, body)


def test_curl_names_the_object_after_the_file(curl, cluster, http, bucket, tmp_path):
    path = tmp_path / "größe 1.bin"
    path.write_bytes(b"abc")
    assert curl("-f", "-T", str(path), f"{cluster.url}/{bucket}/").returncode == 0
    assert http.get(f"/{bucket}/gr%C3%B6%C3%9Fe%201.bin").content == b"abc"


@pytest.mark.parametrize("size", [SMALL, 3_000_000])
def test_the_command_of_webdataset(curl, cluster, http, bucket, size):
    """`curl -f -s -X PUT -L -T - URL`, in the web namespace and through a redirect."""
    body = os.urandom(size)
    for path in (f"/{bucket}/a.tar", f"/v1/objects/{bucket}/b.tar", f"/{bucket}/c.tar?redirect=1"):
        assert curl("-f", "-s", "-X", "PUT", "-L", "-T", "-", cluster.url + path, stdin=body).returncode == 0
    for name in ("a.tar", "b.tar", "c.tar"):
        assert http.get(f"/{bucket}/{name}").content == body


def test_curl_and_the_redirect(curl, cluster, nodes, http, bucket, tmp_path, error_of):
    body = os.urandom(3_000_000)
    path = tmp_path / "x"
    path.write_bytes(body)
    url = f"{cluster.url}/v1/objects/{bucket}/x"
    said = curl("-v", "-T", str(path), url)  # without -L: the redirect is all there is
    assert b"307 Temporary Redirect" in said.stderr
    assert b"100 Continue" not in said.stderr
    assert b"We are completely uploaded" not in said.stderr
    error_of(http.get(f"/{bucket}/x"), 404, "object_not_found")
    followed = curl("-f", "-v", "-L", "-T", str(path), url)
    assert followed.returncode == 0
    assert nodes.owner(bucket, "x").encode() in followed.stderr
    assert curl("-f", "-L", url).stdout == body
    assert curl("-f", url).stdout == b""
    assert http.get(f"/{bucket}/x").content == body


def test_the_answer_comes_before_the_body(connect, bucket, http, error_of):
    """A refusal or redirect needs no body, and none of it is asked for."""
    http.put(f"/{bucket}/x", content=b"abc")
    for target, headers, status in (
        (f"/v1/objects/{bucket}/x", {}, 307),
        (f"/{bucket}/x?redirect=1", {}, 307),
        (f"/{bucket}/..", {}, 400),
        (f"/{bucket}/x", {"If-None-Match": "*"}, 412),
        (f"/{bucket}/x", {"X-DFC-Checksum": "md5=1"}, 400),
        (f"/{bucket}/x", {"Content-Length": str(1 << 60)}, 413),
        (f"/{bucket}/x", {"Origin": "http://example.com"}, 403),
        ("/v1/health", {}, 405),
        ("/v1/nothing", {}, 404),
    ):
        for expect in ({"Expect": "100-continue"}, {}):
            connection = connect()
            connection.request("PUT", target, {"Content-Length": "5000000", **headers, **expect})
            if not expect:
                connection.send(os.urandom(200_000))
            reply = connection.answer()
            assert reply.status == status, target
            assert reply.headers["Connection"] == "close"
            connection.socket.shutdown(socket.SHUT_WR)
            assert connection.is_closed()
    assert http.get(f"/{bucket}/x").content == b"abc"


# --- checksums


def md5_of(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_checksums_are_compared(http, nodes, bucket, error_of, via, size):
    url = f"{nodes.url(via, bucket, 'x')}/{bucket}/x"
    old, body = os.urandom(size), os.urandom(size)
    http.put(url, content=old)
    for wrong in ({"X-DFC-Checksum": f"xxh3-128={checksum_of(old)}"}, {"Content-MD5": md5_of(old)}):
        error_of(http.put(url, content=body, headers=wrong), 422, "checksum_mismatch")
        error_of(http.put(url, content=iter([body]), headers=wrong), 422, "checksum_mismatch")  # chunked
        assert http.get(url).content == old
    right = {"X-DFC-Checksum": f"xxh3-128={checksum_of(body).upper()}", "Content-MD5": md5_of(body)}
    assert http.put(url, content=body, headers=right).status_code == 200
    assert http.get(url).content == body


def test_nothing_is_stored_of_a_wrong_upload(http, bucket, cluster, error_of):
    for size in (SMALL, LARGE):
        wrong = {"X-DFC-Checksum": "xxh3-128=" + "0" * 32}
        name = f"wrong-{bucket}-{size}"
        error_of(http.put(f"/{bucket}/{name}", content=os.urandom(size), headers=wrong), 422, "checksum_mismatch")
        error_of(http.get(f"/{bucket}/{name}"), 404, "object_not_found")
        assert blobs(cluster, name) == []


@pytest.mark.parametrize(
    "headers",
    [
        {"X-DFC-Checksum": "abc"},
        {"X-DFC-Checksum": "xxh3-128=abc"},
        {"X-DFC-Checksum": "sha256=" + "0" * 64},
        {"Content-MD5": "abc"},
        {"Content-MD5": base64.b64encode(b"short").decode()},
        {"Content-Range": "bytes 0-1/2"},
    ],
)
def test_malformed_headers(http, bucket, error_of, headers):
    for size in (SMALL, LARGE):
        error_of(http.put(f"/{bucket}/x", content=os.urandom(size), headers=headers), 400, "bad_request")
    error_of(http.get(f"/{bucket}/x"), 404, "object_not_found")


# --- preconditions


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_preconditions_of_a_put(http, nodes, bucket, error_of, via, size):
    url = f"{nodes.url(via, bucket, 'x')}/{bucket}/x"
    first, second = os.urandom(size), os.urandom(size)
    error_of(http.put(url, content=first, headers={"If-Match": "*"}), 412, "precondition_failed")
    error_of(http.put(url, content=first, headers={"If-Match": '"a"'}), 412, "precondition_failed")
    assert http.put(url, content=first, headers={"If-None-Match": "*"}).status_code == 201
    error_of(http.put(url, content=second, headers={"If-None-Match": "*"}), 412, "precondition_failed")
    error_of(http.put(url, content=second, headers={"If-None-Match": f'"{checksum_of(first)}"'}), 412, "precondition_failed")
    error_of(http.put(url, content=second, headers={"If-Match": f'"{checksum_of(second)}"'}), 412, "precondition_failed")
    assert http.get(url).content == first
    assert http.put(url, content=second, headers={"If-Match": f'"{checksum_of(first)}"'}).status_code == 200
    assert http.put(url, content=first, headers={"If-Match": "*"}).status_code == 200
    assert http.put(url, content=second, headers={"If-None-Match": '"a"'}).status_code == 200
    assert http.get(url).content == second


def test_preconditions_of_a_delete(http, bucket, error_of):
    http.put(f"/{bucket}/x", content=b"abc")
    error_of(http.delete(f"/{bucket}/x", headers={"If-Match": '"a"'}), 412, "precondition_failed")
    assert http.get(f"/{bucket}/x").content == b"abc"
    assert http.delete(f"/{bucket}/x", headers={"If-Match": f'"{checksum_of(b"abc")}"'}).status_code == 204
    error_of(http.get(f"/{bucket}/x"), 404, "object_not_found")


def test_preconditions_that_cannot_be_read(http, bucket, error_of):
    for headers in ({"If-Match": ""}, {"If-None-Match": "not a tag"}, {"If-Match": '"a", "b"'}):
        error_of(http.put(f"/{bucket}/x", content=b"abc", headers=headers), 400, "bad_request")


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_of_many_creators_wins(http, bucket, size):
    bodies = [os.urandom(size) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda body: http.put(f"/{bucket}/x", content=body, headers={"If-None-Match": "*"}), bodies))
    assert sorted(answer.status_code for answer in answers) == [201] + [412] * 7
    winner = next(answer for answer in answers if answer.status_code == 201)
    assert http.get(f"/{bucket}/x").headers["ETag"] == winner.headers["ETag"]


# --- broken uploads


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize(("size", "sent"), [(SMALL, 10), (LARGE, 0), (LARGE, 100), (LARGE, LARGE - 1)])
def test_fewer_bytes_than_announced(connect, nodes, cluster, http, bucket, via, size, sent):
    name = f"cut-{bucket}"
    old = os.urandom(size)
    http.put(f"/{bucket}/{name}", content=old)
    connection = connect(nodes.url(via, bucket, name))
    connection.request("PUT", f"/{bucket}/{name}", {"Content-Length": str(size)})
    connection.send(os.urandom(sent))
    connection.socket.shutdown(socket.SHUT_WR)
    # The end of the connection is the sign that the node has dealt with it; an answer before it would be a 400.
    first = connection._file.readline()
    assert first == b"" or b" 400 " in first
    assert connection._file.read() is not None
    assert http.get(f"/{bucket}/{name}").content == old
    connection.close()
    wait_for(lambda: len(blobs(cluster, name)) == 1, "the half blob to be removed")


def test_a_cut_chunked_body_stores_nothing(connect, nodes, cluster, http, bucket):
    for via in VIA:
        name = f"cut-{via}-{bucket}"
        connection = connect(nodes.url(via, bucket, name))
        connection.request("PUT", f"/{bucket}/{name}", {"Transfer-Encoding": "chunked"})
        connection.send(in_chunks(os.urandom(LARGE), 50_000)[:-5])
        connection.socket.shutdown(socket.SHUT_WR)
        connection._file.read()
        wait_for(lambda name=name: not blobs(cluster, name), "the half blob to be removed")
        assert http.get(f"/{bucket}/{name}").status_code == 404


def test_a_client_that_resets_in_mid_upload(connect, nodes, cluster, http, bucket):
    for via in VIA:
        name = f"reset-{via}-{bucket}"
        http.put(f"/{bucket}/{name}", content=b"old")
        connection = connect(nodes.url(via, bucket, name))
        connection.request("PUT", f"/{bucket}/{name}", {"Content-Length": "10000000"})
        connection.send(os.urandom(LARGE))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        wait_for(lambda name=name: len(blobs(cluster, name)) == 1, "the half blob to be removed")
        assert http.get(f"/{bucket}/{name}").content == b"old"


def test_readers_see_one_version_or_the_other(http, bucket):
    bodies = [bytes([number]) * LARGE for number in range(6)]
    http.put(f"/{bucket}/x", content=bodies[0])
    stop = threading.Event()

    def read() -> int:
        count = 0
        while not stop.is_set():
            assert http.get(f"/{bucket}/x").content in bodies
            count += 1
        return count

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        for body in bodies * 4:
            assert http.put(f"/{bucket}/x", content=body).status_code == 200
        stop.set()
        assert all(reader.result() > 0 for reader in readers)


# --- shards that are none


def test_an_empty_archive_has_no_members(http, bucket):
    stored = http.put(f"/{bucket}/empty.tar", content=b"")
    assert stored.status_code == 201
    assert (stored.json()["samples"], stored.json()["members"]) == (0, 0)
    assert len(stored.json()["warnings"]) == 1


def test_a_broken_tar_is_stored_with_a_warning(http, bucket, make_tar):
    good = make_tar([("a.txt", b"x" * 1000), ("b.txt", b"y" * 1000)])
    for name, body, at in (
        ("cut.tar", good[:2000], "offset"),
        ("text.tar", b"no tar at all" * 100, "offset 0"),
        ("cut.tgz", b"\x1f\x8b\x08broken", "offset"),
    ):
        stored = http.put(f"/{bucket}/{name}", content=body)
        assert stored.status_code == 201
        assert (stored.json()["samples"], stored.json()["members"]) == (None, None)
        (warning,) = stored.json()["warnings"]
        assert at in warning
        assert http.get(f"/{bucket}/{name}").content == body
