"""Streams from web servers that cut, stall, lie, redirect and change their minds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from odd_server import Asked, Goodbye, Hangup, OddServer, head, ranged, saying

from dfc.checksum import checksum_of
from dfc.http.retry import Cancellation, Cancelled
from dfc.inputs.base import Counts, ShardBroken, ShardChanged, ShardRef, ShardUnreadable
from dfc.inputs.sources.cluster import _CACHES
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import KIB, MIB

BODY = os.urandom(3 * MIB + 12_345)
# What is not about DFC need not ask for it.
PLAIN = StreamOptions(direct=False, read_timeout_s=5)


def read(ref: ShardRef | str, *, step: int = 1 * MIB, **given: object) -> bytes:
    """All bytes of a stream, in buffers of `step` bytes, each of them full but the last."""
    buffer = bytearray(step)
    pieces = []
    with open_stream(ref, **{"options": PLAIN, **given}) as stream:  # type: ignore[arg-type]
        while count := stream.readinto(buffer):
            pieces.append(bytes(buffer[:count]))
        assert stream.readinto(buffer) == 0
    assert all(len(piece) == step for piece in pieces[:-1])
    return b"".join(pieces)


NOT_FOUND = saying(head("404 No", "Content-Length: 0"))


def whole(asked: Asked) -> Iterator[bytes]:
    """What a good server answers."""
    yield ranged(BODY, asked) + BODY[asked.start :]


def test_a_whole_and_ranges_in_buffers_of_any_size() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        wanted = asked.headers.get("range", "bytes=0-")
        first, last = (int(text or len(BODY) - 1) for text in wanted.removeprefix("bytes=").split("-"))
        part = BODY[first : last + 1]
        extent = (f"Content-Range: bytes {first}-{last}/{len(BODY)}",) if "range" in asked.headers else ()
        yield head("206 OK" if extent else "200 OK", f"Content-Length: {len(part)}", 'ETag: "v1"', *extent) + part

    with OddServer(answer) as server:
        for step in (1, 100, 8192, 8193, 100_000, 4 * MIB):
            assert read(server.url + "/x", step=step, end=20_000) == BODY[:20_000]
        assert read(server.url + "/x", step=4 * MIB) == BODY
        assert read(server.url + "/x", start=12_345) == BODY[12_345:]
        assert read(server.url + "/x", start=1000, end=1001) == BODY[1000:1001]
        assert read(server.url + "/x", start=1000, end=1000) == b""
        with open_stream(server.url + "/x", options=PLAIN) as stream:
            assert (stream.url, stream.etag, stream.size, stream.indexed) == (server.url + "/x", "v1", len(BODY), False)
        assert server.connections <= 3, "connections are used again, but for those that were left in the middle"


@pytest.mark.parametrize("end", [Hangup, Goodbye])
def test_a_connection_that_breaks_is_continued_where_it_broke(end: type[Exception]) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked, 'ETag: "v1"')
        if asked.number < 5:
            yield BODY[asked.start : asked.start + 500_000]
            raise end
        yield BODY[asked.start :]

    counts = Counts()
    with OddServer(answer) as server:
        assert read(server.url + "/x", step=4 * MIB, counts=counts) == BODY
        assert (counts.retries, counts.size) == (5, len(BODY))
        if end is Goodbye:  # after a reset the system may throw away what had come
            assert server.starts() == [500_000 * at for at in range(6)]
        assert all(asked.headers["if-range"] == '"v1"' for asked in server.asked[1:])


def test_a_server_that_knows_no_ranges_is_read_again() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield head("200 OK", f"Content-Length: {len(BODY)}", f"Last-Modified: {formatdate(0, usegmt=True)}")
        if asked.number < 2:
            yield BODY[: 1_000_000 * (asked.number + 1)]
            raise Goodbye
        yield BODY

    with OddServer(answer) as server:
        assert read(server.url + "/x") == BODY
        assert len(server.asked) == 3
        assert read(server.url + "/x", start=2_000_000, end=2_500_000) == BODY[2_000_000:2_500_000]


@pytest.mark.parametrize(
    "fields", [('ETag: "v2"',), ('ETag: W/"v2"',), (f"Last-Modified: {formatdate(10**9, usegmt=True)}",), ("X-Nothing: 1",)]
)
def test_an_object_that_changed_is_never_mixed_with_the_old_one(fields: tuple[str, ...]) -> None:
    """By its ETag, its date or, where a server says neither, its size."""
    changed = BODY if not fields[0].startswith("X-") else BODY[:-1]

    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.number == 0:
            yield head("200 OK", f"Content-Length: {len(BODY)}", 'ETag: "v1"', f"Last-Modified: {formatdate(0, usegmt=True)}")
            yield BODY[:1_000_000]
            raise Goodbye
        yield head("200 OK", f"Content-Length: {len(changed)}", *fields)
        yield changed

    with OddServer(answer) as server, open_stream(server.url + "/x", options=PLAIN) as stream:
        buffer = bytearray(len(BODY))
        assert stream.readinto(buffer) == 1_000_000, "what came before is handed out"
        assert buffer[:1_000_000] == BODY[:1_000_000]
        for _ in range(2):
            with pytest.raises(ShardChanged, match="was replaced since"):
                stream.readinto(buffer)


def test_the_version_that_was_planned() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        whole = asked.headers.get("if-range", '"v1"') != '"v1"'
        yield head("200 OK", f"Content-Length: {len(BODY)}", 'ETag: "v1"') if whole else ranged(BODY, asked, 'ETag: "v1"')
        yield BODY[0 if whole else asked.start :]

    with OddServer(answer) as server:
        assert read(server.url + "/x", start=3_000_000, etag="v1") == BODY[3_000_000:]
        for start in (0, 3_000_000):
            with pytest.raises(ShardChanged):
                read(server.url + "/x", start=start, etag="v0")


def test_a_start_beyond_the_end() -> None:
    with OddServer(saying(head("416 No", "Content-Length: 0", "Content-Range: bytes */10"))) as server:
        with pytest.raises(ShardUnreadable):
            read(server.url + "/x", start=100)
        assert read(server.url + "/x", start=10) == b"", "the very end is no error"


def test_busy_servers_are_asked_again_when_they_say() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.number == 0:
            yield head("503 Busy", "Content-Length: 0", "Retry-After: 1")
        elif asked.number == 1:
            yield head("429 Slower", "Content-Length: 4", f"Retry-After: {formatdate(time.time() + 1, usegmt=True)}") + b"slow"
        elif asked.number == 2:
            yield head("500 Oops", "Content-Length: 0", "Retry-After: Mon, 1 Jan 99999999999 00:00:00 GMT")
        else:
            yield from whole(asked)

    counts = Counts()
    with OddServer(answer) as server:
        begun = time.monotonic()
        assert read(server.url + "/x", counts=counts) == BODY
        assert 1 <= time.monotonic() - begun < 20
        assert counts.retries == 3


def test_what_is_not_there_is_said_at_once_and_the_rest_after_some_tries() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield head("404 No" if asked.target == "/missing" else "503 Busy", "Content-Length: 0")

    with OddServer(answer) as server:
        with pytest.raises(ShardUnreadable, match="404") as caught:
            read(server.url + "/missing")
        assert caught.value.url == server.url + "/missing"
        assert len(server.asked) == 1
        with pytest.raises(ShardUnreadable, match="3 tries"):
            read(server.url + "/busy", options=StreamOptions(direct=False, retries=2))
        assert len(server.asked) == 4
    with pytest.raises(ShardUnreadable, match="cannot connect"):
        read(server.url + "/gone", options=StreamOptions(direct=False, retries=1))


def test_a_stall_ends_with_the_timeout() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked, 'ETag: "v1"')
        if asked.number == 0:
            yield BODY[:1_000_000]
            server.closing.wait(30)
        yield BODY[asked.start :]

    with OddServer(answer) as server:
        begun = time.monotonic()
        assert read(server.url + "/x", step=4 * MIB, options=StreamOptions(direct=False, read_timeout_s=0.3)) == BODY
        assert 0.3 <= time.monotonic() - begun < 10


def test_bytes_that_never_come_end_in_an_error_not_in_silence() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked, 'ETag: "v1"')
        if asked.number == 0:
            yield BODY[:1_000_000]
        raise Goodbye

    with OddServer(answer) as server:
        with open_stream(server.url + "/x", options=StreamOptions(direct=False, retries=2)) as stream:
            buffer = bytearray(4 * MIB)
            assert stream.readinto(buffer) == 1_000_000
            with pytest.raises(ShardUnreadable, match=r"3 tries.*closed"):
                stream.readinto(buffer)


def test_a_body_in_chunks_is_continued_too() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        start = asked.start
        extent = (f"Content-Range: bytes {start}-{len(BODY) - 1}/{len(BODY)}",) if "range" in asked.headers else ()
        yield head("206 OK" if extent else "200 OK", "Transfer-Encoding: chunked", 'ETag: "v1"', *extent)
        for at in range(start, len(BODY), 100_000):
            piece = BODY[at : at + 100_000]
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
            if asked.number < 2 and at - start >= 800_000:
                raise Goodbye
        yield b"0\r\n\r\n"

    with OddServer(answer) as server:
        assert read(server.url + "/x") == BODY
        assert server.starts()[0] == 0
        assert 0 < server.starts()[1] < server.starts()[2]


def test_a_body_whose_length_nobody_tells_is_not_trusted() -> None:
    def answer(_asked: Asked) -> Iterator[bytes]:
        yield head("200 OK", "Connection: close") + b"part of it"
        raise Goodbye

    with OddServer(answer) as server, pytest.raises(ShardUnreadable, match="the answer has no length"):
        read(server.url + "/x", options=StreamOptions(direct=False, retries=1))


def test_a_partial_answer_that_is_another_part_is_refused() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        extent = f"Content-Range: bytes {asked.start + 5}-{asked.start + 14}/1000"
        yield head("206 OK", "Content-Length: 10", extent) + BODY[:10]

    with OddServer(answer) as server, pytest.raises(ShardUnreadable, match="begins at byte 15, but byte 10 was requested"):
        read(server.url + "/x", start=10, options=StreamOptions(direct=False, retries=1))


def test_replicas_take_over_in_the_middle() -> None:
    """The first breaks off for good, the second is another object, the third has the bytes under an ETag of its own."""

    def dying(asked: Asked) -> Iterator[bytes]:
        if asked.number:
            raise Hangup
        yield ranged(BODY, asked, 'ETag: "first"') + BODY[:1_000_000]
        raise Goodbye

    def other(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked, 'ETag: "third"') + BODY[asked.start :]

    counts = Counts()
    with OddServer(dying) as first, OddServer(NOT_FOUND) as second, OddServer(other) as third:
        ref = ShardRef(first.url + "/x", (second.url + "/x", third.url + "/x"))
        buffer = bytearray(4 * MIB)
        with open_stream(ref, etag="first", options=PLAIN, counts=counts) as stream:
            assert stream.url == first.url + "/x"
            assert stream.readinto(buffer) == len(BODY)
            assert stream.url == third.url + "/x"
        assert buffer[: len(BODY)] == BODY
        assert third.starts() == [1_000_000]
        assert counts.retries == 1
        assert read(ShardRef(second.url + "/x", (third.url + "/x",))) == BODY
        with pytest.raises(ShardUnreadable, match=r"404.*; .*404"):
            read(ShardRef(second.url + "/x", (second.url + "/y",)))


def test_etags_of_replicas_are_compared_if_both_are_of_dfc() -> None:
    """Those of S3 are made of 32 hexadecimal digits too."""
    planned, other = "0" * 32, "1" * 32

    def store(asked: Asked) -> Iterator[bytes]:
        checksum = f"X-DFC-Checksum: xxh3-128={other}" if asked.target == "/node" else "X-Amz-Id: 1"
        yield ranged(BODY, asked, f'ETag: "{other}"', checksum) + BODY

    with OddServer(NOT_FOUND) as first, OddServer(store) as second:
        assert read(ShardRef(first.url + "/x", (second.url + "/s3",)), etag=planned) == BODY
        with pytest.raises(ShardChanged):
            read(ShardRef(first.url + "/x", (second.url + "/node",)), etag=planned)


def test_a_replica_of_another_size_is_another_object() -> None:
    def dying(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[:1_000_000]
        raise Goodbye

    def other(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY[:-1], asked) + BODY[asked.start : -1]

    with OddServer(dying) as first, OddServer(other) as second, pytest.raises(ShardChanged):
        read(ShardRef(first.url + "/x", (second.url + "/x",)))


def test_redirects_are_followed_and_secrets_stay_home() -> None:
    def elsewhere(asked: Asked) -> Iterator[bytes]:
        if asked.target.startswith("/gone"):
            raise Hangup
        yield from whole(asked)

    def replica(asked: Asked) -> Iterator[bytes]:
        away = elsewhere_server.url
        to = {"/a": "/b", "/b": f"{away}/signed?key=1", "/loop": "/loop", "/gone": f"{away}/gone?key=1"}
        yield head("302 Found", f"Location: {to[asked.target]}", "Content-Length: 0")

    options = StreamOptions(direct=False, token="secret", headers={"X-Key": "hidden"})
    with OddServer(elsewhere) as elsewhere_server, OddServer(replica) as server:
        assert read(server.url + "/a", options=options) == BODY
        assert server.targets() == ["/a", "/b"]
        for asked in server.asked:
            assert (asked.headers["authorization"], asked.headers["x-key"]) == ("Bearer secret", "hidden")
        assert elsewhere_server.targets() == ["/signed?key=1"]
        assert "authorization" not in elsewhere_server.asked[0].headers
        assert "x-key" not in elsewhere_server.asked[0].headers
        with pytest.raises(ShardUnreadable, match="/gone") as caught:
            read(server.url + "/gone", options=StreamOptions(direct=False, retries=0))
        assert "key=1" not in str(caught.value)
        with pytest.raises(ShardUnreadable, match="more than 5 redirects"):
            read(server.url + "/loop")


def test_users_in_urls_are_sent_as_a_header_and_not_shown() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield head("403 No" if asked.target.endswith("signature") else "200 OK", "Content-Length: 0")

    with OddServer(answer) as server:
        url = server.url.replace("http://", "http://me:p%40ss@")
        assert read(url + "/with space%20é.tar") == b""
        assert server.asked[0].headers["authorization"] == "Basic bWU6cEBzcw=="
        assert server.targets() == ["/with%20space%20%C3%A9.tar"]
        with pytest.raises(ShardUnreadable) as caught:
            read(url + "/x.tar?signature")
        assert "p%40ss" not in str(caught.value)
        assert "signature" not in str(caught.value)


def test_the_token_of_the_environment_goes_to_its_own_cluster_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with OddServer(whole) as mine, OddServer(whole) as other:
        monkeypatch.setenv("DFC_TOKEN", "secret")
        monkeypatch.setenv("DFC_URL", mine.url)
        assert read(mine.url + "/x") == read(other.url + "/x") == BODY
        assert mine.asked[0].headers["authorization"] == "Bearer secret"
        assert "authorization" not in other.asked[0].headers


def test_bytes_that_are_not_those_that_were_stored() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked, f"X-DFC-Checksum: xxh3-128={checksum_of(BODY)}", "X-DFC-Samples: 7")
        if asked.target == "/cut" and asked.number == 1:
            yield BODY[:1_000_000]
            raise Goodbye
        yield BODY[asked.start : -1] + (b"?" if asked.target == "/bad" else BODY[-1:])

    with OddServer(answer) as server:
        with open_stream(server.url + "/good", options=PLAIN) as stream:
            assert stream.indexed
        assert read(server.url + "/cut") == BODY, "the hash goes on over broken connections"
        with pytest.raises(ShardBroken, match="xxh3-128"):
            read(server.url + "/bad")
        assert read(server.url + "/bad", options=StreamOptions(direct=False, verify=False))[:-1] == BODY[:-1]
        assert read(server.url + "/bad", start=1) == BODY[1:-1] + b"?"


def test_who_waits_is_ended_from_another_thread() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.target == "/busy":
            yield head("503 Busy", "Content-Length: 0", "Retry-After: 20")
            return
        yield ranged(BODY, asked) + BODY[: 100 * KIB]
        reached.set()
        server.closing.wait(30)

    reached = threading.Event()
    with OddServer(answer) as server:
        stream = open_stream(server.url + "/x", options=PLAIN)
        timer = threading.Thread(target=lambda: (reached.wait(10), stream.abort()))
        timer.start()
        begun = time.monotonic()
        with stream, pytest.raises(Cancelled):
            stream.readinto(bytearray(1 * MIB))
        timer.join()
        cancellation = Cancellation()
        timer = threading.Timer(0.2, cancellation.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            open_stream(server.url + "/busy", options=PLAIN, cancellation=cancellation)
        timer.join()
        assert time.monotonic() - begun < 15


def test_a_stream_that_is_left_early_costs_no_waiting() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[: 200 * KIB]
        server.closing.wait(30)

    with OddServer(answer) as server:
        begun = time.monotonic()
        for _ in range(5):
            stream = open_stream(server.url + "/x", options=PLAIN)
            stream.readinto(bytearray(100 * KIB))
            stream.close()
            stream.close()
        assert time.monotonic() - begun < 10


def test_a_server_is_asked_once_whether_it_is_a_dfc_node() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.target == "/v1/cluster":
            yield head("404 No", "Content-Length: 2") + b"no"
        else:
            yield from whole(asked)

    with OddServer(answer) as server:
        for _ in range(3):
            assert read(server.url + "/x", options=StreamOptions()) == BODY
        assert server.targets() == ["/v1/cluster", "/x", "/x", "/x"]


def test_a_map_that_is_none_is_no_cluster() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        body = b'{"cluster": "elasticsearch"}' if asked.target == "/v1/cluster" else b"x"
        yield head("200 OK", f"Content-Length: {len(body)}", "Content-Type: application/json") + body

    with OddServer(answer) as server:
        assert read(server.url + "/x", options=StreamOptions()) == b"x"


def test_somebody_hears_of_tries_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    with OddServer(saying(head("503 Busy", "Content-Length: 0"))) as server, pytest.raises(ShardUnreadable):
        read(server.url + "/x?secret", options=StreamOptions(direct=False, retries=3))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "still retrying" in caplog.text
    assert "secret" not in caplog.text


def test_a_stream_that_is_forgotten_gives_its_connection_back() -> None:
    with OddServer(whole) as server:
        for _ in range(3):
            stream = open_stream(server.url + "/x", options=PLAIN)
            assert stream.readinto(bytearray(len(BODY) - 100)) == len(BODY) - 100
            del stream
        assert server.connections == 1


def test_parts_of_nobody_knows_how_many_bytes() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        first = asked.start
        if first >= len(BODY):
            yield head("416 No", "Content-Length: 0", f"Content-Range: bytes */{len(BODY)}")
            return
        part = BODY[first : first + 1_000_000]
        yield head("206 OK", f"Content-Length: {len(part)}", f"Content-Range: bytes {first}-{first + len(part) - 1}/*")
        yield part

    with OddServer(answer) as server:
        assert read(server.url + "/x", start=10) == BODY[10:]
        assert read(server.url + "/x", start=10, end=2_500_000) == BODY[10:2_500_000]


def test_a_part_that_leaves_out_what_the_whole_said_of_its_version() -> None:
    """RFC 9110 says that a 206 to If-Range leaves out Last-Modified."""
    old, new = ("Mon, 01 Jan 2024 00:00:00 GMT", BODY), ("Mon, 01 Jan 2024 00:00:07 GMT", BODY[::-1])

    def answer(asked: Asked) -> Iterator[bytes]:
        date, body = old if asked.number < 2 else new
        if asked.headers.get("if-range", "") == date:
            yield ranged(body, asked)
        else:
            yield head("200 OK", f"Content-Length: {len(body)}", f"Last-Modified: {date}")
        yield body[asked.start : asked.start + 300_000]
        raise Goodbye

    with OddServer(answer) as server, pytest.raises(ShardChanged):
        read(server.url + "/x")


@pytest.mark.parametrize("location", ["http://h:99999999/x", "http://[::1/x", "http://a..b/x", "file:///etc/passwd"])
def test_redirects_to_what_is_no_url(location: str) -> None:
    redirect = head("302 Found", "Content-Length: 0", f"Location: {location}")
    with OddServer(saying(redirect)) as server, OddServer(whole) as other:
        with pytest.raises(ShardUnreadable):
            read(server.url + "/x")
        assert read(ShardRef(server.url + "/x", ("http://[::1/x", other.url + "/x"))) == BODY


def test_who_reads_on_after_an_interruption_misses_nothing() -> None:
    class Rang(Exception):
        pass

    def ring(*_: object) -> None:
        raise Rang

    def answer(asked: Asked) -> Iterator[bytes]:
        yield head("200 OK", "Transfer-Encoding: chunked")
        yield b"%x\r\n" % len(BODY) + BODY[:1_000_000]
        if asked.number == 0:
            assert reading.wait(10)
            os.kill(os.getpid(), signal.SIGUSR1)
            server.closing.wait(10)
        yield BODY[1_000_000:] + b"\r\n0\r\n\r\n"

    reading = threading.Event()
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with OddServer(answer) as server, open_stream(server.url + "/x", options=PLAIN) as stream:
            buffer = bytearray(len(BODY))
            with pytest.raises(Rang):  # noqa: PT012  (the signal may come before the read begins)
                reading.set()
                stream.readinto(buffer)
            assert stream.readinto(buffer) == len(BODY)
            assert buffer == BODY
            assert stream.readinto(buffer) == 0
            server.closing.set()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "said",
    [
        b'{"x": ' + b"[" * 50_000, b'{"cluster_id": "\xff"}', b'{"error": {"code": "\xff"}}',
        b'{"error": {"x":' + b"[" * 50_000, b"",
    ],
)  # fmt: skip
def test_answers_that_are_no_json_are_of_no_dfc_node(said: bytes) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.target == "/x":
            yield from whole(asked)
            return
        yield head("200 OK" if asked.target == "/v1/cluster" else "404 No", f"Content-Length: {len(said)}") + said

    options = StreamOptions(read_timeout_s=5)
    with OddServer(answer) as server:
        assert read(server.url + "/x", options=options) == BODY
        with pytest.raises(ShardUnreadable, match="404"):
            read(server.url + "/y", options=options)


def test_files_and_servers_step_in_for_each_other_though_etags_differ(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(BODY)

    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.target == "/gone":
            yield head("404 Gone", "Content-Length: 0")
        else:
            yield ranged(BODY, asked, 'ETag: "v1"') + BODY[asked.start :]

    with OddServer(answer) as server:
        assert read(ShardRef(server.url + "/gone", (f"{tmp_path}/x.tar",)), etag="0" * 32) == BODY
        assert read(ShardRef(f"{tmp_path}/gone", (server.url + "/x",)), etag="5-0") == BODY
        with pytest.raises(ShardChanged):
            read(ShardRef(f"{tmp_path}/x.tar", (server.url + "/x",)), etag="5-0")


def test_a_length_beside_chunks_means_nothing() -> None:
    begin = head("200 OK", "Transfer-Encoding: chunked", f"Content-Length: {len(BODY) // 2}")
    with OddServer(saying(begin + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n")) as server:
        assert read(server.url + "/x") == BODY


def test_who_is_cancelled_learns_nothing_about_a_server() -> None:
    cancellation = Cancellation()

    def answer(asked: Asked) -> Iterator[bytes]:
        cancellation.cancel()
        server.closing.wait(10)
        yield b""

    options = StreamOptions(read_timeout_s=5)
    with OddServer(answer) as server:
        with pytest.raises(Cancelled):
            open_stream(server.url + "/x", options=options, cancellation=cancellation)
        assert server.targets() == ["/v1/cluster"]
        assert (server.url, None) not in _CACHES.known
        server.closing.set()
