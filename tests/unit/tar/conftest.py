"""Archives to order: raw headers of any kind, tars by the standard library, and an index of either."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import job_shards
import pytest
from archives import header, member, pax_record

from dfc.tar.index.builder import IndexSummary, open_builder
from dfc.tar.index.reader import ShardIndex

VERSION = "0" * 14 + "0001"
CHECKSUM = "ab" * 16


def raw_header(name: bytes = b"a.txt", *arguments: Any, checksum: bytes | None = None, **fields: Any) -> bytes:
    """One block with a right checksum, unless one is given; nothing else of it is made sensible."""
    block = header(name, *arguments, **fields)
    return block if checksum is None else block[:148] + checksum + block[156:]


def tar_of(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    return job_shards.tar_of(list(members.items()), form)


@pytest.fixture(scope="session")
def make() -> type:
    """The functions above, since test modules cannot import each other."""

    class Make:
        header = staticmethod(raw_header)
        member = staticmethod(member)
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
