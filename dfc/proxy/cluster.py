"""What the proxy knows and asks of the cluster: the map in force, owners, calls to all targets at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from dfc.errors import BucketDeleting, BucketNotFound, NoSpace, Unavailable
from dfc.http.peer import ControlClient
from dfc.http.shutdown import end_threads, in_time
from dfc.placement.map import EMPTY_MAP, BucketEntry, ClusterMap, NodeEntry, Owner
from dfc.registry.embedded import EmbeddedRegistry

T = TypeVar("T")
RETRY_DOWN_S: Final = 2


class Cluster:
    """The registry behind a thread, and the targets behind the control client."""

    def __init__(self, registry: EmbeddedRegistry, control: ControlClient, auto_create: bool, expected_targets: int) -> None:
        self.registry = registry
        self.control = control
        self._auto_create = auto_create
        self._expected_targets = expected_targets
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._pushes: set[asyncio.Task[None]] = set()
        self._encoded = EMPTY_MAP, msgspec.Raw(EMPTY_MAP.encode())

    @property
    def map(self) -> ClusterMap:
        return self.registry.map

    def is_ready(self) -> bool:
        """Whether as many targets have joined as are expected; once they have, a down one makes only its objects fail."""
        return len(self.map.targets()) >= self._expected_targets

    def check_ready(self) -> None:
        """Before the first targets have joined, objects would be placed on too few: Unavailable."""
        if not self.is_ready():
            raise Unavailable(f"{len(self.map.targets())} of {self._expected_targets} targets have joined")

    async def close(self) -> None:
        if await end_threads(self._thread, "the registry"):
            await in_time(self.registry.close, "the registry")

    async def change(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a change of the registry in its thread; a new map is sent to the targets at once."""
        before = self.map.version
        result = await asyncio.get_running_loop().run_in_executor(self._thread, lambda: call(*arguments, **named))
        if self.map.version != before:
            task = asyncio.create_task(self._push_quietly())
            self._pushes.add(task)
            task.add_done_callback(self._pushes.discard)
        return result

    async def _push_quietly(self) -> None:
        cluster_map = self.map
        await asyncio.gather(*(self.push(node, cluster_map) for node in cluster_map.cover().ask), return_exceptions=True)

    async def push(self, node: NodeEntry, cluster_map: ClusterMap) -> None:
        """Give a target the map; when this returns, the target decides by it (or by a newer one)."""
        await self.control.call("POST", f"{node.url}/v1/node/map", dict, body=self._encode(cluster_map))

    def _encode(self, cluster_map: ClusterMap) -> msgspec.Raw:
        """Once for all targets: a large map takes a millisecond."""
        if self._encoded[0] is not cluster_map:
            self._encoded = cluster_map, msgspec.Raw(cluster_map.encode())
        return self._encoded[1]

    # --- buckets and owners

    def bucket(self, name: str) -> BucketEntry:
        found = self.map.bucket(name)
        if found is None:
            raise BucketNotFound(f"there is no bucket {name!r}")
        return found

    async def bucket_for_write(self, name: str) -> BucketEntry:
        """The bucket, made on the first write where the settings allow it."""
        self.check_ready()
        found = self.map.bucket(name)
        if found is None:
            if not self._auto_create:
                raise BucketNotFound(f"there is no bucket {name!r}, and auto_create is off")
            found = await self.change(self.registry.ensure_bucket, name)
        if found.state == "deleting":
            raise BucketDeleting(f"the bucket {name!r} is being deleted")
        return found

    def owner(self, bucket: BucketEntry, name: str) -> Owner:
        """The owner, up; Unavailable with Retry-After when it is down or there is none yet."""
        owner = self.map.owner(bucket, name)
        if owner is None:
            raise Unavailable("no storage target has joined yet")
        if owner.node.state != "up":
            raise Unavailable(f"the target {owner.node.id} that holds this object is down", retry_after_s=RETRY_DOWN_S)
        return owner

    def check_free(self, size: int, what: str) -> None:
        """NoSpace when the disks of all targets together have less free than `size` bytes, by their last heartbeats."""
        free = sum(disk.capacity - disk.used for node in self.map.targets() for disk in node.disks)
        if size > free:
            raise NoSpace(f"{what} take {size} bytes, and all disks together have {free} free")

    # --- all targets

    def live_targets(self) -> list[NodeEntry]:
        """Whom to ask for an answer in which nothing is missing; Unavailable while that takes a target that is down."""
        cover = self.map.cover()
        if cover.missing:
            down = cover.missing[0].id
            raise Unavailable(f"target {down} is down; an answer without it would be short", retry_after_s=RETRY_DOWN_S)
        if not cover.ask:
            raise Unavailable("no storage target has joined yet")
        return list(cover.ask)

    def any_target(self) -> NodeEntry:
        """Some target that is up: for a question that each can answer. Unavailable when there is none."""
        up = self.map.cover().ask
        if not up:
            raise Unavailable("no storage target is up", retry_after_s=RETRY_DOWN_S)
        return up[0]

    async def ask_all(self, ask: Callable[[NodeEntry], Awaitable[T]], nodes: Sequence[NodeEntry] | None = None) -> list[T]:
        """The answers of all targets, in the order of their ids; the first failure fails the whole."""
        return list(await asyncio.gather(*(ask(node) for node in (self.live_targets() if nodes is None else nodes))))

    async def counts(self) -> dict[str, tuple[int, int]]:
        """(objects, bytes) by bucket id over the whole cluster."""

        async def ask(node: NodeEntry) -> dict[str, tuple[int, int]]:
            return await self.control.call("GET", f"{node.url}/v1/node/buckets", dict[str, tuple[int, int]])

        return await asyncio.to_thread(_add_up, await self.ask_all(ask))


def _add_up(answers: Sequence[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """In a thread: every target has every bucket."""
    total: dict[str, tuple[int, int]] = {}
    for answer in answers:
        for bucket_id, (objects, size) in answer.items():
            before = total.get(bucket_id, (0, 0))
            total[bucket_id] = (before[0] + objects, before[1] + size)
    return total
