"""A reader of what can only be read whole: no size, no ranges, and nothing to go on with when it breaks off."""

from __future__ import annotations

from typing import Any

import pytest

from dfc.client.transfers import ObjectReader
from dfc.errors import NotSeekable, Unreachable
from dfc.http.blocking import Broken
from dfc.http.retry import RetryPolicy


class Whole:
    """A request for a member of a compressed shard, and the answer to it: chunks, of which one comes."""

    bucket, name = "b", "x.tar.gz"
    policy = RetryPolicy()
    status, length = 200, None

    def __init__(self, *, breaks: bool) -> None:
        self.calls = self
        self.headers: dict[str, str] = {"ETag": '"a"'}
        self.pieces: list[Any] = [b"begin", Broken("gone") if breaks else b""]
        self.asked = 0

    def open(self, *_: object) -> Whole:
        self.asked += 1
        return self

    def receive(self, view: memoryview) -> int:
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return "b/x.tar.gz"


def test_its_end_is_where_the_answer_ends() -> None:
    request: Any = Whole(breaks=False)
    reader = ObjectReader(request)
    assert (reader.info.size, reader.seekable()) == (-1, False)
    assert reader.read(100) == b"begin"
    assert reader.read(100) == b""
    assert reader.readall() == b""
    assert request.asked == 1


def test_one_that_broke_off_is_never_taken_for_whole() -> None:
    request: Any = Whole(breaks=True)
    reader = ObjectReader(request)
    with pytest.raises(Unreachable):
        reader.read(100)
    for _ in range(2):
        with pytest.raises(NotSeekable):
            reader.read(100)
    assert request.asked == 1


def test_headers_that_nobody_can_mean_are_passed_over() -> None:
    request: Any = Whole(breaks=False)
    request.headers |= {"X-DFC-Samples": 5000 * "1", "Last-Modified": "Mon, 1 Jan 99999999999 00:00:00 GMT"}
    info = ObjectReader(request).info
    assert (info.samples, info.modified) == (None, "")
