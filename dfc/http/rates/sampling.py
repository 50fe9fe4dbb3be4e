"""Looks at the counters of a node once a second, and keeps what they say for the last minutes. Nothing is counted here."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from dfc.http.rates.devices import Device
from dfc.http.rates.ring import DISK, NodeSeconds, SecondsRing
from dfc.http.shutdown import Looping
from dfc.limits import STATS_KEPT_S

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
        first = ring.first_from(after + 1 if boot == self._boot else 0)
        first = min(first, ring.newest + 1)
        age_s = max(0.0, self._clock_s() - self._began_s - ring.newest - 1)
        columns = {name: ring.values(name, first) for name in ring.columns}
        return NodeSeconds(node_id, self._boot, first, ring.newest, age_s, columns)
