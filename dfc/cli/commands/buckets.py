"""`dfc bucket`: create, show, change and delete buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dfc.cli.exits import UsageMistake
from dfc.cli.options import Json
from dfc.cli.session import Session, copies_text, session_of
from dfc.limits import COPIES_MAX
from dfc.units import format_size

if TYPE_CHECKING:
    from dfc.client import BucketInfo

Name = Annotated[str, typer.Argument(metavar="BUCKET")]
Durability = Literal["fsync", "relaxed"]
MinCopies = Annotated[
    int | None,
    typer.Option("--min-copies", min=1, max=COPIES_MAX, help="Copies with which a write counts if no more can be had."),
]


def register(app: typer.Typer) -> None:
    bucket = typer.Typer(help="Create, show, change and delete buckets.", no_args_is_help=True)
    bucket.command("ls")(list_buckets)
    bucket.command("create")(create)
    bucket.command("show")(show)
    bucket.command("set")(change)
    bucket.command("rm")(remove)
    app.add_typer(bucket, name="bucket")


def _facts(bucket: BucketInfo) -> dict[str, Any]:
    return {key: getattr(bucket, key) for key in bucket.__struct_fields__}


def _print(session: Session, bucket: BucketInfo) -> None:
    if session.as_json:
        session.print_json(_facts(bucket))
        return
    print(bucket.name)
    size = "-" if bucket.bytes is None else f"{format_size(bucket.bytes)} ({bucket.bytes} bytes)"
    objects = "-" if bucket.objects is None else bucket.objects
    facts = {
        "objects": objects,
        "size": size,
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
            session.print_json(_facts(bucket))
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
