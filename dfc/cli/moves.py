"""`dfc cluster status`, and the commands that say which disks hold objects."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from dfc.cli.session import Exit, Json, Session, exit_for, session_of, size_option
from dfc.errors import DfcError, Unavailable
from dfc.limits import EXPECT_DOWN_S_MAX, WEIGHT_MAX, WEIGHT_MIN, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from dfc.client import ClusterStatus
    from dfc.placement.map import ClusterMap, DiskEntry, NodeEntry

# --- `dfc cluster status`: what is wrong, what is at risk, what is being done, and what to do; and every node and disk.

WATCH_S: Final = 2.0
WIDTH: Final = 200  # of a page that goes to a file
COLOURS: Final = {"ok": "green", "up": "green", "info": "cyan", "warning": "yellow"}
Justify = Literal["left", "right"]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again every 2 seconds, until Ctrl-C.")]


def status(context: typer.Context, watch: Watch = False, as_json: Json = False) -> None:
    """Show how the cluster is: its problems and what to do, copies that are missing, every node and every disk.

    Exit code 4 while it is not ok: a node is down, a disk has failed or lacks writes, objects lack copies.
    """
    session = session_of(context, as_json=as_json)
    has_shown = False
    while watch:
        try:
            _show(session, clear=True)
            has_shown = True
        except DfcError as error:
            # The proxy may be restarting. A wrong address or token does not become right.
            if not has_shown and exit_for(error) in (Exit.USAGE, Exit.NOT_FOUND, Exit.NOT_ALLOWED):
                raise
            session.print_error(error)
        time.sleep(WATCH_S)
    raise typer.Exit(Exit.OK if _show(session) == "ok" else Exit.UNREACHABLE)


def _show(session: Session, *, clear: bool = False) -> str:
    """Ask and print; the health of the cluster."""
    client = session.client()
    state, cluster_map = client.cluster_status(), client.cluster_map()
    if session.as_json:
        session.print_json(_facts(state, cluster_map, client.url))
        return state.health
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    if clear and console.is_terminal:
        console.clear()
    console.print(_node_table(cluster_map))
    _print_state(console, state, client.url)
    return state.health


def _facts(state: ClusterStatus, cluster_map: ClusterMap, url: str) -> dict[str, Any]:
    import msgspec

    from dfc.placement.mapped import present_weights

    facts: dict[str, Any] = msgspec.to_builtins(state)
    nodes = msgspec.to_builtins(cluster_map)["nodes"]
    weights, placed = present_weights(cluster_map), cluster_map.placed()
    for disk in (disk for node in nodes for disk in node["disks"] if disk["id"] in placed):
        disk["present_weight"], disk["wanted_weight"] = weights[disk["id"]], placed[disk["id"]].disk.goal
    return {"healthy": state.health == "ok", "url": url, **facts, "nodes": nodes}


def _print_state(console: Console, state: ClusterStatus, url: str) -> None:
    from rich.markup import escape

    for problem in state.problems:
        console.print()
        about = f" {escape(problem.subject)}" if problem.subject else ""
        console.print(
            f"{_coloured(problem.severity)}  [bold]{problem.code}[/]{about}, since {problem.since[:19]}Z", soft_wrap=True
        )
        console.print(f"  {escape(problem.message)}", soft_wrap=True)
        console.print(f"  to do: {escape(problem.what_to_do)}", soft_wrap=True)
    if state.problems:
        console.print()
    for line in _under_way(state):
        console.print(escape(line), soft_wrap=True)
    coordinator = state.coordinator or "none"
    facts = f"step {state.step}, map version {state.map_version}, coordinator {coordinator}"
    if len(state.proxies) > 1:
        facts += f" of {len(state.proxies)} proxies"
    if state.registry_latency_s is not None:
        facts += f", {state.registry} answers in {1000 * state.registry_latency_s:.1f} ms"
    health = "healthy" if state.health == "ok" else state.health.replace("_", " ")
    console.print(f"{escape(url)}: [{'green' if state.health == 'ok' else 'red'}]{health}[/] ({escape(facts)})", soft_wrap=True)


def _under_way(state: ClusterStatus) -> list[str]:
    """What is at risk and what is being done, a line each."""
    copies, lines = state.copies, []
    if copies.missing or copies.unavailable:
        about = "about " if copies.estimated else ""
        lines.append(
            f"copies: {about}{copies.missing} objects have fewer than wanted, {copies.one_left} of them one only;"
            f" {copies.unavailable} cannot be read now"
        )
    for disk in state.out_of_sync:
        hints = "" if disk.hints is None else f", {disk.hints} objects and deletes to go"
        others = "1 other" if len(disk.out_of_sync_with) == 1 else f"{len(disk.out_of_sync_with)} others"
        lines.append(f"out of sync: disk {disk.disk} of {disk.node} with {others} since {disk.since[:19]}Z{hints}")
    for bucket in state.raising:
        lines.append(
            f"more copies: bucket {bucket.bucket} from {bucket.copies} to {bucket.copies_wanted},"
            f" {bucket.disks_done} of {bucket.disks} disks are done"
        )
    return lines + move_lines(state)


def move_lines(state: ClusterStatus) -> list[str]:
    """What is moved, and how far that is."""
    move = state.rebalance
    if move is None:
        why = "moves are paused" if any(each.code == "rebalance_paused" for each in state.problems) else "it cannot begin yet"
        return [f"a move waits: {why}"] if state.rebalance_waits else []
    what = [f"to {', '.join(move.disks_in)}"] if move.disks_in else []
    what += [f"away from {', '.join(move.disks_out)}"] if move.disks_out else []
    what += [f"by the new weight of {', '.join(move.disks_weighed)}"] if move.disks_weighed else []
    what += [f"from other copies, for want of {', '.join(move.disks_lost)}"] if move.disks_lost else []
    hints = "" if not move.hints else f", {move.hints} objects and deletes to be copied"
    eta = "" if move.eta_s is None or not move.hints else f", about {_duration(move.eta_s)} at {move.repair_rate:.2g} a second"
    waits = ", paused" if move.paused else eta
    waits += f", waits for {', '.join(move.waits_for)}" if move.waits_for else ""
    return [f"moving objects {' and '.join(what) or 'between disks'}: {100 * move.done:.0f} %{hints}{waits}"]


def _duration(seconds: float) -> str:
    """Like `40 s`, `12 min` or `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _node_table(cluster_map: ClusterMap) -> Any:
    from rich.markup import escape
    from rich.table import Table

    from dfc.placement.mapped import present_weights

    table = Table(box=None, pad_edge=False)
    for column in ("node", "role", "state", "url", "disk", "weight", "fill", "objects"):
        justify: Justify = "right" if column in ("weight", "fill", "objects") else "left"
        # An id is copied as one word, so the columns that are not ids give way on a narrow terminal.
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in ("node", "disk"))
    weights = present_weights(cluster_map)
    for node in cluster_map.nodes:
        head = [escape(node.id), node.role, _coloured(node.state), escape(node.advertise_url)]
        for disk in node.disks or [None]:
            table.add_row(*head, *_disk_cells(node, disk, weights))
            head = [""] * 4
    return table


def _disk_cells(node: NodeEntry, disk: DiskEntry | None, weights: Mapping[str, float]) -> list[str]:
    if disk is None:
        return ["", "", "", ""]
    weight = weights.get(disk.id, disk.goal)
    shown = f"{weight:g}" if weight == disk.goal else f"{weight:g} to {disk.goal:g}"
    used = 100 * disk.used // (disk.capacity or 1)
    fill = f"{format_size(disk.used)} of {format_size(disk.capacity)} ({used} %)"
    return [f"{disk.id}{_note(node, disk)}", shown, fill, str(disk.objects)]


def _note(node: NodeEntry, disk: DiskEntry) -> str:
    if disk.removing:
        return " [yellow]removing[/]"
    if disk.state != "up":
        return f" {_coloured(disk.state)}"
    if node.state == "up" and disk.down_step:
        return f" {_coloured('down')}"
    words = ["out of sync"] if disk.out_of_sync_with else []
    words += {"new": ["new"], "out": ["draining"]}.get(disk.use, [])
    return "".join(f" [yellow]{word}[/]" for word in words)


def _coloured(word: str) -> str:
    return f"[{COLOURS.get(word, 'red')}]{word}[/]"


# --- `dfc cluster drain`, `activate`, `weight`, `remove`, `expect-down`, `rebalance`: which disks hold objects, and how these
# are moved.


class RebalanceAction(Enum):
    """What to do with moves."""

    pause = "pause"
    resume = "resume"


LOOK_S: Final = 1.0
BEGIN_S: Final = 5.0  # until a move shows that was asked for
Subject = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A disk, or a target with all its disks, as in `dfc cluster status`. Of a disk, the first 8 characters will do.",
    ),
]
AcceptLoss = Annotated[bool, typer.Option("--accept-loss", help="Do it although objects are lost that nothing else has.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all objects are moved, and show how far it is.")]


def drain(context: typer.Context, subject: Subject, wait: Wait = False, as_json: Json = False) -> None:
    """Move all objects away from a disk or a target, which goes on serving them until others have them.

    It goes on when this command has ended. `dfc cluster activate` takes it back at any time.
    """
    _use(session_of(context, as_json=as_json), subject, wait, active=False)


def activate(context: typer.Context, subject: Subject, wait: Wait = False, as_json: Json = False) -> None:
    """Give a disk or a target its share of the objects: one that has joined, or was drained."""
    _use(session_of(context, as_json=as_json), subject, wait, active=True)


def weigh(
    context: typer.Context,
    subject: Subject,
    weight: Annotated[
        float, typer.Argument(metavar="WEIGHT", min=WEIGHT_MIN, max=WEIGHT_MAX, help="Relative to those of all other disks.")
    ],
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Give a disk another weight: it gets so much of all objects as its weight is of the sum of all weights.

    A disk joins with its size in GiB. A target's weight is the sum of its disks' weights: they are changed in proportion.
    Objects move accordingly; this goes on when this command has ended, and may be changed again at any time.
    """
    session = session_of(context, as_json=as_json)
    weights = session.client().set_weight(subject, weight)
    lines = [f"disk {disk} gets the weight {each:g}" for disk, each in weights.items()]
    lines.append("objects are moved accordingly; `dfc cluster status --watch` shows how far it is")
    session.print_done({"disks": list(weights), "weights": weights}, "\n".join(lines))
    if wait:
        _wait(session)


def remove(
    context: typer.Context,
    subject: Subject,
    wait: Wait = False,
    accept_loss: AcceptLoss = False,
    as_json: Json = False,
) -> None:
    """Forget a disk or a target that was drained, or never held objects, and is stopped; or one that is lost for good.

    A lost one must have been evicted. Everything is moved to a layout without it; it never comes back under its id. Exit code
    1, and nothing is done, if objects are on it that nothing else has.
    """
    session = session_of(context, as_json=as_json)
    disks = session.client().remove_from_cluster(subject, accept_loss=accept_loss)
    if as_json:
        session.print_json({"removing" if disks else "removed": subject})
    elif disks:
        print(f"objects are moved to a layout without {', '.join(disks)}; when that is done, {subject} is forgotten for good")
    else:
        print(f"{subject} is not in the cluster any more")
    if wait and disks:
        _wait(session, until_gone=disks)


def expect_down(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A target, as in `dfc cluster status`.")],
    minutes: Annotated[
        int, typer.Option("--minutes", "-m", min=0, max=EXPECT_DOWN_S_MAX // 60, help="For how long; 0 cancels it.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """Say that a target will be down for a while, before it is stopped: its objects get no other replicas meanwhile.

    Without this they get them when it has been away for `out_after_s`. New uploads get all their copies in any case.
    """
    session = session_of(context, as_json=as_json)
    until = session.client().expect_down(target, 60 * minutes)
    usual = "is evicted when it has been away for `out_after_s`, like any other target"
    fate = f"is not evicted before {until[:19]}Z" if minutes else usual
    session.print_done({"target": target, "expected_by": until if minutes else None}, f"{target} {fate}")


def rebalance(
    context: typer.Context,
    action: Annotated[
        RebalanceAction | None, typer.Argument(help="`pause` stops moving objects, `resume` continues.", show_default=False)
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="BYTES",
            help="How many bytes a second each disk sends at most for moves, as in 64MiB; 0: no limit.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Pause, resume or slow down the moving of objects between disks; without arguments, show the settings.

    Objects are served and written all the time. Copies that were lost with a disk are made anew also while moves are paused,
    and at four times the rate.
    """
    session = session_of(context, as_json=as_json)
    paused = None if action is None else action is RebalanceAction.pause
    rate_bytes_per_s = None if rate is None else 0 if rate.strip() == "0" else size_option(rate)
    now = session.client().rebalance(paused=paused, rate_bytes_per_s=rate_bytes_per_s)
    limit = f"at most {format_size(now.rate_bytes_per_s)} a second from each disk" if now.rate_bytes_per_s else "no limit"
    facts = {"paused": now.paused, "rate_bytes_per_s": now.rate_bytes_per_s}
    session.print_done(facts, f"moves of objects are {'' if now.paused else 'not '}paused; {limit}")


def _use(session: Session, subject: str, wait: bool, *, active: bool) -> None:
    client = session.client()
    disks = client.activate(subject) if active else client.drain(subject)
    way = "to" if active else "away from"
    session.print_done(
        {"disks": list(disks), "state": "active" if active else "draining"},
        f"objects are moved {way} {', '.join(disks)}; `dfc cluster status --watch` shows how far it is",
    )
    if wait:
        _wait(session)


def _wait(session: Session, until_gone: Collection[str] = ()) -> None:
    """Until nothing is moved any more, and these disks are forgotten."""
    begun_s, last, has_begun = time.monotonic(), "", False
    while True:
        try:
            state = session.client().cluster_status()
            left = session.client().cluster_map().placed().keys() & set(until_gone) if until_gone else set()
        except Unavailable:  # the proxy may be restarting
            time.sleep(LOOK_S)
            continue
        is_over = state.rebalance is None and not state.rebalance_waits and not left
        has_begun = has_begun or not is_over
        if is_over and (has_begun or time.monotonic() > begun_s + BEGIN_S):
            if not session.as_json:
                print("done: all objects are where they belong" if has_begun else "done: nothing had to be moved")
            return
        for line in move_lines(state):
            if line != last and not session.as_json:
                print(line, flush=True)
            last = line
        time.sleep(LOOK_S)
