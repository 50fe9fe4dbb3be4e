"""What a task sees of the world: shards to read, objects to write, scratch space. Engines bring an implementation.

All calls block, for the one thread that runs the task. Errors: `InputChanged` when a shard is not the version the job began
with, `dfc.errors` for the rest; `JobCancelled` from any call once the job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from dfc.checksum import Buffer
from dfc.errors import Conflict, JobCancelled
from dfc.jobs.tasks import InputShard, Task, TaskResult
from dfc.parts import Part
from dfc.tar.headerbatch import PlainFiles
from dfc.tar.index.reader import ShardIndex

__all__ = ("Function", "InputChanged", "JobCancelled", "Output", "Source", "Store", "WrittenObject")


class InputChanged(Conflict):
    """A shard was replaced or deleted while the job ran; retrying cannot help."""

    code = "input_changed"


class Source(Protocol):
    """One open shard, or one temporary object, of a fixed version."""

    size: int

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the stored bytes from `offset` on. Raises when there are fewer."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        """The stored bytes of (offset, size) pairs, one after the other, into `buffer`; asked for together where that is
        dear. Pairs in rising order of offset are read fastest."""

    def read_scattered(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> None:
        """The stored bytes at each of the offsets, which rise, to that place in the buffer; asked for together where that is
        dear."""

    def open(self) -> BinaryIO:
        """The stored bytes from the first to the last, read ahead where that helps. The caller closes it."""

    def file(self) -> int | None:
        """A descriptor to read (and to `send`) from, when the bytes are on a disk of this machine; it stays the source's."""

    def close(self) -> None: ...


class Output(Protocol):
    """An object being written, from its first byte to its last: staged on its owner, seen by nobody until the job succeeds."""

    @property
    def sends(self) -> bool:
        """Whether bytes of files had better be sent than read and written."""

    def write(self, data: Buffer, files: PlainFiles | None = None) -> object:
        """The next bytes, all of them. `files`: of a tar archive the members that they are, where the caller knows that they
        are whole members with one header each; heads count from the first byte."""

    def send(self, parts: Sequence[Part]) -> None:
        """The next bytes: some in memory and then some of a file, again and again, moved by the kernel where it can."""

    def commit(self) -> WrittenObject:
        """Complete; whoever wrote this name for this job before is replaced."""

    def abort(self) -> None:
        """Leave nothing of it. Idempotent, does nothing after `commit`."""


class WrittenObject(Protocol):
    """What the owner of an object has received."""

    @property
    def size(self) -> int: ...
    @property
    def checksum(self) -> str: ...


class Store(Protocol):
    """`memory_bytes` is what a task may use for buffers, in all."""

    memory_bytes: int

    def open(self, shard: InputShard) -> Source: ...

    def index(self, shard: InputShard) -> ShardIndex:
        """Its index, kept open between tasks of one job on this worker; do not close it."""

    def create(self, name: str, size: int | None = None) -> Output:
        """An output of the job. `size`, where it is known, is announced and held to."""

    def create_temporary(self, name: str, size: int | None = None) -> Output:
        """An object for later tasks of this job; it goes when the job ends. Names are of the operation's choosing."""

    def open_temporary(self, name: str) -> Source: ...

    def scratch(self) -> AbstractContextManager[str]:
        """A directory of this worker for formats that need a file; it goes with the context."""

    def check(self) -> None:
        """To be called now and then by long tasks, between samples: raises JobCancelled when the job has ended."""


Function = Callable[[Task, Store], TaskResult]
"""What an engine calls for a task of a kind."""
