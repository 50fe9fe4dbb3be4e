"""`dfc ls`, `dfc stat` and `dfc keys`: list buckets, objects and samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from dfc.cli.address import Remote, parse_listing, parse_remote
from dfc.cli.commands.operations import run_operation
from dfc.cli.exits import UsageMistake
from dfc.cli.options import Json
from dfc.cli.selection import Selected, is_pattern, matcher, select
from dfc.cli.session import Session, cell, copies_text, session_of
from dfc.cli.transfer import Outcome, Tally
from dfc.errors import DfcError, ObjectNotFound
from dfc.units import format_size

if TYPE_CHECKING:
    from dfc.client import Client, ListPage, ObjectInfo

MANIFESTS: Final = (".ndjson", ".parquet", ".txt")


class ListedCopies(NamedTuple):
    """How many copies the objects of a bucket have, and how many they get."""

    now: int
    wanted: int


NO_COPIES: Final = ListedCopies(1, 1)


def register(app: typer.Typer) -> None:
    app.command("ls")(ls)
    app.command("stat")(stat)
    app.command("keys")(keys)


def ls(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="BUCKET[/PREFIX]", help="A bucket, or a prefix or glob in it (default: all buckets).")
    ] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Also show size, copies, samples, time and checksum.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Show all names, not one line per folder.")] = False,
    datasets: Annotated[
        bool,
        typer.Option("--datasets", "-d", help="Show shards that differ by a number in one line, with missing numbers."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List buckets, or the objects of a bucket in byte order. A listing is either complete or fails."""
    session = session_of(context, as_json=as_json)
    remote = parse_listing(name)
    client = session.client(remote.base)
    if not remote.bucket:
        for bucket in client.list_buckets():
            _print_bucket(session, bucket, long)
        return
    if datasets:
        _print_datasets(session, remote, client)
        return
    found = False
    pages: Iterator[ListPage]
    copies = _copies(client, remote.bucket) if long or as_json else NO_COPIES
    if is_pattern(remote.name):
        prefix, matches = matcher(remote.name)
        pages = (_filtered(page, matches) for page in client.list_pages(remote.bucket, prefix=prefix))
    else:
        pages = client.list_pages(remote.bucket, prefix=remote.name, delimiter="" if recursive else "/")
    for page in pages:
        found = found or bool(page.objects or page.prefixes)
        _print_page(session, remote, page, copies, long)
    if remote.name and not found:
        raise ObjectNotFound(f"nothing matches {remote}")


def _print_datasets(session: Session, remote: Remote, client: Client) -> None:
    if is_pattern(remote.name):
        raise UsageMistake("--datasets takes a bucket or a prefix, not a pattern")
    for each in client.datasets(remote.bucket, prefix=remote.name):
        if session.as_json:
            session.print_json({"bucket": remote.bucket, **{name: getattr(each, name) for name in each.__struct_fields__}})
            continue
        missing = ""
        if each.missing_count:
            more = " …" if each.missing_count > len(each.missing) else ""
            missing = f"  missing: {' '.join(each.missing)}{more}"
        print(f"{each.shards:>8}  {each.samples:>12}  {format_size(each.bytes):>8}  {remote.bucket}/{each.pattern}{missing}")


def _filtered(page: ListPage, matches: Callable[[str], bool]) -> ListPage:
    from dfc.client import ListPage

    return ListPage(objects=tuple(info for info in page.objects if matches(info.name)))


def _print_bucket(session: Session, bucket: Any, long: bool) -> None:
    if session.as_json:
        session.print_json({key: getattr(bucket, key) for key in bucket.__struct_fields__})
    elif long:
        size, copies = format_size(bucket.bytes or 0), copies_text(bucket.copies, bucket.copies_wanted)
        counts = f"{bucket.objects or 0:>10}  {size:>8}  {copies:>6}"
        print(f"{counts}  {bucket.durability:<8}  {bucket.created:<24}  {bucket.name}/")
    else:
        print(f"{bucket.name}/")


def _print_page(session: Session, remote: Remote, page: ListPage, copies: ListedCopies, long: bool) -> None:
    """Print objects and folders together, in byte order of their names."""
    rows: list[tuple[str, ObjectInfo | None]] = [(info.name, info) for info in page.objects]
    if page.prefixes:
        rows = sorted(rows + [(prefix, None) for prefix in page.prefixes], key=lambda row: row[0].encode())
    lines = []
    for name, info in rows:
        if session.as_json:
            session.print_json({"prefix": name} if info is None else _facts(remote.bucket, info, copies))
        elif not long:
            lines.append(name)
        elif info is None:
            lines.append(f"{'':>8}  {'':>6}  {'':>9}  {'':<20}  {'':<32}  {name}")
        else:
            lines.append(_long_line(info, copies))
    if lines:
        sys.stdout.write("\n".join(lines) + "\n")


def _long_line(info: ObjectInfo, copies: ListedCopies) -> str:
    size, samples = format_size(info.size), "-" if info.samples is None else str(info.samples)
    text, modified = copies_text(*copies), info.modified[:19] + "Z"
    return f"{size:>8}  {text:>6}  {samples:>9}  {modified:<20}  {info.etag:<32}  {info.name}"


def _copies(client: Client, bucket: str) -> ListedCopies:
    """How many copies the objects of a bucket have and get: while targets are away, some may have fewer."""
    found = client.cluster_map().bucket(bucket)
    return NO_COPIES if found is None else ListedCopies(found.copies, found.goal)


def _facts(bucket: str, info: ObjectInfo, copies: ListedCopies) -> dict[str, Any]:
    return {
        "bucket": bucket,
        "name": info.name,
        "size": info.size,
        "copies": copies.now,
        "copies_wanted": copies.wanted,
        "checksum": info.etag,
        "modified": info.modified,
        "samples": info.samples,
        "members": info.members,
    }


def stat(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="REMOTE", help="Objects, specs or globs.")],
    as_json: Json = False,
) -> None:
    """Show size, copies, checksum, time and number of samples of objects.

    Copies are those that every object of the bucket has; `dfc cluster status` says how many objects have fewer at the moment.
    """
    session = session_of(context, as_json=as_json)
    errors = Tally(session, "found")
    for one in select(session, names, missing=errors.add_missing):
        try:
            facts = _describe(session, one)
        except DfcError as error:
            errors.add(Outcome("failed", str(one.remote), error=error))
            continue
        if as_json:
            session.print_json(facts)
        else:
            print(f"{facts['bucket']}/{facts['name']}")
            shown = {**facts, "copies": copies_text(facts["copies"], facts["copies_wanted"])}
            for label in ("size", "copies", "checksum", "modified", "samples", "members"):
                print(f"  {label:<9} {'-' if shown[label] is None else shown[label]}")
    raise typer.Exit(errors.exit())


def _describe(session: Session, one: Selected) -> dict[str, Any]:
    remote = one.remote
    client = session.client(remote.base)
    info = client.stat(remote.bucket, remote.name)
    # Unlike a HEAD, a listing has the number of samples; a name comes first among those it is a prefix of.
    page = client.list_page(remote.bucket, prefix=remote.name, limit=1)
    listed = page.objects[0] if page.objects and page.objects[0].name == remote.name else info
    return _facts(remote.bucket, listed if listed.etag == info.etag else info, _copies(client, remote.bucket))


def keys(
    context: typer.Context,
    shards: Annotated[list[str], typer.Argument(metavar="BUCKET/SPEC", help="Shards by spec, glob, folder or name.")],
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Also show the extensions and sizes of each sample.")
    ] = False,
    fields: Annotated[
        str, typer.Option("--fields", metavar="text,…", help="With a manifest: what to write for each sample.")
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=JSON", help="With a manifest: any option of the operation."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the manifest.")] = False,
    label: Annotated[str, typer.Option("--label", help="With a manifest: a description of the job.")] = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="With a manifest: do not wait for the job.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="With a manifest: print the plan only.")] = False,
    as_json: Json = False,
) -> None:
    """List the samples of shards from their indexes, one `SHARD<TAB>KEY` per line. Shards come in no particular order.

    With a second name that ends in .ndjson, .parquet or .txt, a job writes this manifest in the order of the dataset.
    """
    if len(shards) == 2 and shards[1].endswith(MANIFESTS):
        values = {"paths": shards, "option_fields": fields or None, "option": option, "overwrite": overwrite, "label": label}
        run_operation(context, "keys", {**values, "detach": detach, "dry_run": dry_run, "as_json": as_json})
        return
    session = session_of(context, as_json=as_json)
    if fields or option or overwrite or label or detach or dry_run:
        raise UsageMistake("these options need a manifest as second name: dfc keys BUCKET/SHARDS BUCKET/NAME.ndjson")
    if any(parse_listing(shard).bucket == "" for shard in shards):
        raise UsageMistake("the name of the bucket is missing: give bucket/train-*.tar, or bucket/ for all shards")
    for shard in shards:
        remote = parse_remote(shard)
        found = session.client(remote.base).keys(remote.bucket, remote.name or "**", fields="all" if members else "key")
        for sample in found:
            if as_json:
                line: dict[str, Any] = {"shard": sample.shard, "key": sample.key}
                session.print_json({**line, "members": sample.members} if members else line)
            elif members:
                parts = " ".join(f"{ext}={size}" for ext, size in (sample.members or {}).items())
                sys.stdout.write(f"{sample.shard}\t{cell(sample.key)}\t{cell(parts)}\n")
            else:
                sys.stdout.write(f"{sample.shard}\t{cell(sample.key)}\n")
