"""How far each disk has come, as targets report it: a disk that says less later was put back to an earlier state.

Kept in the memory of the coordinator, and every few seconds in the registry, for the one after it. See `Disk.tell_epoch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from dfc.limits import STOP_CLOSE_S
from dfc.placement.map import ClusterMap
from dfc.registry.base import EPOCHS, RECORD_BYTES_MAX, Registry
from dfc.registry.leases import Lease
from dfc.registry.registration import Registration
from dfc.replication.transitions import life_of

_log: Final = logging.getLogger("dfc.proxy")
KEEP_S: Final = 10.0
LAST_S: Final = STOP_CLOSE_S / 2  # for the last time, when the registry may be silent
ENTRY_BYTES_MAX: Final = 160  # of a disk in a record


class DiskEpoch(msgspec.Struct, frozen=True, array_like=True):
    """What was reported last of a disk: what is on it, how far it had come, by which process, and when by its wall clock."""

    disk: str
    incarnation: str
    epoch: int
    process: str
    now_us: int = 0

    def is_of(self, other: DiskEpoch) -> bool:
        """Whether both are of one life of a disk: each doubt has another incarnation, but the epoch goes on."""
        return self.disk == other.disk and life_of(self.incarnation) == life_of(other.incarnation)


def older(known: Mapping[str, DiskEpoch], said: list[DiskEpoch]) -> dict[str, int]:
    """The disks that have come less far than is `known` of them, and how far that was. Pure.

    A process counts on from where its disk was when it opened that, so the first number of another one is higher than all that
    came before it. Of one process, numbers may arrive in any order; but one that is said later and is lower is of a machine
    that was put back as it ran. What has another life has another story.
    """
    found = dict[str, int]()
    for each in said:
        before = known.get(each.disk)
        if before is None or not each.is_of(before):
            continue
        is_new = before.process != each.process
        if each.epoch <= before.epoch if is_new else each.epoch < before.epoch and each.now_us > before.now_us > 0:
            found[each.disk] = before.epoch
    return found


class DiskEpochs:
    """What the coordinator knows of disks. `cluster_map` gives the map of now."""

    def __init__(self, registry: Registry, cluster_map: Callable[[], ClusterMap]) -> None:
        self._registry = registry
        self._map = cluster_map
        self._known: dict[str, DiskEpoch] = {}
        self._kept: dict[str, bytes] = {}  # records as they are in the registry, as far as this proxy has written or read them

    def begin(self) -> None:
        """This proxy is the coordinator from now on: others may have heard more meanwhile."""
        self._kept = self._registry.records(EPOCHS)
        for name, record in self._kept.items():
            try:
                found = msgspec.json.decode(record, type=list[DiskEpoch])
            except msgspec.DecodeError as error:
                _log.error("the record %s of the registry cannot be read, and is not used: %s", name, error)
                continue
            for each in found:
                before = self._known.get(each.disk)
                if before is None or not each.is_of(before) or before.epoch < each.epoch:
                    self._known[each.disk] = each

    def check(self, said: Registration) -> dict[str, int]:
        """Take what a target says of its disks; return those that were put back, and how far they had come before."""
        told = [
            DiskEpoch(disk.id, disk.incarnation, said.epochs[disk.id], said.process, said.now_us)
            for disk in said.disks
            if said.epochs.get(disk.id)
        ]
        found = older(self._known, told)
        for each in told:
            before = self._known.get(each.disk)
            is_late = before is not None and each.is_of(before) and before.epoch > each.epoch
            if each.disk not in found and not is_late:
                self._known[each.disk] = each
        return found

    async def run(self, leadership: Lease) -> None:
        """Keep what is known in the registry, again and again; a last time when this proxy stops, unless that takes long."""
        try:
            while True:
                await asyncio.sleep(KEEP_S)
                await self._keep(leadership)
        finally:
            if leadership.is_held:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_S):
                        await self._keep(leadership)

    async def _keep(self, leadership: Lease) -> None:
        """Write what has changed: a record for each node, by its number. When it was heard changes all the time, and stays out
        of that."""
        placed = {f"{EPOCHS}{node.number}": [disk.id for disk in node.disks] for node in self._map().nodes if node.disks}
        for name, disks in placed.items():
            known = [msgspec.structs.replace(self._known[each], now_us=0) for each in disks if each in self._known]
            record = msgspec.json.encode(known[: RECORD_BYTES_MAX // ENTRY_BYTES_MAX])
            if known and self._kept.get(name) != record:
                await self._registry.keep(name, record, leadership)
                self._kept[name] = record
        for name in self._kept.keys() - placed.keys():
            await self._registry.keep(name, None, leadership)
            del self._kept[name]
