"""`dfc cat`, `rm`, `put` and `get`: objects in and out."""

from __future__ import annotations

import glob
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dfc.cli.session import (
    JOBS,
    RETRIES,
    Force,
    Jobs,
    Json,
    Recursive,
    Remote,
    Retries,
    Selected,
    Session,
    UsageMistake,
    parse_remote,
    select,
    session_of,
)
from dfc.cli.transfer import Meter, Outcome, Tally, Workers, open_meter, print_bytes
from dfc.errors import DfcError, NotFound
from dfc.names import DEFAULT_BUCKET, check_object_name

if TYPE_CHECKING:
    from dfc.client import Client, ObjectReader

_RANGE: Final = re.compile(r"(\d*)-(\d*)")


def register(app: typer.Typer) -> None:
    app.command("put")(put)
    app.command("get")(get)
    app.command("cat")(cat)
    app.command("rm")(rm)


# --- `dfc cat` and `dfc rm`: print and delete objects.


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
    for one in select(session, names, recursive=recursive):
        with _open(session, one, member, sample, ext, span) as reader:
            print_bytes(reader)


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


# --- `dfc put`: uploads files, folders and globs; files that are stored with the same checksum are skipped.

STDIN: Final = "-"


@dataclass(frozen=True, slots=True)
class FileUpload:
    """One file and its destination, or the `problem` with its name."""

    path: str
    remote: Remote
    problem: DfcError | None = None


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
            known = None if force else _stored_checksum(client, remote, upload.path)
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


def _stored_checksum(client: Client, remote: Remote, path: str) -> str | None:
    """The checksum, if the object exists and has that of the file. The file is read only if the sizes are equal."""
    from dfc.client.transfers import checksum_of_file

    try:
        info = client.stat(remote.bucket, remote.name)
    except NotFound:
        return None
    if info.size != os.path.getsize(path) or checksum_of_file(path, client.cancellation) != info.etag:
        return None
    return info.etag


# --- `dfc get`: downloads objects. Interrupted downloads are resumed, files with the same checksum are skipped.


@dataclass(frozen=True, slots=True)
class Download:
    """One object and the file it becomes."""

    source: Selected
    path: str


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
            known = _local_checksum(session, download)
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


def _local_checksum(session: Session, download: Download) -> str | None:
    from dfc.client.transfers import checksum_of_file

    source = download.source
    client = session.client(source.remote.base)
    size, etag = source.size, source.etag
    if size is None or etag is None:
        info = client.stat(source.remote.bucket, source.remote.name)
        size, etag = info.size, info.etag
    if os.path.getsize(download.path) != size or checksum_of_file(download.path, client.cancellation) != etag:
        return None
    return etag
