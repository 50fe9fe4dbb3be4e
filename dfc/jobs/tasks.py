"""The values passed between plans, the journal and workers: shards, tasks, results, stages. On the wire they are msgpack.

A job is a sequence of stages. A stage is a set of tasks that do not depend on each other; they can be made from the results of
earlier stages. A task that is run again, on any worker, writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from dfc.listing.specs import OutputPattern

T = TypeVar("T")
SHARDS_BLOCK: Final = 2000  # decoded in 2 to 5 ms


class InputShard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One shard as it was when the job was accepted; a task that finds another `version` fails the job.

    `kind` is "tar" or a kind of `dfc.tar.compression`; `content_size` is the size of the uncompressed archive; `node` is the id
    of the target that holds it. `repeated` counts samples whose key occurred before in the shard, `dropped` members outside of
    samples. An object without an index, for operations that take any, has `samples`, `members` and `content_size` -1.
    """

    bucket: str
    name: str
    version: str
    checksum: str
    size: int
    content_size: int
    samples: int
    members: int
    repeated: int
    dropped: int
    kind: str
    node: str

    @classmethod
    def unread(cls, bucket: str, name: str, version: str, checksum: str, size: int, node: str) -> InputShard:
        """Make the entry of an object without an index: not an archive, or a damaged one."""
        return cls(bucket, name, version, checksum, size, -1, -1, -1, 0, 0, "", node)

    @property
    def is_indexed(self) -> bool:
        return self.samples >= 0

    @property
    def label(self) -> str:
        """The name in messages."""
        return f"{self.bucket}/{self.name}"


_decode_block: Final = msgspec.msgpack.Decoder(list[InputShard]).decode


def encode_blocks(shards: Iterable[InputShard]) -> Iterator[bytes]:
    """Encode shards as msgpack arrays of up to SHARDS_BLOCK, each preceded by its length in 4 bytes, big-endian."""
    encode, remaining = msgspec.msgpack.Encoder().encode, iter(shards)
    while block := list(islice(remaining, SHARDS_BLOCK)):
        content = encode(block)
        yield len(content).to_bytes(4, "big") + content


def decode_blocks(content: bytes) -> Iterator[list[InputShard]]:
    """Decode the output of `encode_blocks`, a block at a time: decoding all at once would hold the interpreter lock, and so
    block the event loop, even from another thread. DecodeError if it is invalid."""
    view, at = memoryview(content), 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        yield _decode_block(view[at + 4 : at + 4 + size])
        at += 4 + size


class OutputRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One object that a task wrote. `size` and `checksum` (xxh3-128, hex) are of the stored bytes, `content_size` and
    `content_checksum` of the uncompressed bytes, from which the digest is made; `samples` is the number of samples in it."""

    name: str
    size: int
    checksum: str
    content_size: int
    content_checksum: str
    samples: int


class TaskDraft(msgspec.Struct, frozen=True):
    """A task as a stage plans it. `payload` is msgpack of a struct of the operation; `label` says in messages what it works on,
    usually a shard; `near` is the target whose disks hold most of what it reads or writes (None: anywhere)."""

    payload: bytes
    label: str
    near: str | None = None

    @classmethod
    def of(cls, payload: msgspec.Struct, label: str, near: str | None = None) -> TaskDraft:
        return cls(msgspec.msgpack.encode(payload), label, near)


class Task(msgspec.Struct, frozen=True):
    """A task as sent to a worker. `function` is `OPERATION.STAGE` (`dfc.jobs.operations.find_function`). By the id of the
    output bucket, a worker whose map is older than the bucket finds the owners of outputs. `map_version`: of the map at the
    proxy, so that a worker does not go by one that it has kept since an earlier job."""

    job: str
    function: str
    number: int
    label: str
    payload: bytes
    output_bucket: str
    output_bucket_id: str
    map_version: int = 0

    def decode(self, kind: type[T]) -> T:
        """Decode the payload as the operation's struct."""
        return msgspec.msgpack.decode(self.payload, type=kind)


class TaskRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a worker tells of a task besides its result: its own name (empty: none), and for how long it worked."""

    worker: str
    seconds: float


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task, which the journal stores. `outputs` will be published; `data` is for later stages (kilobytes;
    larger data goes into temporary objects); `samples` were written or counted; `bytes_in` were read, `bytes_out` written.
    `run` is for those who look at the job, and is not stored."""

    outputs: tuple[OutputRecord, ...] = ()
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    warnings: tuple[str, ...] = ()
    data: bytes = b""
    run: TaskRun | None = None

    def decode(self, kind: type[T]) -> T:
        return msgspec.msgpack.decode(self.data, type=kind)


Results = Mapping[str, Sequence[TaskResult]]
"""The results of tasks by name of the stage, in order of their numbers."""


@dataclass(frozen=True)
class Stage:
    """A stage. `tasks` yields the drafts, lazily, once earlier stages have ended. `count` is their number, if it is known when
    the job is planned, or a function of the results of earlier stages; None: unknown until all are drafted. `outputs`: the
    number of objects they publish, if it is known when the job is planned; for dry runs. `temporary_bytes`: the size of its
    temporary objects, if they are as large as the dataset."""

    name: str
    tasks: Callable[[Results], Iterator[TaskDraft]]
    count: int | Callable[[Results], int] | None = None
    outputs: int | Callable[[], int] | None = None
    temporary_bytes: int = 0

    def count_after(self, results: Results) -> int | None:
        """Return the number of tasks, once earlier stages have ended."""
        return self.count(results) if callable(self.count) else self.count


@dataclass(frozen=True)
class JobInput:
    """What an operation plans from, without I/O: its options, and the shards of each input, in order. The inputs of the spec
    come first, then those that the options name (`other_inputs`)."""

    options: Any
    inputs: tuple[Sequence[InputShard], ...]
    output_bucket: str
    pattern: OutputPattern
    memory_bytes: int  # that a worker may use
    node_of: Callable[[str], str | None]  # output name → id of the target that will hold it
    prefixes: tuple[str, ...] = ()  # for each input, its spec if that is a prefix (`photos/`), else an empty string

    @property
    def shards(self) -> Sequence[InputShard]:
        """The shards of a job with one input."""
        return self.inputs[0]
