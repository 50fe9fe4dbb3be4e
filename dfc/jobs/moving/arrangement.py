"""What an operation that moves unchanged samples decides: their order, and the outputs if no size is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dfc.jobs.moving.corpus import Parts
from dfc.jobs.moving.orders import Order


@dataclass(frozen=True)
class Section:
    """Places from `lo` on, whose outputs are numbered from 0. `counts`: samples of each output if no size is given."""

    part: str
    lo: int
    counts: Sequence[int]

    @property
    def hi(self) -> int:
        return self.lo + sum(self.counts)


@dataclass(frozen=True)
class Arrangement:
    """The order of the samples, and its sections."""

    parts: Parts
    order: Order
    sections: Sequence[Section]

    @property
    def count(self) -> int:
        return self.order.count


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """One output: its name and its range of places."""

    name: str
    lo: int
    hi: int
