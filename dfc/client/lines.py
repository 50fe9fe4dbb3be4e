"""NDJSON answers, a typed value a line, read in large blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from dfc.http.calls.blocking import Broken, Response
from dfc.limits import KIB, MIB

T = TypeVar("T")
_BLOCK_BYTES: Final = 128 * KIB
_LINE_BYTES_MAX: Final = 64 * MIB  # a sample with every extension that an index can hold


def read_lines(answer: Response) -> Iterator[bytes]:
    """The lines without their ends; closes the answer. Broken when it does not end with the end of a line."""
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    rest = b""
    with answer:
        while count := answer.readinto(buffer):
            *lines, rest = (rest + bytes(buffer[:count])).split(b"\n")
            yield from lines
            if len(rest) > _LINE_BYTES_MAX:
                raise Broken(f"a line of more than {_LINE_BYTES_MAX} bytes")
    if rest:
        raise Broken("the answer ended within a line")


def read_values(answer: Response, kind: type[T]) -> Iterator[T]:
    """The lines decoded; Broken when one is not of its form."""
    decode = msgspec.json.Decoder(kind).decode
    for line in read_lines(answer):
        try:
            value = decode(line)
        except msgspec.MsgspecError as problem:
            raise Broken(f"an unreadable line {line[:80]!r}: {problem}") from None
        yield value
