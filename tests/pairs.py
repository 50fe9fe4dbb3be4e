"""Two targets with a real disk each, whose messages about comparing travel encoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from copied import BUCKET, V1, Target, name_with, opened, sender
from copying import adopt_one

from dfc.checksum import ExpectedChecksums, checksum_of
from dfc.placement.map import ClusterMap
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.copies import SmallCopy
from dfc.storage.rows import Standing, Supplied
from dfc.target.copies import compare
from dfc.target.copies.answers import CompareAnswers, DigestTables
from dfc.target.copies.compare import ComparedWith, PairComparison
from dfc.target.copies.messages import ASIDE_PATH, DIGESTS_PATH, LOOKS_PATH, NAMES_PATH, CopyKey, NameReply, Sender
from dfc.target.copies.receive import CopyReceiver, Prepared
from dfc.wire.status import CheckedDisk, CheckedPair

OWN = [name_with("d1", "d2", number=number) for number in range(30)]
THEIRS = [name_with("d2", "d1", number=number) for number in range(5)]
ALIKE, MISSING, OLDER, NEWER, UNKNOWN, BURIED, OTHER = OWN[0], OWN[1], OWN[2], OWN[3], OWN[4], OWN[5], OWN[6]


class Network:
    """What targets ask each other. `silent`: those that do not answer; `asked`: the paths."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[CompareAnswers, CopyReceiver]] = {}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.before: Any = None  # called with each path
        self.after: Any = None  # called with each path and answer
        self.sender = Sender("t1", 1)

    async def ask(self, disk: str, path: str, question: Any, kind: Any) -> Any:
        await asyncio.sleep(0)
        self.asked.append(path)
        if self.before is not None:
            self.before(path)
        if disk in self.silent or disk not in self.of:
            return None
        found = self.of[disk][0]
        calls = {DIGESTS_PATH: found.digests, NAMES_PATH: found.names, LOOKS_PATH: found.looks, ASIDE_PATH: found.set_aside}
        told = await calls[path](msgspec.msgpack.decode(msgspec.msgpack.encode(question), type=type(question)))
        if self.after is not None:
            self.after(path, told)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=kind)

    async def states(self, disk: str, names: list[CopyKey]) -> list[NameReply] | None:
        return await self.of[disk][1].states(sender(disk.replace("d", "t"), 1), names)


class Two:
    """Targets t1 and t2. Disk d1 is compared with d2; both have the same unless a test says otherwise."""

    def __init__(self, one: Target, two: Target) -> None:
        self.one, self.two, self.network = one, two, Network()
        self.tables = {}
        for target in (one, two):
            disk = target.disk.id
            table = self.tables[disk] = DigestTables(target.local, target.ledger)
            receiver = CopyReceiver(target.local, target.ledger, Prepared(target.local))
            peers: Any = self.network
            self.network.of[disk] = CompareAnswers(target.local, target.ledger, peers, receiver, table), receiver
        self.check = CheckedDisk(disk="d1", node="t1")

    def put(self, target: Target, name: str, version: str, body: bytes | None) -> None:
        """An object that counts; `body` None: a tombstone."""
        rank = 0 if (name in OWN) == (target is self.one) else 1
        verdict = AdoptVerdict(taken=True, commits=True, standing=Standing(rank))
        if body is None:
            target.disk.copies.adopt_tombstone(BUCKET, name, version, lambda present: verdict)
            return
        expected = ExpectedChecksums(xxh3_128=checksum_of(body))
        adopt_one(target.disk, SmallCopy(BUCKET, name, body, expected, Supplied(version), lambda present: verdict))

    def both(self, name: str, version: str = V1) -> None:
        for target in (self.one, self.two):
            self.put(target, name, version, name.encode())

    def take(self, new: ClusterMap) -> None:
        for target in (self.one, self.two):
            target.take_map(new)

    def compared_with(self) -> ComparedWith:
        peers: Any = self.network
        return ComparedWith(self.one.local, self.one.ledger, peers, self.tables["d1"])

    def comparison(self, buckets: frozenset[str] = frozenset()) -> PairComparison:
        return PairComparison(self.compared_with(), self.one.disk, self.check, "d2", buckets)

    async def compare(self) -> CheckedPair:
        await asyncio.sleep(2 * compare.SLACK_S)
        return await self.comparison().compare(asyncio.get_running_loop().time())

    def found(self) -> dict[str, str]:
        return {each.object: each.what for each in self.check.found}


@asynccontextmanager
async def paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    for name in ("POLL_S", "AGAIN_S", "AGAIN_STEP_S", "SLACK_S", "DELIVERED_S"):
        monkeypatch.setattr(compare, name, 0.01)
    monkeypatch.setattr(compare, "DELIVERED_LOOK_S", 0.001)
    monkeypatch.setattr(compare, "SILENT_S", 0.05)
    monkeypatch.setattr(compare, "LOOK_S", 0.005)
    with ExitStack() as stack:
        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
        made = Two(*(stack.enter_context(opened(tmp_path / str(number), number)) for number in (1, 2)))
        for name in (*OWN, *THEIRS):
            made.both(name)
        yield made
        for table in made.tables.values():
            await table.close()
