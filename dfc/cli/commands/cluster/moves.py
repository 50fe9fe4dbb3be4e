"""`dfc cluster drain`, `activate`, `weight`, `remove`, `expect-down`, `rebalance`: which disks hold objects, and how these are
moved."""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import Enum
from typing import Annotated, Final

import typer

from dfc.cli.commands.cluster.status import move_lines
from dfc.cli.exits import Exit
from dfc.cli.options import Json
from dfc.cli.session import Session, session_of, size_option
from dfc.errors import Unavailable
from dfc.limits import EXPECT_DOWN_S_MAX, WEIGHT_MAX, WEIGHT_MIN
from dfc.units import format_size


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
    if session.as_json:
        session.print_json({"disks": list(weights), "weights": weights})
    else:
        for disk, each in weights.items():
            print(f"disk {disk} gets the weight {each:g}")
        print("objects are moved accordingly; `dfc cluster status --watch` shows how far it is")
    if wait:
        _wait(session)
    raise typer.Exit(Exit.OK)


def remove(
    context: typer.Context,
    subject: Subject,
    wait: Wait = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it although objects are lost that nothing else has.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Forget a disk or a target that was drained, or never held objects, and is stopped; or one that is lost for good.

    A lost one must have been given up. Everything is moved to a layout without it; it never comes back under its id. Exit code
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
    raise typer.Exit(Exit.OK)


def expect_down(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A target, as in `dfc cluster status`.")],
    minutes: Annotated[
        int, typer.Option("--minutes", "-m", min=0, max=EXPECT_DOWN_S_MAX // 60, help="For how long; 0 cancels it.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """Say that a target will be down for a while, before it is stopped: its objects get no other homes meanwhile.

    Without this they get them when it has been away for `out_after_s`. New uploads get all their copies in any case.
    """
    session = session_of(context, as_json=as_json)
    until = session.client().expect_down(target, 60 * minutes)
    if as_json:
        session.print_json({"target": target, "expected_by": until if minutes else None})
    elif minutes:
        print(f"{target} is not given up before {until[:19]}Z")
    else:
        print(f"{target} is given up when it has been away for `out_after_s`, like any other target")


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
    if as_json:
        session.print_json({"paused": now.paused, "rate_bytes_per_s": now.rate_bytes_per_s})
        return
    limit = f"at most {format_size(now.rate_bytes_per_s)} a second from each disk" if now.rate_bytes_per_s else "no limit"
    print(f"moves of objects are {'' if now.paused else 'not '}paused; {limit}")


def _use(session: Session, subject: str, wait: bool, *, active: bool) -> None:
    client = session.client()
    disks = client.activate(subject) if active else client.drain(subject)
    if session.as_json:
        session.print_json({"disks": list(disks), "state": "active" if active else "draining"})
    else:
        way = "to" if active else "away from"
        print(f"objects are moved {way} {', '.join(disks)}; `dfc cluster status --watch` shows how far it is")
    if wait:
        _wait(session)
    raise typer.Exit(Exit.OK)


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
