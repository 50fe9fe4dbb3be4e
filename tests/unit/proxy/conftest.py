"""A coordinator with three targets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from memory_registry import MemoryStore
from registry_conformance import end, until
from stepped import Proxy

from dfc.proxy import duties as steps_module


@pytest.fixture
async def proxy(monkeypatch) -> AsyncIterator[Proxy]:
    """One that is the coordinator, of three targets that have joined and were heard by it."""
    monkeypatch.setattr(steps_module, "LOOK_S", 0.001)
    monkeypatch.setattr(steps_module, "UP_WAIT_S", 0.05)
    found = Proxy(MemoryStore())
    async with found.registry.elect("coordinator", "p1", 60) as lease:
        duties = [asyncio.create_task(duty(lease)) for duty in (found.steps.run, found.cluster.push_maps)]
        await until(lambda: found.steps.leads)
        for number in range(3):
            await found.beat(number)
        await found.cluster.bucket_for_write("b")
        yield found
        for duty in duties:
            await end(duty)
    await found.cluster.close()
