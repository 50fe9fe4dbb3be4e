"""`dfc cluster stats`: what each node does at the moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dfc.cli.options import Json
from dfc.cli.session import session_of
from dfc.units import format_size

if TYPE_CHECKING:
    from dfc.client import NodeFigures

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
