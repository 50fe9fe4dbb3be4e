"""`dfc cluster check`: compare the copies of objects with each other."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dfc.cli.exits import Exit, UsageMistake
from dfc.cli.options import Json
from dfc.cli.session import Session, session_of
from dfc.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dfc.client import ClusterCheck

LOOK_S: Final = 0.5
GONE_S: Final = 30.0  # a proxy that does not answer for so long is not just being restarted
WHAT: Final = {"owe": "lacked", "lost": "LOST", "set aside": "set aside", "alarm": "CONTRADICTS"}


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
        session.print_json({"check": begun}) if as_json else print("started; `dfc cluster check --last` shows how far it is")
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
            print(f"{WHAT.get(each.what, each.what)}: {each.bucket}/{each.object} on disk {each.home}: {each.message}")
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
