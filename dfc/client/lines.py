"""Read NDJSON answers, one typed value per line, in large blocks."""

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
    """Yield the lines without their line ends, and close the answer. Broken if the last line is incomplete."""
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    rest = b""
    with answer:
        while count := answer.readinto(buffer):
            *lines, rest = (rest + bytes(buffer[:count])).split(b"\n")
            yield from lines
            if len(rest) > _LINE_BYTES_MAX:
                raise Broken(f"a line of the answer is longer than {_LINE_BYTES_MAX} bytes")
    if rest:
        raise Broken("the answer ended in the middle of a line")


def read_values(answer: Response, kind: type[T]) -> Iterator[T]:
    """Yield the lines decoded as `kind`. Broken if one cannot be decoded."""
    decode = msgspec.json.Decoder(kind).decode
    for line in read_lines(answer):
        try:
            value = decode(line)
        except msgspec.MsgspecError as problem:
            raise Broken(f"cannot decode the line {line[:80]!r} of the answer: {problem}") from None
        yield value
