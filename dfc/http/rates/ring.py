"""The last seconds of some figures: arrays of a fixed length, and what one node tells another of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping

import msgspec

from dfc.errors import BadRequest
from dfc.limits import STATS_KEPT_S

Value = float | None
"""A figure of one second; None where it is not known."""
DISK: str = "disk "  # before the id of a disk: the column with the use of it
COLUMNS = ("bytes_in", "bytes_out", "requests", "errors", "connections")


class NodeSeconds(msgspec.Struct, frozen=True):
    """What a node tells of its last seconds: the columns from second `first` to `newest`, which ended `age_s` ago. Seconds are
    counted from a start of the node, which `boot` names. None: there was none, or it is not known."""

    id: str
    boot: str
    first: int
    newest: int
    age_s: float
    columns: dict[str, list[Value]]


class SecondsRing:
    """The values of some columns in the last `length` seconds. Seconds are numbered, from 0 on. 8 bytes a value."""

    def __init__(self, length: int = STATS_KEPT_S) -> None:
        self._length = length
        self._values: dict[str, array[float]] = {}
        self.newest = -1

    @property
    def columns(self) -> Iterator[str]:
        return iter(self._values)

    def put(self, second: int, values: Mapping[str, float]) -> None:
        """Take the values of a second that is newer than all before. Of seconds that were left out, and of columns that are
        not there, nothing is known."""
        for name in values.keys() - self._values.keys():
            self._values[name] = array("d", [math.nan]) * self._length
        begin = max(self.newest + 1, second - self._length + 1)
        for name, column in self._values.items():
            for each in range(begin, second):
                column[each % self._length] = math.nan
            column[second % self._length] = values.get(name, math.nan)
        self.newest = second

    def first_from(self, second: int) -> int:
        """Return the first second from this one on that is still here."""
        return max(second, self.newest - self._length + 1, 0)

    def values(self, name: str, first: int) -> list[Value]:
        """Return the values of a column from a second on, which is still here, to the newest."""
        column, length = self._values.get(name), self._length
        if column is None:
            return [None] * (self.newest + 1 - first)
        found = (column[second % length] for second in range(first, self.newest + 1))
        return [None if value != value else value for value in found]

    def last(self, name: str, count: int) -> list[Value]:
        """Return the values of the last `count` seconds, the newest last."""
        first = self.first_from(self.newest + 1 - count)
        values = self.values(name, first)
        return [None] * (count - len(values)) + values

    def take(self, told: NodeSeconds) -> None:
        """Take what a node tells of seconds after the newest here. BadRequest if it does not fit together."""
        count = told.newest + 1 - told.first
        if any(len(values) != count for values in told.columns.values()) or (count and not told.columns):
            raise BadRequest("it tells of another number of seconds than it says")
        for second in range(max(told.first, self.newest + 1), told.newest + 1):
            at = second - told.first
            self.put(second, {name: value for name, values in told.columns.items() if (value := values[at]) is not None})
