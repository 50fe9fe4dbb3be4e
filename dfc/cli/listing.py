"""`dfc ls`, `stat`, `keys`, `sample`, `find` and `bucket`: what there is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from dfc.cli.operations import run_operation
from dfc.cli.session import (
    Json,
    Remote,
    Selected,
    Session,
    UsageMistake,
    cell,
    copies_text,
    is_pattern,
    matcher,
    parse_listing,
    parse_remote,
    select,
    session_of,
)
from dfc.cli.transfer import Outcome, Tally, print_bytes
from dfc.errors import BadName, DfcError, ObjectNotFound, SampleNotFound, Unavailable
from dfc.limits import COPIES_MAX, format_size
from dfc.names import check_object_name

if TYPE_CHECKING:
    from dfc.client import BatchItem, BucketInfo, Client, ListPage, ObjectInfo, SearchResult

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
    app.command("sample")(sample)
    app.command("find")(find)
    bucket = typer.Typer(help="Create, show, change and delete buckets.", no_args_is_help=True)
    bucket.command("ls")(list_buckets)
    bucket.command("create")(create)
    bucket.command("show")(show)
    bucket.command("set")(change)
    bucket.command("rm")(remove)
    app.add_typer(bucket, name="bucket")


# --- `dfc ls`, `dfc stat` and `dfc keys`: list buckets, objects and samples.


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


def _print_bucket(session: Session, bucket: BucketInfo, long: bool) -> None:
    if session.as_json:
        session.print_json(bucket)
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
    # Unlike a HEAD, a listing has the number of members; a name comes first among those it is a prefix of.
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


# --- `dfc sample` and `dfc find`: list or extract single samples of a shard; find samples in many shards by their keys.


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
        with client.open_batch(items) as reader:
            print_bytes(reader)
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
            session.print_json(sample)
        else:
            parts = " ".join(f"{ext}={size}" for ext, size in sample.members.items())
            sys.stdout.write(f"{sample.shard}\t{sample.number}\t{cell(sample.key)}\t{cell(parts)}\n")
    _tell_end(session, remote, key, count, found.result)


def _tell_end(session: Session, remote: Remote, key: str, count: int, found: SearchResult) -> None:
    """Say why there may be more, or why there is nothing. SampleNotFound; Unavailable if that is not certain."""
    if session.as_json:
        end = {name: getattr(found, name) for name in ("shards", "searched", "stopped", "unsearched_count")}
        session.print_json({"end": {"found": count, **end, "unsearched": found.unsearched}})
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


def _write(folder: str, name: str, data: bytes) -> None:
    """Write a member to a file. BadName if its name, which is untrusted input, is not a path below the folder."""
    try:
        path = os.path.join(folder, check_object_name(name))
    except BadName:
        raise BadName(f"the member {name!r} has a name that cannot be a file here; use --tar instead") from None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


# --- `dfc bucket`: create, show, change and delete buckets.

Name = Annotated[str, typer.Argument(metavar="BUCKET")]
Durability = Literal["fsync", "relaxed"]
MinCopies = Annotated[
    int | None,
    typer.Option("--min-copies", min=1, max=COPIES_MAX, help="Copies that a write needs to succeed while targets are down."),
]


def _print(session: Session, bucket: BucketInfo) -> None:
    if session.as_json:
        session.print_json(bucket)
        return
    print(bucket.name)
    facts = {
        "objects": "-" if bucket.objects is None else bucket.objects,
        "size": "-" if bucket.bytes is None else f"{format_size(bucket.bytes)} ({bucket.bytes} bytes)",
        "durability": bucket.durability,
        "copies": copies_text(bucket.copies, bucket.copies_wanted),
    }
    if bucket.copies_wanted > 1:
        facts["min copies"] = bucket.min_copies
    for label, value in facts.items():
        print(f"  {label:<10} {value}")
    if not bucket.exact:
        print("  (counts are estimates while disks are down or not up to date)")
    print(f"  {'created':<10} {bucket.created}")


def list_buckets(context: typer.Context, as_json: Json = False) -> None:
    """List all buckets with their number of objects, size, copies and durability."""
    session = session_of(context, as_json=as_json)
    for bucket in session.client().list_buckets():
        if as_json:
            session.print_json(bucket)
        else:
            size, copies = format_size(bucket.bytes or 0), copies_text(bucket.copies, bucket.copies_wanted)
            print(f"{bucket.objects or 0:>10}  {size:>8}  {copies:>6}  {bucket.durability:<8}  {bucket.name}")


def create(
    context: typer.Context,
    name: Name,
    durability: Annotated[
        Durability,
        typer.Option(help="fsync: synced before the answer. relaxed: synced within 30 s; recent uploads may be lost."),
    ] = "fsync",
    copies: Annotated[
        int | None,
        typer.Option(min=1, max=COPIES_MAX, help="Targets that store each object (the cluster's default if not given)."),
    ] = None,
    min_copies: MinCopies = None,
    as_json: Json = False,
) -> None:
    """Create a bucket. It is not an error if it exists with the same settings."""
    session = session_of(context, as_json=as_json)
    session.client().create_bucket(name, durability=durability, copies=copies, min_copies=min_copies)
    if as_json:
        _print(session, session.client().bucket(name))


def show(context: typer.Context, name: Name, as_json: Json = False) -> None:
    """Show the settings and counts of a bucket."""
    session = session_of(context, as_json=as_json)
    _print(session, session.client().bucket(name))


def change(
    context: typer.Context,
    name: Name,
    durability: Annotated[Durability | None, typer.Option(help="The new durability, for uploads from now on.")] = None,
    copies: Annotated[int | None, typer.Option(min=1, max=COPIES_MAX, help="Number of targets that store each object.")] = None,
    min_copies: MinCopies = None,
    as_json: Json = False,
) -> None:
    """Change the settings of a bucket."""
    session = session_of(context, as_json=as_json)
    if durability is None and copies is None and min_copies is None:
        raise UsageMistake("nothing to change: give --durability, --copies or --min-copies")
    _print(session, session.client().change_bucket(name, durability=durability, copies=copies, min_copies=min_copies))


def remove(
    context: typer.Context,
    name: Name,
    force: Annotated[bool, typer.Option("--force", "-f", help="Also delete the objects in it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a bucket. It must be empty, unless --force is given."""
    session = session_of(context, as_json=as_json)
    session.client().delete_bucket(name, force=force)
    if as_json:
        session.print_json({"status": "deleted", "bucket": name})
