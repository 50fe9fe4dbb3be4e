"""Bodies that have come ahead of their rows: blobs on disks here, which a row of their version will make objects.

They are known in memory only. After a restart they are files without rows, as of any upload that was cut off. A disk has few of
them at a time, fewer than the sweep takes for a sign that the catalog is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dfc.errors import Unavailable
from dfc.limits import PREPARED_MAX, STOP_CLOSE_S
from dfc.placement.map import ClusterMap, Durability
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.rows import ObjectRow
from dfc.target.copies.messages import CopyKey, RowState, row_state
from dfc.target.local import Local

PREPARED_S: Final = 120.0  # a body whose row does not come is dropped; longer than a write waits for its turn
COMING_S: Final = 3.0  # a row waits so long for its body, which is less than its sender waits
_log: Final = logging.getLogger("dfc.target")


@dataclass(eq=False)
class _Body:
    """`blob` None: it is being received, until `received`."""

    version: str
    durability: Durability
    blob: tuple[BlobWriter, ObjectRow] | None = None
    expiry: asyncio.TimerHandle | None = None
    received: asyncio.Event = field(default_factory=asyncio.Event)


class Prepared:
    """The bodies of one target, one for a name on a disk."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._bodies: dict[CopyKey, _Body] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    @contextmanager
    def receiving(
        self, key: CopyKey, version: str, durability: Durability
    ) -> Iterator[Callable[[BlobWriter, ObjectRow], None]]:
        """In this context a body is being received; what is yielded keeps its finished blob until the row comes. Unavailable if
        no more are taken, or a newer one of that name is there."""
        found = self._bodies.get(key)
        if found is not None and found.version > version:
            raise Unavailable("a newer body of that name is on its way here")
        if found is None and sum(each.disk == key.disk for each in self._bodies) >= PREPARED_MAX:
            raise Unavailable(f"{PREPARED_MAX} bodies wait for their rows on disk {key.disk} already")
        self.drop(key)
        body = self._bodies[key] = _Body(version, durability)

        def keep(writer: BlobWriter, row: ObjectRow) -> None:
            if self._bodies.get(key) is body and self._is_wanted(self._local.map, key):
                body.blob = writer, row
                body.expiry = asyncio.get_running_loop().call_later(PREPARED_S, self.drop, key, version)
            else:
                self._abort(key, writer)

        try:
            yield keep
        finally:
            body.received.set()
            if body.blob is None and self._bodies.get(key) is body:
                del self._bodies[key]

    async def take(self, key: CopyKey, state: RowState, durability: Durability) -> BlobWriter | None:
        """Take out the blob for a row; None: there is none with just these bytes, as durable as that. Unavailable while it is
        being received."""
        found = self._bodies.get(key)
        if found is None or found.version != state.version:
            return None
        try:
            async with asyncio.timeout(COMING_S):
                await found.received.wait()
        except TimeoutError:
            raise Unavailable("the body is still being stored") from None
        if found.blob is None or self._bodies.get(key) is not found:
            return None
        if row_state(found.blob[1]) != state or (durability == "fsync" and found.durability != "fsync"):
            self.drop(key)
            return None
        del self._bodies[key]
        if found.expiry is not None:
            found.expiry.cancel()
        return found.blob[0]

    def drop(self, key: CopyKey, up_to: str | None = None) -> None:
        """Remove the blob of a name, if its version is not newer than this one."""
        found = self._bodies.get(key)
        if found is None or (up_to is not None and found.version > up_to):
            return
        del self._bodies[key]
        if found.expiry is not None:
            found.expiry.cancel()
        if found.blob is not None:
            self._abort(key, found.blob[0])

    def take_map(self, new: ClusterMap) -> None:
        """Drop the bodies of buckets that are no more, by a map that is about to be used."""
        for key in [each for each in self._bodies if not self._is_wanted(new, each)]:
            self.drop(key)

    async def close(self) -> None:
        """Remove all of them, as far as disks do it soon."""
        for key in list(self._bodies):
            self.drop(key)
        if self._dropping:
            _, late = await asyncio.wait(self._dropping, timeout=STOP_CLOSE_S)
            if late:
                _log.warning("%d bodies without rows are left on disks that do not answer", len(late))

    def _is_wanted(self, cluster_map: ClusterMap, key: CopyKey) -> bool:
        bucket = cluster_map.bucket_of(key.bucket_id)
        return bucket is not None and bucket.state != "deleting"

    def _abort(self, key: CopyKey, writer: BlobWriter) -> None:
        disk = self._local.disks.get(key.disk)
        if disk is not None:
            task = asyncio.create_task(self._local.threads(disk).go_on(writer.abort))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)
