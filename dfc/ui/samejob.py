"""The same job for those who do not use a browser: as JSON, and as lines for a shell. No I/O.

Everything is quoted for the shell, and what cannot be seen is escaped in JSON, where it can be: what is copied from the page is
what was entered.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import msgspec

from dfc.jobs.spec import InputSpec, JobSpec
from dfc.ui.words import escaped, visible


@dataclass(frozen=True)
class SameJob:
    """A job as indented JSON, as a line for curl, and as a command."""

    json: str
    curl: str
    command: str


def same_job(spec: bytes) -> SameJob:
    """Write a job in all three ways. `spec` is a valid job without `dry_run`."""
    short = escaped(spec.decode())
    curl = f'curl -d {shlex.quote(short)} "$DFC_URL/v1/jobs" -H "Authorization: Bearer $DFC_TOKEN"'
    return SameJob(escaped(msgspec.json.format(spec, indent=2).decode()), curl, _command(spec, short))


def _command(spec: bytes, short: str) -> str:
    job = msgspec.json.decode(spec, type=JobSpec)
    options = msgspec.json.decode(bytes(job.options), type=dict[str, msgspec.Raw])
    words = [
        f"--operation={job.operation}",
        *(f"--input={each.bucket}/{_shards(each)}" for each in job.inputs),
        f"--output={job.output.bucket}/{job.output.pattern}",
        *(f"--option={name}={escaped(bytes(value).decode())}" for name, value in options.items()),
        *(["--overwrite"] if job.overwrite else []),
        *([f"--label={job.label}"] if job.label else []),
    ]
    if any(visible(word) != word for word in words):  # there is no way to write it that all shells know
        return f"printf %s {shlex.quote(short)} | dfc job run -"
    return " \\\n  ".join(["dfc job run", *map(shlex.quote, words)])


def _shards(source: InputSpec) -> str:
    return source.shards if isinstance(source.shards, str) else msgspec.json.encode(source.shards).decode()
