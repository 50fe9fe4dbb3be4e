"""What the head of an answer says about an object: the offset of its bytes, its version, size and checksum."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dfc.checksum import CHECKSUM_NAME, is_checksum
from dfc.errors import DfcError
from dfc.http.calls.blocking import Broken, Response
from dfc.http.calls.problems import Headers
from dfc.wire import CHECKSUM_HEADER

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")  # int() refuses thousands of digits
_UNSATISFIED: Final = re.compile(r"bytes \*/(\d{1,19})")


@dataclass
class Facts:
    """What a server says about an object, to tell whether it has changed. Empty or None: not stated."""

    etag: str = ""
    strong: bool = True
    modified: str = ""
    size: int | None = None

    def differs(self, other: Facts) -> bool:
        """Whether the two contradict each other."""
        if self.size is not None and other.size is not None and self.size != other.size:
            return True
        if self.etag and other.etag:
            return self.etag != other.etag
        return bool(self.modified and other.modified and self.modified != other.modified)

    def updated(self, other: Facts) -> Facts:
        """Combine with a later answer: answers to `If-Range` may omit what the first one said."""
        tagged = other if other.etag else self
        size = self.size if other.size is None else other.size
        return Facts(tagged.etag, tagged.strong, other.modified or self.modified, size)


def described(answer: Response) -> tuple[int, Facts]:
    """The offset at which an unread answer begins, and the facts about its object. Raises Broken."""
    tag = answer.headers.get("ETag") or ""
    version = Facts(etag_in(answer.headers), not tag.startswith("W/"), answer.headers.get("Last-Modified") or "")
    if answer.status == 206:
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
        if match is None:
            answer.close()
            raise Broken("a partial answer has no Content-Range")
        version.size = None if match[3] == "*" else int(match[3])
        return int(match[1]), version
    version.size = answer.length  # a Content-Length next to chunked encoding means nothing
    return 0, version


def etag_in(headers: Headers) -> str:
    """The ETag, or an empty string."""
    return (headers.get("ETag") or "").removeprefix("W/").strip('"')


def checksum_in(headers: Headers) -> str:
    """The checksum of the whole object, as a DFC node states it, else empty."""
    kind, _, value = (headers.get(CHECKSUM_HEADER) or "").partition("=")
    return value if kind == CHECKSUM_NAME and is_checksum(value) else ""


def size_beyond(problem: DfcError) -> int | None:
    """The size of the object, from an answer whose range is beyond the end (416)."""
    match = _UNSATISFIED.fullmatch(problem.headers.get("Content-Range", ""))
    return int(match[1]) if match else None
