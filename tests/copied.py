"""A target with one disk in a cluster of several, for tests of copies: the others are maps, messages and small fakes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from inspect import isawaitable
from pathlib import Path
from typing import Any

from placements import node_entry

from dfc.checksum import ExpectedChecksums, checksum_of
from dfc.clock import HybridClock
from dfc.errors import ObjectCorrupt, Unavailable
from dfc.filesystem import FileSystem
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles
from dfc.registry.base import boot_s
from dfc.storage import Disk, DiskOptions
from dfc.storage.health import DiskStats
from dfc.storage.rows import DiskSpace, NameState, Precondition, Standing, Supplied, later
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.messages import ConfirmedRow, CopyItem, CopyKey, NameReply, RowState, Sender
from dfc.target.copies.peers import Reached
from dfc.target.local import TargetState
from dfc.wire import PROTOCOL

BUCKET = "b1"
V1, V2, V3 = (f"0600000000000{number}00ff" for number in (1, 2, 3))


def map_of(
    version: int = 1,
    step: int = 1,
    *,
    disks: tuple[str, ...] = ("d1", "d2", "d3"),
    down: tuple[str, ...] = (),
    out_of_sync_with: dict[str, tuple[str, ...]] | None = None,
    compare: dict[str, str] | None = None,
    copies: int = 2,
    state: str = "active",
    **bucket: Any,
) -> ClusterMap:
    """Disk d1 is of node t1, and so on. `compare`: disks that came back empty or in doubt, with their incarnations."""
    nodes = []
    for disk in disks:
        entry = DiskEntry(
            id=disk,
            weight=1.0,
            out_of_sync_with=(out_of_sync_with or {}).get(disk, ()),
            compare=(compare or {}).get(disk, ""),
            down_step=1 if disk in down else 0,
            group=f"t{disk[1:]}",
        )
        said = {"url": f"http://t{disk[1:]}", "advertise_url": "", "state": "down" if disk in down else "up"}
        nodes.append(node_entry(f"t{disk[1:]}", entry, protocol=PROTOCOL, **said))
    entry = BucketEntry(id=BUCKET, name="b", copies=copies, state=state, **bucket)
    return ClusterMap(cluster_id="c", version=version, step=step, nodes=tuple(nodes), buckets=(entry,))


def name_with(*replicas: str, cluster_map: ClusterMap | None = None, number: int = 0) -> str:
    """A name with these replicas, the first one its primary; another one for each number."""
    placement = placement_of(cluster_map or map_of())
    found = (f"o{each}" for each in range(10_000) if roles(placement, BUCKET, f"o{each}").replicas[: len(replicas)] == replicas)
    return [next(found) for _ in range(number + 1)][number]


def key_of(name: str, disk: str = "d1") -> CopyKey:
    return CopyKey(disk, BUCKET, name)


class Control:
    """The client for other nodes. `maps` has the answer of each URL; what is not there cannot be reached. `said` is what the
    coordinator was asked for, and `coordinator` answers it."""

    def __init__(self) -> None:
        self.maps: dict[str, ClusterMap] = {}
        self.calls: list[str] = []
        self.said: list[Any] = []
        self.coordinator: Callable[[Any], ClusterMap] | None = None

    async def call(self, method: str, url: str, kind: Any, *, body: Any = None, **more: Any) -> Any:
        self.calls.append(f"{method} {url}")
        await asyncio.sleep(0)
        if body is not None:
            self.said.append(body)
            if self.coordinator is None:
                raise Unavailable("there is no coordinator")
            return self.coordinator(body)
        base = url.removesuffix("/v1/cluster")
        if base not in self.maps:
            raise Unavailable(f"{base} cannot be reached")
        return self.maps[base]


def disk_at(root: Path, number: int = 1, filesystem: FileSystem | None = None) -> Disk:
    """A new disk d1, or of another number, without background threads."""
    Disk.format(str(root / "disk"), "c", f"d{number}")
    options = DiskOptions(reserve_bytes=0, ballast_bytes=0, maintenance=False)
    return Disk.open(str(root / "disk"), "c", HybridClock(number), options, filesystem)


class FakeDisk:
    """As much of a disk as nobody asks for more."""

    state, incarnation = "up", "first"
    is_rolled_back = needs_accepting = has_torn_log = False

    def __init__(self, name: str) -> None:
        self.id, self.stats = name, DiskStats()

    def tell_epoch(self) -> int:
        return 1

    def first_counts(self) -> dict[str, int]:
        return {}

    def totals(self) -> tuple[int, int]:
        return 0, 0

    def space(self) -> DiskSpace:
        return DiskSpace(100, 10, 90, 0)

    def close(self) -> None:
        pass


class Target:
    """Target t1 with disk d1, or another number, settled in each step at once unless `settles` is false."""

    def __init__(self, root: Path, number: int = 1) -> None:
        self.disk = disk_at(root, number)
        self.control: Any = Control()
        self.local = TargetState(self.control, "http://proxy", 2)
        self.local.process = ""
        self.local.node_id = f"t{number}"
        self.local.add(self.disk)
        self.ledger = Ledger(self.local)
        self.settles = True
        self.local.before_map = self._take
        self.local.take_map(map_of())
        self.local.lease.extend(boot_s(), 600)

    def close(self) -> None:
        self.local.close()
        self.disk.close()

    def _take(self, new: ClusterMap) -> None:
        if placement_of(new).step != self.ledger.peering.step:
            self.ledger.take(placement_of(new))
            if self.settles:
                self.peer_now()
        else:
            self.ledger.refresh(placement_of(new))

    def peer_now(self) -> None:
        """All others have answered."""
        peering = self.ledger.peering
        for node in peering.to_ask():
            peering.answered(node, peering.step)
        peering.finish()

    @property
    def bucket(self) -> BucketEntry:
        return self.local.map.bucket("b")

    def take_map(self, new: ClusterMap) -> bool:
        return self.local.take_map(new)

    # --- the disk

    def write(self, name: str, body: bytes, *, pending: bool = True) -> NameState:
        """Commit an object as the primary."""
        guard = Precondition(guard=lambda: Standing(pending=pending))
        row = self.disk.put_small(BUCKET, name, body, precondition=guard).row
        return NameState(row.version, row)

    def bury(self, name: str, *, pending: bool = True) -> NameState:
        """Delete an object as the primary."""
        guard = Precondition(guard=lambda: Standing(pending=pending))
        return NameState(self.disk.copies.delete(BUCKET, name, precondition=guard)[1])

    def version(self, name: str) -> str | None:
        state = self.disk.copies.state(BUCKET, name)
        return None if state is None else state.version

    def body(self, name: str) -> bytes:
        return self.disk.read_small(self.disk.lookup(BUCKET, name))

    def damage(self, name: str) -> None:
        """Lose the bytes of an object, and notice it."""
        row = self.disk.find(BUCKET, name)
        os.unlink(self.disk.blob_path(row))
        with suppress(ObjectCorrupt):
            self.disk.read_small(row)
        assert self.disk.find(BUCKET, name).quarantined

    def is_pending(self, name: str) -> bool:
        return self.disk.copies.is_pending(BUCKET, name)

    def hint(self, disk: str, *names: str) -> None:
        self.disk.copies.add_hints([(disk, BUCKET, name) for name in names])

    def hints(self, disk: str) -> list[str]:
        return sorted(name for whom in (disk, later(disk)) for _, name in self.disk.copies.hints(whom)[0])


class Members:
    """Other targets that answer what `answers` says for each disk, one after the other, and then "taken". A function is called,
    and its result awaited. `after_fetch` is called before fetched bytes are handed out."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.answers: dict[str, list[Any]] = {}
        self.streamed: list[Any] = ["taken"]
        self.sent: list[CopyItem] = []
        self.streams: list[CopyItem] = []
        self.confirmed: list[ConfirmedRow] = []
        self.told: dict[CopyKey, NameReply] = {}
        self.bodies: dict[CopyKey, bytes] = {}
        self.asked: list[CopyKey] = []
        self.confirming: Callable[[], Any] | None = None
        self.moving: Callable[[Callable[[], object]], Any] | None = None
        self.after_fetch: Callable[[], Any] = lambda: None
        self.reached = Reached()

    def node_of(self, disk: str) -> NodeEntry | None:
        return self._target.local.map.node(f"t{disk[1:]}")

    async def send(self, item: CopyItem) -> Any:
        self.sent.append(item)
        await asyncio.sleep(0)
        answers = self.answers.get(item.to, [])
        answer = answers.pop(0) if answers else "taken"
        outcome = await answer() if callable(answer) else answer
        self.reached.note(item.to, answered=outcome is not None)
        return outcome

    def hang(self, disk: str = "d2", times: int = 1) -> asyncio.Event:
        """So many of the next rows for a disk are taken when this is set."""
        event = asyncio.Event()

        async def slow() -> str:
            await event.wait()
            return "taken"

        self.answers[disk] = [slow] * times
        return event

    async def stream(self, item: CopyItem, disk: Any, row: Any, moved: Callable[[], object]) -> Any:
        self.streams.append(item)
        await asyncio.sleep(0)
        if self.moving is not None:
            await self.moving(moved)
        return self.streamed.pop(0) if self.streamed else "taken"

    async def state(self, key: CopyKey) -> Any:
        self.asked.append(key)
        await asyncio.sleep(0)
        return self.told.get(key)

    async def fetch(self, key: CopyKey, state: RowState, to: Any, durability: str) -> Any:
        if key not in self.bodies:
            return None
        writer = to.begin_put(BUCKET, key.name, size=state.size, expected=ExpectedChecksums(), supplied=Supplied(state.version))
        writer.write(self.bodies[key])
        writer.finish()
        await maybe(self.after_fetch())
        return writer

    async def confirm(self, url: str, rows: list[ConfirmedRow]) -> None:
        self.confirmed += rows
        if self.confirming is not None:
            await self.confirming()


class NoTees:
    """No body is sent ahead of its row."""

    def __init__(self) -> None:
        self.given_up = 0

    def begin(self, writer: Any, *_: Any) -> Any:
        return _NoTee(self, writer)


class _NoTee:
    def __init__(self, tees: NoTees, writer: Any) -> None:
        self._tees, self.sink = tees, writer

    def received(self) -> None:
        pass

    async def finished(self) -> None:
        pass

    def give_up(self) -> None:
        self._tees.given_up += 1


class Sent:
    """A body that is being sent: its content, in pieces, and then an error, if there is one. `before` and `after` are called
    around that."""

    def __init__(
        self,
        content: bytes,
        error: Exception | None = None,
        piece: int | None = None,
        before: Callable[[], Any] = lambda: None,
        after: Callable[[], Any] = lambda: None,
    ) -> None:
        self._content, self._error, self._piece = content, error, piece or len(content) or 1
        self._before, self._after = before, after
        self.declared_length = len(content)
        self.pause_s: float | None = None

    async def read_small(self, limit_bytes: int) -> bytes:
        assert len(self._content) <= limit_bytes
        await maybe(self._before())
        return self._content

    async def receive(self, sink: Any, threads: ThreadPoolExecutor) -> None:
        await maybe(self._before())
        for at in range(0, len(self._content), self._piece):
            piece = memoryview(self._content)[at : at + self._piece]
            await asyncio.wrap_future(threads.submit(sink.write, piece))
        await maybe(self._after())
        if self._error is not None:
            raise self._error


@contextmanager
def opened(root: Path, number: int = 1) -> Iterator[Target]:
    target = Target(root, number)
    try:
        yield target
    finally:
        target.close()


def state_of(version: str, body: bytes) -> RowState:
    return RowState(version, len(body), checksum_of(body))


def item(name: str, version: str, content: bytes | None = b"body", **changes: Any) -> CopyItem:
    """A row from disk d2 to disk d1, with its body; None: a tombstone."""
    given: dict[str, Any] = {
        "kind": "commit",
        "of": "d2",
        "to": "d1",
        "bucket_id": BUCKET,
        "name": name,
        "state": RowState(version) if content is None else state_of(version, content),
        "body": content,
    }
    return CopyItem(**{**given, **changes})


def sender(node: str = "t2", version: int = 1) -> Sender:
    return Sender(node, version)


async def maybe(result: Any) -> None:
    """Await what a hook of a test returns, if that can be awaited."""
    if isawaitable(result):
        await result
