"""Plan jobs that put samples in order, and jobs whose changed samples are cut into shards again.

An operation decides the order (`Arrangement`, from the results of its own stages). The rest is done here: the sizes of outputs,
the choice between gathering (one pass, random reads) and spilling (sequential, `dfc.jobs.data.spilling`), and the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Annotated, Final, Literal, cast

import msgspec
import numpy as np

from dfc.errors import BadRequest
from dfc.jobs.data.corpus import (
    PREPARING_FUNCTIONS,
    PartList,
    Parts,
    Sources,
    listing_stages,
    number_through,
    part_list,
    preparing_stages,
)
from dfc.jobs.data.gathering import in_lookups, look_up, write_samples
from dfc.jobs.data.orders import Arrangement, Cut, Order, Section, Stride, encode_entries, ordinals_at, read_entries, restricted
from dfc.jobs.data.output import PlainOutput, ShardOutput, sample_sizes
from dfc.jobs.data.spilling import SPILL_FUNCTIONS, Spilling
from dfc.jobs.spec import SizeOptions, check_sizes
from dfc.jobs.store import Function, Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.listing.specs import OutputPattern
from dfc.tar.index.columns import Integers
from dfc.tar.index.format import index_kind
from dfc.tar.samples import END_OF_ARCHIVE

Strategy = Literal["auto", "gather", "spill"]
MEASURE_PLACES: Final = 1 << 20  # how many sizes one task looks up


class OrderOptions(SizeOptions, frozen=True, kw_only=True):
    """The options of every operation that reorders samples."""

    strategy: Annotated[
        Strategy,
        msgspec.Meta(
            description="gather reads each sample once, at random; spill reads and writes everything twice, sequentially; "
            "auto gathers unless an input is compressed.",
            examples=["spill"],
        ),
    ] = "auto"


def check_order(options: OrderOptions, pattern: OutputPattern, *, part: bool = False) -> None:
    """Raise BadRequest for conflicting sizes, or a pattern that does not name numbered shards (of parts, with `part`)."""
    check_sizes(options)
    if not pattern.is_numbered or pattern.is_prefix:
        raise BadRequest("the output pattern needs a number for the shards, such as %06d")
    if pattern.has_part != part:
        raise BadRequest("the output pattern must contain {part}" if part else "only split can have {part} in its pattern")
    if index_kind(pattern.name(0, part="part" if part else "")) is None:
        raise BadRequest("the output pattern must end in .tar, .tgz, .tar.gz, .tar.zst, .tar.lz4, .tar.bz2 or .tar.xz")


class WriteTask(msgspec.Struct, frozen=True):
    cut: Cut
    order: Order
    parts: PartList


class _MeasureTask(msgspec.Struct, frozen=True):
    lo: int
    hi: int
    order: Order
    parts: PartList


class _CutTask(msgspec.Struct, frozen=True):
    sections: tuple[tuple[int, int], ...]  # places
    count: int
    limit: int  # bytes of an output


@dataclass(frozen=True)
class Ordered:
    """The stages of a job that writes samples in a given order.

    `arrange` can be called once the stages in `own` have ended. `follows`: without a size, each output takes its samples
    from one input, in their order there. `per_shard`: samples per output, if the operation sets it.
    """

    job: JobInput
    arrange: Callable[[Results], Arrangement]
    own: Sequence[Stage] = ()
    follows: bool = False
    per_shard: Callable[[Arrangement], int] | None = None
    parts: int = 1

    def stages(self) -> list[Stage]:
        stages = [*preparing_stages(self.job, self._options.on_split), *self.own, *listing_stages(self.job)]
        if self._measured:
            stages += [Stage("measure", self._measure), Stage("cut", self._cut, 1)]
        if self._spills():
            spilling = Spilling(self.job, self.arrange, self.cuts, self._estimate())
            return [*stages, *spilling.stages()]
        # Without earlier stages, the number of outputs is known when the job is planned.
        outputs = None if stages else lambda: self._count({})
        return [*stages, Stage("write", self._write, self._count, outputs)]

    def _count(self, results: Results) -> int:
        arrangement = self.arrange(results)
        sections = enumerate(arrangement.sections)
        return sum(sum(1 for _ in self._bounds(arrangement, section, number, results)) - 1 for number, section in sections)

    @property
    def _options(self) -> OrderOptions:
        options: OrderOptions = self.job.options
        return options

    @property
    def _measured(self) -> bool:
        return self._options.shard_bytes is not None and self.per_shard is None

    def _spills(self) -> bool:
        options = self._options
        compressed = next((shard for shard in self.job.shards if shard.kind != "tar"), None)
        if compressed is None or (self.follows and not has_size(options)):
            return options.strategy == "spill"
        if options.strategy == "gather":
            raise BadRequest(f"{compressed.label} is compressed, so its samples cannot be gathered; use strategy 'spill'")
        return True

    def _estimate(self) -> int:
        """Estimate the number of outputs."""
        options, shards = self._options, self.job.shards
        if options.samples_per_shard is not None:
            return sum(shard.samples for shard in shards) // options.samples_per_shard + self.parts
        if options.shard_bytes is not None:
            return sum(shard.content_size for shard in shards) // options.shard_bytes + self.parts
        return len(shards) * self.parts

    def cuts(self, results: Results) -> Iterator[Cut]:
        """Yield the outputs."""
        arrangement, name = self.arrange(results), self.job.pattern.name
        for number, section in enumerate(arrangement.sections):
            for k, (lo, hi) in enumerate(pairwise(self._bounds(arrangement, section, number, results))):
                yield Cut(name(k, part=section.part), int(lo), int(hi))

    def _bounds(self, arrangement: Arrangement, section: Section, number: int, results: Results) -> Iterable[int]:
        """The start of each output of a section, and the end of the last one; there may be an output for every sample."""
        if self._measured:
            packed = results["cut"][0].decode(list[bytes])[number]
            return cast(Iterable[int], np.frombuffer(packed, dtype="<i8"))
        per_shard = self.per_shard(arrangement) if self.per_shard is not None else self._options.samples_per_shard
        if per_shard is None:
            return accumulate(section.counts, initial=section.lo)
        return chain(range(section.lo, section.hi, per_shard), (section.hi,))

    def _write(self, results: Results) -> Iterator[TaskDraft]:
        arrangement = self.arrange(results)
        for cut in self.cuts(results):
            task = WriteTask(cut, *_needed(arrangement, cut.lo, cut.hi))
            yield TaskDraft.of(task, cut.name, self.job.node_of(cut.name))

    def _measure(self, results: Results) -> Iterator[TaskDraft]:
        arrangement = self.arrange(results)
        for lo in range(0, arrangement.count, MEASURE_PLACES):
            hi = min(arrangement.count, lo + MEASURE_PLACES)
            yield TaskDraft.of(_MeasureTask(lo, hi, *_needed(arrangement, lo, hi)), f"sizes of samples from {lo} on")

    def _cut(self, results: Results) -> Iterator[TaskDraft]:
        arrangement = self.arrange(results)
        limit = self._options.shard_bytes
        assert limit is not None
        sections = tuple((section.lo, section.hi) for section in arrangement.sections)
        yield TaskDraft.of(_CutTask(sections, arrangement.count, limit), "sizes of outputs")


def _needed(arrangement: Arrangement, lo: int, hi: int) -> tuple[Order, PartList]:
    order, parts = restricted(arrangement.order, arrangement.parts, lo, hi)
    return order, part_list(parts, arrangement.parts)


def write_gathered(task: Task, store: Store) -> TaskResult:
    """Write one output by gathering its samples."""
    wanted = task.decode(WriteTask)
    return gather(store, wanted.cut, wanted.order, wanted.parts.load(store))


def gather(store: Store, cut: Cut, order: Order, parts: Parts, *, level: int | None = None) -> TaskResult:
    """Gather the samples at the places of `cut` into one shard. Ordinals of a compressed input must ascend."""
    count = cut.hi - cut.lo
    lookups = list(in_lookups(count))
    found = None
    if len(lookups) <= 1:
        found = look_up(store, parts, ordinals_at(order, store, cut.lo, cut.hi))
        size = int(sample_sizes(found[1]).sum())
    else:
        measured = (_sizes_at(store, order, parts, cut.lo + lo, cut.lo + hi) for lo, hi in lookups)
        size = sum(int(sizes.sum()) for sizes in measured)
    with (
        ShardOutput(store, cut.name, size + len(END_OF_ARCHIVE), level=level) as output,
        Sources(store, [part.shard for part in parts]) as sources,
    ):
        for lo, hi in lookups:
            if found is None:
                rows, samples = look_up(store, parts, ordinals_at(order, store, cut.lo + lo, cut.lo + hi))
            else:
                rows, samples = found
            write_samples(output, sources, rows, samples, store.memory_bytes)
            store.check()
        output.write(END_OF_ARCHIVE)
        record = output.commit(count)
    return TaskResult((record,), count, record.content_size, record.size)


def _sizes_at(store: Store, order: Order, parts: Parts, lo: int, hi: int) -> Integers:
    _, samples = look_up(store, parts, ordinals_at(order, store, lo, hi))
    return sample_sizes(samples)


def measure(task: Task, store: Store) -> TaskResult:
    """Write a table of the sizes of the samples at some places."""
    wanted = task.decode(_MeasureTask)
    parts = wanted.parts.load(store)
    with PlainOutput(store, f"sizes/{task.number:06d}", (wanted.hi - wanted.lo) * 8, temporary=True) as output:
        for lo, hi in in_lookups(wanted.hi - wanted.lo):
            output.write(encode_entries(_sizes_at(store, wanted.order, parts, wanted.lo + lo, wanted.lo + hi)))
            store.check()
        output.commit()
    return TaskResult()


def cut_by_size(task: Task, store: Store) -> TaskResult:
    """Compute where outputs end: before the sample that would exceed the limit. A larger sample is an output of its own."""
    wanted = task.decode(_CutTask)
    room = wanted.limit - len(END_OF_ARCHIVE)
    packed = []
    for lo, hi in wanted.sections:
        bounds, size = [lo], 0
        for start, sizes in _sizes(store, lo, hi):
            ends = np.cumsum(sizes)
            done = 0  # of `ends`, what is in closed outputs
            at = 0
            while at < len(ends):
                fit = int(np.searchsorted(ends, done + room - size, side="right"))
                if fit <= at and start + at == bounds[-1]:
                    fit = at + 1  # alone
                fit = max(fit, at)
                if fit == len(ends):
                    size += int(ends[-1]) - done
                    break
                bounds.append(start + fit)
                at, done, size = fit, int(ends[fit - 1]) if fit else 0, 0
        if hi > lo:
            bounds.append(hi)
        packed.append(np.array(bounds, dtype="<i8").tobytes())
        store.check()
    return TaskResult(data=msgspec.msgpack.encode(packed))


def _sizes(store: Store, lo: int, hi: int) -> Iterator[tuple[int, Integers]]:
    while lo < hi:
        number, first = divmod(lo, MEASURE_PLACES)
        count = min(hi - lo, MEASURE_PLACES - first)
        yield lo, read_entries(store, f"sizes/{number:06d}", first, count)
        lo += count


ORDER_FUNCTIONS: Final[Mapping[str, Function]] = {
    **PREPARING_FUNCTIONS,
    **SPILL_FUNCTIONS,
    "measure": measure,
    "cut": cut_by_size,
    "write": write_gathered,
}
"""The functions of the stages of `Ordered`, for the FUNCTIONS of operations."""


# --- Outputs of operations that change samples: one per input or, if a size is given, temporary shards that are cut again.
#
# Their tasks write with `open_made` and return `commit_made`. What they write is an output, or an input of the second half,
# which `dfc.jobs.data.ordering` does.

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
