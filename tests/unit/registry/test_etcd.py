"""The registry in a real etcd."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from etcd_process import Etcd, etcd
from registry_conformance import SwapConformance

from dfc.registry.base import Registry
from dfc.registry.etcd.registry import EtcdRegistry, open_etcd


@pytest.fixture(scope="module")
def one_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd(1, tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
async def peers(one_member: Etcd) -> AsyncIterator[tuple[EtcdRegistry, EtcdRegistry]]:
    prefix = f"/test-{uuid.uuid4().hex}/"
    one = await open_etcd(one_member.urls, prefix, "p1")
    other = await open_etcd(one_member.urls, prefix, "p2")
    yield one, other
    await one.close()
    await other.close()


class TestEtcd(SwapConformance):
    lease_s = 2.0  # etcd keeps no lease for less

    def meddle(self, registry: Registry, changes: list[Any]) -> None:
        assert isinstance(registry, EtcdRegistry)
        left, submit = list(changes), registry._submit

        async def meddled(*given: Any) -> Any:
            if left:
                theirs = EtcdRegistry(registry._gateway, registry._prefix, "p3")
                await theirs._read_all()
                working = asyncio.create_task(theirs._work()), asyncio.create_task(theirs._follow())
                await theirs.change(left.pop(0))
                for task in working:
                    task.cancel()
            return await submit(*given)

        registry._submit = meddled  # type: ignore[method-assign]
