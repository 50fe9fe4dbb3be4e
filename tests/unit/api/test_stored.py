"""What part of a body a request asks for, and the answers that what was read becomes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from dfc.api.objects import RequestedPart, content_answer, requested_part
from dfc.errors import PreconditionFailed, RangeNotSatisfiable
from dfc.http.answers import FileAnswer, StreamAnswer, http_date
from dfc.target.threads import FileRange, Pieces

ETAG, MODIFIED_US = "0123", 1_700_000_000_000_000
WHOLE, UNCHANGED = RequestedPart(200, 0, 100), RequestedPart(304, 0, 0)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, WHOLE),
        ({"Range": "bytes=10-19"}, RequestedPart(206, 10, 20, "Content-Range: bytes 10-19/100\r\n")),
        ({"Range": "bytes=-5"}, RequestedPart(206, 95, 100, "Content-Range: bytes 95-99/100\r\n")),
        ({"Range": "bytes=1-2,4-5"}, WHOLE),
        ({"If-None-Match": f'"{ETAG}"'}, UNCHANGED),
        ({"If-None-Match": f'"{ETAG}"', "Range": "bytes=0-1"}, UNCHANGED),
        ({"If-None-Match": '"other"', "Range": "bytes=0-0"}, RequestedPart(206, 0, 1, "Content-Range: bytes 0-0/100\r\n")),
        ({"If-Modified-Since": http_date(MODIFIED_US)}, UNCHANGED),
        ({"If-Match": f'"{ETAG}"'}, WHOLE),
        ({"If-Range": '"other"', "Range": "bytes=0-0"}, WHOLE),
    ],
)
def test_conditions_and_ranges(headers: dict[str, str], expected: RequestedPart) -> None:
    assert requested_part(headers, 100, ETAG, MODIFIED_US) == expected


def test_what_has_no_parts_is_whole_or_unchanged() -> None:
    for text in ("bytes=10-19", "bytes=200-", "bytes=9-1"):
        assert requested_part({"Range": text}, 100, ETAG, MODIFIED_US, has_parts=False) == WHOLE
    assert requested_part({"If-None-Match": "*"}, 100, ETAG, MODIFIED_US, has_parts=False) == UNCHANGED
    with pytest.raises(PreconditionFailed):
        requested_part({"If-Match": '"other"'}, 100, ETAG, MODIFIED_US, has_parts=False)


def test_a_range_outside_of_the_body() -> None:
    with pytest.raises(RangeNotSatisfiable):
        requested_part({"Range": "bytes=100-"}, 100, ETAG, MODIFIED_US)


def test_answers_own_what_was_opened() -> None:
    closed: list[str] = []
    answer = content_answer(206, b"abc", 3, "X: y\r\n")
    assert (answer.status, answer.body, answer.content_length, answer.headers) == (206, b"abc", 3, "X: y\r\n")
    threads = cast(ThreadPoolExecutor, None)
    in_file = content_answer(200, FileRange(7, 5, 100, threads, lambda error, offset: None, b"tail"), 104, "")
    assert isinstance(in_file, FileAnswer)
    assert (in_file._file, in_file._offset, in_file._tail, in_file.content_length) == (7, 5, b"tail", 104)
    made = content_answer(200, Pieces(cast(Any, None), lambda: closed.append("closed")), 50, "")
    assert isinstance(made, StreamAnswer)
    assert made.content_length == 50
    made._on_close()
    assert closed == ["closed"]
