"""What a job was asked to do, by its spec: what it reads, what it writes, its options. No I/O."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from dfc.datasets import NumberedNames
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.reports import report_name
from dfc.jobs.request import parse_spec
from dfc.jobs.spec import InputSpec, JobSpec
from dfc.names import object_path
from dfc.shards import is_plain
from dfc.tar.index.format import index_kind
from dfc.ui.addresses import dataset_url, datasets_url, page_of
from dfc.ui.datasets.traces import Linked
from dfc.wire.jobs import Job

SHOWN_MAX: Final = 8  # inputs of a job
TEXT_CHARS_MAX: Final = 200
ALL: Final = "**"


class AskedJob(NamedTuple):
    """What a job reads, with pages of it, and `more_inputs` that are not shown; what it writes, as text; its options as names
    and values; the name of its report, if it writes one."""

    inputs: list[Linked]
    more_inputs: int
    output: str
    options: list[tuple[str, str]]
    report: str

    @property
    def reads(self) -> str:
        """What it reads, in a line."""
        return ", ".join(each.text for each in self.inputs) + (" …" if self.more_inputs else "")


def asked_of(spec: bytes) -> AskedJob | None:
    """Read a spec. None if it is of another version."""
    try:
        job = msgspec.json.decode(spec, type=JobSpec)
        options = msgspec.json.decode(bytes(job.options) or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    shown = [(name, _text(value)) for name, value in options.items() if value is not None]
    return AskedJob(
        [_input(each) for each in job.inputs[:SHOWN_MAX]],
        max(0, len(job.inputs) - SHOWN_MAX),
        _short(f"{job.output.bucket}/{job.output.pattern}"),
        shown + ([("overwrite", "true")] if job.overwrite else []),
        report_name(job.operation, job.output.pattern, options),
    )


def made_by(spec: bytes, job: Job) -> Linked | None:
    """The page of what a job has made: of its shards if they are one sequence, of an object if it is one, else of all datasets
    where they are. None if it has made nothing yet. BadRequest if its spec is of another version."""
    if job.output is None:
        return None
    checked = parse_spec(spec)
    bucket, pattern = checked.spec.output.bucket, checked.pattern
    folder = pattern.literal[: pattern.literal.rfind("/") + 1]
    shards = shards_of(pattern, job.output.shards)
    if shards:
        return Linked(shards, dataset_url(bucket, shards))
    if job.output.shards == 1 and not (pattern.is_numbered or pattern.has_part or pattern.is_prefix or pattern.others):
        return _object(bucket, pattern.text)
    return Linked(f"{bucket}/{folder}", datasets_url(bucket, folder))


def shards_of(pattern: OutputPattern, shards: int) -> str:
    """The pattern of so many shards, numbered from 0 on. Empty if they are not one sequence, or a pattern could mean others."""
    plain = pattern.is_numbered and is_plain(pattern.text)
    plain = plain and index_kind(pattern.name(0)) is not None  # the page of a dataset is about shards alone
    if not plain or pattern.has_part or pattern.is_prefix or pattern.others or not shards:
        return ""
    head, tail = pattern.text[: pattern.text.index("%")], pattern.text[pattern.text.index("d", pattern.text.index("%")) + 1 :]
    first, last = (pattern.name(number)[len(head) :].removesuffix(tail) for number in (0, shards - 1))
    if 1 < len(first) < len(last):  # a pattern has one width
        return ""
    return f"{head}{{{first}..{last}}}{tail}"


def _input(source: InputSpec) -> Linked:
    """What a job reads, with the page that shows it."""
    bucket, shards = source.bucket, source.shards
    if not isinstance(shards, str):
        if len(shards) == 1:
            return _object(bucket, shards[0])
        return Linked(_short(f"{bucket}: {len(shards)} shards, such as {shards[0] if shards else ''}"), page_of(bucket))
    if shards == ALL:
        return Linked(f"{bucket} (all shards)", page_of(bucket))
    if is_plain(shards):
        return _object(bucket, shards)
    text, names = _short(f"{bucket}/{shards}"), NumberedNames.of(shards)
    if names is not None and is_plain(names.before + names.after):
        return Linked(text, dataset_url(bucket, shards))
    literal = shards[: min((at for at in map(shards.find, "{*?[@") if at >= 0), default=len(shards))]
    folder = literal[: literal.rfind("/") + 1]
    return Linked(text, datasets_url(bucket, folder))


def _object(bucket: str, name: str) -> Linked:
    is_shard = index_kind(name) is not None
    return Linked(_short(f"{bucket}/{name}"), dataset_url(bucket, name) if is_shard else object_path(bucket, name))


def _text(value: Any) -> str:
    return _short(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + " …"
