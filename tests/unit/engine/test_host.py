"""The process that talks to Dask ends when it is of no use any more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dfc.engine import host as module
from dfc.engine.environment import Begin
from dfc.engine.host import Host


class Scheduler:
    """Answers, as one does that has been started again."""

    async def identity(self) -> dict[str, Any]:
        return {"workers": {}}


class Client:
    scheduler = Scheduler()
    status = "connecting"


async def test_it_ends_when_dask_has_lost_its_connection_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    reading, output = os.pipe()
    try:
        host = Host(Begin(str(tmp_path), 1), str(tmp_path), output)
        host._client = client = Client()
        with pytest.raises(OSError, match="lost the Dask scheduler: the connection was lost"):
            await host._keep_looking()
        client.status = "running"
        await host._look()
    finally:
        os.close(reading)
        os.close(output)
