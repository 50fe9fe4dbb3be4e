"""Hostile archives, uploaded for real: stored as they are, `samples` null, a warning with the offset, in bounded time."""

from __future__ import annotations

import gzip
import io
import tarfile
import time

import pytest
from harness import Cluster
from security.conftest import Nodes
from security.wire import ask

BLOCK = 512
BOUND_S = 30.0  # far above what any of them takes, far below a hang


def header(name: bytes = b"a.jpg", size: bytes = b"00000000000", kind: bytes = b"0") -> bytes:
    """A USTAR header with a right checksum, whatever is in its fields."""
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size.ljust(12, b"\0")[:12] + b"00000000000\0")
    block += b" " * 8 + kind + b"\0" * 100 + b"ustar\x0000" + b"\0" * 247
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def sound(members: int = 3) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(members):
            entry = tarfile.TarInfo(f"{number:06d}.bin")
            entry.size = 700
            archive.addfile(entry, io.BytesIO(b"x" * 700))
    return stream.getvalue()


END = b"\0" * 2 * BLOCK
GOOD = sound()
FIRST = 3 * BLOCK  # header and padded body of the first member
BROKEN = {
    "no-tar": b"this is no archive" * 100,
    "zeros-then-data": END + b"x" * BLOCK,
    "cut-in-header": GOOD[: FIRST + 100],
    "cut-in-body": GOOD[: FIRST + BLOCK + 100],
    "cut-after-member": GOOD[:FIRST],
    "no-end-blocks": GOOD[: 3 * FIRST],
    "one-end-block": GOOD[: 3 * FIRST + BLOCK],
    "bad-checksum": GOOD[:FIRST] + b"?" + GOOD[FIRST + 1 :],
    "concatenated": GOOD + GOOD,
    "negative-size": header(size=b"\xff" * 12) + END,
    "base-256-overflow": header(size=b"\x80" + b"\xff" * 11) + END,
    "size-is-no-number": header(size=b"12x") + END,
    "huge-size": header(size=b"77777777777") + END,
    "nul-in-pax-name": header(b"p", b"%011o" % 20, b"x") + b"20 path=ab\0cd.jpgxx\n".ljust(BLOCK, b"\0") + header() + END,
    "pax-bomb": header(b"p", b"%011o" % (8 << 20), b"x") + b"\0" * (8 << 20) + header() + END,
    "long-name-bomb": header(b"././@LongLink", b"%011o" % (8 << 20), b"L") + b"n" * (8 << 20) + header() + END,
    "long-name-chain": (header(b"././@LongLink", b"%011o" % 5, b"L") + b"abcd\0".ljust(BLOCK, b"\0")) * 5000 + header() + END,
}


def put(nodes: Nodes, via: str, name: str, body: bytes):
    begun = time.monotonic()
    reply = ask(nodes.url(via, name), "PUT", f"/b/{name}", body=body)
    assert time.monotonic() - begun < BOUND_S
    assert reply.status in (200, 201), reply
    return reply.json()


@pytest.mark.parametrize("via", ["proxy", "owner"])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_archives_are_stored_as_they_are(nodes: Nodes, via: str, kind: str) -> None:
    name = f"{kind}-{via}.tar"
    answer = put(nodes, via, name, BROKEN[kind])
    assert (answer["samples"], answer["members"]) == (None, None)
    assert len(answer["warnings"]) == 1
    assert "offset" in answer["warnings"][0]
    assert answer["size"] == len(BROKEN[kind])
    assert nodes.get(name).body == BROKEN[kind]
    refused = ask(nodes.url(via, name), "GET", f"/b/{name}?list=samples")
    assert (refused.status, refused.code) == (409, "not_a_shard")


def test_an_archive_cut_at_any_block_is_stored(nodes: Nodes) -> None:
    for end in range(BLOCK, 3 * FIRST + BLOCK, BLOCK):
        answer = put(nodes, "owner", f"cut-{end}.tar", GOOD[:end])
        assert answer["samples"] is None
        assert "offset" in answer["warnings"][0]


@pytest.mark.parametrize("via", ["proxy", "owner"])
def test_gzip_bombs_end_at_their_limit(nodes: Nodes, via: str) -> None:
    """400 MB of zeros behind a header, a thousand times smaller: over what any shard may grow to."""
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=9, mtime=0) as packed:
        packed.write(header(size=b"%011o" % (400 << 20)))
        for _ in range(400):
            packed.write(b"\0" * (1 << 20))
        packed.write(END)
    bomb = stream.getvalue()
    assert len(bomb) < 500_000
    answer = put(nodes, via, f"bomb-{via}.tgz", bomb)
    assert answer["samples"] is None
    assert "offset" in answer["warnings"][0]
    assert nodes.get(f"bomb-{via}.tgz").body == bomb


@pytest.mark.parametrize("ending", ["tgz", "tar.zst", "tar.lz4", "tar.bz2", "tar.xz"])
def test_what_is_not_compressed_as_it_says_is_stored(nodes: Nodes, ending: str) -> None:
    answer = put(nodes, "proxy", f"lies.{ending}", b"\x00garbage" * 1000)
    assert answer["samples"] is None
    assert answer["warnings"]


def test_member_names_never_reach_the_file_system(nodes: Nodes) -> None:
    names = [b"../../evil.txt", b"/etc/evil.txt", b"a/../../b.txt", b"C:\\evil.txt"]
    archive = b"".join(header(name, b"%011o" % 3) + b"abc".ljust(BLOCK, b"\0") for name in names) + END
    answer = put(nodes, "owner", "slip.tar", archive)
    assert answer["members"] == len(names)
    listed = ask(nodes.url("owner", "slip.tar"), "GET", "/b/slip.tar?list=members")
    assert listed.body.count(b"\n") == len(names)
    one = ask(nodes.url("owner", "slip.tar"), "GET", "/b/slip.tar?member=%2Fetc%2Fevil.txt")
    assert (one.status, one.body) == (200, b"abc")
    missing = ask(nodes.url("owner", "slip.tar"), "GET", "/b/slip.tar?member=/etc/passwd")
    assert (missing.status, missing.code) == (404, "member_not_found")


@pytest.mark.parametrize("via", ["proxy", "target"])
def test_more_than_the_disk_holds_is_507_and_deletes_still_work(cluster: Cluster, via: str) -> None:
    name = f"full-{via}.bin"
    assert ask(cluster.url, "PUT", f"/full/{name}", body=b"old").status == 201
    url = cluster.url if via == "proxy" else cluster.target_urls()[0]  # which hands it on when another one holds it
    refused = ask(url, "PUT", f"/full/{name}", {"Content-Length": str(3 << 40), "Expect": "100-continue"})
    assert (refused.status, refused.code) == (507, "no_space")
    assert ask(url, "GET", f"/full/{name}").body == b"old"
    assert ask(url, "DELETE", f"/full/{name}").status == 204
