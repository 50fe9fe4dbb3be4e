"""Random changes of copies, compared with a model of a few lines: what `SimDisk` is in `tests/simulation`, on a real disk."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from copying import adopt, body, written

from dfc.errors import ObjectNotFound
from dfc.storage import Precondition
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.rows import Standing
from dfc.storage.upkeep.check import check
from dfc.storage.upkeep.rebuild import rebuild

NAMES = ("a", "b.tar", "c" * 250)
DISKS = ("disk-2", "disk-3")
STEPS = 60


@dataclass
class Model:
    """`rows`: version and bytes, or None for a tombstone."""

    rows: dict[str, tuple[str, bytes | None]] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    pending: dict[str, str] = field(default_factory=dict)
    hints: set[tuple[str, str]] = field(default_factory=set)

    def put(self, name: str, version: str, data: bytes | None, standing: Standing) -> None:
        self.rows[name] = (version, data)
        self.ranks.pop(name, None)
        if data is not None:
            self.ranks[name] = standing.rank
        self.pending.pop(name, None)
        if standing.pending:
            self.pending[name] = version
        self.hints |= {(disk, name) for disk in standing.hints}


class Run:
    """One sequence of changes on a disk and on its model."""

    def __init__(self, open_disk: Any, seed: int) -> None:
        self.open_disk = open_disk
        self.chance = random.Random(seed)
        self.disk = open_disk()
        self.model = Model()
        self.used: dict[str, dict[str, bytes | None]] = {name: {} for name in NAMES}  # each version has one content

    def content(self, name: str) -> bytes | None:
        return None if self.chance.random() < 0.3 else self.chance.randbytes(self.chance.randrange(40)) + name.encode()[:5]

    def standing(self) -> Standing:
        hints = tuple(disk for disk in DISKS if self.chance.random() < 0.2)
        return Standing(self.chance.choice((0, 1, 255)), self.chance.random() < 0.5, hints)

    def step(self) -> None:
        name = self.chance.choice(NAMES)
        change = self.chance.choice((self.adopt, self.adopt, self.adopt, self.write, self.revert, self.settle, self.hint))
        self.chance.choice((change, change, change, self.surplus, self.rank, self.again))(name)

    def adopt(self, name: str) -> None:
        version = f"06000000{self.chance.randrange(30):06x}00ff"
        data, standing = self.used[name].setdefault(version, self.content(name)), self.standing()
        present = self.model.rows.get(name)
        durability = self.chance.choice(("fsync", "relaxed"))
        outcome = adopt(self.disk, name, version, data, standing, durability=durability)
        if present is None or present[0] < version:
            assert (outcome.taken, outcome.commits, outcome.stored) == (True, True, True)
            assert outcome.replaced == (present is not None and present[1] is not None)
            self.model.put(name, version, data, standing)
        elif present[0] == version:
            assert (outcome.taken, outcome.commits) == (True, False)
            self.model.hints |= {(disk, name) for disk in standing.hints}
            if data is not None:
                self.model.ranks[name] = standing.rank
            if not standing.pending:
                self.model.pending.pop(name, None)
        else:
            assert not outcome.taken

    def write(self, name: str) -> None:
        """As a primary. Its versions are newer than all others."""
        standing = self.standing()
        precondition = Precondition(guard=lambda: standing)
        if self.chance.random() < 0.7:
            data = self.chance.randbytes(9)
            result = self.disk.put_small("b", name, data, precondition=precondition)
            assert result.committed
            self.model.put(name, result.row.version, data, standing)
            return
        try:
            row, version = self.disk.copies.delete("b", name, precondition=precondition)
        except ObjectNotFound:
            assert self.model.rows.get(name, ("", None))[1] is None
        else:
            assert row.version == self.model.rows[name][0]
            self.model.put(name, version, None, standing)

    def revert(self, name: str) -> None:
        over = self.chance.choice([*self.model.pending.values(), "06000000000001ffff"])
        to = f"05ffffff{self.chance.randrange(99):06x}00ff"
        kind = self.chance.choice(("object", "tombstone", "nothing"))
        data = self.used[name].setdefault(to, b"old") if kind == "object" else None
        if kind == "object" and data is not None:
            done = self.disk.copies.revert_to(written(self.disk, name, data, to), over)
        else:
            done = self.disk.copies.revert("b", name, over, None if kind == "nothing" else to)
        assert done == (self.model.pending.get(name) == over)
        if not done:
            return
        rank = self.model.ranks.get(name, 0)
        if kind == "nothing":
            self.model.rows.pop(name)
            self.model.pending.pop(name)
            self.model.ranks.pop(name, None)
        else:
            self.model.put(name, to, data, Standing(rank))

    def settle(self, name: str) -> None:
        version = self.chance.choice([*self.model.pending.values(), "06000000000001ffff"])
        hints = [disk for disk in DISKS if self.chance.random() < 0.3]
        if self.chance.random() < 0.5:
            hints = []
            self.disk.copies.confirm([("b", name, version)])
        else:
            self.disk.copies.mark_replicated("b", name, version, hints)
        if self.disk.bucket_ids():
            self.model.hints |= {(disk, name) for disk in hints}
        if self.model.pending.get(name) == version:
            del self.model.pending[name]

    def hint(self, name: str) -> None:
        disk = self.chance.choice(DISKS)
        version = self.chance.choice((None, self.model.rows.get(name, ("",))[0], "06000000000001ffff"))
        if self.chance.random() < 0.2:
            self.disk.copies.forget_disk(disk)
            self.model.hints = {hint for hint in self.model.hints if hint[0] != disk}
        elif self.chance.random() < 0.5:
            self.disk.copies.add_hints([(disk, "b", name)])
            self.model.hints |= {(disk, name)} if self.disk.bucket_ids() else set()
        else:
            self.disk.copies.drop_hints([(disk, "b", name, version)])
            if version == self.model.rows.get(name, (None,))[0]:
                self.model.hints.discard((disk, name))

    def surplus(self, name: str) -> None:
        version = self.model.rows.get(name, ("06000000000001ffff",))[0]
        goes = name in self.model.rows and name not in self.model.pending and all(name != each for _, each in self.model.hints)
        assert self.disk.copies.remove_excess([("b", name, version)]) == goes
        if goes:
            del self.model.rows[name]
            self.model.ranks.pop(name, None)

    def rank(self, name: str) -> None:
        rank = self.chance.choice((0, 1, 2, 255))
        self.disk.copies.set_ranks([("b", name, rank)])
        if name in self.model.ranks:
            self.model.ranks[name] = rank

    def again(self, name: str) -> None:
        """Open the disk again, or, now and then, rebuild its catalog first."""
        self.disk.close()
        if self.chance.random() < 0.3:
            rebuild(str(self.open_disk.root), full=self.chance.random() < 0.5)
        self.disk = self.open_disk()
        assert not self.disk.sweep().alarm
        assert {row.blob_id for row in self.disk.list("b", limit=9, ranks="all")} == {
            file.rpartition("@")[2] for file in self.open_disk.files() if not file.endswith(".idx")
        }

    def compare(self) -> None:
        model, copies = self.model, self.disk.copies
        found: dict[str, tuple[str, bytes | None]] = {name: (version, None) for _, name, version in copies.tombstones()[0]}
        found |= {row.name: (row.version, body(self.disk, row.name)) for row in copies.rows()[0]}
        assert found == model.rows
        for name in NAMES:
            state = copies.state("b", name)
            assert (None if state is None else (state.version, state.row is None)) == (
                None if name not in model.rows else (model.rows[name][0], model.rows[name][1] is None)
            )
            assert copies.is_pending("b", name) == (name in model.pending)
            assert copies.hinted_disks("b", name) == {disk for disk, each in model.hints if name == each}
        assert {row.name: row.rank for row in copies.rows()[0]} == model.ranks
        assert (
            {row.name: row.version for row in copies.pending()[0]}
            == model.pending
            == {name: version for (_, name), version in self.disk.parts.catalog.marks.pending.items()}
        )
        assert {(disk, name) for disk in DISKS for _, name in copies.hints(disk)[0]} == model.hints
        assert self.disk.parts.catalog.marks.has_hints or not model.hints
        catalog: Catalog = self.disk.parts.catalog
        assert (catalog.counts("b"), catalog.copy_counts("b")) == catalog.measure("b")
        first = [name for name, rank in sorted(model.ranks.items()) if rank == 0]
        assert [row.name for row in self.disk.list("b", limit=9)] == first


@pytest.mark.parametrize("seed", range(24))
def test_a_disk_with_copies_is_what_its_model_is(open_disk: Any, seed: int) -> None:
    run = Run(open_disk, seed)
    for _ in range(STEPS):
        run.step()
        run.compare()
    run.disk.close()
    report = check(str(open_disk.root), full=True)
    assert not report.damaged
    assert set(report.counts) <= {"hint_without_row", "departed_without_blob"}
