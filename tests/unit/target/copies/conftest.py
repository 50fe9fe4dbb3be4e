"""A target with a real disk, in a cluster that only its map knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from copied import Target, opened


@pytest.fixture
async def target(tmp_path: Path) -> Iterator[Target]:
    with opened(tmp_path) as made:
        yield made
