"""The row about placement: processor time of finding an owner that was not asked for lately."""

from __future__ import annotations

import random
import time

from dfc.placement.rendezvous import Layout, LayoutDisk
from loadtest.bench.context import Bench
from loadtest.bench.row import Row, median

DISKS = 1000
NODES = 32
NAMES = 2000


def placement(bench: Bench) -> list[Row]:
    """A thousand disks of mixed weights on 32 nodes; beside it, the same disks on a node each."""
    grouped, apart = _layout(NODES), _layout(DISKS)
    in_groups, alone = [], []
    for run in range(bench.pairs):
        in_groups.append(_microseconds(grouped, run))
        alone.append(_microseconds(apart, run))
    return [
        Row(
            name="placement",
            what=f"owner of a name, {DISKS:,} disks of mixed weights on {NODES} nodes",
            measured=f"{median(in_groups):.0f} µs",
            beside=f"on {DISKS:,} nodes {median(alone):.0f} µs",
            reached=median(in_groups),
            required=40.0,
            unit="µs",
            at_most=True,
            note="processor time; names that were asked for lately are remembered",
            samples={"grouped_us": in_groups, "apart_us": alone},
        )
    ]


def _layout(nodes: int) -> Layout:
    draw = random.Random(1)
    ids = [f"{draw.randrange(1 << 64):016x}" for _ in range(DISKS + nodes)]
    return Layout(tuple(LayoutDisk(ids[n], draw.uniform(1, 20), ids[DISKS + n % nodes], "") for n in range(DISKS)))


def _microseconds(layout: Layout, run: int) -> float:
    """A placement, over names that it has not seen yet."""
    names = [f"train/{run}-{number:06d}.tar" for number in range(NAMES)]
    begin = time.process_time()
    for name in names:
        layout.best("0123456789abcdef", name)
    return (time.process_time() - begin) / NAMES * 1e6
