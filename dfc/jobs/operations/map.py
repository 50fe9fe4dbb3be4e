"""Apply a function that turns each sample into any number of samples: built in, installed on the workers, or a command.

Built-in functions are resize, transcode, tensor, decode-check, rename and drop. Other functions and commands run in a sandbox,
and only if the operator allows it.
"""

# Stages: `work` applies the function to each shard; `unique` finds duplicate keys; `report` collects the errors of all shards;
# with a size, the results are cut again (`dfc.jobs.moving.recut`).

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict
from dfc.formats.sample import OnSplit, SampleData
from dfc.jobs.external.partitions import PartitionWriter, partition_count
from dfc.jobs.external.uniqueness import KEY_BYTES, DuplicateKey, find_repeats, place_of, shard_and_ordinal
from dfc.jobs.functions import FUNCTIONS as BUILT_IN
from dfc.jobs.functions import as_members, built_in, seed_of
from dfc.jobs.moving.ordering import OrderOptions, check_order
from dfc.jobs.moving.recut import RECUT_FUNCTIONS, commit_made, has_size, open_made, recut
from dfc.jobs.options import KNOWN_VALUES, Seed, SizeOptions
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.sandbox.parent import SampleFailed, Sandbox
from dfc.jobs.sandbox.wire import WireSample
from dfc.jobs.shards.output import PlainOutput
from dfc.jobs.shards.samples import read_samples
from dfc.jobs.store import Function, Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import (
    DECOMPRESS_CHUNK_BYTES,
    JOB_COMMAND_ARGUMENTS_MAX,
    JOB_USER_TIMEOUT_S_MAX,
)

OnError = Literal["abort", "skip", "report"]
REPORT_ENDING: Final = "errors.ndjson"
MAY_NEED: Final = {"jobs_user_functions": "a function that is not built in", "jobs_user_commands": "a command"}


class Options(SizeOptions, frozen=True, kw_only=True):
    """A function with its arguments, or a command."""

    function: Annotated[
        str | None,
        Meta(
            description="A built-in function, or one that is installed on the workers.",
            examples=["resize"],
            extra_json_schema={KNOWN_VALUES: sorted(BUILT_IN)},
        ),
    ] = None
    args: Annotated[
        dict[str, Any], Meta(description="The arguments of the function, by their names.", examples=[{"shortest": 64}])
    ] = {}
    command: Annotated[
        list[str] | None,
        Meta(description="Instead of a function: a program and its arguments.", examples=[["sh", "-c", "cp sample.cls out/"]]),
    ] = None
    seed: Annotated[
        Seed, Meta(description="Seeds a function's random numbers, together with the sample's ordinal.", examples=[42])
    ] = 0
    on_error: Annotated[
        OnError,
        Meta(
            description="Fail the job (abort), leave the sample out (skip), or also list it in an object (report).",
            examples=["report"],
        ),
    ] = "abort"
    timeout: Annotated[
        float,
        Meta(gt=0, le=JOB_USER_TIMEOUT_S_MAX),
        Meta(description="Timeout of user code for one sample, in seconds.", examples=[10.0]),
    ] = 60.0
    unique: Annotated[Literal["dataset", "shard"], Meta(description="Where keys must be unique.", examples=["shard"])] = (
        "dataset"
    )


class MapFailed(Conflict):
    """The function failed for a sample, or returned an invalid sample."""

    code = "map_failed"


class _Work(Struct, frozen=True):
    shard: InputShard
    number: int
    start: int  # global ordinal of the first sample
    name: str | None
    partitions: int  # 0: keys need to be unique only within a shard
    function: str | None
    args: dict[str, Any]
    command: list[str]
    seed: int
    on_split: OnSplit
    on_error: OnError
    timeout: float


class _Unique(Struct, frozen=True):
    partition: int
    partitions: int
    shards: int


class _Report(Struct, frozen=True):
    name: str
    shards: int


def needs(options: Options) -> tuple[str, ...]:
    """The settings that the operator must turn on."""
    if options.command is not None:
        return ("jobs_user_commands",)
    return () if options.function in BUILT_IN else ("jobs_user_functions",)


def check(options: Options, pattern: OutputPattern) -> None:
    check_order(OrderOptions(samples_per_shard=options.samples_per_shard, shard_size=options.shard_size), pattern)
    if (options.function is None) == (options.command is None):
        raise BadRequest(f"map needs either a function ({', '.join(BUILT_IN)}, or a registered one) or a command")
    if options.function is not None and options.function in BUILT_IN:
        built_in(options.function, options.args)
    elif options.command is not None:
        if options.args:
            raise BadRequest("'args' are for functions; put the arguments of a command into its list")
        if not 1 <= len(options.command) <= JOB_COMMAND_ARGUMENTS_MAX or any("\0" in each for each in options.command):
            raise BadRequest(f"a command must be a list of 1 to {JOB_COMMAND_ARGUMENTS_MAX} strings, the program first")
        if not options.command[0]:
            raise BadRequest("a command must begin with the name of a program")


def other_outputs(options: Options, pattern: OutputPattern) -> tuple[str, ...]:
    """The names of outputs that the pattern does not match."""
    return (pattern.literal + REPORT_ENDING,) if options.on_error == "report" else ()


def plan(job: JobInput) -> list[Stage]:
    options: Options = job.options
    shards = job.shards
    joined = options.on_split == "join"
    counts = [shard.samples - (shard.repeated if joined else 0) for shard in shards]
    partitions = partition_count(sum(counts) * KEY_BYTES, job.memory_bytes) if options.unique == "dataset" else 0

    def work(_: Results) -> Iterator[TaskDraft]:
        start = 0
        for number, (shard, count) in enumerate(zip(shards, counts, strict=True)):
            name = None if has_size(options) else job.pattern.name(number)
            payload = _Work(
                shard, number, start, name, partitions, options.function, options.args, options.command or [], options.seed,
                options.on_split, options.on_error, options.timeout,
            )  # fmt: skip
            yield TaskDraft(msgspec.msgpack.encode(payload), shard.label, shard.node if name is None else job.node_of(name))
            start += count

    def unique(_: Results) -> Iterator[TaskDraft]:
        for partition in range(partitions):
            payload = _Unique(partition, partitions, len(shards))
            yield TaskDraft(msgspec.msgpack.encode(payload), f"keys of part {partition} of {partitions}")

    def report(_: Results) -> Iterator[TaskDraft]:
        (name,) = other_outputs(options, job.pattern)
        yield TaskDraft(msgspec.msgpack.encode(_Report(name, len(shards))), name, job.node_of(name))

    stages = [Stage("work", work, len(shards))]
    if partitions:
        stages.append(Stage("unique", unique, partitions))
    if options.on_error == "report":
        stages.append(Stage("report", report, 1))
    return recut(job, stages, "work")


def run_work(task: Task, store: Store) -> TaskResult:
    """Apply the function to one shard."""
    payload = task.decode(_Work)
    with ExitStack() as stack:
        function = _open_function(payload, store, stack)
        errors = _Errors(payload, store, stack)
        keys = _Keys(payload, store, stack)
        output = open_made(store, payload.name, payload.number)
        stack.enter_context(output)
        for sample in read_samples(store, payload.shard, payload.on_split):
            store.check()
            try:
                made = [as_members(each) for each in function(sample)]
            except SampleFailed as error:
                errors.add(sample.key, str(error))
                continue
            for key, members in made:
                keys.add(key)
                output.add(members)
        keys.commit()
        errors.commit()
        return commit_made(output, payload.shard, warnings=errors.warnings)


def _open_function(payload: _Work, store: Store, stack: ExitStack) -> Callable[[SampleData], list[WireSample]]:
    """Return the function to call with every sample."""

    def fields_of(sample: SampleData) -> WireSample:
        return WireSample(sample.key, {member.ext: member.data for member in sample.members})

    if payload.function is not None and payload.function in BUILT_IN:
        function = built_in(payload.function, payload.args)
        return lambda sample: function(fields_of(sample))
    sandbox = stack.enter_context(
        Sandbox(
            stack.enter_context(store.scratch()),
            store.check,
            function=payload.function,
            args=payload.args,
            command=payload.command,
            timeout_s=payload.timeout,
            calls=payload.shard.samples,
        )
    )

    def call(sample: SampleData) -> list[WireSample]:
        return sandbox.call(seed_of(payload.seed, payload.start + sample.number), fields_of(sample))

    return call


class _Keys:
    """The output keys of a shard: logged for the stage `unique`, or compared with each other at once."""

    def __init__(self, payload: _Work, store: Store, stack: ExitStack) -> None:
        self._payload = payload
        self._count = 0
        self._seen: set[str] = set()
        self._log: PartitionWriter | None = None
        if payload.partitions:
            self._log = stack.enter_context(PartitionWriter(store, _keys_name(payload.number), payload.partitions))

    def add(self, key: str) -> None:
        """Add a key. DuplicateKey if keys are compared here and it is a duplicate."""
        if self._log is not None:
            self._log.add_key(key, place_of(self._payload.number, self._count))
            self._count += 1
        elif key in self._seen:
            raise DuplicateKey(f"{self._payload.shard.label}: two output samples have the key {key[:200]!r}")
        else:
            self._seen.add(key)

    def commit(self) -> None:
        if self._log is not None:
            self._log.commit()


class _Errors:
    """The samples that failed."""

    def __init__(self, payload: _Work, store: Store, stack: ExitStack) -> None:
        self._payload = payload
        self._count = 0
        self._first = ""
        self._list: PlainOutput | None = None
        if payload.on_error == "report":
            self._list = stack.enter_context(PlainOutput(store, _errors_name(payload.number), temporary=True))

    def add(self, key: str, message: str) -> None:
        label = self._payload.shard.label
        if self._payload.on_error == "abort":
            raise MapFailed(f"{label}: sample {key[:200]!r}: {message}")
        if not self._count:
            self._first = f"{key[:200]!r}: {message}"
        self._count += 1
        if self._list is not None:
            self._list.write(msgspec.json.encode({"shard": label, "key": key, "error": message}) + b"\n")

    def commit(self) -> None:
        if self._list is not None:
            self._list.commit()

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self._count:
            return ()
        return (f"{self._payload.shard.label}: {self._count} samples failed and were left out, the first one {self._first}",)


def run_unique(task: Task, store: Store) -> TaskResult:
    """Fail if a partition has a duplicate key."""
    payload = task.decode(_Unique)
    logs = [_keys_name(number) for number in range(payload.shards)]
    for repeat in find_repeats(store, logs, payload.partition, payload.partitions):
        first, second = (shard_and_ordinal(place)[0] for place in (repeat.first, repeat.place))
        where = f"input shard {first}" if first == second else f"input shards {first} and {second}"
        raise DuplicateKey(f"two output samples have the key {repeat.key[:200]!r}, from {where} (counted from 0)")
    return TaskResult()


def run_report(task: Task, store: Store) -> TaskResult:
    """Write the errors of all shards, in global order."""
    payload = task.decode(_Report)
    with PlainOutput(store, payload.name) as output:
        for number in range(payload.shards):
            store.check()
            source = store.open_temporary(_errors_name(number))
            try:
                with source.open() as stream:
                    while data := stream.read(DECOMPRESS_CHUNK_BYTES):
                        output.write(data)
            finally:
                source.close()
        record = output.commit()
    return TaskResult((record,), bytes_out=record.size)


def _keys_name(number: int) -> str:
    return f"keys-{number:08d}"


def _errors_name(number: int) -> str:
    return f"errors-{number:08d}"


FUNCTIONS: Final[dict[str, Function]] = {
    "work": run_work,
    "unique": run_unique,
    "report": run_report,
    **RECUT_FUNCTIONS,
}
