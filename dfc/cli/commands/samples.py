"""`dfc sample`: lists or extracts single samples of a shard."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dfc.cli.address import Remote, parse_remote
from dfc.cli.exits import UsageMistake
from dfc.cli.options import Json
from dfc.cli.session import session_of
from dfc.errors import BadName
from dfc.names import check_object_name

if TYPE_CHECKING:
    from dfc.client import BatchItem


def register(app: typer.Typer) -> None:
    app.command("sample")(sample)


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
            print(f"{len(data):>12}  {name}")


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
