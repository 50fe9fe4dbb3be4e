"""Helpers shared by the routes of proxies and targets: query parameters, content types, metrics, health."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from prometheus_client import CollectorRegistry

from dfc.errors import BadRequest
from dfc.http.answers import Answer, json_answer
from dfc.limits import LIST_PAGE_MAX
from dfc.metrics import CONTENT_TYPE, render
from dfc.wire import OCTETS, TAR

# Keeps browsers from guessing the type of stored bytes, or running them as a page of this origin.
SAFETY_HEADERS: Final = (("X-Content-Type-Options", "nosniff"), ("Content-Security-Policy", "sandbox"))
INSIDE_QUERY: Final = frozenset(
    ("member", "archpath", "sample", "number", "ext", "list", "start", "limit", "thumbnail", "version")
)
OBJECT_QUERY: Final = INSIDE_QUERY | {"redirect", "relay"}
_LIMIT: Final = re.compile("[0-9]{1,9}")
LISTING_QUERY: Final = frozenset(("prefix", "start_after", "delimiter", "limit", "token"))
_TYPES: Final = {
    ".tar": TAR,
    ".tgz": "application/gzip",
    ".gz": "application/gzip",
    ".zst": "application/zstd",
    ".lz4": "application/x-lz4",
    ".bz2": "application/x-bzip2",
    ".xz": "application/x-xz",
    ".cls": "text/plain; charset=utf-8",
    ".npy": OCTETS,
}


@lru_cache(maxsize=1024)
def _type_of_extension(extension: str) -> str:
    known = _TYPES.get(extension)
    if known is not None:
        return known
    guessed = mimetypes.guess_type("x" + extension, strict=False)[0] or OCTETS
    return guessed + "; charset=utf-8" if guessed.startswith("text/") else guessed


def content_type(name: str) -> str:
    """Return the content type for a name, by its last extension."""
    base = name.rpartition("/")[2]
    _, dot, extension = base.rpartition(".")
    return _type_of_extension("." + extension.lower() if dot else "")


def page_limit(query: Mapping[str, str], default: int = LIST_PAGE_MAX) -> int:
    """Parse the `limit` of a listing, 1 to LIST_PAGE_MAX. BadRequest."""
    text = query.get("limit")
    if text is None:
        return default
    if not _LIMIT.fullmatch(text) or not 1 <= int(text) <= LIST_PAGE_MAX:
        raise BadRequest(f"limit must be between 1 and {LIST_PAGE_MAX}")
    return int(text)


def flag(query: Mapping[str, str], name: str) -> bool:
    """Parse a query flag: absent, 0 or 1. BadRequest."""
    value = query.get(name, "0")
    if value not in ("0", "1"):
        raise BadRequest(f"{name} must be 0 or 1")
    return value == "1"


def metrics_answer(registry: CollectorRegistry) -> Answer:
    return Answer(200, render(registry), [("Content-Type", CONTENT_TYPE)])


def health_answer(ready: bool, **facts: Any) -> Answer:
    """Answer a health check: 200 if ready to serve, else 503; the facts describe the node."""
    headers = () if ready else (("Retry-After", "1"),)
    return json_answer({"ready": ready, **facts}, 200 if ready else 503, headers)
