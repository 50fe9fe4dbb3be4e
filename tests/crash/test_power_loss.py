"""Power loss at any call, simulated: only what was synced is sure to be there, the rest is lost, kept or torn by chance.

Objects stored durably must be there afterwards, or what replaced them later. Of relaxed ones the newest may be lost; torn
bytes are never served. The machine's run has another id after it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import PowerLossFileSystem, seeds

from dfc.storage import Disk

NAMES = ("old-small", "old.tar", "new-small", "a/" + "long name " * 40, "new.tar")
RUNS_A_SEED = 12


def contents(lab: Any, name: str, step: int) -> bytes:
    return bytes(lab.new_tar) + bytes(1024 * step) if name.endswith(".tar") else b"%d " % step * 300


def act(lab: Any, disk: Disk, chance: random.Random, acknowledge: Any) -> None:
    """A random sequence of steps; says what begins and what was acknowledged."""
    for step in range(8):
        name = chance.choice(NAMES)
        kind = chance.choice(("fsync", "fsync", "relaxed", "relaxed", "delete", "sync"))
        acknowledge(f"begin:{kind}:{NAMES.index(name)}:{step}")
        if kind == "sync":
            disk.sync_relaxed()
        elif kind == "delete":
            if disk.find(lab.bucket, name) is not None:
                disk.delete(lab.bucket, name)
        elif chance.random() < 0.5:
            disk.put_small(lab.bucket, name, contents(lab, name, step), durability=kind)
        else:
            lab.put(disk, name, contents(lab, name, step), kind)
        acknowledge("end")


def allowed_after(lab: Any, said: list[str]) -> dict[str, list[bytes | None]]:
    """What each object may be: what was last durable, and everything that was begun after it."""
    may: dict[str, list[bytes | None]] = {name: [lab.before.get(name)] for name in NAMES}
    relaxed = dict.fromkeys(NAMES, False)
    for begin, end in zip(said, [*said[1:], ""], strict=True):
        if begin == "end":
            continue
        _, kind, index, step = begin.split(":")
        name, done = NAMES[int(index)], end == "end"
        if kind == "sync" and done:
            for synced in NAMES:
                may[synced] = may[synced][-1:]
                relaxed[synced] = False
        elif kind in ("fsync", "delete", "relaxed"):
            new = None if kind == "delete" else contents(lab, name, int(step))
            durable = done and kind != "relaxed"
            may[name] = [new] if durable else [*may[name], new]
            relaxed[name] = not durable and (relaxed[name] or kind == "relaxed")
    for name in NAMES:
        if relaxed[name]:
            # A new object of relaxed durability may be gone altogether; a durable one that it replaced may not.
            may[name] = [*may[name], None] if None in may[name] else may[name]
    return may


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", seeds(16))
def test_durable_objects_survive_and_nothing_torn_is_served(lab: Any, seed: int) -> None:
    chance = random.Random(seed)
    for run in range(RUNS_A_SEED):
        path: Path = lab.fresh()
        call, decisions = chance.randrange(120), chance.randrange(1 << 30)

        def action(acknowledge: Any, path: Path = path, call: int = call, decisions: int = decisions) -> None:
            filesystem = PowerLossFileSystem(str(path), decisions)
            disk = lab.open(path, filesystem)
            filesystem.arm(call)
            act(lab, disk, random.Random(decisions), acknowledge)
            filesystem.lose_power()

        outcome = lab.run(action)
        assert outcome.killed
        try:
            lab.expect(path, allowed_after(lab, outcome.acknowledged), boot_id="boot-2")
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, run {run}: {error}; {outcome.acknowledged}") from error
