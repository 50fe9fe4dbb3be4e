"""The specification of a job: the body of `POST /v1/jobs`, as values. `dfc.jobs.request` decodes and checks it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from msgspec import Meta, Raw, Struct

from dfc.errors import BadRequest
from dfc.formats.base import OnSplit
from dfc.limits import JOB_LABEL_CHARS_MAX
from dfc.listing.specs import OutputPattern, is_plain


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


# --- Options that operations share. An operation's `Options` inherits from one of these, which also makes it refuse unknown
# fields. The `Meta` of an option describes it, with an example: the help of commands, `GET /v1/operations` and the form of the
# pages show them.

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
KNOWN_VALUES: Final = "x-known-values"  # of an option, in its schema: texts that it takes, besides others
_SIZE_MAX: Final = 2**62
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)B?")


class CommonOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of every operation on samples; see `dfc.jobs.data.samples`."""

    on_split: Annotated[
        OnSplit, Meta(description="What to do with a key that occurs again later in its shard.", examples=["join"])
    ] = "fail"


class SizeOptions(CommonOptions, frozen=True, kw_only=True):
    """The size of output shards: a number of samples, or as many as fit into a size (bytes, or a string like "1 GB")."""

    samples_per_shard: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Exactly this many samples per shard, the rest in the last one.", examples=[1000]),
    ] = None
    shard_size: Annotated[
        int | str | None,
        Meta(
            description="Instead: the size of a shard, such as 1GB or 512MiB. If neither is given: one shard per input.",
            examples=["1 GB"],
        ),
    ] = None

    @property
    def shard_bytes(self) -> int | None:
        return None if self.shard_size is None else parse_size(self.shard_size)


def check_sizes(options: SizeOptions) -> None:
    """Raise BadRequest if both sizes are given, or one is invalid."""
    if options.samples_per_shard is not None and options.shard_size is not None:
        raise BadRequest("give samples_per_shard or shard_size, not both")
    if options.shard_size is not None:
        parse_size(options.shard_size)


def parse_size(size: int | str) -> int:
    """Parse a size in bytes; `k M G T` are powers of 1000, `Ki Mi Gi Ti` of 1024. BadRequest if invalid or less than 1."""
    if isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match is None:
            raise BadRequest(f"a size must be a number of bytes or a string like '1 GB' or '512 MiB', not {size[:40]!r}")
        number, unit, binary = match.groups()
        power = " kMGT".index(unit.replace("K", "k") or " ")
        size = int(min(float(number) * (1024 if binary else 1000) ** power, 2.0 * _SIZE_MAX))
    if not 1 <= size <= _SIZE_MAX:
        raise BadRequest(f"a size must be from 1 to {_SIZE_MAX} bytes")
    return size
