"""The part of a body that a request asks for, and the answer that sends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dfc.http.answers import Answer, FileAnswer, StreamAnswer
from dfc.http.conditions import is_not_modified, is_plain, requested_range
from dfc.target.threads import Content, FileRange


class AskedPart(NamedTuple):
    """The part of a body that a GET or HEAD asks for: bytes `start` to `stop`, and the Content-Range line; none for 304."""

    status: int
    start: int
    stop: int
    line: str = ""


def asked_part(headers: Mapping[str, str], size: int, etag: str, modified_us: int, *, has_parts: bool = True) -> AskedPart:
    """Evaluate a request's conditions and range. PreconditionFailed, RangeNotSatisfiable, BadRequest."""
    if not is_plain(headers):
        if is_not_modified(headers, etag, modified_us):
            return AskedPart(304, 0, 0)
        part = requested_range(headers, size, etag, modified_us) if has_parts else None
        if part is not None:
            start, stop = part
            return AskedPart(206, start, stop, f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n")
    return AskedPart(200, 0, size)


def content_answer(status: int, content: Content, size: int, lines: str) -> Answer:
    """Make an answer of `size` bytes that were read. The answer owns the open file, so no await may come in between."""
    if isinstance(content, bytes):
        return Answer(status, content, lines)
    if isinstance(content, FileRange):
        file, offset, count, threads, on_error, tail = content
        return FileAnswer(status, file, offset, count, lines, threads, on_error, tail)
    return StreamAnswer(status, content.chunks, lines, content_length=size, on_close=content.close)
