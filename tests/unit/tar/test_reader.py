"""Pull readers over streams and stored shards, whole and broken."""

from __future__ import annotations

import io
import os
import tarfile

import archives
import pytest

from dfc.tar.header import TarError
from dfc.tar.reader import iterate_members, read_member_range

COMPRESS = {"tar": bytes, **{kind: archives.COMPRESS[kind] for kind in ("gz", "bz2", "xz")}}
MEMBERS = {"a.jpg": b"x" * 1000, "d/" * 99 + "b.txt": b"", "n" * 200 + ".x": b"y" * 600_000, "c.x": b"z" * 512}


class Pipe(io.RawIOBase):
    """Gives at most 100 bytes a read and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self._data.read(min(len(buffer), 100))
        buffer[: len(data)] = data
        return len(data)


@pytest.mark.parametrize("kind", COMPRESS)
def test_members_with_their_data(make, kind):
    data = COMPRESS[kind](make.tar(MEMBERS, tarfile.PAX_FORMAT))
    found = {member.name: body.read() for member, body in iterate_members(io.BytesIO(data), kind)}
    assert found == MEMBERS


@pytest.mark.parametrize("taken", [0, 1, 700])
def test_data_that_nobody_takes_is_read_over(make, taken):
    data = make.tar(MEMBERS, tarfile.GNU_FORMAT)
    found = []
    for member, body in iterate_members(Pipe(data)):
        found.append((member.name, member.key, member.ext, member.size))
        assert body.read(taken) == MEMBERS[member.name][: min(taken, 100)]
    assert [(name, size) for name, _, _, size in found] == [(name, len(body)) for name, body in MEMBERS.items()]
    assert found[0][1:3] == ("a", "jpg")


def test_a_real_pipe(make):
    read_end, write_end = os.pipe()
    os.write(write_end, make.tar({"a.x": b"123"}))
    os.close(write_end)
    with open(read_end, "rb") as file:
        assert [(member.name, body.read()) for member, body in iterate_members(file)] == [("a.x", b"123")]


@pytest.mark.parametrize("size", [100, 512, 700, 1535, 2100, 5000])
@pytest.mark.parametrize("take", [True, False])
def test_truncated(make, size, take):
    data = make.tar({"a.x": b"x" * 1000, "b.x": b"y" * 3000})[:size]
    with pytest.raises(TarError):
        [body.read() for _, body in iterate_members(io.BytesIO(data)) if take]


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_truncated_compressed(make, kind):
    data = COMPRESS[kind](make.tar({"a.x": os.urandom(1000), "b.x": os.urandom(3000)}))
    for size in (0, 100, 3000, len(data) - 1):
        with pytest.raises(TarError):
            list(iterate_members(io.BytesIO(data[:size]), kind))


def test_broken(make):
    member = make.member(b"a", b"1")
    for data in (b"n", b"no tar" * 500, member[:-1], member + b"x"):
        with pytest.raises(TarError):
            list(iterate_members(io.BytesIO(data)))
    odd = (member, member + bytes(512), member + make.end + b"x", member + make.end + bytes(99_999) + b"x" * 200_000)
    for data in odd:
        source = io.BytesIO(data)
        assert [m.name for m, _ in iterate_members(source)] == ["a"]
        assert source.tell() == len(data)
        with pytest.raises(TarError):  # what we wrote ourselves is whole, or was cut off
            list(iterate_members(io.BytesIO(data), strict=True))
    assert [m.name for m, _ in iterate_members(io.BytesIO(member + make.end + bytes(200_000)))] == ["a"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_ranges(make, index_of, kind):
    tar = make.tar(MEMBERS, tarfile.PAX_FORMAT)
    data = COMPRESS[kind](tar)
    _, index = index_of(data, kind)
    for name, body in MEMBERS.items():
        member = index.find_member(name)
        chunks = list(read_member_range(io.BytesIO(data), kind, member.offset, member.size))
        assert b"".join(chunks) == body
        assert all(0 < len(chunk) <= 256 * 1024 for chunk in chunks)
    for offset, size in ((len(tar), 1), (len(tar) - 1, 2)):
        with pytest.raises(TarError):
            list(read_member_range(io.BytesIO(data), kind, offset, size))
    if kind != "tar":
        with pytest.raises(TarError):
            list(read_member_range(io.BytesIO(data[: len(data) // 2]), kind, len(tar) - 2000, 1))
