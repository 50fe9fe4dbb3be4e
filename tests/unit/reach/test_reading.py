"""The core of the readers: bytes go on where an answer broke, and are read again where nobody got them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import xxhash

from dfc.http.blocking import Broken
from dfc.reach.reading import ResumingReader

BODY = bytes(range(200))


class Ended:
    """An answer with these bytes, given in pieces; `breaks`: Broken instead of its end."""

    status = 200

    def __init__(self, data: bytes, *, breaks: bool = False, status: int = 200) -> None:
        self.left = data
        self.breaks = breaks
        self.status = status
        self.closed = self.forgotten = False

    def receive(self, view: memoryview) -> int:
        piece, self.left = self.left[: min(len(view), 30)], self.left[min(len(view), 30) :]
        if not piece and self.breaks:
            raise Broken("gone")
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None:
        self.forgotten = True


class Odd(Exception):
    pass


class Reader(ResumingReader):
    def __init__(self, *answers: Any, end: int | None = None) -> None:
        super().__init__(0, end)
        self.answers = list(answers)
        self.asked: list[int] = []
        self.gained: list[int] = []

    def _connect(self) -> Any:
        self.asked.append(self._position)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _broke(self, problem: Broken, gained: int) -> bool:
        self.gained.append(gained)
        return bool(self.answers)

    def _mismatch(self, found: str) -> Exception:
        return Odd(found)

    def read(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self._fill(memoryview(buffer))])


def test_a_view_is_filled_over_breaks() -> None:
    reader = Reader(Ended(BODY[:70], breaks=True), Ended(b"", breaks=True), Ended(BODY[70:]))
    reader._size = len(BODY)
    assert reader.read(1000) == BODY
    assert reader.read(1000) == b""
    assert (reader.asked, reader.gained) == ([0, 70, 70], [70, 0])


def test_a_body_that_ends_before_the_object_does_is_broken() -> None:
    reader = Reader(Ended(BODY[:70]), Ended(BODY[70:]))
    reader._size = len(BODY)
    assert reader.read(1000) == BODY
    assert reader.gained == [70]


def test_a_part_of_nobody_knows_how_many_bytes_is_not_taken_for_all() -> None:
    reader = Reader(Ended(BODY[:70], status=206), Ended(BODY[70:], status=206), None)
    assert reader.read(1000) == BODY
    assert (reader.asked, reader.gained) == ([0, 70, 200], [70, 130])
    assert reader.read(10) == b""


def test_it_ends_with_what_broke_when_there_is_no_other_answer() -> None:
    reader = Reader(Ended(BODY[:70], breaks=True))
    with pytest.raises(Broken, match="gone"):
        reader.read(1000)


def test_nothing_is_read_beyond_the_end() -> None:
    reader = Reader(Ended(BODY), end=50)
    assert reader.read(40) + reader.read(40) == BODY[:50]
    assert reader.read(40) == b""


def test_what_came_before_an_error_is_read_again() -> None:
    reader = Reader(Ended(BODY[:70], breaks=True), KeyboardInterrupt(), Ended(BODY))
    with pytest.raises(KeyboardInterrupt):
        reader.read(1000)
    assert reader.read(1000) == BODY
    assert reader.asked == [0, 70, 0]


def test_what_came_before_an_error_that_may_wait_is_handed_out_first() -> None:
    reader = Reader(Ended(BODY[:70], breaks=True), Odd("first"), Odd("second"))
    reader._handed_out = Odd
    assert reader.read(1000) == BODY[:70]
    with pytest.raises(Odd, match="second"):
        reader.read(1000)


def test_the_checksum_is_that_of_all_bytes_that_were_handed_out() -> None:
    for checksum in (xxhash.xxh3_128_hexdigest(BODY), "0" * 32):
        reader = Reader(Ended(BODY[:70], breaks=True), KeyboardInterrupt(), Ended(BODY), end=len(BODY))
        reader._verify(checksum)
        with pytest.raises(KeyboardInterrupt):
            reader.read(1000)
        begin = reader.read(150)
        if checksum == "0" * 32:
            with pytest.raises(Odd):
                reader.read(1000)
        else:
            assert begin + reader.read(1000) == BODY


def test_an_answer_of_another_process_is_forgotten_and_not_closed() -> None:
    own, foreign = Ended(BODY), Ended(BODY)
    for answer in (own, foreign):
        reader = Reader(answer)
        reader.read(10)
        if answer is foreign:
            reader._process -= 1
        reader._drop()
    assert (own.closed, own.forgotten, foreign.closed, foreign.forgotten) == (True, False, False, True)


def test_a_reader_that_is_forgotten_goes_at_once() -> None:
    gc.disable()
    try:
        reader = Reader(Ended(BODY))
        reader.read(10)
        gone = weakref.ref(reader)
        del reader
        assert gone() is None
    finally:
        gc.enable()
