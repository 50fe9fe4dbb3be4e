"""Archives to order: raw headers of any kind, tars by the standard library, and an index of either."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dfc.tar.index.builder import IndexSummary, open_builder
from dfc.tar.index.reader import ShardIndex

VERSION = "0" * 14 + "0001"
CHECKSUM = "ab" * 16


def raw_header(
    name: bytes = b"a.txt",
    size: int | bytes = 0,
    flag: bytes = b"0",
    *,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    checksum: bytes | None = None,
) -> bytes:
    """One block with a right checksum, unless one is given; nothing else of it is made sensible."""
    digits = b"%011o\x00" % size if isinstance(size, int) else size
    block = bytearray(512)
    for offset, field in ((0, name), (100, b"0000644\x00"), (124, digits), (156, flag), (257, magic), (345, prefix)):
        block[offset : offset + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = checksum or b"%06o\x00 " % sum(block)
    return bytes(block)


def raw_member(name: bytes, data: bytes, flag: bytes = b"0") -> bytes:
    return raw_header(name, len(data), flag) + data + bytes(-len(data) % 512)


def pax_record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return b"%d %b=%b\n" % (length, key, value)


def tar_of(members: dict[str, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture(scope="session")
def make() -> type:
    """The functions above, since test modules cannot import each other."""

    class Make:
        header = staticmethod(raw_header)
        member = staticmethod(raw_member)
        pax = staticmethod(pax_record)
        tar = staticmethod(tar_of)
        end = bytes(1024)

    return Make


@pytest.fixture(scope="session")
def data_directory() -> Path:
    return Path(__file__).parents[2] / "data"


IndexOf = Callable[..., tuple[IndexSummary, ShardIndex]]


@pytest.fixture
def index_of(tmp_path: Path) -> Iterator[IndexOf]:
    """Index some bytes fed in pieces of `chunk`; gives the summary and the open index. Raises what `finish` raises."""
    opened: list[ShardIndex] = []

    def build(data: bytes, kind: str = "tar", chunk: int = 1 << 20) -> tuple[IndexSummary, ShardIndex]:
        path = tmp_path / f"{len(opened)}.idx"
        with open(path, "w+b") as file:
            builder = open_builder(kind, file, str(tmp_path))
            for start in range(0, len(data), chunk):
                builder.feed(data[start : start + chunk])
            summary = builder.finish(VERSION, len(data), CHECKSUM)
        opened.append(ShardIndex.open(path))
        return summary, opened[-1]

    yield build
    for index in opened:
        index.close()
