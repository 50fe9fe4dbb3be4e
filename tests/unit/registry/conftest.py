"""A real etcd."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from etcd_process import Etcd, etcd

from dfc.registry.gateway import EtcdPlace


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd(1, tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
def place(member: Etcd) -> EtcdPlace:
    """Where nothing is yet."""
    return EtcdPlace(member.urls, f"/test-{uuid.uuid4().hex}/")
