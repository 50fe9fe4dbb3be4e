"""Shards from web servers: one URL, and a stream that resumes at the same or another one.

Each try asks one of the shard's URLs for the bytes from the current position on. The answer must be the same version as before
(ETag, date, size). If a server does not support ranges, it is read from the start and the known part is skipped. A truncated
body, a stall, a refused connection and answers like 503 cost a try; every new byte resets the count. In a cluster where other
nodes have copies of the object, the next of them goes on at once, which costs none.
"""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from dfc.checksum import is_checksum
from dfc.errors import BadRequest, DfcError, NotFound, RangeNotSatisfiable, ServerTrouble
from dfc.http import retry
from dfc.http.blocking import Broken, Response
from dfc.http.retry import Cancellation, Cancelled, cancelled_by, error_from_answer, is_worth_retrying
from dfc.inputs.base import LOG, Counts, InputError, ShardBroken, ShardChanged, ShardShort, ShardUnreadable
from dfc.inputs.sources.cluster import hint_at_bucket, is_in_vain, locate, token_for, transport_for
from dfc.inputs.sources.streams import Stream, StreamOptions, kind_of, origin_of, shown
from dfc.limits import ERROR_BODY_BYTES_MAX, INPUT_REDIRECTS_MAX, MIB
from dfc.reach.objects import Facts, checksum_in, described, size_beyond
from dfc.reach.reading import PROGRESS_BYTES, CopyReader
from dfc.wire import SAMPLES_HEADER

# --- One URL of a shard on a web server: single requests, redirects, and the version of the object.

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
    seconds = retry.retry_after_s(problem)
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


# --- Stream a shard from web servers, retrying and resuming where it broke until it is complete or all servers have failed.

_SKIP_BYTES: Final = 1 * MIB
_TRIES_SILENT: Final = 3  # failed tries, about a second, before a warning, since the URL may be mistyped


class WebStream(CopyReader, Stream):
    """A `Stream` from one or more web URLs. The constructor connects."""

    _handed_out = InputError

    def __init__(
        self,
        urls: Sequence[str],
        start: int,
        end: int | None,
        etag: str | None,
        options: StreamOptions,
        counts: Counts | None,
        cancellation: Cancellation | None,
    ) -> None:
        super().__init__(start, end)
        self.url = urls[0]
        self._sources = [WebSource(url, options) for url in urls]
        self._primary = urls[0]
        self._planned = etag or ""
        self._options = options
        self._policy = options.policy
        self._counts = counts
        self._cancellation = cancellation or Cancellation()
        self._at = 0  # the source in use
        self._tries = 0  # failed tries since the last new byte
        self._problems: list[str] = []
        with cancelled_by(self._cancellation):
            answer = self._continue_with(self._connect())
        whole = start == 0 and end is None and self.size is not None
        if answer is not None and whole and options.verify and (checksum := checksum_in(answer.headers)):
            self._verify(checksum)

    def readinto(self, buffer: bytearray | memoryview) -> int:
        begin = self._position
        try:
            with cancelled_by(self._cancellation):
                return self._fill(memoryview(buffer).cast("B"))
        finally:
            if self._counts is not None and self._position > begin:
                self._counts.add(size=self._position - begin)

    def close(self) -> None:
        self._drop()

    __del__ = close  # an abandoned stream releases its connection

    def abort(self) -> None:
        self._cancellation.cancel()

    def _mismatch(self, found: str) -> ShardBroken:
        return ShardBroken(
            f"{shown(self.url)}: checksum mismatch: received xxh3-128={found}, expected {self._checksum}", url=self.url
        )

    def _has_other(self, passed: Collection[str]) -> bool:
        self._cancellation.check()
        return self._sources[self._at].has_other(passed)

    def _goes_on(self, answer: Response, gained: int) -> bool:
        if not super()._goes_on(answer, gained):
            return False
        if gained:
            self._tries = 0
        if self._counts is not None:
            self._counts.add(retries=1)
        return True

    def _broke(self, problem: Broken, gained: int) -> bool:
        if gained:
            self._tries = 0
        self._failed(problem, at_once=gained >= PROGRESS_BYTES)
        return True

    def _connect(self) -> Response | None:
        while True:
            source = self._sources[self._at]
            try:
                answer = source.request(self._headers(source), self._passed)
                try:
                    self._accept(source, answer)
                except BaseException:
                    answer.close()
                    raise
                return answer
            except RangeNotSatisfiable as problem:
                if self._is_at_end(source, problem):
                    return None
                self._failed(problem)
            except ShardChanged:
                raise
            except DfcError as problem:
                self._failed(problem)

    def _headers(self, source: WebSource) -> dict[str, str]:
        position, end = self._position, self._end
        if not position and end is None:
            return {}
        headers = {"Range": f"bytes={position}-{'' if end is None else max(end - 1, position)}"}
        known = source.known
        if known is None:
            if self._planned and source.url == self._primary:
                headers["If-Range"] = f'"{self._planned}"'
        elif known.etag and known.strong:
            headers["If-Range"] = f'"{known.etag}"'
        elif known.modified and not known.etag:
            headers["If-Range"] = known.modified
        return headers

    def _accept(self, source: WebSource, answer: Response) -> None:
        """Check that the answer continues the same version, and skip to the current position."""
        first, version = described(answer)
        before = source.known or Facts(self._etag_for(source, answer), size=self.size)
        if before.differs(version):
            raise ShardChanged(f"{shown(source.url)} was replaced since it was looked up or opened", url=source.url)
        source.known = version = before.updated(version)
        if first > self._position:
            raise Broken(f"{shown(source.url)}: the answer begins at byte {first}, but byte {self._position} was requested")
        self.url, self.etag = source.url, version.etag
        self.size = self._size = version.size
        self.indexed = (answer.headers.get(SAMPLES_HEADER) or "").isdigit()
        if self._end is None:
            self._end = version.size
        _skip(answer, self._position - first)

    def _etag_for(self, source: WebSource, answer: Response) -> str:
        """The expected ETag, if it can be compared with this source's. Other servers make ETags differently. Those of DFC are
        checksums; so are those of S3, and they look the same."""
        alike = is_checksum(self._planned) and checksum_in(answer.headers)
        return self._planned if source.url == self._primary or alike else ""

    def _is_at_end(self, source: WebSource, problem: RangeNotSatisfiable) -> bool:
        """Whether the only problem is that the position is at the end."""
        size = size_beyond(problem)
        before = source.known or Facts(size=self.size)
        if before.size is not None and size is not None and size != before.size:
            raise ShardChanged(f"{shown(source.url)} was replaced: it has {size} bytes, not {before.size}", url=source.url)
        if size is None or size != self._position:
            return False
        self.size = self._size = size
        return True

    def _failed(self, problem: DfcError, *, at_once: bool = False) -> None:
        """Choose the next source, and wait before starting over with the first, unless `at_once`. Raise if none is left."""
        self._cancellation.check()
        if isinstance(problem, Cancelled):
            raise problem
        source = self._sources[self._at]
        reason = said(problem)
        wrong = source.known is None and is_in_vain(problem, source.url, self._options)
        if (is_worth_retrying(problem) and not wrong) or type(problem) is ServerTrouble:
            if self._tries >= self._policy.retries:
                raise ShardUnreadable(f"{shown(source.url)}: giving up after {self._tries + 1} tries: {reason}", url=source.url)
            delay_s = 0.0
            if self._at + 1 >= len(self._sources) and not at_once:
                delay_s = self._policy.delay_s(self._tries // len(self._sources), retry_after_s(problem))
            self._at = (self._at + 1) % len(self._sources)
            self._tries += 1
            if self._counts is not None:
                self._counts.add(retries=1)
            if self._tries == _TRIES_SILENT:
                LOG.warning("%s: still retrying: %s", shown(source.url), reason)
            self._cancellation.wait(delay_s)
            return
        self._problems.append(reason)
        if len(self._sources) == 1:
            if isinstance(problem, NotFound):
                self._problems[-1] += hint_at_bucket(source.url, self._options)
            kind = ShardShort if isinstance(problem, RangeNotSatisfiable) else ShardUnreadable
            raise kind("; ".join(self._problems), url=source.url) from problem
        del self._sources[self._at]
        self._at %= len(self._sources)


def _skip(answer: Response, count: int) -> None:
    scratch = memoryview(bytearray(min(count, _SKIP_BYTES)))
    while count > 0:
        got = answer.receive(scratch[:count])
        if got == 0:
            raise Broken(f"the body ended {count} bytes before the requested position")
        count -= got
