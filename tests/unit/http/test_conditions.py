"""Ranges and conditions as pure functions: RFC 9110's rules against a naive reading of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import BadRequest, PreconditionFailed, RangeNotSatisfiable
from dfc.http.answers import ByteRange, entity_tags, http_date, is_not_modified, requested_range

ETAG = "0123456789abcdef0123456789abcdef"
NOW_US = 1_700_000_000_123_456
NOW = http_date(NOW_US)
BEFORE = http_date(NOW_US - 1_000_000)
AFTER = http_date(NOW_US + 1_000_000)


def range_of(header, size, **more):
    return requested_range({"Range": header, **more}, size, ETAG, NOW_US)


@given(st.integers(0, 50), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 60)))
def test_first_and_last(size, first, last):
    header = f"bytes={first}-{'' if last is None else last}"
    wanted = [at for at in range(size) if at >= first and (last is None or at <= last)]
    if wanted:
        assert range_of(header, size) == ByteRange(wanted[0], wanted[-1] + 1)
    else:
        with pytest.raises(RangeNotSatisfiable) as caught:
            range_of(header, size)
        assert caught.value.headers["Content-Range"] == f"bytes */{size}"


@given(st.integers(0, 50), st.integers(0, 60))
def test_the_last_bytes(size, count):
    wanted = list(range(size))[-count:] if count else []
    if wanted:
        assert range_of(f"bytes=-{count}", size) == ByteRange(wanted[0], size)
    else:
        with pytest.raises(RangeNotSatisfiable):
            range_of(f"bytes=-{count}", size)


@given(st.text(max_size=12))
def test_whatever_a_range_says_it_stays_within_the_body(text):
    for header in (text, f"bytes={text}", f"bytes={text}-", f"bytes=-{text}"):
        try:
            found = range_of(header, 10)
        except RangeNotSatisfiable:
            continue
        assert found is None or 0 <= found.start < found.stop <= 10


@pytest.mark.parametrize("header", ["bytes=0-1,3-4", "items=0-1", "items=x", "bytes=,"])
def test_what_is_ignored(header):
    assert range_of(header, 10) is None


@pytest.mark.parametrize(
    "header", ["", "bytes", "bytes=", "bytes=-", "bytes=x", "bytes 0-1", "bytes=1-0", "bytes=--1", "bytes=1-2-3"]
)
def test_what_is_malformed(header):
    with pytest.raises(RangeNotSatisfiable):
        range_of(header, 10)


def test_spaces_and_case():
    for header in ("Bytes=1-2", " bytes = 1-2 ", "BYTES=1-2"):
        assert range_of(header, 10) == ByteRange(1, 3)


def test_numbers_beyond_64_bits():
    assert range_of("bytes=1-9999999999999999999", 10) == ByteRange(1, 10)
    assert range_of("bytes=-9999999999999999999", 10) == ByteRange(0, 10)
    with pytest.raises(RangeNotSatisfiable):
        range_of("bytes=9999999999999999999-", 10)
    with pytest.raises(RangeNotSatisfiable):
        range_of("bytes=1-" + "9" * 5000, 10)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (f'"{ETAG}"', True),
        (f' "{ETAG}" ', True),
        (f'W/"{ETAG}"', False),
        ('"other"', False),
        (ETAG, False),
        (NOW, True),
        (BEFORE, False),
        (AFTER, False),
        ("", False),
        ("*", False),
    ],
)
def test_if_range(condition, holds):
    assert range_of("bytes=1-2", 10, **{"If-Range": condition}) == (ByteRange(1, 3) if holds else None)
    if not holds:
        assert range_of("bytes=99-", 10, **{"If-Range": condition}) is None


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({}, False),
        ({"If-None-Match": f'"{ETAG}"'}, True),
        ({"If-None-Match": f'W/"{ETAG}"'}, True),
        ({"If-None-Match": f'"a", "{ETAG}"'}, True),
        ({"If-None-Match": ETAG}, True),
        ({"If-None-Match": "*"}, True),
        ({"If-None-Match": '"a"'}, False),
        ({"If-Modified-Since": NOW}, True),
        ({"If-Modified-Since": AFTER}, True),
        ({"If-Modified-Since": BEFORE}, False),
        ({"If-Modified-Since": "nonsense"}, False),
        ({"If-Modified-Since": NOW, "If-None-Match": '"a"'}, False),
        ({"If-Modified-Since": BEFORE, "If-None-Match": f'"{ETAG}"'}, True),
        ({"If-Match": f'"{ETAG}"'}, False),
        ({"If-Match": "*"}, False),
        ({"If-Match": f'"{ETAG}"', "If-None-Match": f'"{ETAG}"'}, True),
        ({"If-Match": f'"{ETAG}"', "If-Unmodified-Since": BEFORE}, False),
        ({"If-Unmodified-Since": NOW}, False),
        ({"If-Unmodified-Since": "nonsense"}, False),
        ({"If-Match": '"a"'}, None),
        ({"If-Match": '"a"', "If-None-Match": f'"{ETAG}"'}, None),
        ({"If-Unmodified-Since": BEFORE}, None),
    ],
)
def test_conditions_of_a_read(headers, answer):
    """None stands for 412."""
    if answer is None:
        with pytest.raises(PreconditionFailed):
            is_not_modified(headers, ETAG, NOW_US)
    else:
        assert is_not_modified(headers, ETAG, NOW_US) == answer


def test_entity_tags():
    assert entity_tags("*") == entity_tags(" * ") == {"*"}
    assert entity_tags('"a", W/"b" ,"c,d"') == {"a", "b", "c,d"}
    assert entity_tags('""') == {""}
    assert entity_tags(ETAG) == {ETAG}
    for header in ("", "a b", "W/", "'a'"):
        with pytest.raises(BadRequest):
            entity_tags(header)


@given(st.integers(0, 4_000_000_000))
def test_a_date_comes_back(second):
    since = http_date(second * 1_000_000 + 999_999)
    assert is_not_modified({"If-Modified-Since": since}, ETAG, second * 1_000_000)
    assert not is_not_modified({"If-Modified-Since": since}, ETAG, (second + 1) * 1_000_000)
