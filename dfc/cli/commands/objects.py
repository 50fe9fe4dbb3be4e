"""`dfc cat` and `dfc rm`: print and delete objects."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dfc.cli.exits import UsageMistake
from dfc.cli.options import JOBS, Jobs, Json, Recursive
from dfc.cli.selection import Selected, select
from dfc.cli.session import Session, session_of
from dfc.cli.transfer import Outcome, Tally, Workers
from dfc.errors import DfcError

if TYPE_CHECKING:
    from dfc.client import ObjectReader

_RANGE: Final = re.compile(r"(\d*)-(\d*)")


def register(app: typer.Typer) -> None:
    app.command("cat")(cat)
    app.command("rm")(rm)


def cat(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="REMOTE", help="Objects, specs, globs or folders (-r).")],
    member: Annotated[str, typer.Option("--member", help="Print this member of the shard.")] = "",
    sample: Annotated[str, typer.Option("--sample", help="Print a tar of the first sample with this key.")] = "",
    ext: Annotated[str, typer.Option("--ext", help="With --sample: print only the member with this extension.")] = "",
    span: Annotated[
        str, typer.Option("--range", metavar="A-B", help="Print bytes A to B (inclusive), from A on (A-), or the last N (-N).")
    ] = "",
    recursive: Recursive = False,
    as_json: Json = False,
) -> None:
    """Write objects to standard output, one after the other, and verify their checksums.

    --json prints errors as JSON and does not change the bytes.
    """
    session = session_of(context, as_json=as_json)
    if (member and sample) or (ext and not sample) or (span and sample):
        raise UsageMistake("--sample cannot be combined with --member or --range, and --ext needs --sample")
    buffer = memoryview(bytearray(1 << 20))
    for one in select(session, names, recursive=recursive):
        with _open(session, one, member, sample, ext, span) as reader:
            while count := reader.readinto(buffer):
                _write_all(buffer[:count])


def _open(session: Session, one: Selected, member: str, sample: str, ext: str, span: str) -> ObjectReader:
    client, bucket, name = session.client(one.remote.base), one.remote.bucket, one.remote.name
    if sample:
        return client.open_sample(bucket, name, sample, ext=ext or None)
    if not span:
        return client.open_member(bucket, name, member) if member else client.open(bucket, name)
    match = _RANGE.fullmatch(span)
    if match is None or span == "-":
        raise UsageMistake(f"a range must be A-B, A- or -N, not {span!r}")
    first, last = match.groups()
    if member:
        size = client.open_member(bucket, name, member).info.size
    else:
        size = client.stat(bucket, name).size if one.size is None else one.size
    start = int(first) if first else max(size - int(last), 0)
    length = int(last) - start + 1 if first and last else None
    if length is not None and length <= 0:
        raise UsageMistake(f"the range {span!r} ends before it begins")
    if member:
        return client.open_member(bucket, name, member, start=start, length=length)
    return client.open(bucket, name, start=start, length=length)


def _write_all(data: memoryview) -> None:
    """Write to standard output without Python's buffers. BrokenPipeError if its reader has closed it."""
    descriptor = sys.stdout.fileno()
    while data:
        data = data[os.write(descriptor, data) :]


def rm(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="REMOTE", help="Objects, specs, globs or folders (-r).")],
    recursive: Recursive = False,
    jobs: Jobs = JOBS,
    as_json: Json = False,
) -> None:
    """Delete objects. `dfc rm -r bucket/` empties a bucket; `dfc bucket rm` removes it."""
    session = session_of(context, as_json=as_json)
    tally = Tally(session, "deleted", sizes=False)  # the size of an object given by name is unknown
    with Workers[Outcome](session, jobs) as workers:
        chosen = _once(select(session, names, recursive=recursive, missing=tally.add_missing))
        for outcome in workers.run(lambda one: _delete(session, one), chosen):
            tally.add(outcome)
    raise typer.Exit(tally.close())


def _once(chosen: Iterable[Selected]) -> Iterator[Selected]:
    """Yield each object once, even if several arguments name it: deleting it twice would fail."""
    seen: set[tuple[str | None, str, str]] = set()
    for one in chosen:
        key = (one.remote.base, one.remote.bucket, one.remote.name)
        if key not in seen:
            seen.add(key)
            yield one


def _delete(session: Session, one: Selected) -> Outcome:
    remote = one.remote
    name = f"{remote.bucket}/{remote.name}"
    facts = {"bucket": remote.bucket, "object": remote.name}
    try:
        session.client(remote.base).delete(remote.bucket, remote.name)
    except (DfcError, OSError) as error:
        return Outcome("failed", name, facts=facts, error=error)
    return Outcome("deleted", name, one.size or 0, facts)
