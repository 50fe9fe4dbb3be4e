"""The specification of a job: the body of `POST /v1/jobs`, as values. `dfc.jobs.request` decodes and checks it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from dfc.jobs.pattern import OutputPattern
from dfc.limits import JOB_LABEL_CHARS_MAX
from dfc.shards import is_plain


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
