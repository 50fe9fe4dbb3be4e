"""`dfc put`: uploads files, folders and globs; files that are stored with the same checksum are skipped."""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dfc.cli.address import Remote, parse_remote
from dfc.cli.exits import UsageMistake
from dfc.cli.options import JOBS, RETRIES, Force, Jobs, Json, Recursive, Retries
from dfc.cli.session import Session, session_of
from dfc.cli.transfer import Meter, Outcome, Tally, Workers, open_meter
from dfc.errors import DfcError, NotFound
from dfc.names import DEFAULT_BUCKET

if TYPE_CHECKING:
    from dfc.client import Client

STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class FileUpload:
    """One file and its destination, or the `problem` with its name."""

    path: str
    remote: Remote
    problem: DfcError | None = None


def register(app: typer.Typer) -> None:
    app.command("put")(put)


def put(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE", help="Files, folders (-r), globs, or - for standard input. Of several, the last one is REMOTE."
        ),
    ],
    recursive: Recursive = False,
    jobs: Jobs = JOBS,
    force: Force = False,
    retries: Retries = RETRIES,
    as_json: Json = False,
) -> None:
    """Upload files as objects: as bucket/name, or into bucket/folder/ under their own names.

    With one argument, the file goes into the bucket 'default' under its own name. The contents of a folder (-r) go below
    REMOTE with their paths in the folder.
    """
    session = session_of(context, as_json=as_json, retries=retries)
    sources, remote = (paths[:-1], parse_remote(paths[-1])) if len(paths) > 1 else (paths, Remote(None, DEFAULT_BUCKET, ""))
    uploads = plan_uploads(sources, remote, recursive)
    client = session.client(remote.base)
    tally = Tally(session, "stored")
    with open_meter(session, "storing") as meter, Workers[Outcome](session, jobs) as workers:
        for outcome in workers.run(lambda upload: _store(session, client, upload, meter, force), uploads):
            tally.add(outcome)
    raise typer.Exit(tally.close())


def plan_uploads(sources: Sequence[str], remote: Remote, recursive: bool) -> Iterator[FileUpload]:
    """Choose a destination for each file. UsageMistake if the arguments make no sense; FileNotFoundError for a missing file."""
    found = [path for source in sources for path in _matching(source)]
    folders = [path for path in found if path != STDIN and os.path.isdir(path)]
    if folders and not recursive:
        raise UsageMistake(
            f"{folders[0]} is a folder: -r stores each of its files as an object; `tarshards` makes shards of it"
        )
    if not remote.is_folder:
        if folders or len(found) > 1:
            raise UsageMistake(f"{remote} is the name of one object; to store several files below it, end it with '/'")
        return iter((FileUpload(found[0], remote),))
    if STDIN in found:
        raise UsageMistake("standard input needs the name of an object, not a folder")
    return (upload for path in found for upload in _below(path, remote))


def _matching(source: str) -> list[str]:
    if source == STDIN or os.path.lexists(source):
        return [source]
    if glob.has_magic(source):
        found = sorted(glob.glob(source, recursive=True))
        files = [path for path in found if not os.path.isdir(path)]
        if found:
            return files or found
    raise FileNotFoundError(2, "no such file or folder", source)


def _below(path: str, remote: Remote) -> Iterator[FileUpload]:
    if not os.path.isdir(path):
        yield _upload(path, remote, os.path.basename(path))
        return
    for directory, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = os.path.join(directory, name)
            yield _upload(file, remote, os.path.relpath(file, path))


def _upload(path: str, remote: Remote, relative: str) -> FileUpload:
    try:
        return FileUpload(path, remote.below(relative))
    except DfcError as problem:
        return FileUpload(path, remote, problem)


def _store(session: Session, client: Client, upload: FileUpload, meter: Meter, force: bool) -> Outcome:
    """Store one file. Errors are returned as its outcome."""
    remote = upload.remote
    name = f"{remote.bucket}/{remote.name}"
    facts: dict[str, Any] = {"path": upload.path, "bucket": remote.bucket, "object": remote.name}
    if upload.problem is not None:
        return Outcome("failed", upload.path, facts=facts, error=upload.problem)
    try:
        if upload.path == STDIN:
            stored = client.put(remote.bucket, remote.name, sys.stdin.buffer, progress=meter.begin(name, None))
            meter.end(name)
        else:
            mode = os.stat(upload.path).st_mode
            if not stat.S_ISREG(mode):
                raise UsageMistake("not a regular file")
            known = None if force else _same_checksum(client, remote, upload.path)
            if known is not None:
                return Outcome("skipped", name, os.path.getsize(upload.path), {**facts, "checksum": known})
            report = meter.begin(name, os.path.getsize(upload.path))
            try:
                stored = client.put(remote.bucket, remote.name, upload.path, progress=report)
            finally:
                meter.end(name)
    except (DfcError, OSError) as error:
        return Outcome("failed", upload.path, facts=facts, error=error)
    for warning in stored.warnings:
        session.note(f"dfc: {name}: warning: {warning}")
    facts |= {"checksum": stored.checksum, "samples": stored.samples, "warnings": list(stored.warnings)}
    return Outcome("stored", name, stored.size, facts)


def _same_checksum(client: Client, remote: Remote, path: str) -> str | None:
    """The checksum, if the object exists and has that of the file. The file is read only if the sizes are equal."""
    from dfc.cli.hashing import checksum_of_file

    try:
        info = client.stat(remote.bucket, remote.name)
    except NotFound:
        return None
    if info.size != os.path.getsize(path) or checksum_of_file(path, client.cancellation) != info.etag:
        return None
    return info.etag
