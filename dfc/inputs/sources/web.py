"""A shard from web servers: tried again and continued where it broke, until every byte has come or nobody can give it.

Each try asks one of the shard's URLs for the bytes from the current position on. What answers must be the same version as
before (ETag, date, size); a server that knows no ranges is read from the start and the known part thrown away. A body that ends
early, a stall, a refused connection and answers like 503 cost a try; every new byte gives all tries back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dfc.checksum import CHECKSUM_NAME
from dfc.errors import DfcError, NotFound, RangeNotSatisfiable, ServerTrouble
from dfc.http.calls.blocking import Broken, Response
from dfc.http.calls.problems import is_worth_retrying
from dfc.http.calls.retry import Cancellation, Cancelled, cancelled_by
from dfc.inputs.base import LOG, Counts, InputError, ShardBroken, ShardChanged, ShardShort, ShardUnreadable
from dfc.inputs.sources.cluster import hint_at_bucket, is_in_vain
from dfc.inputs.sources.streams import Stream, StreamOptions
from dfc.inputs.sources.urls import shown
from dfc.inputs.sources.websource import Version, WebSource, described, retry_after_s, said
from dfc.limits import KIB, MIB
from dfc.wire import CHECKSUM_HEADER, SAMPLES_HEADER

if TYPE_CHECKING:
    import xxhash

_UNSATISFIED: Final = re.compile(r"bytes \*/(\d+)")
_XXH3: Final = re.compile(r"[0-9a-f]{32}")
_SKIP_BYTES: Final = 1 * MIB
_TRIES_SILENT: Final = 3  # in vain, about a second; then somebody is told who may have mistyped a URL
_PROGRESS_BYTES: Final = 64 * KIB  # a connection that gave so much and broke is replaced without waiting


class WebStream(Stream):
    """See `Stream`. It is opened when it is made."""

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
        self.url = urls[0]
        self._sources = [WebSource(url, options) for url in urls]
        self._primary = urls[0]
        self._planned = etag or ""
        self._position = start
        self._end = end
        self._options = options
        self._policy = options.policy
        self._counts = counts
        self._cancellation = cancellation or Cancellation()
        self._process = os.getpid()
        self._answer: Response | None = None
        self._at = 0  # the source in use
        self._tries = 0  # in vain, since the last new byte
        self._broke_at = start
        self._problems: list[str] = []
        self._hasher: xxhash.xxh3_128 | None = None
        self._checksum = ""
        with cancelled_by(self._cancellation):
            self._answer = self._connect()
        if self._answer is not None and start == 0 and end is None and options.verify:
            self._expect_checksum(self._answer)

    def readinto(self, buffer: bytearray | memoryview) -> int:
        view = memoryview(buffer).cast("B")
        if self._end is not None:
            view = view[: max(self._end - self._position, 0)]
        done, begin = 0, self._position
        with cancelled_by(self._cancellation):
            while done < len(view):
                try:
                    count = self._step(view[done:])
                except InputError:
                    if done == 0:
                        raise
                    break  # it is raised again by the next call, which finds the same
                except BaseException:
                    # A signal, say. Nobody gets what has come, so that whoever reads on must get it again.
                    self.close()
                    self._position = begin
                    raise
                if count == 0:
                    self._end = self._position
                    break
                done += count
        self._verify(view[:done])
        return done

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if os.getpid() == self._process:
            answer.close()
        else:
            answer.forget()

    def __del__(self) -> None:
        # A stream that is forgotten gives its connection back.
        if hasattr(self, "_answer"):
            self.close()

    def abort(self) -> None:
        self._cancellation.cancel()

    def _step(self, view: memoryview) -> int:
        """Some bytes; 0 when a body without a length has come to its end. Broken connections are replaced."""
        while True:
            answer = self._answer = self._answer or self._connect()
            if answer is None:
                return 0
            try:
                count = answer.receive(view)
                if count == 0 and self.size is not None and self._position < self.size:
                    raise Broken(f"the body ended at byte {self._position} of {self.size}")
                if count == 0 and self.size is None and answer.status == 206:
                    # A server may give less than what was asked for, and this one does not say how much there is.
                    raise Broken(f"a part ended at byte {self._position} of nobody knows how many")
            except Broken as problem:
                self._answer = None
                self._failed(problem, at_once=self._position - self._broke_at >= _PROGRESS_BYTES)
                self._broke_at = self._position
                continue
            self._position += count
            self._tries = 0
            if self._counts is not None:
                self._counts.add(size=count)
            return count

    def _connect(self) -> Response | None:
        """An answer whose next byte is that of the current position; None at the very end of the object."""
        while True:
            source = self._sources[self._at]
            try:
                answer = source.request(self._headers(source))
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
        if not self._position and self._end is None:
            return {}
        headers = {"Range": f"bytes={self._position}-{'' if self._end is None else max(self._end - 1, self._position)}"}
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
        """Check that the answer continues what was read, and go to its right byte."""
        first, version = described(answer)
        before = source.known or Version(self._etag_for(source, answer), size=self.size)
        if before.differs(version):
            raise ShardChanged(f"{shown(source.url)} is another object than the one that was begun or planned", url=source.url)
        source.known = version = before.updated(version)
        if first > self._position:
            raise Broken(f"{shown(source.url)}: the answer begins at byte {first}, not {self._position}")
        self.url, self.etag = source.url, version.etag
        self.size = version.size
        self.indexed = (answer.headers.get(SAMPLES_HEADER) or "").isdigit()
        if self._end is None and self.size is not None:
            self._end = self.size
        _skip(answer, self._position - first)

    def _etag_for(self, source: WebSource, answer: Response) -> str:
        """What was planned, if it can be compared: replicas on other servers have ETags of their own making. Those of DFC are
        checksums; so are those of S3, and look the same."""
        alike = _XXH3.fullmatch(self._planned) and _checksum_of(answer)
        return self._planned if source.url == self._primary or alike else ""

    def _is_at_end(self, source: WebSource, problem: RangeNotSatisfiable) -> bool:
        """Whether nothing was wrong but that no byte follows."""
        match = _UNSATISFIED.fullmatch(problem.headers.get("Content-Range", ""))
        size = int(match[1]) if match else None
        before = source.known or Version(size=self.size)
        if before.size is not None and size is not None and size != before.size:
            raise ShardChanged(f"{shown(source.url)} has {size} bytes, and not {before.size} as before", url=source.url)
        if size is None or size != self._position:
            return False
        self.size = self._end = size
        return True

    def _failed(self, problem: DfcError, *, at_once: bool = False) -> None:
        """Choose the next source and wait, unless `at_once` or there are more sources; raise when there is none left."""
        self._cancellation.check()
        if isinstance(problem, Cancelled):
            raise problem
        source = self._sources[self._at]
        reason = said(problem)
        wrong = source.known is None and is_in_vain(problem, source.url, self._options)
        if (is_worth_retrying(problem) and not wrong) or type(problem) is ServerTrouble:
            if self._tries >= self._policy.retries:
                raise ShardUnreadable(f"{shown(source.url)}: given up after {self._tries + 1} tries: {reason}", url=source.url)
            delay_s = 0.0
            if self._at + 1 >= len(self._sources) and not at_once:
                delay_s = self._policy.delay_s(self._tries // len(self._sources), retry_after_s(problem))
            self._at = (self._at + 1) % len(self._sources)
            self._tries += 1
            if self._counts is not None:
                self._counts.add(retries=1)
            if self._tries == _TRIES_SILENT:
                LOG.warning("%s: still trying: %s", shown(source.url), reason)
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

    def _expect_checksum(self, answer: Response) -> None:
        value = _checksum_of(answer)
        if value and self.size is not None:
            import xxhash

            self._hasher = xxhash.xxh3_128()
            self._checksum = value

    def _verify(self, data: memoryview) -> None:
        if self._hasher is None:
            return
        self._hasher.update(data)
        if self._position == self.size:
            found = self._hasher.hexdigest()
            self._hasher = None
            if found != self._checksum:
                raise ShardBroken(f"{shown(self.url)} arrived with xxh3-128={found}, not {self._checksum}", url=self.url)


def _checksum_of(answer: Response) -> str:
    """The checksum of the whole object that a DFC node names, else empty."""
    kind, _, value = (answer.headers.get(CHECKSUM_HEADER) or "").partition("=")
    return value if kind == CHECKSUM_NAME and _XXH3.fullmatch(value) else ""


def _skip(answer: Response, count: int) -> None:
    scratch = memoryview(bytearray(min(count, _SKIP_BYTES)))
    while count > 0:
        got = answer.receive(scratch[:count])
        if got == 0:
            raise Broken(f"the body ended {count} bytes before what was to be read")
        count -= got
