"""Names of buckets and objects: check them, and parse request paths into them. No I/O.

Rules (docs/http.md): a bucket is `[A-Za-z0-9][A-Za-z0-9._-]{0,62}`; an object is 1 to 1,024 bytes of UTF-8 without control
characters and without empty, `.` or `..` segments. A path is percent-decoded exactly once. The result must still be a valid
name if another program decodes it a second time, so `%252e%252e` is refused like `..`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from dfc.errors import BadName
from dfc.limits import BUCKET_NAME_CHARS_MAX, OBJECT_NAME_BYTES_MAX, PATHS_REMEMBERED

DEFAULT_BUCKET: Final = "default"
HIDDEN_PREFIX: Final = ".dfc/"  # DFC's own objects; listings show them only for prefixes that begin with this
RESERVED_SEGMENTS: Final = frozenset(
    ("v1", "s3", "ui", "metrics", "health", "datasets", "views", "webdav", "favicon.ico", "robots.txt")
)
_BUCKET: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{BUCKET_NAME_CHARS_MAX - 1}}}")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BAD_SEGMENT: Final = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
# Names made only of these characters, the common case, need one match and none of the slower checks.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class ObjectPath(NamedTuple):
    """The object that a plain path names, or with an empty `name` the listing of a bucket."""

    bucket: str
    name: str


def check_bucket_name(name: str) -> str:
    """Return the name; BadName when it is reserved or not allowed."""
    if not _BUCKET.fullmatch(name):
        raise BadName(f"invalid bucket name {name[:80]!r}: it must match [A-Za-z0-9][A-Za-z0-9._-]{{0,62}}")
    if name in RESERVED_SEGMENTS:
        raise BadName(f"{name!r} is a reserved name")
    return name


def check_object_name(name: str) -> str:
    """Return the name; BadName when it, or its percent-decoded form, is not allowed."""
    if _PLAIN.fullmatch(name) and len(name) <= OBJECT_NAME_BYTES_MAX:
        return name
    _check_decoded(name)
    if "%" in name:
        _check_decoded(_decode(name))
    return name


def is_hidden(name: str, prefix: str) -> bool:
    """Whether a listing or selection with this `prefix` leaves the name out, because it is one of DFC's own."""
    return name.startswith(HIDDEN_PREFIX) and not prefix.startswith(HIDDEN_PREFIX)


def _check_decoded(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadName("an object name must be UTF-8") from None
    if not 1 <= size <= OBJECT_NAME_BYTES_MAX:
        raise BadName(f"an object name must have 1 to {OBJECT_NAME_BYTES_MAX} bytes, not {size}")
    if _CONTROL.search(name):
        raise BadName("an object name must not contain control characters")
    if _BAD_SEGMENT.search(name):
        raise BadName("an object name must not have empty, '.' or '..' segments")


def _decode(escaped: str) -> str:
    try:
        # surrogateescape: aiohttp passes raw non-ASCII bytes of the request line through this way.
        return unquote_to_bytes(escaped.encode("utf-8", "surrogateescape")).decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise BadName("a name must be UTF-8") from None


def check_unreserved(path: str) -> None:
    """Raise BadName for what would be the path of an object, were its first segment not reserved. A path of the API is no such
    path."""
    head = path[1:].partition("/")[0]
    if head in RESERVED_SEGMENTS and head != "v1":
        raise BadName(f"{head!r} is a reserved first segment")


@lru_cache(maxsize=PATHS_REMEMBERED)
def parse_object_path(raw: str) -> ObjectPath:
    """Parse `/{bucket}/{object…}`, `/{object}` or `/{bucket}/`, still percent-encoded and without a query.

    `/` alone gives two empty strings. Raises BadName; does not check whether anything exists.
    """
    if not raw.startswith("/"):
        raise BadName("a path must start with '/'")
    if raw == "/":
        return ObjectPath("", "")
    if "%" in raw or not raw.isascii():
        if _BAD_ESCAPE.search(raw):
            raise BadName("a '%' in a path must be followed by two hexadecimal digits")
        path = _decode(raw[1:])
    else:
        path = raw[1:]
    head, slash, tail = path.partition("/")
    if head in RESERVED_SEGMENTS:
        raise BadName(f"{head!r} is a reserved first segment")
    if not slash:
        return ObjectPath(DEFAULT_BUCKET, check_object_name(head))
    if not tail:
        return ObjectPath(check_bucket_name(head), "")
    check_object_name(tail)
    if head in ("", ".", ".."):
        raise BadName("a path must not have empty, '.' or '..' segments")
    return ObjectPath(check_bucket_name(head), tail)


def object_path(bucket: str, name: str) -> str:
    """Return the plain path of an object, percent-encoded: the inverse of `parse_object_path`."""
    return f"/{bucket}/{quote(name, safe='/-._~!$&()*+,;=:@')}"
