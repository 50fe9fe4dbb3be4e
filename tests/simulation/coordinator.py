"""The coordinator in the simulation, around `dfc.replication.steps`. The registry is a variable that survives crashes."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec

from dfc.placement.mapped import wanted_spec
from dfc.placement.roles import DiskPlace, Placement
from dfc.replication import steps
from dfc.replication.recovery import next_to_evict
from dfc.replication.write import lease_s
from simulation.world import Actor, Call, Process, Sleep, World

NAME = "coordinator"
TICK_S = 0.1
PUSH_TICKS = 5


class SimCoordinator(Actor):
    """`placement` and what is wanted are durable; what was heard is not. Disks that are not up for `out_after_s` are given up,
    until they are back and have dropped what is not theirs."""

    def __init__(self, world: World, placement: Placement, down_after_s: float) -> None:
        super().__init__(world, NAME)
        self.placement = placement
        self.wanted: frozenset[str] | None = None
        self.weights: dict[str, float] = {}
        self.gone: frozenset[str] = frozenset()
        self.evicted = 0
        self.out_after_s = inf
        self._away: dict[str, float] = {}  # disks that are not up: since when
        self.wanted_copies: tuple[str, int] | None = None
        self.published: dict[int, Placement] = {placement.step: placement}
        self._down_after_s = down_after_s
        self.boot()

    def boot(self) -> None:
        self.core = steps.StepPlanner(self.placement, self._down_after_s, self.world.now)
        self.world.spawn(self, self._run())

    def _run(self) -> Process:
        ticks = 0
        while True:
            yield Sleep(TICK_S)
            ticks += 1
            self._forget_removed()
            self._give_up()
            self._want_layout()
            if self.wanted_copies is not None:
                self.core.want_copies(*self.wanted_copies)
            new = self.core.next_step(self.world.now)
            if new is not None:
                self._publish(new)
            elif ticks % PUSH_TICKS == 0:
                self._push(self.core.waits_for())

    def _give_up(self) -> None:
        """Give up the disks of a domain that are away for too long."""
        not_up = {each.id for each in self.placement.disks.values() if not each.is_up}
        if not not_up and not self.gone:
            self._away = {}
            return
        self._away = {each: self._away.get(each, self.world.now) for each in sorted(not_up)}
        newest = self.placement.layouts[max(self.placement.layouts)]
        self.gone = frozenset(each for each in self.gone if each in not_up | newest.gone)  # back before anything came of it
        due = {each for each, since in self._away.items() if self.world.now - since > self.out_after_s}
        found = next_to_evict(self.placement, due - self.gone)
        self.gone |= found
        self.evicted += len(found)

    def remove(self, disks: set[str]) -> None:
        """Somebody says that these disks, which are not up, are lost for good."""
        self.gone |= disks
        marked = {each: msgspec.structs.replace(self.placement.disks[each], removing=True) for each in disks}
        self._put_disks({**self.placement.disks, **marked})

    def _forget_removed(self) -> None:
        """Those in no layout any more."""
        used = {each for spec in self.placement.layouts.values() for each in spec.disks}
        left = {each.id: each for each in self.placement.disks.values() if not each.removing or each.id in used}
        if left.keys() != self.placement.disks.keys():
            nodes = sorted({disk.node for disk in left.values()})
            self._put_disks(left)
            self._push(nodes)

    def _put_disks(self, disks: dict[str, DiskPlace]) -> None:
        """Without a step: no right to read or write is moved by that."""
        self.placement = msgspec.structs.replace(self.placement, disks=disks)
        self.core.refresh(self.placement)

    def _want_layout(self) -> None:
        if self.wanted is None and self.out_after_s == inf:
            return
        used = self.placement.layouts[max(self.placement.layouts)].disks if self.wanted is None else self.wanted
        used = used & self.placement.disks.keys()
        self.core.want_layout(wanted_spec(self.placement, used, self.gone, self.weights))

    def _publish(self, new: Placement) -> None:
        known = self.published.setdefault(new.step, new)
        assert known is new, f"two placements have step {new.step}"
        self.placement = new
        self.core.published(new)
        self._push(sorted({disk.node for disk in new.disks.values()}))

    def _push(self, nodes: list[str]) -> None:
        for node in nodes:

            def acknowledge(step: Any, node: str = node) -> None:
                if step is not None:
                    self.core.acknowledged(node, step)

            self.world.call(self, Call(node, "map", (self.placement,)), acknowledge)

    # --- messages

    def on_beat(self, sender: str, step: int, incarnations: dict[str, str], process: str) -> Any:
        leased = self.core.heartbeat(sender, step, incarnations, self.world.now, process=process)
        return (leased, lease_s(self._down_after_s), self.placement if self.placement.step > step else None)

    def on_leave(self, sender: str) -> bool:
        self.core.leave(sender)
        return True

    def on_out_of_sync(self, sender: str, primary: str, disk: str) -> Process:
        self.core.mark_out_of_sync(primary, disk)
        for _ in range(60):
            yield Sleep(TICK_S)
            if self.core.is_out_of_sync(primary, disk):
                return self.placement
        return None

    def on_clean(self, sender: str, disk: str, caught_up: str, step: int, process: str) -> bool:
        return self.core.report_clean(disk, caught_up, step, process=process)

    def on_report(self, sender: str, report: steps.ReadyReport, step: int) -> bool:
        self.core.report_ready(report, step)
        return True

    def on_cleared(self, sender: str, disk: str, step: int) -> bool:
        if step == self.placement.step:
            self.gone -= {disk}
        return True

    def on_placement(self, sender: str) -> Placement:
        return self.placement
