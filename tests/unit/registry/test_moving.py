"""A registry is moved between a file and a real etcd, whole or not at all, whatever breaks in the middle."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from etcd_process import open_etcd
from registering import bucket, said

from dfc.errors import DiskRefused, OperatorError, Unavailable
from dfc.filesystem import FileSystem
from dfc.jobs.journal import Journal
from dfc.jobs.records import NewJob
from dfc.registry.changes import RegistryState, create_bucket, join
from dfc.registry.embedded import MOVED_NAME, RegistryFile
from dfc.registry.gateway import META, EtcdGateway, EtcdPlace
from dfc.registry.offline import move_to_etcd, move_to_file
from dfc.servers.proxy import choose_registry


def made(directory: Path, buckets: int = 250) -> RegistryState:
    """A registry in a directory, with more buckets than go into one transaction; what is in it."""
    choose_registry(str(directory), FileSystem()).registry._file.close()  # type: ignore[attr-defined]
    file = RegistryFile(str(directory))
    cluster_id = file.state.map.cluster_id
    file.apply(join(said("t1", ("d1", "d2"), cluster_id)))
    for number in range(buckets):
        file.apply(create_bucket(bucket(f"b{number}")))
    state = file.state
    file.close()
    return state


def without_version(state: RegistryState) -> Any:
    found = state.map
    return found.cluster_id, found.step, found.nodes, found.buckets, found.layouts, found.slices, state.last_number


async def in_etcd(place: EtcdPlace) -> RegistryState:
    registry = await open_etcd(place, "p9")
    state = await registry.change(lambda state: state)
    await registry.close()
    return state


def in_file(directory: Path) -> RegistryState:
    chosen = choose_registry(str(directory), FileSystem())
    file = chosen.registry._file  # type: ignore[attr-defined]
    file.close()
    return file.state  # type: ignore[no-any-return]


async def test_there_and_back(tmp_path: Path, place: EtcdPlace) -> None:
    before = made(tmp_path)
    moved = await move_to_etcd(str(tmp_path), place)
    assert (moved.cluster_id, moved.buckets, moved.nodes) == (before.map.cluster_id, 250, 1)
    there = await in_etcd(place)
    assert without_version(there) == without_version(before)
    assert there.map.version == before.map.version + 1
    with pytest.raises(OperatorError, match="was moved to etcd: set `etcd_urls`"):
        choose_registry(str(tmp_path), FileSystem())
    registry = await open_etcd(place, "p1")
    changed = await registry.change(create_bucket(bucket("new")))
    await registry.close()
    await move_to_file(str(tmp_path), place)
    assert not (tmp_path / MOVED_NAME).exists()
    back = in_file(tmp_path)
    assert without_version(back) == without_version(changed)
    assert back.map.version > changed.map.version
    with pytest.raises(OperatorError, match="was moved out of etcd, to"):
        await open_etcd(place, "p1")
    # And there again, over what it has left.
    await move_to_etcd(str(tmp_path), place)
    assert without_version(await in_etcd(place)) == without_version(back)


async def is_usable_in_etcd(place: EtcdPlace) -> bool:
    """Without beginning a cluster there."""
    gateway = EtcdGateway(place.urls)
    found, _ = await gateway.range(place.below + META)
    await gateway.close()
    if not found:
        return False
    try:
        await in_etcd(place)
    except OperatorError:
        return False
    return True


def is_usable_in_file(directory: Path) -> bool:
    try:
        in_file(directory)
    except (OperatorError, DiskRefused):
        return False
    return True


@pytest.mark.parametrize("way", ["to etcd", "to the file"])
async def test_whatever_breaks_in_the_middle(
    tmp_path: Path, place: EtcdPlace, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each transaction fails, before and after it was made; the same command goes on, and never can both be used."""
    before = made(tmp_path)
    call: Any = move_to_etcd
    if way == "to the file":
        await move_to_etcd(str(tmp_path), place)
        before = await in_etcd(place)
        call = move_to_file
    transact, left = EtcdGateway.transact, [-1, False]

    async def breaking(self: EtcdGateway, *given: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            if left[1]:
                await transact(self, *given)
            raise Unavailable("it breaks here")
        return await transact(self, *given)

    monkeypatch.setattr(EtcdGateway, "transact", breaking)
    breaks, is_done = 0, False
    for number in range(12):
        for is_made in (False, True):
            left[:] = [number, is_made]
            try:
                await call(str(tmp_path), place)
                is_done = True
            except OperatorError as error:
                breaks += "run the same command again" in error.message
            left[:] = [-1, False]
            usable = [is_usable_in_file(tmp_path), await is_usable_in_etcd(place)]
            assert usable.count(True) <= 1
            with suppress(OperatorError):  # also while the new place is in the settings already
                chosen = choose_registry(str(tmp_path), FileSystem(), place)
                with suppress(OperatorError):
                    await chosen.registry.open()
                await chosen.registry.close()
        if is_done:
            break
    assert breaks >= (8 if way == "to etcd" else 1)
    after = await in_etcd(place) if way == "to etcd" else in_file(tmp_path)
    assert without_version(after) == without_version(before)
    assert after.map.version > before.map.version


async def test_what_is_refused(tmp_path: Path, place: EtcdPlace) -> None:
    one, other, empty = tmp_path / "one", tmp_path / "other", tmp_path / "empty"
    made(one, 1), made(other, 2)
    empty.mkdir()
    with pytest.raises(OperatorError, match="there is no registry in "):
        await move_to_etcd(str(empty), place)
    with pytest.raises(OperatorError, match="there is no registry in etcd"):
        await move_to_file(str(empty), place)
    journal = Journal(str(one))
    new = NewJob(id="j1", operation="keys", spec=b"{}", label="", bucket="b0", bucket_id="i", memory_bytes=1, program="1")
    journal.create(new, [])
    journal.close()
    with pytest.raises(OperatorError, match="1 jobs are queued or running"):
        await move_to_etcd(str(one), place)
    assert len(in_file(one).map.buckets) == 1  # it can be used as before
    journal = Journal(str(one))
    journal.drop("j1")
    journal.close()
    used = RegistryFile(str(one))
    with pytest.raises(OperatorError, match="in use by another proxy"):
        await move_to_etcd(str(one), place)
    used.close()
    await move_to_etcd(str(one), place)
    with pytest.raises(OperatorError, match="is a registry already, or what is left of one"):
        await move_to_etcd(str(other), place)
    assert len(in_file(other).map.buckets) == 2
    with pytest.raises(OperatorError, match=r"a registry in .* already"):
        await move_to_file(str(other), place)
    registry = await open_etcd(place, "p1")
    async with registry.lease("coordinator", "p1", 5.0):
        with pytest.raises(OperatorError, match="stop all proxies first"):
            await move_to_file(str(one), place)
    await registry.close()
    await move_to_file(str(one), place)
