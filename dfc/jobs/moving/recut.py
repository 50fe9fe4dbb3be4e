"""Operations that change samples: one output per input or, when a size is given, temporary shards that are cut anew.

Their tasks write through `open_made`; the results that `made` tells apart are outputs, or inputs of the second half, which is
the common machinery of `dfc.jobs.moving.ordering`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

import msgspec

from dfc.checksum import Buffer
from dfc.formats.sample import DataMember
from dfc.jobs.moving.arrangement import Arrangement, Section
from dfc.jobs.moving.corpus import number_through
from dfc.jobs.moving.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions
from dfc.jobs.moving.orders import Stride
from dfc.jobs.options import SizeOptions
from dfc.jobs.shards.output import PlainOutput, ShardOutput
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, TaskResult
from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.tar.index import IndexBuilder
from dfc.tar.writer import TarWriter

RECUT_FUNCTIONS: Final = {name: ORDER_FUNCTIONS[name] for name in ("measure", "cut", "write")}
"""For the FUNCTIONS of operations that call `recut`."""


class TemporaryShard:
    """Like ShardOutput, for a temporary archive with its index beside it. Use as a context."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self.samples = 0
        self._store = store
        self._waiting = bytearray()
        self._tar = TarWriter(self)  # type: ignore[arg-type]  # `write` is all it asks for

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = stack.enter_context(self._store.scratch())
            self._file = stack.enter_context(open(os.path.join(directory, "index"), "w+b"))
            self._builder = IndexBuilder(self._file, directory)
            stack.callback(self._builder.close)
            self._output = self._store.create_temporary(self.name)
            stack.callback(self._output.abort)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, data: Buffer) -> int:
        """The next bytes of the archive, as the tar writer makes them."""
        self._waiting += data
        if len(self._waiting) >= DECOMPRESS_CHUNK_BYTES:
            self._flush()
        return len(data)

    def add(self, members: Iterable[DataMember]) -> None:
        """One sample."""
        for member in members:
            self._tar.add(member.name, member.data)
        self.samples += 1

    def finish(self, version: str, node: str) -> InputShard:
        """Complete: the shard as later stages read it."""
        self._tar.close()
        self._flush()
        written = self._output.commit()
        summary = self._builder.finish(version, written.size, written.checksum)
        self._file.seek(0)
        with PlainOutput(self._store, f"{self.name}.index", temporary=True) as index:
            while data := self._file.read(DECOMPRESS_CHUNK_BYTES):
                index.write(data)
            index.commit()
        return InputShard(
            "", self.name, version, written.checksum, written.size, written.size, summary.samples, summary.members, 0, 0, "tar",
            node,
        )  # fmt: skip

    def _flush(self) -> None:
        if self._waiting:
            data = bytes(self._waiting)
            self._waiting.clear()
            self._builder.feed(data)
            self._output.write(data)


def has_size(options: SizeOptions) -> bool:
    return options.samples_per_shard is not None or options.shard_bytes is not None


def open_made(store: Store, name: str | None, number: int) -> ShardOutput | TemporaryShard:
    """What a task writes: the output of this name, or without one the temporary shard of this number."""
    return TemporaryShard(store, f"made/{number:08d}.tar") if name is None else ShardOutput(store, name)


def commit_made(output: ShardOutput | TemporaryShard, shard: InputShard, **result: int | tuple[str, ...]) -> TaskResult:
    """The result of the task, which has read `shard`; `result` are further fields of it."""
    if isinstance(output, TemporaryShard):
        made = output.finish(shard.version, shard.node)
        values = TaskResult(bytes_in=shard.size, bytes_out=made.size, data=msgspec.msgpack.encode(made))
    else:
        record = output.commit()
        values = TaskResult((record,), record.samples, shard.size, record.size)
    return msgspec.structs.replace(values, **result)


def recut(job: JobInput, own: Sequence[Stage], made: str) -> list[Stage]:
    """The stages `own`, and those that cut anew what the tasks of stage `made` have made; these alone without a size."""
    options: SizeOptions = job.options
    if not has_size(options):
        return list(own)
    sizes = OrderOptions(
        on_split="keep", samples_per_shard=options.samples_per_shard, shard_size=options.shard_size, strategy="gather"
    )

    def arrange(results: Results) -> Arrangement:
        parts = number_through([result.decode(InputShard) for result in results[made]])
        counts = [part.shard.samples for part in parts]
        return Arrangement(parts, Stride(0, 1, sum(counts)), [Section("", 0, counts)])

    return Ordered(replace(job, options=sizes, inputs=((),)), arrange, own).stages()
