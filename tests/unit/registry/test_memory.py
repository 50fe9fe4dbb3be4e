"""The registry of the tests does what a registry must: so the tests of the rest may stand on it, and the suite is tried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memory_registry import MemoryRegistry, MemoryStore
from registry_conformance import SwapConformance

from dfc.registry.base import Registry


class TestMemory(SwapConformance):
    @pytest.fixture
    async def peers(self) -> tuple[MemoryRegistry, MemoryRegistry]:
        store = MemoryStore()
        return MemoryRegistry(store), MemoryRegistry(store)

    def meddle(self, registry: Registry, changes: list[Any]) -> None:
        assert isinstance(registry, MemoryRegistry)
        store, left = registry.store, list(changes)

        async def between() -> None:
            await asyncio.sleep(0)
            if left:
                assert store.swap(store.state, left.pop(0)(store.state))

        registry.between = between
