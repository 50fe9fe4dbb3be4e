"""A whole cluster in this process, with an operation whose tasks do what a test tells them."""

from __future__ import annotations

import pytest
from inprocess import InProcess, install_probe, tar_of_names

from dfc.proxy.jobs import context, queue


@pytest.fixture
async def make(tmp_path, monkeypatch):
    install_probe(monkeypatch)
    monkeypatch.setattr(context, "RETRY_DELAYS_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(queue, "EVENT_INTERVAL_S", 0.01)
    made = []

    async def build(targets: int = 2, **settings) -> InProcess:
        made.append(await InProcess(tmp_path, **settings).start(targets))
        for number in range(3):
            assert (await made[-1].ask("PUT", f"/in/s-{number}.tar", tar_of_names("a.jpg", "a.cls", "b.jpg")))[0] == 201
        return made[-1]

    yield build
    for cluster in made:
        await cluster.stop()


@pytest.fixture
async def cluster(make) -> InProcess:
    return await make()
