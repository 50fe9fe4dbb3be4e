"""Stored bytes to read: from a file of this machine, or from their owner over HTTP. Both never give fewer than asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from dfc.engine.nodes import Nodes
from dfc.engine.throttle import Throttle
from dfc.errors import NotFound, ObjectCorrupt, PreconditionFailed
from dfc.http.blocking import Answer, Broken
from dfc.jobs.store import InputChanged
from dfc.limits import MIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STREAM_BYTES: Final = 1 * MIB
AHEAD_BYTES: Final = 16 * MIB  # ranges are announced to the kernel so far before they are read


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the bytes are to be had over HTTP. `find_url` asks the map, which may change; `etag` empty: any."""

    label: str
    find_url: Callable[[], str]
    etag: str


class FileSource:
    """A blob of a target of this machine: its first `size` bytes, a footer follows. The descriptor is the cache's."""

    def __init__(self, descriptor: int, size: int, label: str, throttle: Throttle) -> None:
        self.size = size
        self._descriptor = descriptor
        self._label = label
        self._throttle = throttle

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise ObjectCorrupt(f"{self._label} has {self.size} bytes, not {offset + len(buffer)}")
        self._throttle.take(len(buffer))
        while buffer:
            count = os.preadv(self._descriptor, [buffer], offset)
            if count == 0:
                raise ObjectCorrupt(f"{self._label} ends at byte {offset}")
            offset, buffer = offset + count, buffer[count:]

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        whole = list(joined(ranges))
        at = announced = ahead = 0
        for offset, size in whole:
            while len(whole) > 1 and announced < len(whole) and ahead <= at + AHEAD_BYTES:
                start, count = whole[announced]
                os.posix_fadvise(self._descriptor, start, count, os.POSIX_FADV_WILLNEED)
                announced, ahead = announced + 1, ahead + count
            self.read_into(offset, buffer[at : at + size])
            at += size
        _check_filled(at, buffer)

    def open(self) -> BinaryIO:
        os.posix_fadvise(self._descriptor, 0, self.size, os.POSIX_FADV_SEQUENTIAL)
        return cast(BinaryIO, io.BufferedReader(_FileStream(self), STREAM_BYTES))

    def file(self) -> int | None:
        return self._descriptor

    def close(self) -> None:
        """The descriptor stays open for the next task."""


class RemoteSource:
    """An object on another machine, or one that this process may not read as a file."""

    def __init__(self, nodes: Nodes, origin: Origin, size: int, throttle: Throttle) -> None:
        self.size = size
        self._nodes = nodes
        self._origin = origin
        self._throttle = throttle

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise ObjectCorrupt(f"{self._origin.label} has {self.size} bytes, not {offset + len(buffer)}")
        self._throttle.take(len(buffer))
        at = 0

        def attempt() -> None:
            nonlocal at
            if at == len(buffer):
                return
            with self.request(offset + at, offset + len(buffer)) as answer:
                while at < len(buffer):
                    count = answer.readinto(buffer[at:])
                    if count == 0:
                        raise Broken(f"{self._origin.label}: the answer is too short")
                    at += count

        self._nodes.retrying(attempt)

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        at = 0
        for offset, size in joined(ranges):
            self.read_into(offset, buffer[at : at + size])
            at += size
        _check_filled(at, buffer)

    def request(self, start: int, stop: int) -> Answer:
        """One try of a GET of these bytes. InputChanged when they are of another version by now."""
        origin = self._origin
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if origin.etag:
            headers["If-Match"] = f'"{origin.etag}"'
        try:
            answer = self._nodes.get(origin.find_url(), headers)
        except (PreconditionFailed, NotFound) as error:
            if not origin.etag:
                raise
            raise InputChanged(f"{origin.label} was replaced or deleted while the job ran: {error.message}") from None
        if origin.etag and (answer.headers.get("ETag") or "").strip('"') != origin.etag:
            answer.close()
            raise InputChanged(f"{origin.label} was replaced while the job ran")
        if answer.status != 206 or answer.length != stop - start:
            answer.close()
            raise Broken(f"{origin.label}: the node did not answer with the range that was asked for")
        return answer

    def open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_RemoteStream(self, self._nodes, self._throttle), STREAM_BYTES))

    def file(self) -> int | None:
        return None

    def close(self) -> None:
        """Connections are the worker's."""


class _FileStream(io.RawIOBase):
    def __init__(self, source: FileSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: self._source.size - self._position]
        self._source.read_into(self._position, view)
        self._position += len(view)
        return len(view)


class _RemoteStream(io.RawIOBase):
    """One long GET; where it breaks off it begins anew."""

    def __init__(self, source: RemoteSource, nodes: Nodes, throttle: Throttle) -> None:
        super().__init__()
        self._source = source
        self._nodes = nodes
        self._throttle = throttle
        self._position = 0
        self._answer: Answer | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: self._source.size - self._position]
        if not view:
            return 0
        self._throttle.take(len(view))
        count = self._nodes.retrying(lambda: self._read(view))
        self._position += count
        return count

    def _read(self, view: memoryview) -> int:
        if self._answer is None:
            self._answer = self._source.request(self._position, self._source.size)
        try:
            count = self._answer.readinto(view)
        except Broken:
            self._answer = None
            raise
        if count == 0:
            self._answer = None
            raise Broken("the answer is too short")
        return count

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None
        super().close()


def joined(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The (offset, size) pairs, those made one of which each begins where the one before ends."""
    start = stop = -1
    for offset, size in ranges:
        if offset == stop:
            stop += size
            continue
        if start >= 0:
            yield start, stop - start
        start, stop = offset, offset + size
    if start >= 0:
        yield start, stop - start


def _check_filled(count: int, buffer: memoryview) -> None:
    if count != len(buffer):
        raise ValueError(f"a buffer of {len(buffer)} bytes for ranges of {count}")
