"""The last minutes of a node's figures, second by second."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from dfc.errors import BadRequest
from dfc.http.shutdown import Looping
from dfc.limits import STATS_KEPT_S

# --- The last seconds of some figures: arrays of a fixed length, and what one node tells another of them.

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


# --- How busy the block device below a directory is, as Linux counts it.

# In the file `stat` of a block device: milliseconds in which it had requests (Documentation/block/stat.rst of Linux).
BUSY_MS_AT: Final = 9
BLOCK_DEVICES: Final = "/sys/dev/block"


class Device:
    """The block device of a directory. Making one asks the file system, which may block; `busy_s` asks the kernel alone, and
    is done in some microseconds whatever the device does."""

    def __init__(self, directory: str, devices: str = BLOCK_DEVICES) -> None:
        number = os.stat(directory).st_dev
        self._path = f"{devices}/{os.major(number)}:{os.minor(number)}/stat"

    def busy_s(self) -> float | None:
        """Return for how long it has had something to do since the system was started; None if there is no such device, as with
        file systems in memory, over the network, or of several devices."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                return int(file.read(512).split()[BUSY_MS_AT]) / 1000
        except (OSError, ValueError, IndexError):
            return None


# --- Looks at the counters of a node once a second, and keeps what they say for the last minutes. Nothing is counted here.

_log: Final = logging.getLogger("dfc.http")
LATE_S: Final = 0.02  # so long after the end of a second it is looked


class Counted(NamedTuple):
    """What a node has counted since its start: bytes of bodies, requests, and those answered with 5xx; and how many connections
    are open now."""

    bytes_in: int
    bytes_out: int
    requests: int
    errors: int
    connections: int


class RateSampler(Looping):
    """Keeps the last seconds of a node. `counted` returns its counters; `clock_s` is replaced by tests."""

    def __init__(self, counted: Callable[[], Counted], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._counted = counted
        self._clock_s = clock_s
        self._ring = SecondsRing()
        self._boot = secrets.token_hex(4)
        self._began_s = self._looked_s = clock_s()
        self._last = Counted(0, 0, 0, 0, 0)
        self._busy_s: dict[str, float] = {}
        self.devices: Mapping[str, Device] = {}
        """Of the disks, by their ids."""

    def start(self) -> None:
        """Look once a second, until `stop`."""
        self._began_s = self._looked_s = self._clock_s()
        self._last = self._counted()
        super().start()

    async def _run(self) -> None:
        failed = False
        while True:
            now_s = self._clock_s() - self._began_s
            await asyncio.sleep(int(now_s) + 1 + LATE_S - now_s)
            try:
                self.look()
                failed = False
            except Exception:
                if not failed:  # not every second
                    _log.exception("looking at the counters of this node failed; trying again")
                failed = True

    def look(self) -> None:
        """Note the seconds that have ended since the last look. If there are several, because the loop was held or the process
        rested, what was counted is spread over them: no second shows more than there was in one."""
        now_s, counted = self._clock_s(), self._counted()
        took_s, ended = now_s - self._looked_s, int(now_s - self._began_s) - 1
        if ended <= self._ring.newest or took_s <= 0:
            return
        # A transfer that was broken off may have counted for more while it went on.
        new = [max(0, value - before) / took_s for value, before in zip(counted[:4], self._last[:4], strict=True)]
        values = {
            "bytes_in": float(round(new[0])),
            "bytes_out": float(round(new[1])),
            "requests": round(new[2], 2),
            "errors": round(new[3], 2),
            "connections": float(counted.connections),
            **self._uses(took_s),
        }
        for second in range(self._ring.first_from(max(self._ring.newest + 1, ended - STATS_KEPT_S + 1)), ended + 1):
            self._ring.put(second, values)
        self._last, self._looked_s = counted, now_s

    def _uses(self, took_s: float) -> dict[str, float]:
        """The share of this time in which each disk had something to do, where the system tells that."""
        found = {}
        for disk, device in self.devices.items():
            busy_s = device.busy_s()
            if busy_s is None:
                self._busy_s.pop(disk, None)
                continue
            if disk in self._busy_s:
                found[DISK + disk] = round(min(1.0, max(0.0, busy_s - self._busy_s[disk]) / took_s), 3)
            self._busy_s[disk] = busy_s
        return found

    def told(self, node_id: str, boot: str = "", after: int = -1) -> NodeSeconds:
        """Return what is known from after a second on, as counted by the start `boot`; everything if that was another one."""
        ring = self._ring
        first = min(ring.first_from(after + 1 if boot == self._boot else 0), ring.newest + 1)
        age_s = max(0.0, self._clock_s() - self._began_s - ring.newest - 1)
        columns = {name: ring.values(name, first) for name in ring.columns}
        return NodeSeconds(node_id, self._boot, first, ring.newest, age_s, columns)
