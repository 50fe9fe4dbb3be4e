"""Apply a function that turns each sample into any number of samples: built in, installed on the workers, or a command.

Built-in functions are resize, transcode, tensor, decode-check, rename and drop. Other functions and commands run in a sandbox,
and only if the operator allows it.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import numpy as np
import xxhash
from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict
from dfc.formats.base import DataMember, OnSplit, SampleData
from dfc.jobs.data.images import Undecodable, check_field, is_image, open_image, pillow
from dfc.jobs.data.ordering import RECUT_FUNCTIONS, OrderOptions, check_order, commit_made, has_size, open_made, recut
from dfc.jobs.data.output import PlainOutput
from dfc.jobs.data.partitions import (
    KEY_BYTES,
    DuplicateKey,
    PartitionWriter,
    find_repeats,
    partition_count,
    place_of,
    shard_and_ordinal,
)
from dfc.jobs.data.samples import read_samples
from dfc.jobs.sandbox.isolation import WireSample
from dfc.jobs.sandbox.parent import SampleFailed, Sandbox
from dfc.jobs.spec import KNOWN_VALUES, Seed, SizeOptions
from dfc.jobs.store import Function, Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import (
    DECOMPRESS_CHUNK_BYTES,
    JOB_COMMAND_ARGUMENTS_MAX,
    JOB_IMAGE_PIXELS_MAX,
    JOB_USER_TIMEOUT_S_MAX,
    SAMPLE_RECORDS_MAX,
    TAR_MEMBER_NAME_BYTES_MAX,
)
from dfc.listing.specs import OutputPattern
from dfc.tar.samples import split_key

if TYPE_CHECKING:
    from PIL.Image import Image

# --- The built-in functions of `map`. Each takes a sample and returns samples, or raises SampleFailed.
#
# `FUNCTIONS` maps each name to the struct of its arguments; instances of the struct are called with samples.

ImageFormat = Literal["jpg", "jpeg", "png", "webp", "bmp", "gif", "ppm", "tif", "tiff"]
_Side = Annotated[int, Meta(ge=1, le=65_500)]
_Quality = Annotated[int, Meta(ge=1, le=100)]
_LOSSY: Final = frozenset(("JPEG", "WEBP"))
_FORMAT_OF: Final = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "tiff": "TIFF", "pbm": "PPM", "pgm": "PPM"}


class _Arguments(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    def check(self) -> None:
        """Check what the types cannot express. BadRequest."""

    def __call__(self, sample: WireSample) -> list[WireSample]:
        raise NotImplementedError


class Drop(_Arguments, frozen=True, kw_only=True):
    """Drop fields. A sample without other fields is dropped, too."""

    fields: list[str]

    def __call__(self, sample: WireSample) -> list[WireSample]:
        dropped = {ext.lower() for ext in self.fields}
        kept = {ext: data for ext, data in sample.fields.items() if ext not in dropped}
        return [WireSample(sample.key, kept)] if kept else []


class Rename(_Arguments, frozen=True, kw_only=True):
    """Rename extensions (old to new), and add a `prefix` to keys."""

    fields: dict[str, str] = {}
    prefix: str = ""

    def check(self) -> None:
        if not self.fields and not self.prefix:
            raise BadRequest("rename needs 'fields', or a prefix for keys")

    def __call__(self, sample: WireSample) -> list[WireSample]:
        names = {old.lower(): new.lower() for old, new in self.fields.items()}
        fields: dict[str, bytes] = {}
        for ext, data in sample.fields.items():
            name = names.get(ext, ext)
            if name in fields:
                raise SampleFailed(f"two of its fields would be named {name!r}")
            fields[name] = data
        return [WireSample(self.prefix + sample.key, fields)]


class _OfImages(_Arguments, frozen=True, kw_only=True):
    """Changes pictures. `fields`: their extensions; None: all extensions of pictures."""

    fields: list[str] | None = None

    def __call__(self, sample: WireSample) -> list[WireSample]:
        wanted = None if self.fields is None else {ext.lower() for ext in self.fields}
        fields: dict[str, bytes] = {}
        for ext, data in sample.fields.items():
            name, content = ext, data
            if is_image(ext) if wanted is None else ext in wanted:
                try:
                    name, content = self.change(ext, open_image(data))
                except Undecodable as error:
                    raise SampleFailed(f"field {ext!r}: {error}") from None
            if name in fields:
                raise SampleFailed(f"two of its fields would be named {name!r}")
            fields[name] = content
        return [WireSample(sample.key, fields)]

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        """Return the new extension and bytes of a picture."""
        raise NotImplementedError


class Resize(_OfImages, frozen=True, kw_only=True):
    """Resize pictures to `size` [width, height], or by the length of the `shortest` or `longest` side; keep the format."""

    size: tuple[_Side, _Side] | None = None
    shortest: _Side | None = None
    longest: _Side | None = None
    quality: _Quality = 90

    def check(self) -> None:
        if sum(each is not None for each in (self.size, self.shortest, self.longest)) != 1:
            raise BadRequest("resize needs exactly one of size [width, height], shortest and longest")

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        width, height = self.size or _scaled(image.size, self.shortest, self.longest)
        if width * height > JOB_IMAGE_PIXELS_MAX:
            raise SampleFailed(f"field {ext!r} would have {width} x {height} pixels, more than {JOB_IMAGE_PIXELS_MAX}")
        format = image.format or "PNG"
        plain = image.convert("RGB") if image.mode == "P" and "transparency" not in image.info else image
        plain = plain.convert("RGBA") if plain.mode in ("P", "PA") else plain.convert("L") if plain.mode == "1" else plain
        resized = plain.resize((width, height), pillow().Resampling.LANCZOS)
        return ext, _encode(resized, format, self.quality)


class Transcode(_OfImages, frozen=True, kw_only=True):
    """Convert pictures to another format (`quality`: for jpg and webp), and change the extension to match."""

    format: ImageFormat
    quality: _Quality = 90

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        return _with_ending(ext, self.format), _encode(image, _FORMAT_OF.get(self.format, self.format.upper()), self.quality)


class Tensor(_OfImages, frozen=True, kw_only=True):
    """Convert pictures to .npy: uint8 of shape (height, width, 3), or (height, width) if grey; others as in Pillow."""

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        plain = image if image.mode in ("L", "RGB", "I", "F", "I;16") else image.convert("RGB")
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(plain), allow_pickle=False)
        return _with_ending(ext, "npy"), buffer.getvalue()


class DecodeCheck(_Arguments, frozen=True, kw_only=True):
    """Fail for samples with pictures or JSON that cannot be decoded; keep others unchanged."""

    def __call__(self, sample: WireSample) -> list[WireSample]:
        for ext, data in sample.fields.items():
            try:
                check_field(ext, data)
            except Undecodable as error:
                raise SampleFailed(f"field {ext!r}: {error}") from None
        return [sample]


BUILT_IN: Final[Mapping[str, type[_Arguments]]] = {
    "decode-check": DecodeCheck,
    "drop": Drop,
    "rename": Rename,
    "resize": Resize,
    "tensor": Tensor,
    "transcode": Transcode,
}


def built_in(name: str, arguments: dict[str, Any]) -> Callable[[WireSample], list[WireSample]]:
    """Return a built-in function with its arguments. BadRequest for invalid arguments, KeyError for an unknown name."""
    try:
        function = msgspec.convert(arguments, BUILT_IN[name])
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid arguments for {name}: {error}") from None
    function.check()
    return function


def _scaled(size: tuple[int, int], shortest: int | None, longest: int | None) -> tuple[int, int]:
    """Scale a size, rounding half up in integers, so that the result is the same everywhere."""
    side, other = (min(size), shortest) if shortest is not None else (max(size), longest or 1)
    width, height = ((2 * each * other + side) // (2 * side) for each in size)
    return max(1, width), max(1, height)


def _with_ending(ext: str, ending: str) -> str:
    head, dot, _ = ext.rpartition(".")
    return head + dot + ending


def _encode(image: Image, format: str, quality: int) -> bytes:
    if format in ("JPEG", "PPM", "BMP") and image.mode not in ("L", "RGB", "CMYK" if format == "JPEG" else "RGB"):
        image = image.convert("RGB")
    buffer = io.BytesIO()
    try:
        if format in _LOSSY:
            image.save(buffer, format, quality=quality)
        else:
            image.save(buffer, format)
    except (OSError, ValueError, KeyError) as error:
        raise Undecodable(f"cannot write a picture of mode {image.mode} as {format} ({str(error)[:100]})") from None
    return buffer.getvalue()


def seed_of(seed: int, ordinal: int) -> int:
    """Return 64 random bits for a sample: the same on every worker and every run."""
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", seed, ordinal))


def as_members(sample: WireSample) -> tuple[str, list[DataMember]]:
    """Convert a sample to members. SampleFailed for keys and extensions that would be parsed differently when read."""
    if not 1 <= len(sample.fields) <= SAMPLE_RECORDS_MAX:
        raise SampleFailed(f"the output sample {sample.key[:80]!r} has {len(sample.fields)} fields")
    members = []
    for ext, data in sample.fields.items():
        name = f"{sample.key}.{ext.lower()}"
        if split_key(name) != (sample.key, ext.lower()) or not _is_member_name(name):
            raise SampleFailed(f"the output key {sample.key[:80]!r} with extension {ext[:80]!r} is not a valid member name")
        members.append(DataMember(ext.lower(), name, data))
    if len({member.ext for member in members}) < len(members):
        raise SampleFailed(f"the output sample {sample.key[:80]!r} has two extensions that differ only in case")
    return sample.key, members


def _is_member_name(name: str) -> bool:
    try:
        return "\0" not in name and len(name.encode()) <= TAR_MEMBER_NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


# --- Stages: `work` applies the function to each shard; `unique` finds duplicate keys; `report` collects the errors of all
# shards; with a size, the results are cut again (`dfc.jobs.data.ordering`).

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
            yield TaskDraft.of(payload, shard.label, shard.node if name is None else job.node_of(name))
            start += count

    def unique(_: Results) -> Iterator[TaskDraft]:
        for partition in range(partitions):
            yield TaskDraft.of(_Unique(partition, partitions, len(shards)), f"keys of part {partition} of {partitions}")

    def report(_: Results) -> Iterator[TaskDraft]:
        (name,) = other_outputs(options, job.pattern)
        yield TaskDraft.of(_Report(name, len(shards)), name, job.node_of(name))

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
        output = stack.enter_context(open_made(store, payload.name, payload.number))
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
            with closing(store.open_temporary(_errors_name(number))) as source, source.open() as stream:
                while data := stream.read(DECOMPRESS_CHUNK_BYTES):
                    output.write(data)
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
