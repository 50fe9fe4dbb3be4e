"""A target with a real disk, in a cluster that only its map knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from copied import Target, opened
from kept import Kept
from pairs import Two, paired

from dfc.target.copies import deliveries, upkeep, walks, writes
from dfc.target.copies import upkeep as damaged
from dfc.target.copies import upkeep as errands


@pytest.fixture
async def target(tmp_path: Path) -> Iterator[Target]:
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
async def kept(target: Target, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(writes, "CONFIRM_S", 0.01)
    monkeypatch.setattr(walks, "EXCESS_AGAIN_S", 0)
    monkeypatch.setattr(upkeep, "AGAIN_S", 0)
    monkeypatch.setattr(deliveries, "AGAIN_S", 0)
    monkeypatch.setattr(damaged, "DAMAGED_AGAIN_S", 0)
    monkeypatch.setattr(damaged, "DAMAGED_PAUSE_SHARE", 0)
    monkeypatch.setattr(upkeep, "PAUSE_SHARE", 0)
    monkeypatch.setattr(upkeep, "PATIENCE_S", 5)
    monkeypatch.setattr(errands, "RETRY_S", 0)
    made = Kept(target)
    yield made
    await made.upkeep._peer_tasks.stop()
    await made.repairer.close()
    await made.writes.close()


@pytest.fixture
async def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    async with paired(tmp_path, monkeypatch) as made:
        yield made
