"""One disk of three hangs, fails and comes back, while the two others go on as if nothing were.

The faults are made at the seam of the storage engine: a disk that hangs at will is not to be had without root.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from harness import owner_of
from inprocess import until

from dfc.config import Settings
from dfc.filesystem import FileSystem
from dfc.servers.proxy import ProxyNode
from dfc.servers.target import TargetNode
from dfc.storage.disk import Disk
from dfc.target import local, threads

LARGE = 300_000
SICK = "disk-1"
HANGING = 150  # requests for the sick disk at a time, more than a target had threads for all of its disks
HEALTHY = 300
# A COMMIT that fails ends the writing to a disk until it is opened again, as it should: that is another test's.
FAILING = frozenset(FileSystem.CHANGES + FileSystem.READS) - {"commit", "close", "unlink"}


class Sick(FileSystem):
    """A disk that does what it is told: "well", "hang", "fail", or "stick": only its commits hang."""

    def __init__(self) -> None:
        self.mode = "well"
        self.changed = threading.Condition()
        self.waiting = 0

    def become(self, mode: str) -> None:
        with self.changed:
            self.mode = mode
            self.changed.notify_all()

    def check(self, name: str) -> None:
        with self.changed:
            self.waiting += 1
            self.changed.wait_for(lambda: not (self.mode == "hang" or (self.mode == "stick" and name == "commit")))
            self.waiting -= 1
            if self.mode == "fail" and name in FAILING:
                raise OSError(errno.EIO, os.strerror(errno.EIO))


def _checked(name: str) -> Any:
    def method(self: Sick, *arguments: Any, **named: Any) -> Any:
        self.check(name)
        return getattr(FileSystem, name)(self, *arguments, **named)

    return method


for _name in (*FileSystem.CHANGES, *FileSystem.READS):
    setattr(Sick, _name, _checked(_name))


class Place:
    """A proxy and a target of three disks, of which one may fall sick."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sick = Sick()
        opening = Disk.open

        def open_disk(path: str, *arguments: Any) -> Disk:
            return opening(path, *arguments[:-1], self.sick if path.endswith(SICK) else FileSystem())

        monkeypatch.setattr(Disk, "open", open_disk)
        monkeypatch.setattr(threads, "STOP_CLOSE_S", 0.2)
        monkeypatch.setattr(local, "STOP_CLOSE_S", 0.2)
        common = {"port": 0, "access_log": False, "drain_timeout_s": 0.5, "connections_max": 2000}
        self.proxy = ProxyNode(Settings(dir=str(directory / "proxy"), down_after_s=15.0, **common))
        self._directory, self._common = directory, common
        self._names = count()
        self.session: aiohttp.ClientSession

    async def start(self) -> Place:
        url = await self.proxy.start()
        disks = tuple(str(self._directory / f"disk-{number}") for number in range(3))
        self.target = TargetNode(
            Settings(
                dir=str(self._directory / "target"), disks=disks, proxy_url=url, heartbeat_s=0.3, disk_error_budget=10**9,
                disk_ballast_bytes=0, transfer_threads=4, **self._common,
            )
        )  # fmt: skip
        await self.target.start()
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=280, sock_connect=60)
        )
        assert (await self.ask("PUT", "seed", b"1"))[0] == 201
        return self

    async def is_stuck(self, count: int = 1) -> bool:
        """Whether so many calls wait for the sick disk."""
        return self.sick.waiting >= count

    async def stop(self) -> None:
        await self.session.close()
        await self.target.stop()
        self.sick.become("well")
        await self.proxy.stop()

    @property
    def sick_id(self) -> str:
        return next(disk.id for disk in self.target.local.disks.values() if disk.path.endswith(SICK))

    def name(self, *, sick: bool) -> str:
        """A new name that lies on the sick disk, or on one of the others."""
        while True:
            name = f"n-{next(self._names)}"
            if (owner_of(self.target.local.map, "b", name).disk.id == self.sick_id) == sick:
                return name

    async def ask(self, method: str, name: str, body: bytes | None = None) -> tuple[int, bytes]:
        async with self.session.request(method, f"{self.target._url}/b/{name}", data=body) as answer:
            return answer.status, await answer.read()

    async def put_and_get(self, name: str, size: int) -> None:
        body = os.urandom(size)
        assert (await self.ask("PUT", name, body))[0] in (200, 201)
        assert await self.ask("GET", name) == (200, body)


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    made = await Place(tmp_path, monkeypatch).start()
    yield made
    await made.stop()


async def test_a_disk_that_hangs_holds_up_no_other_and_no_heartbeat(place: Place) -> None:
    kept = {place.name(sick=True): os.urandom(size) for size in (10, LARGE)}
    for name, body in kept.items():
        await place.ask("PUT", name, body)
    place.sick.become("hang")
    hanging = [
        asyncio.create_task(place.ask("PUT", place.name(sick=True), bytes(LARGE if number % 3 else 100)))
        for number in range(HANGING)
    ]
    hanging += [asyncio.create_task(place.ask("GET", name)) for name in list(kept) * 20]
    await until(lambda: place.is_stuck(64))  # in threads; the others wait for one
    beat = place.proxy.cluster.map.node(place.target.id).last_heartbeat
    for begin in range(0, HEALTHY, 20):
        await asyncio.gather(
            *(place.put_and_get(place.name(sick=False), LARGE if number % 2 else 100) for number in range(begin, begin + 20))
        )

    async def has_beaten() -> bool:
        found = place.proxy.cluster.map.node(place.target.id)
        return found.last_heartbeat > beat and found.state == "up"

    await until(has_beaten)
    async with place.session.get(f"{place.target._url}/metrics") as answer:
        assert answer.status == 200
    place.sick.become("well")
    answers = await asyncio.gather(*hanging)
    assert {status for status, _ in answers} <= {200, 201}
    for name, body in kept.items():
        assert await place.ask("GET", name) == (200, body)


async def test_a_disk_that_says_nothing_is_reported_as_failed_until_it_does(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "DISK_ANSWER_S", 0.1)
    answering = threading.Event()
    disk = place.target.local.disks[place.sick_id]
    monkeypatch.setattr(disk, "totals", lambda: (answering.wait(60), (7, 7))[1], raising=False)

    async def states() -> dict[str, str]:
        return {d.id: d.state for d in place.proxy.cluster.map.node(place.target.id).disks}

    async def is_failed() -> bool:
        """It alone: on a machine that is busy, the others may be late as well for a while."""
        found = await states()
        return found.pop(place.sick_id) == "failed" and set(found.values()) == {"up"}

    async def is_up() -> bool:
        return set((await states()).values()) == {"up"}

    await until(is_failed)
    async with place.session.get(f"{place.target._url}/metrics") as answer:
        assert f'dfc_disk_up{{disk="{place.sick_id}"}} 0.0' in await answer.text()
    answering.set()
    await until(is_up)


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_disk_that_hangs_fails_and_returns_at_random(place: Place, seed: int) -> None:
    """Three workers on the sick disk, six on the others; what was acknowledged is there in the end."""
    dice = random.Random(seed)
    over = False
    stored: dict[str, bytes] = {}
    done = {True: 0, False: 0}

    async def work(sick: bool) -> None:
        while not over:
            name, body = place.name(sick=sick), os.urandom(dice.choice((50, 5000, LARGE)))
            status, _ = await place.ask("PUT", name, body)
            if status == 201:
                stored[name] = body
            assert status == 201 or (sick and status in (500, 503)), status
            known = dice.choice([name, *list(stored)[-5:]])
            status, found = await place.ask("GET", known)
            if status == 200:
                assert found == stored[known]
            elif known in stored:
                assert owner_of(place.target.local.map, "b", known).disk.id == place.sick_id
                assert status in (500, 503), status
            done[sick] += 1

    workers = [asyncio.create_task(work(number < 3)) for number in range(9)]
    for _ in range(25):
        place.sick.become(dice.choice(["well", "hang", "hang", "fail"]))
        before = done[False]

        async def has_moved_on(wanted: int = before + 15) -> bool:
            return done[False] >= wanted or any(worker.done() for worker in workers)

        await until(has_moved_on)  # the healthy disks do their work in every phase
    place.sick.become("well")
    over = True
    await asyncio.gather(*workers)
    assert done[True] > 0
    disk = place.target.local.disks[place.sick_id]
    quarantined = {found.name for found in disk.quarantined()}
    for name, body in stored.items():
        if name not in quarantined:
            assert await place.ask("GET", name) == (200, body)


async def test_a_disk_that_hangs_in_a_commit_does_not_hold_up_the_steps_of_the_cluster(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers questions, so nobody reports it as failed before a step waits for it."""
    monkeypatch.setattr(threads, "HUNG_S", 1.0)
    planner, first = place.proxy.steps._planner, place.target.local.map.step
    assert planner is not None
    others = sorted(set(place.target.local.disks) - {place.sick_id})
    place.sick.become("stick")
    name, body = place.name(sick=True), os.urandom(100)
    hanging = asyncio.create_task(place.ask("PUT", name, body))

    async def states() -> dict[str, str]:
        return {disk.id: disk.status for disk in planner.placement.disks.values()}

    async def is_left_out() -> bool:
        return (await states())[place.sick_id] == "failed" and planner.all_acknowledged and place.target.local.is_leased

    async def is_back() -> bool:
        return set((await states()).values()) == {"up"} and planner.all_acknowledged and place.target.local.is_leased

    await until(place.is_stuck)
    planner.mark_out_of_sync(others[0], others[1])  # a step that comes before the disk is known to hang
    await until(is_left_out)
    assert planner.placement.step >= first + 3, "behind, down, and up without the disk"
    assert [(await states())[each] for each in others] == ["up", "up"]
    await place.put_and_get(place.name(sick=False), 100)
    place.sick.become("well")
    await until(is_back)
    status, _ = await hanging
    assert status in (201, 503)
    if status == 201:
        assert await place.ask("GET", name) == (200, body)
    await place.put_and_get(place.name(sick=True), 100)


async def test_a_target_ends_although_a_disk_hangs(place: Place) -> None:
    place.sick.become("hang")
    hanging = [asyncio.create_task(place.ask("PUT", place.name(sick=True), bytes(size))) for size in (10, LARGE)]
    await until(place.is_stuck)
    async with asyncio.timeout(30):
        await place.target.stop()
    place.sick.become("well")
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
