"""A coordinator with three targets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness import until
from memory_registry import MemoryStore
from stepped import Proxy, doing

from dfc.proxy import duties as steps_module
from dfc.proxy.admin import Administration


@pytest.fixture
async def proxy(monkeypatch) -> AsyncIterator[Proxy]:
    """One that is the coordinator, of three targets that have joined and were heard by it."""
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    monkeypatch.setattr(steps_module, "UP_WAIT_S", 0.05)
    found = Proxy(MemoryStore())
    async with doing(found.registry, found.steps.run, found.cluster.push_maps, office="coordinator"):
        await until(lambda: found.steps.leads)
        await found.beats(0, 1, 2)
        await found.cluster.bucket_for_write("b")
        yield found
    await found.cluster.close()


@pytest.fixture
def administration(proxy: Proxy) -> Administration:
    unused: Any = None
    return Administration(proxy.cluster, unused, unused, unused, unused, "p1")
