"""What goes between a job's plan, the journal and the workers: shards, tasks, results. Values only, as msgpack on the wire.

A job is a row of stages. A stage is a set of tasks that do not depend on each other; its tasks may be made from the results
of the stages before. A task run again, anywhere, writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from dfc.jobs.pattern import OutputPattern

T = TypeVar("T")
SHARDS_BLOCK: Final = 2000  # decoded in 2 to 5 ms


class InputShard(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One shard as it was when the job began; a task that finds another `version` fails the job.

    `kind` is "tar" or a kind of `dfc.tar.compression`; `content_size` is that of the uncompressed archive; `node` the id of
    the target that holds it. `repeated` counts samples whose key was there before in the shard, `dropped` members of no sample.
    An object without an index, for operations that take any, has `samples`, `members` and `content_size` -1 (`is_indexed`).
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
        """An object without an index: no archive, or a broken one."""
        return cls(bucket, name, version, checksum, size, -1, -1, -1, 0, 0, "", node)

    @property
    def is_indexed(self) -> bool:
        return self.samples >= 0

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.bucket}/{self.name}"


_decode_block: Final = msgspec.msgpack.Decoder(list[InputShard]).decode


def encode_blocks(shards: Iterable[InputShard]) -> Iterator[bytes]:
    """Shards for the wire: msgpack arrays of up to SHARDS_BLOCK of them, before each its length in 4 bytes, big-endian."""
    encode, remaining = msgspec.msgpack.Encoder().encode, iter(shards)
    while block := list(islice(remaining, SHARDS_BLOCK)):
        content = encode(block)
        yield len(content).to_bytes(4, "big") + content


def decode_blocks(content: bytes) -> Iterator[list[InputShard]]:
    """What `encode_blocks` made, a block at a time: decoding all at once would hold the interpreter for as long as it takes,
    and with it the event loop, in whatever thread. DecodeError for anything else."""
    view, at = memoryview(content), 0
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        yield _decode_block(view[at + 4 : at + 4 + size])
        at += 4 + size


class OutputRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One object that a task has written. `size` and `checksum` (xxh3-128, hex) are those of the stored bytes, `content_size`
    and `content_checksum` those of the uncompressed ones, which the digest is made of; `samples` what it holds of them."""

    name: str
    size: int
    checksum: str
    content_size: int
    content_checksum: str
    samples: int


class TaskDraft(msgspec.Struct, frozen=True):
    """What a stage asks for. `payload` is msgpack of a struct of the operation's own; `near` the target whose disks hold most
    of what it reads or writes (None: anywhere); `label` names in messages what it works on, as a rule a shard."""

    payload: bytes
    label: str
    near: str | None = None


class Task(msgspec.Struct, frozen=True):
    """A task on its way to a worker. `function` is a key of `dfc.jobs.operations.functions()`, `OPERATION.STAGE`."""

    job: str
    function: str
    number: int
    label: str
    payload: bytes
    output_bucket: str

    def decode(self, kind: type[T]) -> T:
        """The payload as the operation's own struct."""
        return msgspec.msgpack.decode(self.payload, type=kind)


class TaskResult(msgspec.Struct, frozen=True):
    """What the journal keeps of a task: `outputs` are to be published, `data` is for later stages (kilobytes: larger things
    go into temporary objects), `samples` how many this task has written or counted, the bytes what it read and wrote."""

    outputs: tuple[OutputRecord, ...] = ()
    samples: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    warnings: tuple[str, ...] = ()
    data: bytes = b""

    def decode(self, kind: type[T]) -> T:
        return msgspec.msgpack.decode(self.data, type=kind)


Results = Mapping[str, Sequence[TaskResult]]
"""By stage name, the results of its tasks in order of their numbers."""


@dataclass(frozen=True)
class Stage:
    """`tasks` gives the drafts, lazily, when the stages before have ended. `count` is how many, as far as that is known
    before: when the job is planned, or (a function) from the results of the stages before; None: only when all are drafted.
    `outputs`: how many objects they write that stay, if that is known when the job is planned; for the plan of a dry run.
    `temporary_bytes`: what its temporary objects will take, where they are as large as the dataset."""

    name: str
    tasks: Callable[[Results], Iterator[TaskDraft]]
    count: int | Callable[[Results], int] | None = None
    outputs: int | Callable[[], int] | None = None
    temporary_bytes: int = 0

    def count_after(self, results: Results) -> int | None:
        """How many tasks there are, when the stages before have ended."""
        return self.count(results) if callable(self.count) else self.count


@dataclass(frozen=True)
class JobInput:
    """What an operation plans from, without I/O: its options and, for each input of the spec (and then for each that
    its options name, `other_inputs`), its shards in order."""

    options: Any
    inputs: tuple[Sequence[InputShard], ...]
    output_bucket: str
    pattern: OutputPattern
    memory_bytes: int  # that a worker may use
    node_of: Callable[[str], str | None]  # output name → id of the target that will hold it
    prefixes: tuple[str, ...] = ()  # for each input the prefix that its spec is (`photos/`), or an empty text

    @property
    def shards(self) -> Sequence[InputShard]:
        """The shards of a job with one input."""
        return self.inputs[0]
