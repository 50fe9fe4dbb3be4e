"""The background work of a disk that the others are fakes for, which looks when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from copied import BUCKET, Members, Target, maybe, name_with, sender, state_of

from dfc.target.copies.messages import CopyKey, NameReply, RowState
from dfc.target.copies.objects import Repairer
from dfc.target.copies.peering import PeeringLoop
from dfc.target.copies.receive import CopyReceiver, Prepared
from dfc.target.copies.upkeep import Upkeep
from dfc.target.copies.writes import Writes

OWN, OTHER, NEITHER = name_with("d1", "d2"), name_with("d2", "d1"), name_with("d2", "d3")

NOTHING_THERE = NameReply(None, speaks=True, is_replicated=True, decides=True)


class Others(Members):
    """They also answer what they have of names: what `said` says, or nothing at all where a disk is in `silent`.
    `after_states` is called with the disk before an answer is handed out."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.silent: set[str] = set()
        self.handed: list[CopyKey] = []
        self.settled = True
        self.after_states: Callable[[str], Any] = lambda disk: None

    def both_said(self, name: str, version: str | None, body: bytes | None = None, **more: Any) -> None:
        for disk in ("d2", "d3"):
            self.said(disk, name, version, body, **more)

    def said(self, disk: str, name: str, version: str | None, body: bytes | None = None, **more: Any) -> None:
        state = None if version is None else RowState(version) if body is None else state_of(version, body)
        key = CopyKey(disk, BUCKET, name)
        self.told[key] = NameReply(
            state, **{"speaks": True, "is_replicated": True, "decides": more.get("speaks", True), **more}
        )
        if body is not None:
            self.bodies[key] = body

    async def states(self, disk: str, names: list[CopyKey]) -> list[NameReply] | None:
        self.asked += names
        found = None if disk in self.silent else [self.told.get(key, NOTHING_THERE) for key in names]
        await maybe(self.after_states(disk))
        self.reached.note(disk, answered=disk not in self.silent)
        return found

    async def state(self, key: CopyKey) -> NameReply | None:
        found = await self.states(key.disk, [key])
        return None if found is None else found[0]

    async def is_resolved(self, disk: str) -> bool:
        return self.settled

    async def hand_over(self, primary: str, missing: list[CopyKey]) -> bool:
        self.handed += missing
        return True


class Kept:
    """The upkeep of disk d1, which looks when a test says so."""

    def __init__(self, target: Target) -> None:
        self.target, self.peers = target, Others(target)
        self.receiver = CopyReceiver(target.local, target.ledger, Prepared(target.local))
        self.writes = Writes(target.local, target.ledger, self.peers)  # type: ignore[arg-type]
        self.peering_loop = PeeringLoop(target.local, target.ledger, self.peers, self.receiver, self.writes)  # type: ignore[arg-type]
        self.repairer = Repairer(target.local, target.ledger, self.peers)  # type: ignore[arg-type]
        self.upkeep = Upkeep(
            target.local,
            target.ledger,
            self.peers,  # type: ignore[arg-type]
            self.receiver,
            self.writes,
            self.peering_loop,
            self.repairer,
            target.disk,
        )
        target.control.coordinator = lambda body: {}

    def lacks(self, disk: str, *names: str) -> None:
        """Objects here that are hinted for a disk."""
        for name in names:
            self.target.write(name, b"x", pending=False)
        self.target.hint(disk, *names)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.upkeep._look()

    async def receive(self, *items: Any) -> None:
        taken = await self.receiver.take(sender(version=self.target.local.map.version), list(items))
        assert set(taken.outcomes) == {"taken"}


def reports(kept: Kept) -> list[Any]:
    return list(kept.target.control.said)
