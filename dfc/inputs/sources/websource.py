"""One URL of a shard on a web server: single requests, redirects, and the version of the object."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from dfc.errors import BadRequest, DfcError
from dfc.http.calls import problems
from dfc.http.calls.blocking import Broken, Response
from dfc.http.calls.problems import error_from_answer
from dfc.inputs.base import ShardUnreadable
from dfc.inputs.sources.cluster import locate, token_for, transport_for
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.sources.urls import kind_of, origin_of, shown
from dfc.limits import ERROR_BODY_BYTES_MAX, INPUT_REDIRECTS_MAX
from dfc.reach.facts import Facts

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_QUERY: Final = re.compile(r"(https?://[^\s?]+)\?[^\s:]*")


class WebSource:
    """One of the URLs of a shard. `known` is the version of its last answer."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        self.url = url
        self.known: Facts | None = None
        self._options = options
        self._transport = transport_for(options)

    def request(self, headers: Mapping[str, str], last: Collection[str] = ()) -> Response:
        """Make one request. Returns an answer of 200 or 206, or raises the error that the answer means.

        If the URL names an object of a cluster, the nodes of the URLs in `last` are asked after others that have it.
        """
        try:
            place = locate(self.url, self._options)
            if place is None:
                return self._follow(headers)
        except ValueError as problem:  # also for invalid host names and port numbers
            if kind_of(self.url) != "web":
                raise
            raise BadRequest(f"{shown(self.url)} is not a valid URL, or redirects to an invalid one: {problem}") from None
        try:
            return place.cluster.request(place, headers, self._transport, last)
        except DfcError:
            place.cluster.refresh()
            raise

    def has_other(self, tried: Collection[str]) -> bool:
        """Whether the URL names an object of a cluster in which another node than those of these URLs has it, too."""
        try:
            place = locate(self.url, self._options)
            return place is not None and place.cluster.has_other(place, tried)
        except (ValueError, DfcError):
            return False

    def _follow(self, headers: Mapping[str, str]) -> Response:
        url, secrets = _without_user(self.url)
        origin = origin_of(url)
        token = token_for(origin, self._options)
        own = {**({"Authorization": f"Bearer {token}"} if token else {}), **secrets, **self._options.headers}
        for _ in range(INPUT_REDIRECTS_MAX + 1):
            answer = self._transport.request("GET", url, {**headers, **own})
            location = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not location:
                if answer.status in (200, 206):
                    return answer
                with answer:
                    raise error_from_answer(answer.status, answer.headers, _beginning(answer), f"GET {shown(url)}")
            answer.close()
            url = sendable(urljoin(url, location))
            if origin_of(url) != origin:
                own = {}
        raise ShardUnreadable(f"{shown(self.url)}: more than {INPUT_REDIRECTS_MAX} redirects", url=self.url)


def _beginning(answer: Response) -> bytes:
    """The body of an error answer, for the message; empty if it is too long or the connection breaks."""
    try:
        return answer.read_all(ERROR_BODY_BYTES_MAX)
    except Broken:
        return b""


def retry_after_s(problem: DfcError) -> float | None:
    """The Retry-After of an error in seconds. Other servers than DFC may send a date."""
    seconds = problems.retry_after_s(problem)
    if seconds is not None:
        return seconds
    try:
        return max(parsedate_to_datetime(problem.headers.get("Retry-After", "")).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


def said(problem: Exception) -> str:
    """The message of an error without the queries of URLs, which may hold signatures."""
    return _QUERY.sub(r"\1?…", str(problem))


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """The URL without `user:password@`, and the Authorization header made of that."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    url = sendable(urlunsplit((parts.scheme.lower(), host, parts.path, parts.query, "")))
    return url, {"Authorization": "Basic " + b64encode(unquote(user).encode()).decode()} if at else {}


def sendable(url: str) -> str:
    """Escape the characters of a URL that a request line cannot hold, without escaping anything twice."""
    return quote(url, safe="%/:?#[]@!$&'()*+,;=-._~")
