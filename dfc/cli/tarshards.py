"""`tarshards`: cuts a tar, or a list of files, into shards, and uploads them while reading.

    tar -cf - dataset | tarshards http://host/dataset-%06d.tar
    find dataset -type f | sort | tarshards -T - -s 500M http://host/dataset

A shard is uploaded once it is complete, from a temporary file. So a failed upload can be retried, and no incomplete shard is
stored if the input breaks off.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dfc.cli.main import ProgramCommand
from dfc.cli.session import RETRIES, Json, Remote, Retries, Session, UsageMistake, parse_remote, session_of, size_option
from dfc.errors import DfcError
from dfc.limits import format_size
from dfc.listing.specs import ShardPattern, has_number

if TYPE_CHECKING:
    from dfc.cli.cutting import CutShard, ShardCutter
    from dfc.client import StoredObject

SIZE_DEFAULT: Final = 1_000_000_000
UPLOADS: Final = 2  # one shard is uploaded while the next ones are filled; more would only take more space


def parse_pattern(text: str) -> ShardPattern:
    """Parse `URL-%06d.tar`, or a prefix, to which `-%06d.tar` is added. UsageMistake for what `tarshards` cannot write."""
    from dfc.tar.index.format import index_kind

    if not has_number(text):
        if text.lower().endswith(".tar"):
            raise UsageMistake(f"{text} has no number for the shards; use {text[:-4]}-%06d.tar")
        text += "%06d.tar" if text.endswith("/") else "-%06d.tar"
    try:
        pattern = ShardPattern(text)
    except ValueError:
        raise UsageMistake(f"{text} has more than one number; only one is allowed") from None
    kind = index_kind(parse_remote(pattern.text(0)).name)
    if kind != "tar":
        what = f"compressed shards ({kind})" if kind else "other names"
        raise UsageMistake(f"tarshards writes plain tar files, whose names end in .tar, not {what}: {text}")
    return pattern


class Uploader:
    """Uploads complete shards in threads, a limited number at once, to bound the disk space they take."""

    def __init__(self, session: Session, pattern: ShardPattern, jobs: int) -> None:
        from dfc.inputs.uploads import Uploads

        self._session = session
        self._pattern = pattern
        self._uploads = Uploads(jobs, "tarshards")
        self._lock = threading.Lock()
        self.shards = self.samples = self.members = self.size = 0

    def add(self, shard: CutShard) -> None:
        """Upload a shard and close its file. Raises the error of an earlier upload."""
        self._uploads.add(lambda: self._upload(shard), shard.file.close)

    def finish(self) -> None:
        """Wait for the last uploads. Raises their error."""
        self._uploads.finish()

    def stop(self, *, at_once: bool) -> None:
        """Wait for all uploads of complete shards, or abort them; errors are ignored."""
        self._uploads.stop(at_once=at_once)

    def _upload(self, shard: CutShard) -> None:
        name = self._pattern.text(shard.number)
        remote = parse_remote(name)
        start = time.monotonic()
        with shard.file as file:
            stored = self._session.client(remote.base).put(remote.bucket, remote.name, file)
        with self._lock:
            self._report(shard, name, remote, stored, time.monotonic() - start)

    def _report(self, shard: CutShard, name: str, remote: Remote, stored: StoredObject, seconds: float) -> None:
        self.shards += 1
        self.samples += shard.samples
        self.members += shard.members
        self.size += shard.size
        if not self._session.as_json:
            rate = format_size(shard.size / max(seconds, 1e-6))
            print(f"{name}  {shard.samples} samples  {format_size(shard.size)}  {rate}/s", flush=True)
            return
        counts = {"size": stored.size, "samples": shard.samples, "members": shard.members, "checksum": stored.checksum}
        self._session.print_json({"name": name, "bucket": remote.bucket, "object": remote.name, **counts})


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=ProgramCommand, context_settings={"help_option_names": ["-h", "--help"]})
def tarshards(
    context: typer.Context,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="URL-%06d.tar",
            help="Where to store the shards: a URL, or bucket/name in the cluster of DFC_URL (one URL, or several "
            "separated by commas); -%06d.tar is added to a bare prefix.",
        ),
    ],
    size: Annotated[
        int | None,
        typer.Option("-s", "--size", metavar="BYTES", parser=size_option, help="Maximum size: 500M, 64MiB (1G without -n)."),
    ] = None,
    samples: Annotated[int | None, typer.Option("-n", "--samples", min=1, help="Samples per shard.")] = None,
    files: Annotated[
        str, typer.Option("-T", "--files-from", metavar="FILE", help="Pack the files named in a list; - is standard input.")
    ] = "",
    null: Annotated[bool, typer.Option("-0", "--null", help="Names in the list end with NUL, as from find -print0.")] = False,
    directory: Annotated[str, typer.Option("-C", "--directory", help="Directory of relative names in the list.")] = ".",
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, max=16, help="Number of uploads at once.")] = UPLOADS,
    temporary: Annotated[
        str | None, typer.Option("--tmp", metavar="DIR", help="Where to keep shards until they are uploaded (default TMPDIR).")
    ] = None,
    retries: Retries = RETRIES,
    as_json: Json = False,
) -> None:
    """Cut a tar on standard input, or the files of a list, into shards and upload them. A sample is never split.

    tar -cf - dataset | tarshards http://host/dataset-%06d.tar
    """
    from dfc.cli.cutting import BrokenInput, Limits, ShardCutter

    session = session_of(context, as_json=as_json, retries=retries)
    target = parse_pattern(pattern)
    if files in ("", "-") and sys.stdin.isatty():
        raise UsageMistake("standard input is a terminal; pipe a tar into it: tar -cf - dataset | tarshards …")
    limits = Limits(size or (SIZE_DEFAULT if samples is None else None), samples)
    uploader = Uploader(session, target, jobs)
    cutter = ShardCutter(limits, temporary, uploader.add)
    try:
        members = _cut(session, cutter, files, null=null, directory=directory)
        cutter.finish()
        uploader.finish()
    except BaseException as problem:
        cutter.abandon()
        uploader.stop(at_once=not isinstance(problem, BrokenInput))
        session.note(f"tarshards: {uploader.shards} shards were stored; the unfinished one was not")
        raise
    _close(session, target, uploader, members, cutter.came_back)


def _cut(session: Session, cutter: ShardCutter, files: str, *, null: bool, directory: str) -> int:
    from dfc.cli.cutting import cut_archive, cut_files, read_names

    if not files:
        return cut_archive(sys.stdin.fileno(), cutter, lambda text: session.note(f"tarshards: WARNING: {text}"))
    if files == "-":
        return cut_files(read_names(sys.stdin.buffer, null=null), directory, cutter)
    with open(files, "rb") as source:
        return cut_files(read_names(source, null=null), directory, cutter)


def _close(session: Session, pattern: ShardPattern, uploader: Uploader, members: int, came_back: int) -> None:
    """Print warnings and the closing line."""
    if came_back:
        session.note(
            f"tarshards: WARNING: {came_back} samples are split, because their files are not next to each other in the input:"
            " sort it (tar --sort=name, or find | sort)"
        )
    following = pattern.text(uploader.shards)
    remains = uploader.shards > 0 and _exists(session, parse_remote(following))
    if remains:
        session.note(f"tarshards: WARNING: {following} and maybe more shards exist from an earlier run")
    totals = {"shards": uploader.shards, "samples": uploader.samples, "members": members, "size": uploader.size}
    if session.as_json:
        session.print_json({"total": {**totals, "came_back": came_back, "earlier_shards_remain": remains}})
    else:
        session.note(f"tarshards: {uploader.shards} shards, {uploader.samples} samples, {format_size(uploader.size)}")


def _exists(session: Session, remote: Remote) -> bool:
    try:
        session.client(remote.base).stat(remote.bucket, remote.name)
    except DfcError:
        return False  # or the lookup failed, which does not matter: all shards are stored
    return True


def main() -> None:
    """The console script `tarshards`."""
    app()


if __name__ == "__main__":
    main()
