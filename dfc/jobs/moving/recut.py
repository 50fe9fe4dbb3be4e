"""Outputs of operations that change samples: one per input or, if a size is given, temporary shards that are cut again.

Their tasks write with `open_made` and return `commit_made`. What they write is an output, or an input of the second half, which
`dfc.jobs.moving.ordering` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from dfc.jobs.moving.arrangement import Arrangement, Section
from dfc.jobs.moving.corpus import number_through
from dfc.jobs.moving.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions
from dfc.jobs.moving.orders import Stride
from dfc.jobs.options import SizeOptions
from dfc.jobs.shards.output import ShardOutput
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, TaskResult

RECUT_FUNCTIONS: Final = {name: ORDER_FUNCTIONS[name] for name in ("measure", "cut", "write")}
"""For the FUNCTIONS of operations that call `recut`."""


def has_size(options: SizeOptions) -> bool:
    return options.samples_per_shard is not None or options.shard_bytes is not None


def open_made(store: Store, name: str | None, number: int) -> ShardOutput:
    """Open what a task writes: the output with this name or, if None, the temporary shard with this number."""
    return ShardOutput(store, f"made/{number:08d}.tar", temporary=True) if name is None else ShardOutput(store, name)


def commit_made(output: ShardOutput, shard: InputShard, **result: int | tuple[str, ...]) -> TaskResult:
    """Commit, and return the result of the task, which read `shard`; `result` has further fields of it."""
    if output.temporary:
        made = output.commit_temporary(shard.version, shard.node)
        values = TaskResult(bytes_in=shard.size, bytes_out=made.size, data=msgspec.msgpack.encode(made))
    else:
        record = output.commit()
        values = TaskResult((record,), record.samples, shard.size, record.size)
    return msgspec.structs.replace(values, **result)


def recut(job: JobInput, own: Sequence[Stage], made: str) -> list[Stage]:
    """Return the stages `own` and, if a size is given, the stages that cut again what the tasks of stage `made` wrote."""
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
