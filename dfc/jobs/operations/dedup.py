"""Remove duplicates: keep the first sample, in global order, of those with the same key or the same content of a field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import numpy as np
import xxhash
from msgspec import Meta, Struct

from dfc.errors import BadRequest
from dfc.jobs.data.corpus import CorpusPart, corpus
from dfc.jobs.data.fields import read_fields
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import picked, read_labels, write_labels, write_picked
from dfc.jobs.data.partitions import PartitionWriter, partition_count, read_partition
from dfc.jobs.store import Store
from dfc.jobs.tasks import JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.listing.specs import OutputPattern

_RECORD: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("ordinal", "<i8")])


class Options(OrderOptions, frozen=True, kw_only=True):
    """How to compare samples."""

    by: Annotated[
        str,
        Meta(
            description="key, or hash:EXT to compare the content of a field; samples without that field are kept.",
            examples=["hash:jpg"],
        ),
    ] = "key"


class DedupTask(Struct, frozen=True):
    part: CorpusPart
    ext: str  # empty: by key
    partitions: int = 0
    labels: tuple[str, ...] = ()
    shards: int = 0


class FirstTask(Struct, frozen=True):
    starts: list[int]
    partition: int
    inputs: int


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest unless `by` is key or hash:EXT."""
    check_order(options, pattern)
    _ext(options)


def _ext(options: Options) -> str:
    kind, _, ext = options.by.partition(":")
    if options.by != "key" and (kind != "hash" or not ext or "/" in ext):
        raise BadRequest(f"'by' must be key or hash:EXT, not {options.by[:80]!r}")
    return ext.lower()


def plan(job: JobInput) -> list[Stage]:
    """Plan to hash every shard by partition, find repeated hashes in each partition, and pick the rest of each shard."""
    options: Options = job.options
    ext = _ext(options)
    partitions = partition_count(4 * _RECORD.itemsize * sum(shard.samples for shard in job.shards), job.memory_bytes)

    def hashes(results: Results) -> Iterator[TaskDraft]:
        for part in corpus(job, results):
            yield TaskDraft.of(DedupTask(part, ext, partitions), part.shard.label, part.shard.node)

    def later(results: Results) -> Iterator[TaskDraft]:
        parts = corpus(job, results)
        starts = [*(part.start for part in parts), parts[-1].end if parts else 0]
        for partition in range(partitions):
            yield TaskDraft.of(FirstTask(starts, partition, len(results["hashes"])), f"hashes, part {partition}")

    def pick(results: Results) -> Iterator[TaskDraft]:
        parts = corpus(job, results)
        labels = tuple(_later_name(number) for number in range(len(results["later"])))
        for part in parts:
            task = DedupTask(part, ext, labels=labels, shards=len(parts))
            yield TaskDraft.of(task, part.shard.label, part.shard.node)

    own = [Stage("hashes", hashes, len(job.shards)), Stage("later", later, partitions), Stage("pick", pick, len(job.shards))]
    return Ordered(job, lambda results: picked(corpus(job, results), results, [""]), own=own, follows=True).stages()


def write_hashes(task: Task, store: Store) -> TaskResult:
    """Write hash and ordinal of each sample of a shard, partitioned by hash."""
    wanted = task.decode(DedupTask)
    with PartitionWriter(store, _hash_name(task.number), wanted.partitions) as writer:
        for fields in read_fields(store, wanted.part, [wanted.ext] if wanted.ext else [], digests=True):
            digests = fields.values[0] if wanted.ext else [xxhash.xxh3_128_digest(key) for key in fields.keys]
            for ordinal, digest in enumerate(digests, fields.start):
                if digest is not None:
                    writer.add(digest[-1] % wanted.partitions, digest + ordinal.to_bytes(8, "little"))
        size = writer.commit()
    return TaskResult(bytes_out=size)


def find_later(task: Task, store: Store) -> TaskResult:
    """Find all samples of a partition that are not the first with their hash."""
    wanted = task.decode(FirstTask)
    names = [_hash_name(number) for number in range(wanted.inputs)]
    data = b"".join(segment for name in names for segment in read_partition(store, name, wanted.partition))
    records = np.frombuffer(data, dtype=_RECORD)
    records = records[np.lexsort((records["ordinal"], records["low"], records["high"]))]
    again = (records["high"][1:] == records["high"][:-1]) & (records["low"][1:] == records["low"][:-1])
    ordinals = records["ordinal"][1:][again].astype(np.int64)
    write_labels(store, _later_name(task.number), wanted.starts, ordinals, np.zeros(len(ordinals), dtype=np.int64))
    return TaskResult(bytes_in=len(data))


def pick_first(task: Task, store: Store) -> TaskResult:
    """Pick the samples of one shard that are kept."""
    wanted = task.decode(DedupTask)
    later, _ = read_labels(store, wanted.labels, task.number, wanted.shards)
    ordinals = np.arange(wanted.part.start, wanted.part.end, dtype=np.int64)
    return write_picked(store, task.number, [np.setdiff1d(ordinals, later, assume_unique=True)])


def _hash_name(number: int) -> str:
    return f"hashes/{number:06d}"


def _later_name(number: int) -> str:
    return f"later/{number:06d}"


FUNCTIONS: Final = {**ORDER_FUNCTIONS, "hashes": write_hashes, "later": find_later, "pick": pick_first}
