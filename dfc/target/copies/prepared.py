"""Bodies that have come ahead of their rows: whole blobs on disks here, which a row of their version will make objects.

They are known in memory only. After a restart they are files without rows, as of any upload that was cut off.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from dfc.errors import Unavailable
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.rows import ObjectRow
from dfc.target.copies.messages import CopyKey, RowState, row_state
from dfc.target.local import Local

PREPARED_MAX: Final = 512  # at a target
PREPARED_S: Final = 120.0  # a body whose row does not come is dropped; longer than a write waits for its turn


class _Body(NamedTuple):
    version: str
    writer: BlobWriter
    row: ObjectRow
    expiry: asyncio.TimerHandle


class Prepared:
    """The bodies of one target, one for a name on a disk."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self._bodies: dict[CopyKey, _Body] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    def check_room(self) -> None:
        """Raise Unavailable if no more are taken."""
        if len(self._bodies) >= PREPARED_MAX:
            raise Unavailable(f"{PREPARED_MAX} bodies wait here for their rows already")

    def keep(self, key: CopyKey, writer: BlobWriter, row: ObjectRow) -> None:
        """Keep a finished blob until its row comes."""
        self.drop(key)
        expiry = asyncio.get_running_loop().call_later(PREPARED_S, self.drop, key, row.version)
        self._bodies[key] = _Body(row.version, writer, row, expiry)

    def take(self, key: CopyKey, state: RowState) -> BlobWriter | None:
        """Take out the blob for a row; None: there is none with just these bytes."""
        found = self._bodies.get(key)
        if found is None or found.version != state.version:
            return None
        if row_state(found.row) != state:
            self.drop(key)
            return None
        del self._bodies[key]
        found.expiry.cancel()
        return found.writer

    def drop(self, key: CopyKey, version: str | None = None) -> None:
        """Remove the blob of a name, if it has this version."""
        found = self._bodies.get(key)
        if found is None or version not in (None, found.version):
            return
        del self._bodies[key]
        found.expiry.cancel()
        disk = self._local.disks.get(key.disk)
        if disk is not None:
            task = asyncio.create_task(self._local.threads(disk).go_on(found.writer.abort))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def close(self) -> None:
        """Remove all of them."""
        for key in list(self._bodies):
            self.drop(key)
        await asyncio.gather(*self._dropping, return_exceptions=True)
