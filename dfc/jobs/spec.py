"""The specification of a job: the body of `POST /v1/jobs`, as values. `dfc.jobs.request` decodes and checks it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from dfc.jobs.pattern import OutputPattern
from dfc.limits import JOB_LABEL_CHARS_MAX
from dfc.shards import is_plain


class InputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The input shards, in order: a shard spec (docs/http.md) or a list of names."""

    bucket: str
    shards: str | list[str] = "**"

    @property
    def prefix(self) -> str:
        """`shards` if it is a prefix such as `photos/`, else an empty string."""
        plain = isinstance(self.shards, str) and self.shards.endswith("/") and is_plain(self.shards[:-1])
        return str(self.shards) if plain else ""


class OutputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The output bucket, which is created if needed, and the pattern of names."""

    bucket: str
    pattern: str


class JobSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body as it was sent. `options` is raw JSON here; `CheckedSpec` has it decoded."""

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
    """A spec that is valid in itself, before any object is looked up."""

    spec: JobSpec
    options: Any
    pattern: OutputPattern
