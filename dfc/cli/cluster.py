"""`dfc cluster map`, `check` and `stats`, `dfc scrub`, `dfc disk`: what a cluster is and does, and whether its copies agree."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dfc.cli.moves import AcceptLoss, activate, drain, expect_down, rebalance, remove, status, weigh
from dfc.cli.session import Exit, Json, Session, UsageMistake, session_of
from dfc.errors import Conflict, NotFound, StillNeeded, Unavailable
from dfc.limits import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from dfc.client import ClusterCheck, NodeFigures
    from dfc.placement.map import ClusterMap, Owner

# --- `dfc cluster check`: compare the copies of objects with each other.

LOOK_S: Final = 0.5
GONE_S: Final = 30.0  # a proxy that does not answer for so long is not just being restarted
WHAT: Final = {"missing": "missing", "lost": "LOST", "set aside": "set aside", "alarm": "CONTRADICTS"}


def check(
    context: typer.Context,
    buckets: Annotated[
        list[str] | None, typer.Argument(metavar="[BUCKET]...", help="Only these buckets.", show_default=False)
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the end and show what was found, or only begin.")
    ] = True,
    last: Annotated[
        bool, typer.Option("--last", help="Begin nothing: show how far the last one is, and what it has found.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the copies of all objects with each other, and repair what differs from the primary copy.

    No bytes are read: `dfc scrub start` does that. It goes on when this command is interrupted. Exit code 5 if copies
    contradict the primary and were left as they are, 4 if some could not be compared or are still on their way.
    """
    session = session_of(context, as_json=as_json)
    if last and buckets:
        raise UsageMistake("--last is about all that was compared: name no buckets")
    begun = "" if last else session.client().start_check(buckets or ())
    if begun and not wait:
        session.print_done({"check": begun}, "started; `dfc cluster check --last` shows how far it is")
        return
    found = _follow(session, begun) if begun else session.client().check_status()
    if as_json:
        session.print_json(_facts(found))
    else:
        _print(found)
    raise typer.Exit(exit_of(found))


def exit_of(found: ClusterCheck) -> Exit:
    """The exit code for what a comparison has found."""
    if found.totals.alarms:
        return Exit.MISMATCH
    is_done = found.state != "running" and not found.not_compared and not found.totals.under_way
    return Exit.OK if is_done else Exit.UNREACHABLE


def _follow(session: Session, begun: str) -> ClusterCheck:
    """Until it is done. Unavailable if somebody has begun another one, or the proxy does not come back."""
    silent_since_s: float | None = None
    with _progress(session) as show:
        while True:
            try:
                found = session.client().check_status()
                silent_since_s = None
            except Unavailable:  # the proxy may be restarting
                silent_since_s = silent_since_s or time.monotonic()
                if time.monotonic() - silent_since_s > GONE_S:
                    raise
            else:
                if found.check != begun:
                    raise Unavailable("another check was begun meanwhile, or all targets were restarted; try again")
                show(found)
                if found.state == "done":
                    return found
            time.sleep(LOOK_S)


@contextmanager
def _progress(session: Session) -> Iterator[Callable[[ClusterCheck], None]]:
    """A line on standard error that is written over, on terminals only."""
    if session.as_json or not sys.stderr.isatty():
        yield lambda found: None
        return
    from rich.console import Console
    from rich.status import Status

    with Status("comparing copies", console=Console(stderr=True)) as status:
        yield lambda found: status.update(_progress_text(found))


def _progress_text(found: ClusterCheck) -> str:
    read, total = sum(disk.rows_read for disk in found.disks), sum(disk.rows_total for disk in found.disks)
    done = sum(len(disk.pairs) for disk in found.disks)
    return f"comparing copies: {read} of {total} objects read, {done} pairs of disks done, {found.totals.differing} differ"


def _facts(found: ClusterCheck) -> dict[str, Any]:
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(found)
    return {**facts, "not_compared": list(found.not_compared)}


def _print(found: ClusterCheck) -> None:
    totals = found.totals
    for disk in found.disks:
        for each in disk.found:
            print(f"{WHAT.get(each.what, each.what)}: {each.bucket}/{each.object} on disk {each.replica}: {each.message}")
    for text in found.not_compared:
        print(f"not compared: {text}")
    if found.state == "none":
        print("no copies have been compared since the targets were started")
        return
    if found.state == "running":
        print(_progress_text(found))
    if found.state == "done" and not totals.pairs and not found.not_compared:
        print("nothing to compare: no object has a second copy")
        return
    print(f"{totals.rows} objects in {totals.pairs_compared} of {totals.pairs} pairs of disks compared: {_outcome(found)}")


def _outcome(found: ClusterCheck) -> str:
    totals = found.totals
    if not totals.differing:
        return "all alike so far" if found.state == "running" or found.not_compared else "all alike"
    parts = (
        (totals.repaired, "repaired"),
        (totals.under_way, "on their way"),
        (totals.set_aside, "set aside"),
        (totals.alarms, "left as they are"),
    )
    return f"{totals.differing} differed, {', '.join(f'{count} {what}' for count, what in parts if count)}"


# --- `dfc cluster stats`: what each node does at the moment.

MEAN_S: Final = 10
Seconds = Annotated[
    int, typer.Option("--seconds", metavar="N", min=1, max=900, help="Of so many seconds, the mean in the table.")
]


def stats(context: typer.Context, seconds: Seconds = MEAN_S, as_json: Json = False) -> None:
    """Show bytes, requests and errors a second of every node, and its open connections, as the mean of the last 10 seconds.

    With --json: what each node did second by second, as `GET /v1/cluster/stats` answers it.
    """
    session = session_of(context, as_json=as_json)
    found = session.client().cluster_stats(seconds)
    if as_json:
        session.print_json(found)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("node", "in/s", "out/s", "requests/s", "errors/s", "connections", "disks"):
        table.add_column(name, justify="left" if name == "node" else "right", overflow="fold", no_wrap=name == "node")
    for node in found.nodes:
        table.add_row(escape(node.id), *([f"silent: {escape(node.why)}"] if node.silent else cells(node)))
    Console().print(table)


def cells(node: NodeFigures) -> list[str]:
    """The means of a node, and how busy its busiest disk was; a dash for what is not known."""
    busy = [each for values in node.disks.values() if (each := known_mean(values)) is not None]
    return [
        _shown(known_mean(node.bytes_in), is_size=True),
        _shown(known_mean(node.bytes_out), is_size=True),
        _shown(known_mean(node.requests)),
        _shown(known_mean(node.errors)),
        _shown(known_mean(node.connections)),
        f"{100 * max(busy):.0f} %" if busy else "-",
    ]


def known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _shown(value: float | None, *, is_size: bool = False) -> str:
    if value is None:
        return "-"
    return format_size(round(value)) if is_size else f"{value:.1f}"


# --- `dfc cluster map`, `dfc scrub` and `dfc disk`: show the map, and check disks.

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


def show_map(context: typer.Context, as_json: Json = False) -> None:
    """Print the cluster map, from which clients compute where an object is stored, as JSON."""
    import json

    import msgspec

    session = session_of(context, as_json=as_json)
    found = msgspec.to_builtins(session.client().cluster_map())
    session.print_done(found, json.dumps(found, indent=2))


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
    session.print_done({"node": node, "ok": True}, f"{node} may be stopped: every object can be read without it")


def scrub_start(context: typer.Context, as_json: Json = False) -> None:
    """Start reading and verifying every disk from the beginning."""
    session = session_of(context, as_json=as_json)
    session.client().start_scrub()
    session.print_done({"started": True}, "started; `dfc scrub status` shows the progress")


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
        print(f"{disk['disk']}  {disk['state']:<8}  {progress}  errors {disk['errors']}, repaired {disk.get('repaired', 0)}")
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
    accept_loss: AcceptLoss = False,
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
    if ran.returncode == 0:
        text = f"{directory} is disk {disk} now: put it into the settings of target {owner.node.id}, and start that"
        session.print_done({"disk": disk, "directory": directory, "target": owner.node.id}, text)
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
    lagging = sorted(each for each, owner in placed.items() if disk in owner.disk.out_of_sync_with)
    if lagging:
        found.append(f"disk {', '.join(lagging)} may lack the last uploads, which this one has")
    return found


def _run_storage(command: str, directory: str, full: bool, as_json: bool) -> None:
    """Run the storage engine's own program, so that this one never imports it, and exit with its exit code."""
    flags = [*(["--full"] if full else []), *(["--json"] if as_json else [])]
    arguments = [sys.executable, "-m", "dfc.storage", command, directory, *flags]
    raise typer.Exit(subprocess.run(arguments, check=False).returncode)
