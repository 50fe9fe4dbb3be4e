"""The last seconds of many nodes side by side: aligned by how long ago they were, and in points that an answer has room for. No
I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from dfc.http.rates.ring import COLUMNS, DISK, SecondsRing, Value
from dfc.limits import STATS_POINTS_MAX, STATS_VALUES_MAX
from dfc.wire.status import NodeFigures

EARLY_S = 0.5  # the last second of a node that has just answered ended up to so much more than a second ago
NodeKind = Literal["target", "proxy"]


class NodeMirror:
    """What is known here of a node's seconds. `answered_s`: when it told them last, by the clock of this node."""

    def __init__(self, node_id: str, kind: NodeKind) -> None:
        self.id = node_id
        self.kind: NodeKind = kind
        self.ring = SecondsRing()
        self.boot = ""
        self.answered_s: float | None = None
        self.age_s = 0.0  # of its last second when it answered
        self.silent = False
        self.why = ""

    def last(self, name: str, count: int, now_s: float) -> list[Value]:
        """Return the values of the last `count` seconds before now, the newest last."""
        gone = count if self.answered_s is None else math.floor(max(0.0, now_s - self.answered_s + self.age_s - EARLY_S))
        gone = min(gone, count)
        return self.ring.last(name, count - gone) + [None] * gone

    def stats(self, seconds: int, step_s: int, now_s: float) -> NodeFigures:
        """Return the figures of the last seconds."""
        count = step_s * math.ceil(seconds / step_s)

        def series(name: str) -> list[Value]:
            return coarse(self.last(name, count, now_s), step_s)

        return NodeFigures(
            id=self.id,
            kind=self.kind,
            silent=self.silent,
            silent_s=round(now_s - self.answered_s, 1) if self.silent and self.answered_s is not None else None,
            why=self.why if self.silent else "",
            disks={name.removeprefix(DISK): series(name) for name in self.ring.columns if name.startswith(DISK)},
            **{name: series(name) for name in COLUMNS},
        )


def coarse(values: Sequence[Value], step_s: int) -> list[Value]:
    """Return the means of as many values each; their number is a multiple of that."""
    return list(values) if step_s == 1 else [mean(values[at : at + step_s]) for at in range(0, len(values), step_s)]


def mean(values: Sequence[Value]) -> Value:
    """Return the mean of those that are known, None if none is."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def step_for(seconds: int, series: int) -> int:
    """Return how many seconds are one point in an answer with so many series."""
    points = max(1, min(STATS_POINTS_MAX, STATS_VALUES_MAX // max(1, series)))
    return math.ceil(seconds / points)
