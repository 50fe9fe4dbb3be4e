"""Hostile archives: stored byte for byte, `samples: null` and a warning that says where; in bounded time and memory.

And hostile queries on good ones. What the index makes of each kind of damage is tested beside `dfc.tar`; here it is that an
upload over HTTP, by each way in, ends well and that nothing is left beside the blob.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import time
from collections.abc import Callable
from urllib.parse import quote

import lz4.frame
import pytest
from harness import wait_for
from security.census import resident_mib
from security.conftest import GRACE_S, MIB, MIN_RATE_BYTES_PER_S, Nodes
from security.wire import Reply, Wire, ask, chunked

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BLOCK = 512
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes, ".tar.gz": lambda data: gzip.compress(data, 1), ".tar.xz": lzma.compress,
    ".tar.bz2": bz2.compress, ".tar.zst": zstd.compress, ".tar.lz4": lz4.frame.compress,
}  # fmt: skip


def make_tar(*members: tuple[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return buffer.getvalue()


GOOD = make_tar(("a/1.jpg", os.urandom(3000)), ("a/1.cls", b"7"), ("a/2.jpg", os.urandom(1000)), ("a/2.cls", b"8"))


def header(name: bytes = b"x.bin", size: bytes = b"00000000000\0", kind: bytes = b"0") -> bytes:
    """A header with the right checksum, whatever its fields say."""
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" + b"0000000\0" + b"0000000\0"
    block[124:136] = size
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def octal(size: int) -> bytes:
    return b"%011o\0" % size


def base256(value: int) -> bytes:
    """A size field of 12 bytes as GNU tar writes numbers that do not fit."""
    return value.to_bytes(12, "big", signed=True) if value < 0 else b"\x80" + value.to_bytes(11, "big")


def padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % BLOCK)


def pax(body: bytes, kind: bytes = b"x") -> bytes:
    return header(b"PaxHeaders/x", octal(len(body)), kind) + padded(body)


END = bytes(2 * BLOCK)
ONE = header() + END
DAMAGED = {
    "one byte": b"x",
    "half a header": GOOD[:300],
    "no tar at all": os.urandom(5000),
    "text": b"hello world\n" * 500,
    "bad header checksum": GOOD[:20] + b"!" + GOOD[21:],
    "bad second header": GOOD[: 8 * BLOCK - 100] + b"!" * 20 + GOOD[8 * BLOCK - 80 :],
    "negative size": header(size=b"-0000000001\0") + END,
    "negative base-256 size": header(size=base256(-1)) + END,
    "negative base-256 size of a link": header(size=base256(-(1 << 40)), kind=b"2") + END,
    "size over everything": header(size=base256((1 << 62) - 1)) + END,
    "base-256 overflow": header(size=b"\x80" + b"\xff" * 11) + END,
    "size with letters": header(size=b"0000000zzzz\0") + END,
    "size of eights": header(size=b"00000000888\0") + END,
    "size larger than the file": header(size=octal(1 << 30)) + END,
    "pax size negative": pax(b"12 size=-10\n") + ONE,
    "pax size with letters": pax(b"12 size=abc\n") + ONE,
    "pax size huge": pax(b"40 size=" + b"9" * 31 + b"\n") + ONE,
    "pax record too long": pax(b"99999999 path=x\n") + ONE,
    "pax record of length zero": pax(b"0 path=x\n") + ONE,
    "pax record of negative length": pax(b"-5 path=x\n") + ONE,
    "pax record without end": pax(b"10 path=xyzab") + ONE,
    "pax length with many digits": pax(b"9" * 4000 + b" path=x\n") + ONE,
    "pax header of 1 GiB": header(b"p", octal(1 << 30), b"x") + bytes(100_000),
    "pax header of all": header(b"p", base256(1 << 60), b"x") + bytes(10_000),
    "NUL in a pax path": pax(b"15 path=a\0b.bin\n") + ONE,
    "long name of 2 MiB": header(b"././@LongLink", octal(2 * MIB), b"L") + padded(b"n" * 2 * MIB) + ONE,
    "long link of 2 MiB": header(b"././@LongLink", octal(2 * MIB), b"K") + padded(b"n" * 2 * MIB) + ONE,
    "long name of 100 KiB": header(b"././@LongLink", octal(100_000), b"L") + padded(b"n" * 100_000) + ONE,
    "pax path of 100 KiB": pax(b"100012 path=" + b"n" * 99_999 + b"\n") + ONE,
    "a chain of pax headers": pax(b"12 path=ab\n\n"[:11]) * 5000 + ONE,
    "a chain of long names": (header(b"././@LongLink", octal(5), b"L") + padded(b"abcd\0")) * 5000 + ONE,
    "pax header and nothing": pax(b"11 path=abc\n"[:11]),
    "an access list and nothing": header(b"acl", octal(4), b"A") + padded(b"1000"),
    "a chain of access lists": (header(b"acl", octal(4), b"A") + padded(b"1000")) * 5000 + ONE,
    "a label of 2 MiB": header(b"label", octal(2 * MIB), b"V") + padded(b"n" * 2 * MIB) + ONE,
    "no end blocks, cut in the padding": header(size=octal(5)) + b"hello",
}  # fmt: skip
# What bsdtar and GNU tar list all the same.
ODD = {
    "no bytes": b"",
    "one end block": GOOD[: 14 * BLOCK] + bytes(BLOCK),
    "no end blocks": GOOD[: 14 * BLOCK],
    "concatenated": GOOD + GOOD,
    "data after the end": GOOD + b"x",
    "random data after the end": GOOD + os.urandom(300_000),
}


def put(nodes: Nodes, via: str, name: str, body: bytes, *, is_chunked: bool = False) -> Reply:
    with Wire(nodes.url(via, name)) as wire:
        framing = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(len(body))}
        wire.head("PUT", f"/b/{name}", framing)
        wire.send((chunked(body) if body else b"0\r\n\r\n") if is_chunked else body)
        return wire.answer()


def assert_stored_without_index(nodes: Nodes, name: str, body: bytes, reply: Reply) -> str:
    """The bytes are there, the index is not, and the warning tells an offset. The warning."""
    assert reply.status in (200, 201), reply
    answer = reply.json()
    assert (answer["size"], answer["samples"], answer["members"]) == (len(body), None, None), answer
    (warning,) = answer["warnings"]
    assert "offset" in warning, warning
    assert len(warning) < 500
    assert nodes.get(name).body == body
    for query in ("member=x.bin", "sample=x", "list=members", "list=samples"):
        refused = ask(nodes.proxy, "GET", f"/b/{name}?{query}")
        assert (refused.status, refused.code) == (409, "not_a_shard"), refused
    return warning


@pytest.mark.parametrize("via", ["owner", "proxy"])
def test_damaged_archives_are_stored_as_they_are(nodes: Nodes, name: str, via: str) -> None:
    before = nodes.census.kept()
    shard = f"{name}.tar"
    for what, body in DAMAGED.items():
        for is_chunked in (False, True):
            started = time.monotonic()
            reply = put(nodes, via, shard, body, is_chunked=is_chunked)
            assert time.monotonic() - started < 20, what
            assert reply.json()["samples"] is None, (what, reply)
            assert_stored_without_index(nodes, shard, body, reply)
        wait_for(lambda: len(nodes.census.stored() - before) == 1, "one blob and no index")
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204
    wait_for(lambda: nodes.census.stored() == before, "the blob to be removed")


def put_odd(nodes: Nodes, via: str, shard: str, body: bytes, *, is_chunked: bool = False) -> None:
    """Store what has an index and a warning that says where, and read what it has."""
    answer = put(nodes, via, shard, body, is_chunked=is_chunked).json()
    count = 2 if body else 0
    assert (answer["size"], answer["samples"], answer["members"]) == (len(body), count, 2 * count), answer
    assert any("offset" in warning for warning in answer["warnings"]), answer
    assert nodes.get(shard).body == body
    assert ask(nodes.proxy, "GET", f"/b/{shard}?list=members").body.count(b"\n") == 2 * count
    if body:
        assert ask(nodes.proxy, "GET", f"/b/{shard}?member=a/2.cls").body == b"8"
        assert ask(nodes.proxy, "GET", f"/b/{shard}?sample=a/1&ext=cls").body == b"7"


@pytest.mark.parametrize("via", ["owner", "proxy"])
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tar.lz4"])
def test_odd_archives_are_indexed_with_a_warning(nodes: Nodes, name: str, via: str, ending: str) -> None:
    shard = f"{name}{ending}"
    for body in ODD.values():
        for is_chunked in (False, True):
            put_odd(nodes, via, shard, COMPRESS[ending](body) if body else b"", is_chunked=is_chunked)
    if ending in (".tar.gz", ".tar.bz2", ".tar.lz4"):
        for rubbish in (b"x", b"rubbish, at length", os.urandom(100_000).lstrip(b"\x1f\x02\x04B\0PQRSTUVWXYZ[]^_\\")):
            put_odd(nodes, via, shard, COMPRESS[ending](GOOD) + rubbish)
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2", ".tar.lz4"])
def test_truncated_archives_are_stored_as_they_are(nodes: Nodes, name: str, ending: str) -> None:
    """Cut at every block, and near the ends of the compressed streams."""
    shard, whole = f"{name}{ending}", COMPRESS[ending](GOOD)
    assert put(nodes, "owner", shard, whole).json()["samples"] == 2
    if ending == ".tar":
        heads = [
            0,
            7 * BLOCK,
            9 * BLOCK,
            12 * BLOCK,
            14 * BLOCK,
        ]  # a cut between members leaves what libarchive takes for all of it
        cuts = [cut for cut in (*range(0, 14 * BLOCK, BLOCK), 1, 511, 513, 4000) if cut not in heads]
    else:
        cuts = [1, 5, 10, len(whole) // 2, len(whole) - 9, len(whole) - 4, len(whole) - 1]
    for cut in cuts:
        reply = put(nodes, "owner", shard, whole[:cut])
        assert_stored_without_index(nodes, shard, whole[:cut], reply)
    assert put(nodes, "owner", shard, whole).json()["samples"] == 2
    if ending != ".tar":
        broken = [whole[: len(whole) // 2]]
        if ending in (".tar.xz", ".tar.zst"):
            broken += [b"x", os.urandom(50), whole[:20]]
        for extra in broken:
            reply = put(nodes, "owner", shard, whole + extra)
            assert_stored_without_index(nodes, shard, whole + extra, reply)
        for tar in ("bad header checksum", "negative size", "half a header"):
            body = COMPRESS[ending](DAMAGED[tar])
            assert_stored_without_index(nodes, shard, body, put(nodes, "owner", shard, body))
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204


def bomb(ending: str) -> bytes:
    """2 GiB that begin as an archive of one huge member."""
    start = header(b"zeros.bin", base256(2 << 30))
    if ending == ".tar.gz":
        # the same deflate block of 16 MiB of zeros again and again
        piece = gzip.compress(bytes(16 * MIB), 9)
        return gzip.compress(start) + piece * 128
    piece = COMPRESS[ending](bytes(16 * MIB))
    return COMPRESS[ending](start) + piece * 128


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.xz", ".tar.zst", ".tar.bz2"])
def test_bombs_end_in_bounded_time_and_memory(nodes: Nodes, name: str, ending: str) -> None:
    shard, body = f"{name}{ending}", bomb(ending)
    pid = nodes.pid("owner", shard)
    before = resident_mib(pid)
    started = time.monotonic()
    reply = put(nodes, "owner", shard, body)  # whose answer may take longer than this proxy waits
    assert time.monotonic() - started < 120
    warning = assert_stored_without_index(nodes, shard, body, reply)
    assert "expands" in warning
    assert resident_mib(pid) < before + 150
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204


def test_one_gzip_stream_of_a_thousand_times_its_size(nodes: Nodes, name: str) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as stream:
        stream.write(header(size=octal(300 * MIB)))
        for _ in range(300):
            stream.write(bytes(MIB))
        stream.write(END)
    body = packed.getvalue()
    assert len(body) < 500_000
    assert_stored_without_index(nodes, f"{name}.tgz", body, put(nodes, "owner", f"{name}.tgz", body))  # see below


@pytest.mark.parametrize("ending", [".tgz", ".tar.gz", ".tar.zst", ".tar.lz4", ".tar.bz2", ".tar.xz"])
def test_what_is_not_compressed_as_its_name_says(nodes: Nodes, name: str, ending: str) -> None:
    for body in (b"\0garbage" * 1000, os.urandom(5000), b"no", b"\x1f\x8b\x08"):
        assert_stored_without_index(nodes, name + ending, body, put(nodes, "proxy", name + ending, body))


def test_many_tiny_frames_are_refused_an_index(nodes: Nodes, name: str) -> None:
    for ending, frame in (
        (".tar.gz", gzip.compress(b"")), (".tar.zst", zstd.compress(b"")), (".tar.bz2", bz2.compress(b"")),
        (".tar.lz4", b"\x50\x2a\x4d\x18" + bytes(4)), (".tar.lz4", b"\x02\x21\x4c\x18"),
    ):  # fmt: skip
        body = frame * (2 * MIB // len(frame))
        started = time.monotonic()
        reply = put(nodes, "owner", f"{name}{ending}", body)
        assert time.monotonic() - started < 60
        assert "frames" in assert_stored_without_index(nodes, f"{name}{ending}", body, reply)
        assert ask(nodes.proxy, "DELETE", f"/b/{name}{ending}").status == 204


def test_many_empty_members_are_indexed_in_bounded_memory(nodes: Nodes, name: str) -> None:
    """Ten million of them are a test of `dfc.tar`; here as many as an object may hold, and the listing of them."""
    shard, count = f"{name}.tar", 36_000
    body = b"".join(header(b"%06d.bin" % number) for number in range(count)) + END
    pid = nodes.pid("owner", shard)
    before = resident_mib(pid)
    reply = put(nodes, "owner", shard, body)
    assert (reply.json()["samples"], reply.json()["members"]) == (count, count)
    assert ask(nodes.proxy, "GET", f"/b/{shard}?list=members").body.count(b"\n") == count
    assert resident_mib(pid) < before + 60
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204


HOSTILE_MEMBERS = [
    "../../etc/passwd", "/etc/shadow", "a/../../b.txt", "..", "./../x.jpg", "C:\\windows\\x.ini", "\\\\host\\share", "-rf.txt",
    "a\nb.txt", "\x1b[31mred.txt", "<script>.html", '"quoted".json', "a\tb.jpg", "\u202egpj.exe", "x" * 3000 + ".bin",
    "nul\u2028sep.txt", "%2e%2e%2fx", "~/.ssh/authorized_keys", "a//b///c.txt", "trailing ", ".hidden", "a.", "ключ.txt",
]  # fmt: skip


def test_hostile_member_names_are_only_names(nodes: Nodes, name: str) -> None:
    """They are listed and read by their names; nothing is ever written by them."""
    before = nodes.census.kept()
    shard = f"{name}.tar"
    bodies = {member: os.urandom(20) for member in HOSTILE_MEMBERS}
    archive = make_tar(*bodies.items())
    assert put(nodes, "proxy", shard, archive).status == 201
    assert len(nodes.census.stored() - before) == 2  # the blob and its index
    listed = ask(nodes.proxy, "GET", f"/b/{shard}?list=members")
    assert listed.headers["x-content-type-options"] == "nosniff"
    rows = [json.loads(line) for line in listed.body.splitlines()]
    assert [row["name"] for row in rows] == HOSTILE_MEMBERS
    for row in rows:
        assert archive[row["offset"] : row["offset"] + row["size"]] == bodies[row["name"]]
        for via in ("owner", "proxy"):
            reply = ask(nodes.url(via, shard), "GET", f"/b/{shard}?member={quote(row['name'], safe='')}")
            assert reply.body == bodies[row["name"]], row
            assert reply.headers["content-security-policy"] == "sandbox"
            assert "\n" not in "".join(reply.headers.values())
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204
    wait_for(lambda: nodes.census.stored() == before, "blob and index to be removed")


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_hostile_member_queries(nodes: Nodes, name: str, ending: str) -> None:
    shard = f"{name}{ending}"
    put(nodes, "owner", shard, COMPRESS[ending](GOOD))
    for via in ("owner", "proxy", "other"):
        url = nodes.url(via, shard)
        for value in (
            "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "%00", "a%2f1.jpg%00", "a/1.jpg/", "A/1.JPG", "x" * 10_000, "%0a",
            "%f0%9f%92%a5", "", "a%252f1.jpg", "*", "a/1", "%22", "'",
        ):  # fmt: skip
            for query, code in (
                ("member", "member_not_found"),
                ("archpath", "member_not_found"),
                ("sample", "sample_not_found"),
            ):
                if query == "sample" and value == "a/1":
                    continue
                reply = ask(url, "GET", f"/b/{shard}?{query}={value}")
                assert (reply.status, reply.code) == (404, code), (query, value, reply)
        for query in (
            "member=a/1.jpg&sample=a/1", "member=a/1.jpg&archpath=a/1.jpg", "list=members&member=a/1.jpg",
            "ext=jpg", "ext=jpg&member=a/1.jpg", "list=", "list=everything", "list=MEMBERS", "member=%ff",
            "sample=a/1&ext=jpg&ext=cls", "member=a%ED%A0%80",
        ):  # fmt: skip
            reply = ask(url, "GET", f"/b/{shard}?{query}")
            assert (reply.status, reply.code) == (400, "bad_request"), (query, reply)
        reply = ask(url, "GET", f"/b/{shard}?sample=a/1&ext=..%2f..")
        assert (reply.status, reply.code) == (404, "member_not_found")
        if ending == ".tar":
            for value in ("bytes=3000-", "bytes=2-1", "bytes=-0", "bytes=99999999999999999999-"):
                reply = ask(url, "GET", f"/b/{shard}?member=a/1.jpg", {"Range": value})
                assert (reply.status, reply.headers["content-range"]) == (416, "bytes */3000"), value
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204


# --- windows


def wide_shard() -> bytes:
    """An .xz whose decompressor holds a window of 64 MiB after its first 30 KB; its second member is random."""
    archive = make_tar(("zeros.bin", bytes(66 * MIB)), ("random.bin", os.urandom(5 * MIB)))
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 64 * MIB, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3, "nice_len": 273}]
    return lzma.compress(archive, format=lzma.FORMAT_XZ, filters=filters)


@pytest.fixture(scope="module")
def wide() -> bytes:
    return wide_shard()


def test_windows_of_slow_readers_are_bounded(nodes: Nodes, name: str, wide: bytes) -> None:
    """20 windows of 64 MiB would be 1.3 GiB: readers over the limit wait, and are told to come again."""
    shard = f"{name}.tar.xz"
    assert put(nodes, "owner", shard, wide).json()["members"] == 2
    pid = nodes.pid("owner", shard)
    before = resident_mib(pid)
    readers = [Wire(nodes.owner(shard), receive_buffer_bytes=4096) for _ in range(20)]
    for reader in readers:
        reader.head("GET", f"/b/{shard}?member=random.bin")
    statuses = [reader.socket.recv(12)[-3:] for reader in readers]
    assert resident_mib(pid) < before + 750
    assert statuses.count(b"200") + statuses.count(b"503") == len(readers)
    assert statuses.count(b"200") >= 8
    for reader in readers:
        reader.close()
    wait_for(lambda: ask(nodes.proxy, "GET", f"/b/{shard}?member=random.bin").status == 200, "a free slot")
    assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204
    nodes.census.assert_settled()


def test_windows_of_slow_uploads_are_bounded(nodes: Nodes, name: str, wide: bytes) -> None:
    """Uploads over the limit are not read until others end; all of them are stored in the end, with their index."""
    url = nodes.owner(f"{name}-0.tar.xz")
    shards = [shard for shard in (f"{name}-{number}.tar.xz" for number in range(80)) if nodes.owner(shard) == url][:12]
    pid = nodes.pid("owner", shards[0])
    before = resident_mib(pid)
    uploads = [Wire(url) for _ in shards]
    first = 400_000
    for wire, shard in zip(uploads, shards, strict=True):
        wire.head("PUT", f"/b/{shard}", {"Content-Length": str(len(wide))})
        wire.send(wide[:first])
    at, highest, step = first, 0.0, int(MIN_RATE_BYTES_PER_S * GRACE_S * 4)
    for _ in range(3):
        for wire in uploads:
            wire.send(wide[at : at + step])
        at += step
        highest = max(highest, resident_mib(pid))
    for wire in uploads:
        wire.socket.setblocking(False)
    rest = dict.fromkeys(uploads, at)
    deadline = time.monotonic() + 40
    while rest and time.monotonic() < deadline:
        for wire in list(rest):
            try:
                rest[wire] += wire.socket.send(wide[rest[wire] : rest[wire] + 65536])
            except BlockingIOError:
                continue
            if rest[wire] >= len(wide):
                del rest[wire]
        highest = max(highest, resident_mib(pid))
    for wire in uploads:
        wire.socket.settimeout(40)
        assert wire.answer().json()["members"] == 2
        wire.close()
    assert highest < before + 750
    for shard in shards:
        assert ask(nodes.proxy, "DELETE", f"/b/{shard}").status == 204
