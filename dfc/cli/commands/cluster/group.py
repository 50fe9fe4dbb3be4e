"""`dfc cluster map`, `dfc scrub` and `dfc disk`: show the map, and check disks."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dfc.cli.commands.cluster.check import check
from dfc.cli.commands.cluster.moves import activate, drain, expect_down, rebalance, remove, weigh
from dfc.cli.commands.cluster.stats import stats
from dfc.cli.commands.cluster.status import status
from dfc.cli.exits import Exit
from dfc.cli.options import Json
from dfc.cli.session import Session, session_of
from dfc.errors import Conflict, NotFound, StillNeeded
from dfc.units import format_size

if TYPE_CHECKING:
    from dfc.placement.map import ClusterMap, Owner

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The directory of one disk, whose target must be stopped.")]
Full = Annotated[bool, typer.Option("--full", help="Read every blob and verify its checksum.")]


def register(app: typer.Typer) -> None:
    cluster = typer.Typer(help="Show how the cluster is, and say which disks hold objects.", no_args_is_help=True)
    cluster.command("status")(status)
    cluster.command("stats")(stats)
    cluster.command("map")(show_map)
    cluster.command("drain")(drain)
    cluster.command("activate")(activate)
    cluster.command("weight")(weigh)
    cluster.command("remove")(remove)
    cluster.command("expect-down")(expect_down)
    cluster.command("ok-to-stop")(ok_to_stop)
    cluster.command("rebalance")(rebalance)
    cluster.command("check")(check)
    app.add_typer(cluster, name="cluster")
    scrub = typer.Typer(help="Verify the checksums of everything stored.", no_args_is_help=True)
    scrub.command("start")(scrub_start)
    scrub.command("status")(scrub_status)
    app.add_typer(scrub, name="scrub")
    disk = typer.Typer(help="Check, rebuild, accept, release or replace a disk on this machine.", no_args_is_help=True)
    disk.command("check")(disk_check)
    disk.command("rebuild")(disk_rebuild)
    disk.command("accept")(disk_accept)
    disk.command("release")(disk_release)
    disk.command("replace")(disk_replace)
    app.add_typer(disk, name="disk")


def _map(session: Session) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(session.client().cluster_map())
    return found


def show_map(context: typer.Context, as_json: Json = False) -> None:
    """Print the cluster map, from which clients compute where an object is stored, as JSON."""
    import json

    session = session_of(context, as_json=as_json)
    found = _map(session)
    if as_json:
        session.print_json(found)
    else:
        print(json.dumps(found, indent=2))


def ok_to_stop(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="A target or a proxy, as in `dfc cluster status`.")],
    as_json: Json = False,
) -> None:
    """Say whether everything can be read without a target, or whether another proxy is there, before one is stopped.

    Exit code 5 if not: the message says how many objects could not be read.
    """
    session = session_of(context, as_json=as_json)
    try:
        session.client().check_stop(node)
    except StillNeeded as error:
        session.print_error(error)
        raise typer.Exit(Exit.MISMATCH) from None
    if as_json:
        session.print_json({"node": node, "ok": True})
    else:
        print(f"{node} may be stopped: every object can be read without it")


def scrub_start(context: typer.Context, as_json: Json = False) -> None:
    """Start reading and verifying every disk from the beginning."""
    session = session_of(context, as_json=as_json)
    session.client().start_scrub()
    if as_json:
        session.print_json({"started": True})
    else:
        print("started; `dfc scrub status` shows the progress")


def scrub_status(context: typer.Context, as_json: Json = False) -> None:
    """Show the progress of scrubbing and what it found. Exit code 5 if anything is quarantined."""
    session = session_of(context, as_json=as_json)
    disks = session.client().scrub_status()["disks"]
    damaged = [disk for disk in disks if disk.get("quarantined")]
    for disk in disks:
        if as_json:
            session.print_json(disk)
            continue
        done, total = disk.get("bytes_done") or 0, disk.get("bytes_total") or 0
        share = f"{100 * done // total} %" if total else "-"
        progress = f"{format_size(done)} of {format_size(total)} ({share})"
        print(f"{disk['disk']}  {disk['state']:<8}  {progress}  errors {disk['errors']}, mended {disk.get('mended', 0)}")
        for found in disk.get("quarantined") or ():
            print(f"  quarantined: {found}")
    raise typer.Exit(Exit.MISMATCH if damaged else Exit.OK)


def disk_check(context: typer.Context, directory: Directory, full: Full = False, as_json: Json = False) -> None:
    """Compare the catalog of a disk with the files on it, without changing anything."""
    _run_storage("check", directory, full, as_json)


def disk_rebuild(context: typer.Context, directory: Directory, full: Full = False, as_json: Json = False) -> None:
    """Rebuild the catalog of a disk from the footers of its blobs."""
    _run_storage("rebuild", directory, full, as_json)


def disk_accept(directory: Directory) -> None:
    """Accept that a disk has lost objects, by a snapshot that was put back or a torn log. Stop its target first."""
    _run_storage("accept", directory, full=False, as_json=False)


def disk_release(directory: Directory) -> None:
    """Release a disk, so that the next target that lists it in its disks takes it."""
    _run_storage("release", directory, full=False, as_json=False)


def disk_replace(
    context: typer.Context,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="An empty directory on the new disk.")],
    disk: Annotated[str, typer.Argument(metavar="ID", help="The disk that it replaces, as in `dfc cluster status`.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it although objects are lost that nothing else has.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make an empty directory the disk with this id. List it in the settings of the target, instead of the one that is broken.

    When the target runs again, it gets everything that belongs there from other copies, and nothing else is moved. Exit code 1,
    and nothing is done, if objects would be lost.
    """
    session = session_of(context, as_json=as_json)
    found = session.client().cluster_map()
    owner = found.placed().get(disk)
    if owner is None:
        raise NotFound(f"there is no disk {disk} in this cluster; `dfc cluster status` shows their ids")
    if _is_up(owner):
        raise Conflict(f"disk {disk} is in use by target {owner.node.id}: stop that, or take the disk out of its settings")
    if owner.disk.removing:
        raise Conflict(f"disk {disk} is being removed from the cluster for good: a new disk gets an id of its own")
    losses = _losses(found, disk)
    if losses and not accept_loss:
        raise Conflict(f"objects would be lost: {'; '.join(losses)}. Bring the disk back if you can, or say --accept-loss")
    arguments = ["format", directory, "--cluster", found.cluster_id, "--disk", disk]
    ran = subprocess.run([sys.executable, "-m", "dfc.storage", *arguments], check=False)
    if ran.returncode == 0 and as_json:
        session.print_json({"disk": disk, "directory": directory, "target": owner.node.id})
    elif ran.returncode == 0:
        print(f"{directory} is disk {disk} now: put it into the settings of target {owner.node.id}, and start that")
    raise typer.Exit(ran.returncode)


def _is_up(owner: Owner) -> bool:
    return owner.node.state == "up" and owner.disk.state == "up" and not owner.disk.down_step


def _losses(cluster_map: ClusterMap, disk: str) -> list[str]:
    """What may be on a disk and nowhere else."""
    found, placed = [], cluster_map.placed()
    single = [bucket.name for bucket in cluster_map.buckets if bucket.copies == 1]
    count = placed[disk].disk.objects if placed[disk].node.last_heartbeat else None
    if single and count != 0 and disk in cluster_map.in_use():
        more = f" and {len(single) - 1} more" if len(single) > 1 else ""
        number = "how many were" if count is None else f"{count} objects of all buckets were"
        known = " is not known" if count is None else ""
        found.append(f"bucket {single[0]}{more} has one copy of each object, and {number} on the disk{known}")
    domain, used = placed[disk].domain, cluster_map.may_hold_copies()
    away = sorted(each for each in used if placed[each].domain != domain and not _is_up(placed[each]))
    if away and disk in used:
        found.append(f"disk {', '.join(away)} is not up either, and this one may have what that lacks")
    behind = sorted(each for each, owner in placed.items() if disk in owner.disk.behind)
    if behind:
        found.append(f"disk {', '.join(behind)} may lack the last uploads, which this one has")
    return found


def _run_storage(command: str, directory: str, full: bool, as_json: bool) -> None:
    """Run the storage engine's own program, so that this one never imports it, and exit with its exit code."""
    flags = [*(["--full"] if full else []), *(["--json"] if as_json else [])]
    arguments = [sys.executable, "-m", "dfc.storage", command, directory, *flags]
    raise typer.Exit(subprocess.run(arguments, check=False).returncode)
