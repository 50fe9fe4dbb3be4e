"""The marks of pending rows that count by now: dropped some time later, many at once, here and at the others.

Each disk here and each other target has a task of its own, so that one that hangs or does not answer holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dfc.errors import DfcError
from dfc.http.shutdown import end
from dfc.limits import COPY_CONFIRMED_MAX, COPY_ITEMS_MAX
from dfc.storage.disk import Disk
from dfc.target.copies.messages import ConfirmedRow, CopyKey
from dfc.target.copies.peers import Peers
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
CONFIRM_S: Final = 0.1  # rows that count are told to the others after so long, many at a time


class PendingMarks:
    """Rows that count although they are still marked as pending: here, and at other targets."""

    def __init__(self, local: Local, peers: Peers) -> None:
        self._local = local
        self._peers = peers
        self._certain: dict[str, dict[CopyKey, str]] = {}  # by disk: versions
        self._confirmed: dict[str, deque[ConfirmedRow]] = {}  # by the URL of a target
        self._running: dict[str, asyncio.Task[None]] = {}  # by disk or URL
        self._is_closed = False

    async def close(self) -> None:
        """Drop no more. After a restart, rows that count are asked about."""
        self._is_closed = True
        await end(*self._running.values())

    def is_certain(self, key: CopyKey, version: str) -> bool:
        """Whether a row here counts, and only its mark is not dropped yet."""
        return self._certain.get(key.disk, {}).get(key) == version

    def drop(self, disk: Disk, key: CopyKey, version: str) -> None:
        """A row of a disk here counts."""
        self._certain.setdefault(disk.id, {})[key] = version
        self._run(disk.id, lambda: self._drop(disk))

    def tell(self, row: ConfirmedRow) -> None:
        """A row of another disk counts. If too many wait to be told, the oldest is not told: its disk asks."""
        node = self._peers.node_of(row.disk)
        if node is not None:
            url = node.url
            self._confirmed.setdefault(url, deque(maxlen=COPY_CONFIRMED_MAX)).append(row)
            self._run(url, lambda: self._tell(url))

    def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._running and not self._is_closed:
            self._running[name] = asyncio.create_task(self._until_done(name, work))

    async def _until_done(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        finally:  # at once when nothing is left: what comes next begins anew
            self._running.pop(name, None)

    async def _drop(self, disk: Disk) -> None:
        waiting = self._certain[disk.id]
        while waiting:  # also those of writes that become certain meanwhile
            await asyncio.sleep(CONFIRM_S)
            certain = dict(waiting)
            rows = [(key.bucket_id, key.name, version) for key, version in certain.items()]
            try:
                await self._local.threads(disk).go_on(disk.copies.confirm, rows)
            except DfcError as error:
                _log.info("disk %s: marks of certain rows stay for now: %s", disk.id, error.message)
            for key, version in certain.items():
                if waiting.get(key) == version:
                    del waiting[key]

    async def _tell(self, url: str) -> None:
        waiting = self._confirmed[url]
        while waiting:
            await asyncio.sleep(CONFIRM_S)
            while waiting:
                # A target that does not answer in time has had its turn: it asks about these.
                await self._peers.confirm(url, [waiting.popleft() for _ in range(min(COPY_ITEMS_MAX, len(waiting)))])
        del self._confirmed[url]
