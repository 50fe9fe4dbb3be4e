"""What heads of answers say of an object, and when two of them are of different versions."""

from __future__ import annotations

from typing import Any

import pytest

from dfc.errors import DfcError, RangeNotSatisfiable
from dfc.http.blocking import Broken
from dfc.reach.objects import Facts, checksum_in, described, size_beyond

HEX = "0123456789abcdef" * 2


class Head:
    def __init__(self, status: int, headers: dict[str, str], length: int | None = None) -> None:
        self.status, self.headers, self.length = status, headers, length
        self.closed = False

    def close(self) -> None:
        self.closed = True


def said(status: int, length: int | None = None, **headers: str) -> tuple[int, Facts]:
    answer: Any = Head(status, {name.replace("_", "-"): value for name, value in headers.items()}, length)
    return described(answer)


def test_the_first_byte_and_the_version() -> None:
    assert said(200, 10, ETag='"a"', Last_Modified="then") == (0, Facts("a", True, "then", 10))
    assert said(200, None) == (0, Facts())
    assert said(206, 3, ETag='W/"a"', Content_Range="bytes 4-6/10") == (4, Facts("a", False, "", 10))
    assert said(206, 3, Content_Range="bytes 4-6/*") == (4, Facts())


@pytest.mark.parametrize("text", ["", "bytes 4-6", "bytes */10", "chunks 4-6/10", "bytes 4-6/10 ", "bytes 4-6/1" + 5000 * "0"])
def test_a_part_that_does_not_say_which_is_broken(text: str) -> None:
    answer: Any = Head(206, {"Content-Range": text})
    with pytest.raises(Broken):
        described(answer)
    assert answer.closed


def test_versions_differ_only_where_both_say_something() -> None:
    known = Facts("a", True, "then", 10)
    for other in (Facts(), Facts("a", True, "now", 10), Facts(modified="then"), Facts(size=10)):
        assert not known.differs(other)
    for other in (Facts("b", True, "then", 10), Facts(modified="now"), Facts("a", size=11)):
        assert known.differs(other)
    assert known.updated(Facts()) == known
    assert known.updated(Facts("b", False, "now", 11)) == Facts("b", False, "now", 11)


def test_checksums_and_sizes() -> None:
    assert checksum_in({"X-DFC-Checksum": f"xxh3-128={HEX}"}) == HEX
    for text in ("", HEX, f"md5={HEX}", f"xxh3-128={HEX.upper()}", f"xxh3-128={HEX}0"):
        assert checksum_in({"X-DFC-Checksum": text}) == ""
    assert size_beyond(RangeNotSatisfiable(7)) == 7
    assert size_beyond(DfcError("x", headers={"Content-Range": "bytes 1-2/7"})) is None
    assert size_beyond(DfcError("x", headers={"Content-Range": "bytes */1" + 5000 * "0"})) is None
