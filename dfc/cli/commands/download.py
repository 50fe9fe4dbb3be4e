"""`dfc get`: downloads objects. Interrupted downloads are resumed, files with the same checksum are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from dfc.cli.exits import UsageMistake
from dfc.cli.options import JOBS, RETRIES, Force, Jobs, Json, Recursive, Retries
from dfc.cli.selection import Selected, select
from dfc.cli.session import Session, session_of
from dfc.cli.transfer import Meter, Outcome, Tally, Workers, open_meter
from dfc.errors import DfcError
from dfc.names import check_object_name


@dataclass(frozen=True, slots=True)
class Download:
    """One object and the file it becomes."""

    source: Selected
    path: str


def register(app: typer.Typer) -> None:
    app.command("get")(get)


def get(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="REMOTE", help="Objects, specs, globs, folders (-r). Of several, the last is the local PATH."),
    ],
    recursive: Recursive = False,
    jobs: Jobs = JOBS,
    force: Force = False,
    retries: Retries = RETRIES,
    as_json: Json = False,
) -> None:
    """Download objects into PATH (a folder or, for one object, a file), or into this folder if no PATH is given.

    A file appears under its name only once it is complete and its checksum is right. An interrupted download stays in
    NAME.CHECKSUM.part, and the next attempt resumes it.
    """
    session = session_of(context, as_json=as_json, retries=retries)
    addresses, path = (names[:-1], names[-1]) if len(names) > 1 else (names, ".")
    tally = Tally(session, "fetched")
    selected = select(session, addresses, recursive=recursive, missing=tally.add_missing)
    downloads = plan_downloads(selected, path, into_folder=recursive or path.endswith("/") or os.path.isdir(path))
    with open_meter(session, "fetching") as meter, Workers[Outcome](session, jobs) as workers:
        for outcome in workers.run(lambda download: _fetch(session, download, meter, force), downloads):
            tally.add(outcome)
    raise typer.Exit(tally.close())


def plan_downloads(selected: Iterable[Selected], path: str, *, into_folder: bool) -> Iterator[Download]:
    """Choose a file for each object. UsageMistake if several would go into one file; BadName if a name cannot be a path."""
    if into_folder:
        yield from (Download(one, os.path.join(path, check_object_name(one.relative))) for one in selected)
        return
    selected = iter(selected)
    first = next(selected, None)
    second = next(selected, None)
    if second is not None:
        raise UsageMistake(f"{path} is not a folder; to create it, end it with '/'")
    if first is not None:
        yield Download(first, path)


def _fetch(session: Session, download: Download, meter: Meter, force: bool) -> Outcome:
    """Fetch one object. Errors are returned as its outcome."""
    remote = download.source.remote
    name = f"{remote.bucket}/{remote.name}"
    facts = {"path": download.path, "bucket": remote.bucket, "object": remote.name}
    client = session.client(remote.base)
    try:
        if not force and os.path.isfile(download.path):
            known = _same_checksum(session, download)
            if known is not None:
                return Outcome("skipped", name, os.path.getsize(download.path), {**facts, "checksum": known})
        folder = os.path.dirname(download.path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        size = download.source.size
        if size is None and meter.wants_sizes:
            size = client.stat(remote.bucket, remote.name).size
        report = meter.begin(name, size)
        try:
            info = client.get_to_file(remote.bucket, remote.name, download.path, progress=report)
        finally:
            meter.end(name)
    except (DfcError, OSError) as error:
        return Outcome("failed", name, facts=facts, error=error)
    return Outcome("fetched", name, info.size, {**facts, "checksum": info.etag})


def _same_checksum(session: Session, download: Download) -> str | None:
    from dfc.cli.hashing import checksum_of_file

    source = download.source
    client = session.client(source.remote.base)
    size, etag = source.size, source.etag
    if size is None or etag is None:
        info = client.stat(source.remote.bucket, source.remote.name)
        size, etag = info.size, info.etag
    if os.path.getsize(download.path) != size or checksum_of_file(download.path, client.cancellation) != etag:
        return None
    return etag
