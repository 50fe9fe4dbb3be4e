"""Say which operations jobs can have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from dfc.config import Settings
from dfc.jobs.schemas import OperationSchema, all_operations


@dataclass(frozen=True)
class DescribedOperations:
    """All operations, and the same as JSON."""

    operations: Sequence[OperationSchema]
    encoded: bytes


class Operations:
    """The operations that jobs can have. Their modules are slow to import, so they are described when somebody asks, once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._described: asyncio.Task[DescribedOperations] | None = None

    async def all(self) -> DescribedOperations:
        """Describe all operations."""
        if self._described is None or (self._described.done() and not self._succeeded(self._described)):
            self._described = asyncio.create_task(asyncio.to_thread(self._describe))
        return await asyncio.shield(self._described)  # others may wait for it as well

    @staticmethod
    def _succeeded(task: asyncio.Task[DescribedOperations]) -> bool:
        return not task.cancelled() and task.exception() is None

    def _describe(self) -> DescribedOperations:
        found = all_operations(self._settings)
        return DescribedOperations(found, msgspec.json.encode({"operations": found}))
