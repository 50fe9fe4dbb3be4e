"""The interface through which tasks read shards, write objects and get scratch space. Engines implement it.

All calls block the one thread that runs the task. Errors: `InputChanged` if a shard is not the version that the job started
with, else classes of `dfc.errors`; any call raises `JobCancelled` once the job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from dfc.checksum import Buffer
from dfc.errors import Conflict
from dfc.handover import Part
from dfc.jobs.tasks import InputShard, Task, TaskResult
from dfc.tar.index.reader import ShardIndex
from dfc.tar.scanner import PlainFiles


class InputChanged(Conflict):
    """A shard was replaced or deleted while the job ran; retrying cannot help."""

    code = "input_changed"


class Source(Protocol):
    """One open shard, or one temporary object, of a fixed version."""

    size: int

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the stored bytes from `offset` on. Raises if there are fewer."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        """Read the stored bytes of (offset, size) pairs, one after the other, into `buffer`, in one request if requests are
        expensive. Pairs in ascending order of offset are read fastest."""

    def read_scattered(self, offsets: Sequence[int], sizes: Sequence[int], places: Sequence[int], buffer: memoryview) -> None:
        """Read the stored bytes at each of the ascending offsets to the given places in the buffer, in one request if requests
        are expensive."""

    def open(self) -> BinaryIO:
        """Open a stream of all stored bytes, with read-ahead if that helps. The caller closes it."""

    def file(self) -> int | None:
        """A descriptor to read (and `send`) from if the bytes are on this machine, else None. It belongs to the source."""

    def close(self) -> None: ...


class Output(Protocol):
    """An object that is being written sequentially: staged on its owner, invisible until the job succeeds."""

    @property
    def sends(self) -> bool:
        """Whether to `send` bytes of files rather than read and `write` them."""

    def write(self, data: Buffer, files: PlainFiles | None = None) -> object:
        """Write all of the next bytes. `files`: the tar members in them, if the caller knows that these are whole members with
        one header each; heads count from the first byte."""

    def send(self, parts: Sequence[Part]) -> None:
        """Write the next bytes: each part is bytes in memory, then a range of a file, copied by the kernel if possible."""

    def commit(self) -> WrittenObject:
        """Complete the object; it replaces what was written under this name for this job before."""

    def abort(self) -> None:
        """Discard the object. Idempotent; does nothing after `commit`."""


class WrittenObject(Protocol):
    """Size and checksum of what the owner of an object received."""

    @property
    def size(self) -> int: ...
    @property
    def checksum(self) -> str: ...


class Store(Protocol):
    """The store of one task. `memory_bytes` is how much memory the task may use for buffers in total."""

    memory_bytes: int

    def open(self, shard: InputShard) -> Source: ...

    def index(self, shard: InputShard) -> ShardIndex:
        """Return the index of a shard, which is kept open between tasks of a job on this worker; do not close it."""

    def create(self, name: str, size: int | None = None) -> Output:
        """Create an output of the job. `size`, if known, is announced, and exactly that many bytes must be written."""

    def create_temporary(self, name: str, size: int | None = None) -> Output:
        """Create an object for later tasks of this job; it is deleted when the job ends. The operation chooses the name."""

    def open_temporary(self, name: str) -> Source: ...

    def scratch(self) -> AbstractContextManager[str]:
        """A local directory for formats that need a file; it is deleted at the end of the context."""

    def check(self) -> None:
        """Raise JobCancelled if the job has ended. Long tasks must call it regularly, between samples."""


Function = Callable[[Task, Store], TaskResult]
"""A function that an engine calls to run a task."""
