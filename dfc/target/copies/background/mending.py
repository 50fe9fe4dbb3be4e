"""Damaged rows of a disk that others should get: their bytes are fetched from a disk that has them whole."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dfc.errors import DfcError
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState, Standing
from dfc.target.copies.ledger import Ledger, rank_of
from dfc.target.copies.messages import CopyKey, RowState, state_of
from dfc.target.copies.peers import Peers
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
AGAIN_S: Final = 60.0  # after nobody had the bytes


class Mender:
    """Mends rows of one disk."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers, disk: Disk) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._disk = disk
        self._next_s: dict[tuple[CopyKey, str], float] = {}  # by name and version: no try before this, by the loop's clock

    async def mend(self, key: CopyKey, damaged: NameState, lacking: str) -> bool:
        """Fetch the bytes of a damaged object from another disk that has the same version; whether they are sound now.

        If nobody has them, the log says so, and which disk lacks them. They are looked for again after a while.
        """
        loop, mark = asyncio.get_running_loop(), (key, damaged.version)
        if loop.time() < self._next_s.get(mark, 0.0):
            return False
        found, wanted = self._ledger.roles(key.bucket_id, key.name), state_of(damaged)
        for other in dict.fromkeys((*found.everywhere, *found.standins)):
            if other != key.disk and await self._mend_from(CopyKey(other, key.bucket_id, key.name), wanted):
                self._next_s.pop(mark, None)
                _log.info("the damaged bytes of %s on disk %s were replaced by those of disk %s", key.name, key.disk, other)
                return True
        self._next_s = {each: at_s for each, at_s in self._next_s.items() if at_s > loop.time()} | {mark: loop.time() + AGAIN_S}
        _log.error(
            "object %s on disk %s is damaged, and no other disk has its bytes: disk %s cannot get it and stays behind; "
            "upload the object again, or delete it",
            key.name,
            key.disk,
            lacking,
        )
        return False

    async def _mend_from(self, source: CopyKey, wanted: RowState) -> bool:
        told = await self._peers.state(source)
        if told is None or told.state != wanted:
            return False
        writer = await self._peers.fetch(source, wanted, self._disk, self._local.durability_of(source.bucket_id))
        if writer is None:
            return False
        rank = rank_of(self._ledger.roles(source.bucket_id, source.name), self._disk.id)

        def decide(present: str | None) -> AdoptVerdict:
            """The row stays what it is: pending if it was, and replaced by nothing if it is another one by now."""
            return AdoptVerdict(taken=present == wanted.version, standing=Standing(rank, pending=True))

        try:
            outcome = await self._local.threads(self._disk).go_on(self._disk.copies.adopt, writer, decide)
        except DfcError as error:
            _log.warning("cannot mend %s on disk %s: %s", source.name, self._disk.id, error.message)
            return False
        return outcome.stored
