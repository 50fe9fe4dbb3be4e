"""What operations there are is found out once, and again if that failed; whoever asks may go away."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from dfc.config import Settings
from dfc.jobs.operations import OPERATIONS
from dfc.jobs.request import all_operations
from dfc.proxy.jobs import service as operations_module
from dfc.proxy.jobs.service import Operations
from dfc.wire.objects import OperationInfo


async def test_operations_are_described_once_whoever_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, held = list[int](), threading.Event()

    def slow(settings: object) -> list[OperationInfo]:
        calls.append(1)
        assert threading.current_thread() is not threading.main_thread(), "imports are slow"
        held.wait(60)
        return all_operations(settings)

    monkeypatch.setattr(operations_module, "all_operations", slow)
    operations = Operations(Settings())
    asking = [asyncio.create_task(operations.all()) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    held.set()
    gone, *found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError)
    assert found[0] is found[1] is await operations.all()
    assert len(calls) == 1
    described: Any = found[0]
    assert tuple(each.name for each in described.operations) == OPERATIONS
    assert [each["name"] for each in msgspec.json.decode(described.encoded)["operations"]] == [*OPERATIONS]


async def test_what_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: object) -> list[OperationInfo]:
        raise ImportError("a library is broken")

    operations = Operations(Settings())
    with monkeypatch.context() as patched:
        patched.setattr(operations_module, "all_operations", broken)
        for _ in range(2):
            with pytest.raises(ImportError):
                await operations.all()
    assert (await operations.all()).operations
