"""Write counts and sizes by extension, class and shard, as one JSON object.

Without `by`, only indexes are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from dfc.errors import BadRequest, Conflict
from dfc.formats.base import OnSplit
from dfc.jobs.data.fields import ClassField, NotAClass, class_of, parse_class_field
from dfc.jobs.data.output import PlainOutput
from dfc.jobs.data.partitions import read_value, write_value
from dfc.jobs.data.samples import read_samples
from dfc.jobs.spec import CommonOptions
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, JobInput, Results, Stage, Task, TaskDraft, TaskResult
from dfc.limits import JOB_CLASSES_MAX, JOB_MEMBER_BYTES_MAX
from dfc.listing.specs import OutputPattern
from dfc.tar.header import TarError

Sizes = list[tuple[str, int]]
"""Extension and size of each member of a sample."""


class Options(CommonOptions, frozen=True, kw_only=True):
    """What to count besides sizes."""

    by: Annotated[
        str | None, Meta(description="The field that holds the class of a sample: cls, or json:path.to.it.", examples=["cls"])
    ] = None


class TooManyClasses(Conflict):
    """There are too many different classes or extensions to count samples by them."""

    code = "too_many_classes"


class _Count(Struct, frozen=True):
    shard: InputShard
    on_split: OnSplit
    by: str | None
    temporary: str


class _Report(Struct, frozen=True):
    name: str
    by: str | None
    temporaries: int


class _Tally(Struct):
    """Totals of a shard, or of all shards. `extensions`: members, bytes, smallest, largest; `classes`: samples, bytes;
    `sizes`: by extension, how many members have a size of so many bits."""

    shard: str = ""
    samples: int = 0
    members: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    dropped: int = 0
    repeated: int = 0
    unclassed: int = 0
    extensions: dict[str, list[int]] = {}
    classes: dict[str, list[int]] = {}
    sizes: dict[str, dict[int, int]] = {}

    def add_sample(self, sizes: Sizes, group: str | None, *, grouped: bool) -> None:
        total = 0
        for ext, size in sizes:
            total += size
            _add_extension(self.extensions, ext, [1, size, size, size])
            _add_sizes(self.sizes, ext, {size.bit_length(): 1})
        self.samples += 1
        self.members += len(sizes)
        self.bytes += total
        if group is not None:
            _add_class(self.classes, group, [1, total])
        elif grouped:
            self.unclassed += 1

    def add(self, other: _Tally) -> None:
        self.samples += other.samples
        self.members += other.members
        self.bytes += other.bytes
        self.stored_bytes += other.stored_bytes
        self.dropped += other.dropped
        self.repeated += other.repeated
        self.unclassed += other.unclassed
        for ext, counts in other.extensions.items():
            _add_extension(self.extensions, ext, counts)
        for ext, found in other.sizes.items():
            _add_sizes(self.sizes, ext, found)
        for group, counts in other.classes.items():
            _add_class(self.classes, group, counts)


def check(options: Options, pattern: OutputPattern) -> None:
    if pattern.is_numbered or pattern.has_part or pattern.is_prefix:
        raise BadRequest("stats writes one object: give a plain name as output, such as 'stats.json'")
    if options.by is not None:
        parse_class_field(options.by)


def reads_only(_: Options) -> bool:
    return True


def plan(job: JobInput) -> list[Stage]:
    options: Options = job.options
    name = job.pattern.name()

    def count(_: Results) -> Iterator[TaskDraft]:
        for number, shard in enumerate(job.shards):
            payload = _Count(shard, options.on_split, options.by, _temporary(number))
            yield TaskDraft.of(payload, shard.label, shard.node)

    def report(_: Results) -> Iterator[TaskDraft]:
        yield TaskDraft.of(_Report(name, options.by, len(job.shards)), name, job.node_of(name))

    return [Stage("count", count, len(job.shards)), Stage("report", report, 1, 1)]


def _temporary(number: int) -> str:
    return f"stats-{number:08d}"


def run_count(task: Task, store: Store) -> TaskResult:
    """Count one shard."""
    payload = task.decode(_Count)
    shard = payload.shard
    tally = _Tally(shard.label, stored_bytes=shard.size, dropped=shard.dropped, repeated=shard.repeated)
    for sizes, group in _read(store, payload):
        tally.add_sample(sizes, group, grouped=payload.by is not None)
    write_value(store, payload.temporary, tally)
    return TaskResult(samples=tally.samples, bytes_in=tally.bytes if payload.by else 0)


def _read(store: Store, payload: _Count) -> Iterator[tuple[Sizes, str | None]]:
    """Yield sizes and class of every sample: from the index if possible, with a read of the class's field only."""
    shard = payload.shard
    field = None if payload.by is None else parse_class_field(payload.by)
    if (shard.repeated and payload.on_split != "keep") or (field is not None and shard.kind != "tar"):
        for data in read_samples(store, shard, payload.on_split):
            sizes = [(member.ext, len(member.data)) for member in data.members]
            yield sizes, None if field is None else _class(field, shard, data.key, data.get(field.ext))
        return
    source = None if field is None else store.open(shard)
    try:
        for sample in store.index(shard).samples():
            if not sample.number & 1023:
                store.check()
            content = None
            if field is not None and source is not None:
                member = next((member for member in sample.members if member.ext == field.ext), None)
                if member is not None:
                    # A class is short: of text, read only enough to tell that it is too long. JSON is read whole.
                    if field.path and member.size > JOB_MEMBER_BYTES_MAX:
                        raise TarError(
                            f"{shard.label}: member {member.name[:80]!r} is too large to be read into memory", member.offset
                        )
                    content = bytearray(member.size if field.path else min(member.size, 4096))
                    source.read_into(member.offset, memoryview(content))
            group = None if field is None else _class(field, shard, sample.key, None if content is None else bytes(content))
            yield [(member.ext or "", member.size) for member in sample.members], group
    finally:
        if source is not None:
            source.close()


def _class(field: ClassField, shard: InputShard, key: str, data: bytes | None) -> str | None:
    try:
        return class_of(field, data)
    except NotAClass as error:
        raise NotAClass(f"{shard.label}: sample {key!r}: {error.message}") from None


def _add_extension(extensions: dict[str, list[int]], ext: str, counts: list[int]) -> None:
    known = extensions.get(ext)
    if known is None:
        if len(extensions) >= JOB_CLASSES_MAX:
            raise TooManyClasses(f"there are more than {JOB_CLASSES_MAX} extensions; do the keys contain dots?")
        extensions[ext] = list(counts)
    else:
        known[0] += counts[0]
        known[1] += counts[1]
        known[2] = min(known[2], counts[2])
        known[3] = max(known[3], counts[3])


def _add_sizes(sizes: dict[str, dict[int, int]], ext: str, found: dict[int, int]) -> None:
    known = sizes.setdefault(ext, {})
    for bits, members in found.items():
        known[bits] = known.get(bits, 0) + members


def _add_class(classes: dict[str, list[int]], group: str, counts: list[int]) -> None:
    known = classes.get(group)
    if known is None:
        if len(classes) >= JOB_CLASSES_MAX:
            raise TooManyClasses(f"there are more than {JOB_CLASSES_MAX} classes")
        classes[group] = list(counts)
    else:
        known[0] += counts[0]
        known[1] += counts[1]


def run_report(task: Task, store: Store) -> TaskResult:
    """Add up all shards, then write the object with a line per shard, since there may be a million."""
    payload = task.decode(_Report)
    total = _Tally()
    for tally in _tallies(store, payload.temporaries):
        total.add(tally)
    head: dict[str, Any] = {
        "shards": payload.temporaries,
        "samples": total.samples,
        "members": total.members,
        "bytes": total.bytes,
        "stored_bytes": total.stored_bytes,
        "dropped_members": total.dropped,
        "repeated_keys": total.repeated,
        "extensions": {
            ext: {
                "members": members,
                "bytes": size,
                "smallest": smallest,
                "largest": largest,
                "sizes": [(1 << bits >> 1, count) for bits, count in sorted(total.sizes[ext].items())],
            }
            for ext, (members, size, smallest, largest) in sorted(total.extensions.items())
        },
    }
    if payload.by is not None:
        classes = {group: {"samples": samples, "bytes": size} for group, (samples, size) in sorted(total.classes.items())}
        head |= {"by": payload.by, "without_class": total.unclassed, "classes": classes}
    with PlainOutput(store, payload.name) as output:
        output.write(msgspec.json.encode(head)[:-1] + b',"by_shard":[')
        for number, tally in enumerate(_tallies(store, payload.temporaries)):
            line = {
                "shard": tally.shard,
                "samples": tally.samples,
                "members": tally.members,
                "bytes": tally.bytes,
                "stored_bytes": tally.stored_bytes,
            }
            output.write((b",\n" if number else b"\n") + msgspec.json.encode(line))
        output.write(b"\n]}\n")
        record = output.commit()
    return TaskResult((record,), bytes_out=record.size)


def _tallies(store: Store, count: int) -> Iterator[_Tally]:
    for number in range(count):
        store.check()
        yield read_value(store, _temporary(number), _Tally)


FUNCTIONS: Final = {"count": run_count, "report": run_report}
