"""Conditional requests and ranges, RFC 9110 sections 13 and 14, as pure functions of headers and an object's validators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import lru_cache
from typing import Final, NamedTuple

from dfc.errors import BadRequest, PreconditionFailed, RangeNotSatisfiable

_RANGE: Final = re.compile(r"([0-9]{0,19})-([0-9]{0,19})")
_ENTITY_TAG: Final = re.compile(r'(?:W/)?"([^"]*)"')


class ByteRange(NamedTuple):
    """A half-open range of a body: bytes start to stop - 1."""

    start: int
    stop: int


def http_date(microseconds: int) -> str:
    """Format µs since 1970 as an HTTP date (IMF-fixdate)."""
    return _date_of_second(microseconds // 1_000_000)


@lru_cache(maxsize=4096)
def _date_of_second(second: int) -> str:
    return format_datetime(datetime.fromtimestamp(second, UTC), usegmt=True)


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether a request has none of the headers handled here: the common case, checked quickly."""
    return not (
        "Range" in headers
        or "If-None-Match" in headers
        or "If-Match" in headers
        or "If-Modified-Since" in headers
        or "If-Unmodified-Since" in headers
    )


def _parse_date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def entity_tags(header: str) -> frozenset[str]:
    """Parse the tags of an `If-Match` or `If-None-Match` header, without quotes; `*` stays `*`. BadRequest if it has none."""
    if header.strip() == "*":
        return frozenset("*")
    tags = frozenset(_ENTITY_TAG.findall(header))
    if not tags and re.fullmatch(r"[0-9A-Fa-f]+", header.strip()):
        return frozenset((header.strip(),))  # unquoted, as many scripts send it
    if not tags:
        raise BadRequest("an entity tag must be '*' or text in double quotes")
    return tags


def is_not_modified(headers: Mapping[str, str], etag: str, modified_us: int) -> bool:
    """Whether to answer a GET or HEAD with 304. PreconditionFailed if `If-Match` or `If-Unmodified-Since` fails."""
    if_match = headers.get("If-Match")
    if if_match is not None:
        tags = entity_tags(if_match)
        if "*" not in tags and etag not in tags:
            raise PreconditionFailed("the object's ETag does not match If-Match")
    elif (unmodified := headers.get("If-Unmodified-Since")) is not None:
        since = _parse_date(unmodified)
        if since is not None and modified_us // 1_000_000 > since:
            raise PreconditionFailed("the object was modified after the time in If-Unmodified-Since")
    none_match = headers.get("If-None-Match")
    if none_match is not None:
        tags = entity_tags(none_match)
        return "*" in tags or etag in tags
    modified_since = headers.get("If-Modified-Since")
    if modified_since is not None:
        since = _parse_date(modified_since)
        return since is not None and modified_us // 1_000_000 <= since
    return False


def requested_range(headers: Mapping[str, str], size: int, etag: str, modified_us: int) -> ByteRange | None:
    """Return the range to answer with 206; None for the whole body.

    Several ranges, or another unit than bytes, are ignored as RFC 9110 allows; a malformed range or one outside of the
    body raises RangeNotSatisfiable.
    """
    header = headers.get("Range")
    if header is None or not _if_range_holds(headers.get("If-Range"), etag, modified_us):
        return None
    unit, equals, specs = header.partition("=")
    if equals and unit.strip().lower() != "bytes":
        return None
    if "," in specs:
        return None
    match = _RANGE.fullmatch(specs.strip())
    if not equals or not match or match[0] == "-":
        raise RangeNotSatisfiable(size)
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            raise RangeNotSatisfiable(size)
    if start >= stop:
        raise RangeNotSatisfiable(size)
    return ByteRange(start, stop)


def _if_range_holds(header: str | None, etag: str, modified_us: int) -> bool:
    if header is None:
        return True
    header = header.strip()
    if header.startswith('"'):
        return header == f'"{etag}"'
    date = _parse_date(header)
    return date is not None and modified_us // 1_000_000 == int(date)
