"""Answers to batch reads as a thread reads them: lengths first, in either form, and nothing that does not fit."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from dfc.batch.items import PREAMBLE_BYTES_MAX, encode_preamble, little_endian
from dfc.errors import ObjectCorrupt, Unreachable
from dfc.http.blocking import Broken
from dfc.reach.reading import BatchReader, read_lengths, read_preamble

DATA = b"one" + b"three"
LENGTHS = little_endian(array("Q", (3, 5))).tobytes()
PREAMBLE = encode_preamble(LENGTHS, {("b", "x"): "c"})


class Body:
    """An answer of these bytes; the connection ends after `comes` of them."""

    def __init__(self, data: bytes, comes: int | None = None) -> None:
        self.data = data[:comes]
        self.length = len(data)
        self.closed = False

    def readinto(self, view: memoryview) -> int:
        if len(self.data) < min(len(view), self.length):
            raise Broken("gone")
        count = min(len(view), len(self.data), 2)
        view[:count], self.data = self.data[:count], self.data[count:]
        self.length -= count
        return count

    def close(self) -> None:
        self.closed = True


FORMS = pytest.mark.parametrize(("begin", "read"), [(LENGTHS, read_lengths), (PREAMBLE, read_preamble)])


@FORMS
def test_lengths_then_bytes(begin: bytes, read: Any) -> None:
    with read(Body(begin + DATA), 2) as reader:
        assert (list(reader.lengths), reader.size) == ([3, 5], 8)
        one, three = bytearray(3), bytearray(5)
        reader.fill(one)
        reader.fill(three)
        assert one + three == DATA
        with pytest.raises(Unreachable):
            reader.fill(one)


@FORMS
@pytest.mark.parametrize("count", [0, 1, 3])
def test_lengths_of_other_items_are_refused(begin: bytes, read: Any, count: int) -> None:
    body = Body(begin + DATA)
    with pytest.raises(ObjectCorrupt):
        read(body, count)
    assert body.closed


@FORMS
@pytest.mark.parametrize("change", [lambda body: body + b"!", lambda body: body[:-1], lambda body: body[:6], lambda _: b""])
def test_lengths_that_do_not_fit_the_rest_are_refused(begin: bytes, read: Any, change: Any) -> None:
    body = Body(change(begin + DATA))
    with pytest.raises(ObjectCorrupt):
        read(body, 2)
    assert body.closed


@FORMS
def test_a_connection_that_breaks_first_is_closed(begin: bytes, read: Any) -> None:
    body = Body(begin + DATA, comes=5)
    with pytest.raises(Unreachable):
        read(body, 2)
    assert body.closed


def test_a_preamble_that_is_none_is_not_waited_for() -> None:
    deep = (20_003).to_bytes(4, "big") + b"\x81\xa1x" + 20_000 * b"\x91" + DATA
    for begin in (b"HTTP and more", (PREAMBLE_BYTES_MAX + 1).to_bytes(4, "big") + DATA, b"\0\0\0\5\xff\xff\xff\xff\xff", deep):
        with pytest.raises(ObjectCorrupt):
            read_preamble(Body(begin), 2)  # type: ignore[arg-type]


def test_without_lengths_it_is_a_file() -> None:
    body: Any = Body(DATA)
    with BatchReader(body) as reader:
        assert (len(reader.lengths), reader.size) == (0, 8)
        assert reader.readall() == DATA
    assert body.closed
