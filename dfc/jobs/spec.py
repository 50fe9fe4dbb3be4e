"""What a client asks for: `POST /v1/jobs`, decoded and checked as far as that goes without looking at any object. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from dfc.errors import BadRequest
from dfc.jobs.operations import operation, other_outputs
from dfc.jobs.pattern import OutputPattern
from dfc.limits import JOB_LABEL_CHARS_MAX, JOB_MERGE_SOURCES_MAX
from dfc.names import check_bucket_name
from dfc.shards import check, is_plain


class InputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which shards, in which order: a shard spec (docs/http.md) or a list of names."""

    bucket: str
    shards: str | list[str] = "**"

    @property
    def prefix(self) -> str:
        """The prefix that `shards` is, as `photos/`; an empty text when it is anything else."""
        plain = isinstance(self.shards, str) and self.shards.endswith("/") and is_plain(self.shards[:-1])
        return str(self.shards) if plain else ""


class OutputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to; the bucket is created."""

    bucket: str
    pattern: str


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body as it was sent. `options` stay raw here; `CheckedSpec` has them decoded."""

    operation: str
    input: InputSpec | list[InputSpec]
    output: OutputSpec
    options: Raw = Raw(b"{}")
    overwrite: bool = False
    dry_run: bool = False
    label: Annotated[str, Meta(max_length=JOB_LABEL_CHARS_MAX)] = ""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return tuple(self.input) if isinstance(self.input, list) else (self.input,)


class CheckedSpec(Struct, frozen=True):
    """A spec in which nothing is wrong by itself."""

    spec: JobSpec
    options: Any
    pattern: OutputPattern


def parse_spec(body: bytes) -> CheckedSpec:
    """Raises BadRequest, BadName or BadShardSpec, saying which field is wrong and what would be right."""
    try:
        spec = msgspec.json.decode(body, type=JobSpec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"bad job: {error}") from None
    return check_spec(spec)


def check_spec(spec: JobSpec) -> CheckedSpec:
    """The same for a spec that is at hand already."""
    found = operation(spec.operation)
    if not spec.inputs or (isinstance(spec.input, list) and not getattr(found, "TAKES_MANY", False)):
        raise BadRequest(f"{spec.operation} has one input, not a list")
    if len(spec.inputs) > JOB_MERGE_SOURCES_MAX:  # before any of them is looked for
        raise BadRequest(f"{spec.operation} takes at most {JOB_MERGE_SOURCES_MAX} inputs, not {len(spec.inputs)}")
    for source in spec.inputs:
        check_bucket_name(source.bucket)
        check(source.shards)
    check_bucket_name(spec.output.bucket)
    pattern = OutputPattern(spec.output.pattern)
    try:
        options = msgspec.json.decode(bytes(spec.options) or b"{}", type=found.Options)
        msgspec.msgpack.encode(options)  # as tasks carry them
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"bad options for {spec.operation}: {error}") from None
    except OverflowError:
        raise BadRequest(f"bad options for {spec.operation}: a whole number has more than 64 bits") from None
    checked = CheckedSpec(spec, options, pattern)
    found.check(options, pattern)
    others = other_outputs(spec.operation, options, pattern)
    return msgspec.structs.replace(checked, pattern=replace(pattern, others=others)) if others else checked
