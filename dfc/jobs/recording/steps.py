"""Sums over time in a bounded number of steps, which are joined two by two when there would be more of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

STEP_S: Final = 0.25  # at first


class TimeSteps:
    """Columns of sums; each step has `step_s` seconds, and there are at most `size` of them. Adding takes constant time."""

    def __init__(self, size: int, columns: int, step_s: float = STEP_S) -> None:
        self.size = size
        self.step_s = step_s
        self.columns: list[list[int]] = [[] for _ in range(columns)]
        self._count = 0

    @classmethod
    def of(cls, size: int, step_s: float, columns: Sequence[Sequence[int]]) -> TimeSteps:
        """Make them from what was kept; columns that are too long are cut, short ones filled up."""
        made = cls(size, 0, step_s if 0 < step_s < float("inf") else STEP_S)
        made._count = min(size, max(map(len, columns), default=0))
        made.columns = [[*column[: made._count], *[0] * (made._count - len(column))] for column in columns]
        return made

    def add(self, at_s: float, amounts: Sequence[int]) -> None:
        """Add to each column, `at_s` seconds after the beginning."""
        place = self._place(at_s)
        for column, amount in zip(self.columns, amounts, strict=True):
            column[place] += amount

    def add_column(self) -> int:
        """Add a column of zeros; return its number."""
        self.columns.append([0] * self._count)
        return len(self.columns) - 1

    def spread(self, number: int, begin_s: float, end_s: float) -> None:
        """Add the milliseconds of a time to the steps of one column in which they lie."""
        last = self._place(end_s)
        column, step_s = self.columns[number], self.step_s
        first = min(last, int(max(0.0, begin_s) / step_s))
        for place in range(first, last + 1):
            part_s = min(end_s, (place + 1) * step_s) - max(begin_s, place * step_s)
            column[place] += max(0, round(1000 * part_s))

    def _place(self, at_s: float) -> int:
        at_s = max(0.0, at_s)
        while (place := int(at_s / self.step_s)) >= self.size:
            self.step_s *= 2
            self._count = (self._count + 1) // 2
            for column in self.columns:
                column[:] = map(sum, zip(column[::2], [*column[1::2], 0], strict=False))
        if place >= self._count:
            for column in self.columns:
                column.extend([0] * (place + 1 - self._count))
            self._count = place + 1
        return place
