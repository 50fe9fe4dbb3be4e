"""The embedded registry: what every registry must do, in a file, with a thread that may hang."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from registering import bucket
from registry_conformance import RegistryConformance

from dfc.errors import Unavailable
from dfc.limits import STOP_CLOSE_S
from dfc.registry.changes import RegistryState, create_bucket
from dfc.registry.embedded import EmbeddedRegistry, RegistryFile


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[EmbeddedRegistry]:
    made = EmbeddedRegistry(RegistryFile(str(tmp_path)))
    yield made
    await made.close()


class TestEmbedded(RegistryConformance):
    @pytest.fixture
    async def peers(self, registry: EmbeddedRegistry) -> tuple[EmbeddedRegistry, EmbeddedRegistry]:
        """It has one user, of which two parts may be at it at once."""
        return registry, registry


async def test_a_change_is_durable_when_it_is_made(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    await registry.change(create_bucket(bucket("b")))
    before = registry.map
    await registry.close()
    again = RegistryFile(str(tmp_path))
    assert again.state.map == before
    again.close()


async def hang(registry: EmbeddedRegistry) -> tuple[asyncio.Task[RegistryState], threading.Event]:
    """A change that hangs until the event is set."""
    free = threading.Event()

    def wait(state: RegistryState) -> RegistryState:
        free.wait(60)
        return state

    hanging = asyncio.create_task(registry.change(wait))
    await asyncio.sleep(0.02)
    return hanging, free


async def test_a_disk_that_hangs_holds_up_changes_and_nothing_else(registry: EmbeddedRegistry) -> None:
    hanging, free = await hang(registry)
    waiting = asyncio.create_task(registry.change(create_bucket(bucket("b"))))
    await asyncio.sleep(0.02)
    assert not hanging.done()
    assert registry.map.bucket("b") is None
    async with registry.lease("a", "p1", 0.5) as lease:
        assert lease.is_held
    free.set()
    await asyncio.gather(hanging, waiting)
    assert registry.map.bucket("b") is not None


async def test_the_end_waits_for_no_disk_that_hangs(registry: EmbeddedRegistry, tmp_path: Path) -> None:
    hanging, free = await hang(registry)
    begun_s = time.monotonic()
    await registry.close()
    assert time.monotonic() - begun_s < 2 * STOP_CLOSE_S + 1
    free.set()
    await hanging


async def test_a_change_whose_turn_does_not_come_before_the_end_hears_so(registry: EmbeddedRegistry) -> None:
    def take_a_while(state: RegistryState) -> RegistryState:
        time.sleep(0.2)
        return state

    under_way, waiting, given_up = (
        asyncio.create_task(registry.change(each)) for each in (take_a_while, *(create_bucket(bucket(name)) for name in "bc"))
    )
    await asyncio.sleep(0.02)
    given_up.cancel()
    await registry.close()
    assert (await under_way).map == registry.map
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert registry.map.buckets == ()
