"""Ranges and conditional reads (RFC 9110, sections 13 and 14), on small and large objects, directly and relayed."""

from __future__ import annotations

import os
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime

import pytest

from dfc.checksum import checksum_of

SIZES = (1000, 300_000)
VIA = ("proxy", "owner")


@pytest.fixture(scope="module")
def stored(http):
    """Path → bytes, of one small and one large object."""
    bodies = {f"/ranges/{size}.bin": os.urandom(size) for size in SIZES}
    for path, body in bodies.items():
        assert http.put(path, content=body).status_code in (200, 201)
    return bodies


@pytest.fixture(params=SIZES)
def size(request):
    return request.param


@pytest.fixture(params=VIA)
def url(request, nodes, stored, size):
    return nodes.url(request.param, "ranges", f"{size}.bin") + f"/ranges/{size}.bin"


@pytest.fixture
def body(stored, size):
    return stored[f"/ranges/{size}.bin"]


def test_every_form_of_a_range(http, url, body):
    size = len(body)
    for text, start, stop in (
        ("0-0", 0, 1),
        ("0-9", 0, 10),
        ("5-5", 5, 6),
        ("100-", 100, size),
        (f"{size - 1}-", size - 1, size),
        (f"0-{size - 1}", 0, size),
        (f"0-{size}", 0, size),
        (f"10-{size + 1000}", 10, size),
        ("10-9999999999999999999", 10, size),
        ("-1", size - 1, size),
        ("-100", size - 100, size),
        (f"-{size}", 0, size),
        (f"-{size + 1}", 0, size),
    ):
        answer = http.get(url, headers={"Range": f"bytes={text}"})
        assert answer.status_code == 206, text
        assert answer.content == body[start:stop], text
        assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
        assert answer.headers["Content-Length"] == str(stop - start)
        assert answer.headers["ETag"] == f'"{checksum_of(body)}"'
        head = http.head(url, headers={"Range": f"bytes={text}"})
        assert (head.status_code, head.headers["Content-Length"]) == (206, str(stop - start))


def test_bad_ranges(http, url, body, error_of):
    size = len(body)
    for text in (
        f"{size}-",
        f"{size}-{size + 10}",
        "9999999999999999999-",
        "5-3",
        "-0",
        "-",
        "",
        "abc",
        "1-x",
        "--1",
        "1--2",
        "0x1-2",
    ):
        answer = http.get(url, headers={"Range": f"bytes={text}"})
        error_of(answer, 416, "range_not_satisfiable")
        assert answer.headers["Content-Range"] == f"bytes */{size}"


def test_several_ranges_and_other_units_give_the_whole(http, url, body):
    for header in ("bytes=0-1,5-6", "items=0-1"):
        answer = http.get(url, headers={"Range": header})
        assert (answer.status_code, answer.content) == (200, body)


def test_range_of_an_empty_object(http, bucket, error_of):
    http.put(f"/{bucket}/empty", content=b"")
    for text in ("0-", "0-0", "-1"):
        answer = http.get(f"/{bucket}/empty", headers={"Range": f"bytes={text}"})
        error_of(answer, 416, "range_not_satisfiable")
        assert answer.headers["Content-Range"] == "bytes */0"


# --- conditions


def get(http, url, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = http.get(url, headers=named)
    head = http.head(url, headers=named)
    assert head.status_code == answer.status_code
    return answer


def test_if_none_match(http, url, body):
    etag = f'"{checksum_of(body)}"'
    for tags in (etag, f"W/{etag}", f'"a", {etag}', "*"):
        answer = get(http, url, If_None_Match=tags)
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["ETag"] == etag
        assert "Last-Modified" in answer.headers
        assert "Content-Length" not in answer.headers
    for tags in ('"a"', '"a", "b"', f'"{checksum_of(body)[:-1]}"'):
        assert get(http, url, If_None_Match=tags).content == body


def test_if_modified_since(http, url, body):
    modified = parsedate_to_datetime(http.head(url).headers["Last-Modified"])
    for seconds, status in ((0, 304), (10, 304), (-1, 200), (-86_400, 200)):
        since = format_datetime(modified + timedelta(seconds=seconds), usegmt=True)
        assert get(http, url, If_Modified_Since=since).status_code == status
    assert get(http, url, If_Modified_Since="yesterday").status_code == 200  # not a date: ignored
    now = format_datetime(modified, usegmt=True)
    assert get(http, url, If_None_Match='"a"', If_Modified_Since=now).status_code == 200  # the tag decides
    assert get(http, url, If_None_Match=f'"{checksum_of(body)}"', Range="bytes=0-1").status_code == 304


def test_if_match_and_if_unmodified_since(http, url, body, error_of):
    etag = f'"{checksum_of(body)}"'
    modified = parsedate_to_datetime(http.head(url).headers["Last-Modified"])
    for tags in (etag, f'"a", {etag}', "*"):
        assert get(http, url, If_Match=tags).content == body
    error_of(get(http, url, If_Match='"a"'), 412, "precondition_failed")
    before = format_datetime(modified - timedelta(seconds=1), usegmt=True)
    error_of(get(http, url, If_Unmodified_Since=before), 412, "precondition_failed")
    assert get(http, url, If_Unmodified_Since=format_datetime(modified, usegmt=True)).status_code == 200
    assert get(http, url, If_Match=etag, If_Unmodified_Since=before).status_code == 200


def test_if_range(http, url, body):
    etag = f'"{checksum_of(body)}"'
    modified = parsedate_to_datetime(http.head(url).headers["Last-Modified"])
    date = format_datetime(modified, usegmt=True)
    for condition, status in (
        (etag, 206),
        (date, 206),
        ('"a"', 200),
        (f"W/{etag}", 200),
        (format_datetime(modified - timedelta(seconds=1), usegmt=True), 200),
        (format_datetime(modified + timedelta(seconds=1), usegmt=True), 200),
        ("nonsense", 200),
    ):
        answer = get(http, url, If_Range=condition, Range="bytes=10-19")
        assert answer.status_code == status, condition
        assert answer.content == (body[10:20] if status == 206 else body)
    # A range that cannot be satisfied is no error when the condition does not hold.
    assert get(http, url, If_Range='"a"', Range="bytes=999999999-").status_code == 200
