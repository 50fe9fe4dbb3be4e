"""`dfc sample` and `dfc find`: list or extract single samples of a shard; find samples in many shards by their keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dfc.cli.address import Remote, parse_listing, parse_remote
from dfc.cli.exits import UsageMistake
from dfc.cli.options import Json
from dfc.cli.session import Session, cell, session_of
from dfc.errors import BadName, SampleNotFound, Unavailable
from dfc.names import check_object_name

if TYPE_CHECKING:
    from dfc.client import BatchItem, SearchResult


def register(app: typer.Typer) -> None:
    app.command("sample")(sample)
    app.command("find")(find)


def sample(
    context: typer.Context,
    shard: Annotated[str, typer.Argument(metavar="BUCKET/SHARD", help="The shard.")],
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Keys of samples or, with --number, ordinals from 0.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Write the members as files below DIR.")] = "",
    as_tar: Annotated[bool, typer.Option("--tar", help="Write a tar to standard output.")] = False,
    by_number: Annotated[bool, typer.Option("--number", "-n", help="The KEYs are ordinals in the shard, from 0.")] = False,
    as_json: Json = False,
) -> None:
    """Show samples of a shard, one line per member, or extract them as files or as a tar.

    --json prints JSON; with --tar, only errors are JSON.
    """
    session = session_of(context, as_json=as_json)
    if output and as_tar:
        raise UsageMistake("give --output or --tar, not both")
    remote = parse_remote(shard)
    items = _items(remote, keys, by_number)
    client = session.client(remote.base)
    if as_tar:
        _copy_tar(client.open_batch(items))
        return
    for name, data in client.batch(items):
        if output:
            _write(output, name, data)
        if as_json:
            session.print_json({"name": name, "size": len(data)})
        elif not output:
            print(f"{len(data):>12}  {cell(name)}")


def find(
    context: typer.Context,
    shards: Annotated[
        str,
        typer.Argument(metavar="BUCKET[/SHARDS]", help="Shards by spec, glob, folder or name (default: all)."),
    ],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of a sample.")],
    is_prefix: Annotated[bool, typer.Option("--prefix", "-p", help="Find keys that begin with KEY.")] = False,
    is_part: Annotated[bool, typer.Option("--contains", "-c", help="Find keys that contain KEY.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-l", min=1, help="Number of samples to show at most (default: all).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find samples by key in many shards: one `SHARD<TAB>NUMBER<TAB>KEY` per line, then extensions and sizes.

    A key is looked up in every shard. With --prefix and --contains, all keys are looked through, which takes longer. Samples
    are shown as they are found; Ctrl-C ends the search.
    """
    session = session_of(context, as_json=as_json)
    if is_prefix and is_part:
        raise UsageMistake("give --prefix or --contains, not both")
    remote = parse_listing(shards)
    if not remote.bucket:
        raise UsageMistake("the name of the bucket is missing")
    how = "prefix" if is_prefix else "contains" if is_part else "key"
    arguments: dict[str, str] = {how: key}
    found = session.client(remote.base).open_search(remote.bucket, shards=remote.name or None, limit=limit, **arguments)
    count = 0
    for sample in found:
        count += 1
        if as_json:
            session.print_json({name: getattr(sample, name) for name in sample.__struct_fields__})
        else:
            parts = " ".join(f"{ext}={size}" for ext, size in sample.members.items())
            sys.stdout.write(f"{sample.shard}\t{sample.number}\t{cell(sample.key)}\t{cell(parts)}\n")
    _tell_end(session, remote, key, count, found.result)


def _tell_end(session: Session, remote: Remote, key: str, count: int, found: SearchResult) -> None:
    """Say why there may be more, or why there is nothing. SampleNotFound; Unavailable if that is not certain."""
    if session.as_json:
        end = {name: getattr(found, name) for name in ("shards", "searched", "stopped", "unsearched_count")}
        unsearched = [{name: getattr(each, name) for name in each.__struct_fields__} for each in found.unsearched]
        session.print_json({"end": {"found": count, **end, "unsearched": unsearched}})
    for each in found.unsearched:
        session.note(f"dfc: {each.shard} was not searched: {each.message}")
    of = f"{found.searched:,} of {found.shards:,} shards"
    if found.stopped is not None:
        why = "by the limit" if found.stopped == "limit" else "since the nodes are too busy"
        session.note(f"dfc: stopped {why}, after {of}")
    if count:
        return
    if found.searched < found.shards:
        raise Unavailable(f"nothing found for {key!r} in {of}; the others were not searched")
    raise SampleNotFound(f"{remote} has nothing for {key!r}: {of} were searched")


def _items(remote: Remote, keys: Iterable[str], by_number: bool) -> list[BatchItem]:
    from dfc.client import BatchItem

    if not by_number:
        return [BatchItem(remote.bucket, remote.name, sample=key) for key in keys]
    wrong = next((key for key in keys if not (key.isascii() and key.isdigit() and len(key) < 19)), None)
    if wrong is not None:
        raise UsageMistake(f"with --number, give ordinals from 0 instead of keys, not {wrong!r}")
    return [BatchItem(remote.bucket, remote.name, number=int(key)) for key in keys]


def _copy_tar(reader: object) -> None:
    from dfc.client import BatchReader

    assert isinstance(reader, BatchReader)
    buffer = memoryview(bytearray(1 << 20))
    descriptor = sys.stdout.fileno()
    with reader:
        while count := reader.readinto(buffer):
            data = buffer[:count]
            while data:
                data = data[os.write(descriptor, data) :]


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a member to a file. BadName if its name, which is untrusted input, is not a path below the folder."""
    try:
        path = os.path.join(folder, check_object_name(name))
    except BadName:
        raise BadName(f"the member {name!r} has a name that cannot be a file here; use --tar instead") from None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
