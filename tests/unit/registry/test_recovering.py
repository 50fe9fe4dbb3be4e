"""A registry that is lost is made anew from a backup and from maps, in a file and in a real etcd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from etcd_process import open_etcd
from registering import CLUSTER, Kept, bucket, said

from dfc.clock import NODE_NUMBER_MAX
from dfc.errors import DiskRefused, OperatorError
from dfc.filesystem import FileSystem
from dfc.jobs.journal import Journal
from dfc.jobs.records import NewJob
from dfc.placement.map import ClusterMap, DiskEntry, LayoutEntry, SliceRun
from dfc.placement.mapped import nodes_after, placement_of
from dfc.placement.roles import roles
from dfc.registry.changes import RegistryState, create_bucket, join
from dfc.registry.embedded import FILE_NAME, RegistryFile
from dfc.registry.gateway import META, VERSION, EtcdGateway, EtcdPlace, delete, put
from dfc.registry.messages import read_map, write_map
from dfc.registry.offline import (
    newest_of,
    read_backup,
    read_etcd_state,
    recover_to_etcd,
    recover_to_file,
    recovered,
    state_in_file,
    state_of,
    write_backup,
)
from dfc.replication.transitions import bring_up
from dfc.servers.proxy import choose_registry

FILES = FileSystem()


def made(*, incarnation: str = "life.1", copies: int = 2) -> RegistryState:
    """What a registry with three targets and a bucket knew; one disk has failed."""
    kept = Kept()
    for node in ("t1", "t2", "t3"):
        kept.apply(join(said(node, (DiskEntry(id=f"d-{node}", weight=1.0, incarnation=incarnation),))))
    kept.apply(create_bucket(bucket("b", copies=copies)))
    nodes = list(kept.map.nodes)
    failed = msgspec.structs.replace(nodes[2].disks[0], state="failed", down_step=3)
    nodes[2] = msgspec.structs.replace(nodes[2], disks=(failed,), last_heartbeat="2026-11-26T00:00:00.000Z")
    return msgspec.structs.replace(kept.state, map=msgspec.structs.replace(kept.map, nodes=tuple(nodes)))


@pytest.mark.parametrize("incarnation", ["life.1", "life", ""])
def test_every_disk_comes_back_in_doubt(incarnation: str) -> None:
    before = made(incarnation=incarnation)
    after = recovered(before)
    assert after.map.version > before.map.version + 500
    assert after.map.step > before.map.step + 500
    assert after.last_number > before.last_number
    assert after.map.buckets == before.map.buckets
    assert {(node.id, node.number) for node in after.map.nodes} == {(node.id, node.number) for node in before.map.nodes}
    placement = placement_of(after.map)
    assert {each.id: each.status for each in placement.disks.values()} == {"d-t1": "down", "d-t2": "down", "d-t3": "failed"}
    for node in ("t1", "t2", "t3"):
        placement = bring_up(node, {f"d-{node}": incarnation or "life.9"})(placement)
    for each in placement.disks.values():
        assert each.is_up
        assert each.out_of_sync_with == placement.disks.keys() - {each.id}
        assert each.compare


def test_a_disk_that_is_another_one_by_now_is_taken_for_one() -> None:
    placement = placement_of(recovered(made()).map)
    back = bring_up("t1", {"d-t1": "another"})(placement).disks["d-t1"]
    assert (back.out_of_sync_with, back.incarnation) == ({"d-t2", "d-t3"}, "another")
    assert back.compare.startswith("another-")


def test_with_one_copy_nobody_waits_for_others() -> None:
    placement = placement_of(recovered(made(copies=1)).map)
    assert bring_up("t1", {"d-t1": "life.1"})(placement).disks["d-t1"].out_of_sync_with == frozenset()


def test_the_newest_counts() -> None:
    old, new = made(), state_of(ClusterMap(cluster_id=CLUSTER, version=99))
    found = newest_of([new, old])
    assert (found.map.version, found.last_number) == (99, old.last_number)
    with pytest.raises(OperatorError, match="no map of a cluster"):
        newest_of([])
    with pytest.raises(OperatorError, match=r"different clusters: 0123456789abcdef, other\. Nothing was changed"):
        newest_of([old, state_of(ClusterMap(cluster_id="other", version=1))])
    with pytest.raises(OperatorError, match="so many numbers"):
        recovered(msgspec.structs.replace(old, last_number=NODE_NUMBER_MAX - 1))


def test_a_backup_and_its_faults(tmp_path: Path) -> None:
    path, state = str(tmp_path / "backup"), made()
    write_backup(path, state, 1e9, FILES)
    assert read_backup(path) == state
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    whole = json.loads((tmp_path / "backup").read_bytes())
    assert whole["made"] == "2001-09-09T01:46:40.000Z"

    def with_(**fields: Any) -> bytes:
        return json.dumps({**whole, **fields}).encode()

    for content, why in (
        (with_(registry={**whole["registry"], "last_number": 7}), "is damaged: its checksum"),
        (with_(format=2), "backup of format 2, and this version of DFC reads format 1"),
        (b"{}", "is no backup of a registry"),
        (b"\xff\xfe", "is no backup of a registry"),
        (b"", "is empty"),
    ):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(OperatorError, match=why):
            read_backup(str(tmp_path / "bad"))
    with pytest.raises(OperatorError, match="there is no file"):
        read_backup(str(tmp_path / "none"))


def test_a_backup_of_a_registry_that_is_in_use(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="there is no registry in"):
        state_in_file(str(tmp_path))
    file = RegistryFile(str(tmp_path))
    for number in range(20):
        file.apply(create_bucket(bucket(f"b{number}")))
    assert state_in_file(str(tmp_path)) == file.state
    file.apply(create_bucket(bucket("more")))
    assert state_in_file(str(tmp_path)) == file.state
    file.close()
    (tmp_path / FILE_NAME).write_bytes(b"not a database")
    with pytest.raises(DiskRefused, match="is not a registry"):
        state_in_file(str(tmp_path))


def opened(directory: Path) -> RegistryState:
    chosen = choose_registry(str(directory), FILES)
    file = chosen.registry._file  # type: ignore[attr-defined]
    file.close()
    return file.state  # type: ignore[no-any-return]


def test_each_recovery_is_compared_anew() -> None:
    """A target that has gone on since the one before has not compared this disk for it."""
    known, seen = made(), set()
    for _ in range(3):
        state = recovered(known)
        placement = bring_up("t1", {"d-t1": "life.1"})(placement_of(state.map))
        seen.add(placement.disks["d-t1"].compare)
        nodes = nodes_after(state.map, placement)
        others = [node for node in state.map.nodes if node.id != "t1"]
        known = RegistryState(map=msgspec.structs.replace(state.map, nodes=(*nodes, *others)), last_number=state.last_number)
    assert len(seen) == 3
    without = [recovered(made(incarnation="")) for _ in range(2)]
    without[1] = recovered(without[0])
    assert len({placement_of(each.map).disks["d-t1"].compare for each in without}) == 2


def test_numbers_of_layouts_are_not_given_again() -> None:
    known = made()
    layouts = (
        LayoutEntry(number=4, disks=("d-t1", "d-t2")),
        LayoutEntry(number=7, disks=("d-t1", "d-t2", "d-t3"), gone=("d-t1",)),
    )
    slices = (SliceRun(first=0, at=7), SliceRun(first=100, at=4, to=7, phase="copying"))
    known = msgspec.structs.replace(known, map=msgspec.structs.replace(known.map, layouts=layouts, slices=slices))
    found = recovered(known).map
    low, high = (each.number for each in found.layouts)
    assert low > 500
    assert high - low == 3
    assert [(run.first, run.at, run.to, run.phase) for run in found.slices] == [
        (0, high, None, "done"),
        (100, low, high, "copying"),
    ]
    assert [(each.disks, each.gone) for each in found.layouts] == [(each.disks, each.gone) for each in layouts]
    before, after = placement_of(known.map), placement_of(found)
    for name in ("a", "b", "c"):
        assert roles(after, "b-0", name).replicas == roles(before, "b-0", name).replicas


class Notes(list[str]):
    """What is said besides."""

    def __call__(self, text: str) -> None:
        self.append(text)


def test_a_registry_in_a_directory_that_is_lost(tmp_path: Path) -> None:
    known, own, notes = made(), tmp_path / "own", Notes()
    recover_to_file(str(own), [known])
    assert opened(own) == recovered(known)
    # The id of the proxy stays, and what is there is not replaced unasked.
    own_id = (own / "dfc-node-id").read_text()
    with pytest.raises(OperatorError, match=r"there is a registry in .* already: say --replace"):
        recover_to_file(str(own), [known])
    file = RegistryFile(str(own))
    with pytest.raises(OperatorError, match="in use by another proxy"):
        recover_to_file(str(own), [known], replaces=True)
    newest = file.apply(create_bucket(bucket("new")))
    file.close()
    # What is there is known, too, and so is what was put aside.
    recover_to_file(str(own), [known], replaces=True, note=notes)
    assert opened(own) == recovered(newest)
    assert (own / f"{FILE_NAME}.replaced-1").exists()
    assert (own / "dfc-node-id").read_text() == own_id
    assert notes == []
    (own / FILE_NAME).write_bytes(b"damaged")
    recover_to_file(str(own), [known], replaces=True, note=notes)
    assert opened(own) == recovered(newest)
    assert (own / f"{FILE_NAME}.replaced-2").read_bytes() == b"damaged"
    assert [each.partition(":")[0] for each in notes] == ["what it knew does not count"]


def test_a_recovery_that_was_killed_goes_on(tmp_path: Path) -> None:
    recover_to_file(str(tmp_path), [made()])
    file = RegistryFile(str(tmp_path))
    newest = file.apply(create_bucket(bucket("new")))
    file.close()
    (tmp_path / FILE_NAME).rename(tmp_path / f"{FILE_NAME}.replaced-1")  # and then it was killed
    recover_to_file(str(tmp_path), [made()])
    assert opened(tmp_path) == recovered(newest)


def test_a_new_cluster_that_a_proxy_has_begun_meanwhile_is_put_aside(tmp_path: Path) -> None:
    """It was started on an empty disk before anybody could recover anything."""
    theirs, notes = opened(tmp_path).map.cluster_id, Notes()
    with pytest.raises(OperatorError, match="say --replace"):
        recover_to_file(str(tmp_path), [made()])
    recover_to_file(str(tmp_path), [made()], replaces=True, note=notes)
    assert opened(tmp_path) == recovered(made())
    assert notes == [f"{tmp_path / FILE_NAME} is of another cluster, {theirs}, and does not count"]


def test_a_registry_that_was_moved_to_etcd_is_not_made_again_unasked(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.moved").touch()
    with pytest.raises(OperatorError, match="was moved to etcd: say where that is"):
        recover_to_file(str(tmp_path), [made()])
    recover_to_file(str(tmp_path), [made()], replaces=True)
    assert opened(tmp_path) == recovered(made())
    (tmp_path / f"{FILE_NAME}.moving").touch()
    with pytest.raises(OperatorError, match="is being moved to etcd"):
        recover_to_file(str(tmp_path), [made()], replaces=True)


def test_jobs_that_go_on_are_forgotten(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    new = NewJob(id="j1", operation="keys", spec=b"{}", label="", bucket="b0", bucket_id="i", memory_bytes=1, program="1")
    journal.create(new, [])
    journal.close()
    recover_to_file(str(tmp_path), [made()])
    journal = Journal(str(tmp_path))
    assert journal.active() == []
    journal.close()


async def test_a_registry_in_etcd_that_is_lost(tmp_path: Path, place: EtcdPlace) -> None:
    known, own, notes = made(), str(tmp_path), Notes()
    await recover_to_etcd(place, own, [known])
    assert await read_etcd_state(place) == recovered(known)
    with pytest.raises(OperatorError, match=r"is in etcd below .* already"):
        await recover_to_etcd(place, own, [known])
    # One that etcd has from before, since it was itself restored.
    registry = await open_etcd(place, "p1")
    newest = await registry.change(create_bucket(bucket("new")))
    lease = await registry.grant_lease("coordinator", "p1", 5)
    with pytest.raises(OperatorError, match=r"a proxy uses the registry in etcd \(lease coordinator\)"):
        await recover_to_etcd(place, own, [known], replaces=True)
    await registry.revoke_lease(lease)
    await registry.close()
    await recover_to_etcd(place, own, [known], replaces=True, note=notes)
    assert await read_etcd_state(place) == recovered(newest)
    assert read_backup(f"{own}/registry-in-etcd.replaced-1") == newest
    assert notes == []
    # One whose recovery broke off, one that was moved away, and one that is damaged: what was put aside counts.
    gateway = EtcdGateway(place.urls)
    for left in (b'{"cluster_id": "%s", "coming": true}', b'{"cluster_id": "%s", "moved_to": "p7"}', b'{"cluster_id": "%s'):
        meta = left.replace(b"%s", CLUSTER.encode())
        await gateway.transact([], [put(place.below + META, meta)], [])
        with pytest.raises(OperatorError, match=r"not in use|cannot be understood"):
            await read_etcd_state(place)
        await recover_to_etcd(place, own, [known], replaces=True, note=notes)
        assert await read_etcd_state(place) == recovered(newest)
        assert "does not count" in notes.pop()
    await gateway.transact([], [delete(place.below + VERSION)], [])
    with pytest.raises(OperatorError, match="cannot be understood"):
        await read_etcd_state(place)
    await gateway.close()


async def test_another_cluster_in_etcd_is_replaced_only_if_that_is_said(tmp_path: Path, place: EtcdPlace) -> None:
    """A proxy has begun it, after everything in etcd was lost."""
    registry = await open_etcd(place, "p1")
    theirs, notes = registry.map.cluster_id, Notes()
    await registry.close()
    with pytest.raises(OperatorError, match=f"of cluster {theirs}: take another prefix"):
        await recover_to_etcd(place, str(tmp_path), [made()])
    await recover_to_etcd(place, str(tmp_path), [made()], replaces=True, note=notes)
    assert await read_etcd_state(place) == recovered(made())
    assert notes == [f"what is in etcd below {place.below} is of another cluster, {theirs}, and does not count"]
    assert read_backup(str(tmp_path / "registry-in-etcd.replaced-1")).map.cluster_id == theirs


async def test_a_proxy_of_a_cluster_begins_no_other_one(tmp_path: Path, place: EtcdPlace) -> None:
    """Not even if everything in etcd is lost."""
    chosen = choose_registry(str(tmp_path), FILES, place)
    await chosen.registry.open()
    first = chosen.registry.map.cluster_id
    await chosen.registry.close()
    gateway = EtcdGateway(place.urls)
    await gateway.transact([], [delete(place.below + META), delete(place.below + VERSION)], [])
    chosen = choose_registry(str(tmp_path), FILES, place)
    with pytest.raises(
        OperatorError, match=f"there is no registry in etcd below .*, but this proxy was one of cluster {first}"
    ):
        await chosen.registry.open()
    await chosen.registry.close()
    other = await open_etcd(EtcdPlace(place.urls, f"{place.prefix}-other"), "p2")
    await other.close()
    chosen = choose_registry(str(tmp_path), FILES, EtcdPlace(place.urls, f"{place.prefix}-other"))
    with pytest.raises(
        OperatorError, match=f"is that of cluster {other.map.cluster_id}, but this proxy was one of cluster {first}"
    ):
        await chosen.registry.open()
    await chosen.registry.close()
    await gateway.close()


def test_the_map_on_a_disk(tmp_path: Path) -> None:
    assert read_map(str(tmp_path)) is None
    write_map(str(tmp_path), made().map, FILES)
    assert read_map(str(tmp_path)) == made().map
    (tmp_path / "dfc-map.json").write_bytes(b"{")
    with pytest.raises(OperatorError, match="is not used"):
        read_map(str(tmp_path))
