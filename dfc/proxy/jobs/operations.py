"""Say which operations jobs can have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dfc.config import Settings
from dfc.http.calls.once import SharedCall
from dfc.jobs.schemas import all_operations
from dfc.wire.catalogue import OperationInfo


@dataclass(frozen=True)
class DescribedOperations:
    """All operations, and the same as JSON."""

    operations: Sequence[OperationInfo]
    encoded: bytes


class Operations:
    """The operations that jobs can have. Their modules are slow to import, so they are described when somebody asks, once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._described = SharedCall(self._describe)

    async def all(self) -> DescribedOperations:
        """Describe all operations."""
        return await self._described.get()

    async def _describe(self) -> DescribedOperations:
        return await asyncio.to_thread(described, self._settings)


def described(settings: Settings) -> DescribedOperations:
    """Import and describe all operations. Blocking."""
    found = all_operations(settings)
    return DescribedOperations(found, msgspec.json.encode({"operations": found}))
