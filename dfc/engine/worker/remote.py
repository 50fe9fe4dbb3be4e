"""Reads objects on other machines over HTTP: single ranges, many ranges at once, or one long stream.

If several targets have an object, the next one is asked when one does not serve it or breaks off.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar, cast

import msgspec

from dfc.addresses import Origins
from dfc.batch.items import BatchItem, BatchRequest
from dfc.engine.worker.nodes import Nodes
from dfc.engine.worker.sources import STREAM_BYTES, check_filled, joined
from dfc.engine.worker.throttle import Throttle
from dfc.errors import DfcError, NotFound, ObjectCorrupt, PreconditionFailed
from dfc.http.calls.blocking import Broken, Response
from dfc.http.calls.retry import Retries
from dfc.jobs.store import InputChanged
from dfc.limits import MIB
from dfc.placement.map import NodeEntry
from dfc.reach.batch import BatchReader, read_preamble
from dfc.reach.facts import etag_in
from dfc.reach.reading import CopyReader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
BATCH_RANGES_MIN: Final = 3  # fewer are requested one by one
BATCH_RANGES_MAX: Final = 10_000  # some megabytes of request
BATCH_BYTES: Final = 16 * MIB  # of one request, whose answer is held in memory
AROUND_ITEM_BYTES: Final = 8192  # more than the header of an item takes


@dataclass(frozen=True, slots=True)
class Origin:
    """Where to get the bytes over HTTP: a path at the targets that `sources` finds in the current map, those of the given URLs
    last. `etag` empty: any version. `batched`: bucket and name, if many ranges can be requested at once."""

    label: str
    sources: Callable[[Collection[str]], list[NodeEntry]]
    path: str
    etag: str
    batched: tuple[str, str] | None = None


class RemoteSource:
    """An object on another machine, or one that this process cannot read as a file."""

    def __init__(self, nodes: Nodes, origin: Origin, size: int, throttle: Throttle) -> None:
        self.size = size
        self._nodes = nodes
        self._origin = origin
        self._throttle = throttle

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if offset < 0 or offset + len(buffer) > self.size:
            raise ObjectCorrupt(f"{self._origin.label} has only {self.size} bytes; {offset + len(buffer)} are needed")
        with self._stream(offset, offset + len(buffer)) as stream:
            for at in range(0, len(buffer), STREAM_BYTES):
                stream.readinto(buffer[at : at + STREAM_BYTES])

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        whole = list(joined(ranges))
        check_filled(sum(size for _, size in whole), buffer)
        at = 0
        if self._origin.batched is None or len(whole) < BATCH_RANGES_MIN:
            for offset, size in whole:
                self.read_into(offset, buffer[at : at + size])
                at += size
            return
        for part in _batches(whole):
            size = sum(size for _, size in part)
            view = buffer[at : at + size]
            if len(part) == 1:
                self.read_into(part[0][0], view)
            else:
                self._throttle.take(size)
                self._read_batch(part, view)
            at += size

    def read_scattered(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> None:
        if len(offsets) == 1:
            self.read_into(offsets[0], buffer[places[0] : places[0] + sizes[0]])
            return
        together = memoryview(bytearray(sum(sizes)))
        self.read_ranges(list(zip(offsets, sizes, strict=True)), together)
        at = 0
        for size, place in zip(sizes, places, strict=True):
            buffer[place : place + size] = together[at : at + size]
            at += size

    def _read_batch(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        """Request many ranges at once. The owner answers with their lengths, then the ranges as members of a tar."""
        bucket, name = self._origin.batched or ("", "")
        items = [BatchItem(bucket, name, start=offset, length=size, if_match=self._origin.etag) for offset, size in ranges]
        body = msgspec.msgpack.encode(BatchRequest(items))

        def attempt(node: NodeEntry) -> None:
            answer = self._nodes.post_batch(node.url, body)
            try:
                with read_preamble(answer, len(items)) as reader:
                    _unpack(reader, ranges, buffer)
            except ObjectCorrupt as problem:  # damaged on the way, not on the disk: a retry may succeed
                raise Broken(f"{self._origin.label}: {problem.message}") from None

        self._nodes.retrying(lambda: self._at_sources(attempt))

    def _at_sources(self, attempt: Callable[[NodeEntry], T], last: Collection[str] = ()) -> T:
        """Call `attempt` for the targets that have the object until one serves it. InputChanged if it has been replaced."""
        try:
            return self._nodes.first_to_serve(self._origin.sources(last), attempt)
        except (PreconditionFailed, NotFound) as error:
            if not self._origin.etag:
                raise
            raise InputChanged(f"{self._origin.label} was replaced or deleted while the job ran: {error.message}") from None

    def request(self, start: int, stop: int, last: Collection[str] = ()) -> Response:
        """GET these bytes, without retries, from the targets of the URLs in `last` after others. InputChanged if the object has
        been replaced."""
        origin = self._origin
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if origin.etag:
            headers["If-Match"] = f'"{origin.etag}"'

        def attempt(node: NodeEntry) -> Response:
            answer = self._nodes.get(node.url + origin.path, headers)
            if origin.etag and etag_in(answer.headers) != origin.etag:
                answer.close()
                raise InputChanged(f"{origin.label} was replaced while the job ran")
            if answer.status != 206 or answer.length != stop - start:
                answer.close()
                raise Broken(f"{origin.label}: the node answered with a different range than requested")
            return answer

        return self._at_sources(attempt, last)

    def has_other(self, tried: Collection[str]) -> bool:
        """Whether a target has the object that none of these URLs belongs to."""
        nodes = Origins(tried)
        try:
            return any(node.url not in nodes for node in self._origin.sources(()))
        except DfcError:  # nobody is known to have it now
            return False

    def open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(self._stream(0, self.size), STREAM_BYTES))

    def _stream(self, start: int, stop: int) -> _RemoteStream:
        return _RemoteStream(self, self._nodes, self._throttle, start, stop)

    def file(self) -> int | None:
        return None

    def close(self) -> None:
        """Do nothing: the connections belong to the worker."""


class _RemoteStream(CopyReader, io.RawIOBase):
    """A long GET that is resumed where it breaks off."""

    def __init__(self, source: RemoteSource, nodes: Nodes, throttle: Throttle, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self._size = source.size
        self._stop = stop
        self._source = source
        self._nodes = nodes
        self._throttle = throttle
        self._retries = Retries(nodes.policy)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")[: self._stop - self._position]
        self._throttle.take(len(view))
        return self._fill(view)

    def close(self) -> None:
        self._drop()
        super().close()

    def _connect(self) -> Response:
        return self._nodes.retrying(lambda: self._source.request(self._position, self._stop, self._passed))

    def _has_other(self, passed: Collection[str]) -> bool:
        return self._source.has_other(passed)

    def _broke(self, problem: Broken, gained: int) -> bool:
        return self._retries.again(problem, self._nodes.wait, useful=gained > 0)


def _batches(ranges: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    """Split the ranges into parts for one request each; a very large range is a part by itself."""
    part: list[tuple[int, int]] = []
    left = BATCH_BYTES
    for entry in ranges:
        if part and (entry[1] > left or len(part) == BATCH_RANGES_MAX):
            yield part
            part, left = [], BATCH_BYTES
        part.append(entry)
        left -= entry[1]
    if part:
        yield part


def _unpack(reader: BatchReader, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
    """Copy the data of the members to the buffer, one after the other. ObjectCorrupt if they do not match the ranges."""
    before = [length - (size + 511 & -512) for length, (_, size) in zip(reader.lengths, ranges, strict=True)]
    if not all(0 <= header <= AROUND_ITEM_BYTES for header in before):
        raise ObjectCorrupt("the node answered with different ranges than requested")
    content = memoryview(bytearray(reader.size))  # all at once: each read is a system call
    reader.fill(content)
    begin = at = 0
    for length, header, (_, size) in zip(reader.lengths, before, ranges, strict=True):
        buffer[at : at + size] = content[begin + header : begin + header + size]
        begin, at = begin + length, at + size
