from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from placements import node_entry

from dfc.errors import DiskRefused, OperatorError
from dfc.filesystem import FileSystem
from dfc.placement.map import ClusterMap
from dfc.storage import Disk
from dfc.storage.identity import IDENTITY_FORMAT, DiskIdentity, DiskLocked, give_to_node, lock_disk, read_identity
from dfc.target.membership import Evidence, choose_id, claim_identity


def disk(disk_id: str, node_id: str | None) -> DiskIdentity:
    return DiskIdentity(format=IDENTITY_FORMAT, cluster_id="c", disk_id=disk_id, node_id=node_id)


def map_of(**nodes: list[str]) -> ClusterMap:
    """Nodes by id with their disks."""
    return ClusterMap(cluster_id="c", version=1, nodes=tuple(node_entry(name, *disks) for name, disks in nodes.items()))


def evidence(own: str | None, damage: str = "", known: ClusterMap | None = None, **disks: DiskIdentity) -> Evidence:
    found = {f"/{name}": identity for name, identity in disks.items()}
    return Evidence("/t/dfc-node-id", own, damage, found, known or map_of())


def test_a_target_that_knows_its_id_keeps_it() -> None:
    assert choose_id(evidence("t1")) == "t1"
    assert choose_id(evidence("t1", a=disk("d1", "t1"), b=disk("d2", None), c=disk("d3", ""))) == "t1"
    assert choose_id(evidence("t1", known=map_of(t2=["d1"]), a=disk("d1", ""))) == "t1"


def test_a_disk_of_another_node_is_refused_and_the_message_has_both_ways_out() -> None:
    with pytest.raises(DiskRefused) as caught:
        choose_id(evidence("t1", a=disk("d1", "t1"), b=disk("d2", "t2")))
    for said in ("/b belongs to node t2, but this is t1", "dfc disk release /b", "/t/dfc-node-id"):
        assert said in caught.value.message


def test_a_first_start_has_no_id() -> None:
    assert choose_id(evidence(None)) is None
    assert choose_id(evidence(None, a=disk("d1", ""), b=disk("d2", None))) is None


@pytest.mark.parametrize("damage", ["", "is empty"])
def test_a_lost_id_is_taken_back_when_all_disks_of_the_node_are_here(damage: str) -> None:
    both = {"a": disk("d1", "t1"), "b": disk("d2", "t1")}
    assert choose_id(evidence(None, damage, **both)) == "t1"
    assert choose_id(evidence(None, damage, map_of(t1=["d1", "d2"], t2=["d3"]), **both)) == "t1"
    # Disks that are of a time when they did not say: the map does.
    old = {"a": disk("d1", None), "b": disk("d2", None)}
    assert choose_id(evidence(None, damage, map_of(t1=["d1", "d2"]), **old)) == "t1"


def test_a_lost_id_is_not_taken_back_when_the_node_has_disks_elsewhere() -> None:
    with pytest.raises(OperatorError) as caught:
        choose_id(evidence(None, "is empty", map_of(t1=["d1", "d2"]), a=disk("d1", "t1")))
    for said in ("/t/dfc-node-id is empty", "t1, which also has others (d2)", "echo t1 > /t/dfc-node-id", "dfc disk release"):
        assert said in caught.value.message


def test_disks_of_different_nodes_are_named_each() -> None:
    with pytest.raises(OperatorError, match=r"is missing, and the disks belong to different nodes \(/a: t1, /b: t2\)"):
        choose_id(evidence(None, a=disk("d1", "t1"), b=disk("d2", "t2")))


def test_a_damaged_id_that_nobody_knows_may_be_removed() -> None:
    with pytest.raises(OperatorError, match=r"is torn.*remove the file to start as a new node"):
        choose_id(evidence(None, "is torn", a=disk("d1", "")))


def test_a_released_disk_is_not_given_back_by_the_map() -> None:
    assert choose_id(evidence(None, known=map_of(t1=["d1"]), a=disk("d1", ""))) is None


# --- on the disk


def settle(tmp_path: Path, known: ClusterMap, count: int = 2) -> str:
    disks = tuple(str(tmp_path / f"disk-{number}") for number in range(count))
    return claim_identity(str(tmp_path / "node"), disks, known, FileSystem())


def node_of(path: Path) -> str | None:
    return read_identity(str(path)).node_id


def test_disks_get_the_id_and_give_it_back(tmp_path: Path) -> None:
    known = map_of()
    node_id = settle(tmp_path, known)
    assert node_id.startswith("target-")
    assert [node_of(tmp_path / f"disk-{number}") for number in range(2)] == [node_id] * 2
    file = tmp_path / "node" / "dfc-node-id"
    assert file.read_text() == f"{node_id}\n"
    for left in (None, b"", b"\0" * 16, node_id.encode()[:9], b"two words\n"):
        file.unlink()
        if left is not None:
            file.write_bytes(left)
        assert settle(tmp_path, known) == node_id
        assert file.read_text() == f"{node_id}\n"
    assert settle(tmp_path, known, 3) == node_id
    assert node_of(tmp_path / "disk-2") == node_id


def test_a_disk_in_use_says_nothing_about_who_this_is(tmp_path: Path) -> None:
    """It is that of a target that runs, named by mistake: whoever started with its id would be a second one."""
    known = map_of()
    (tmp_path / "runs").mkdir()
    settle(tmp_path / "runs", known)
    lock = lock_disk(str(tmp_path / "runs" / "disk-0"))
    try:
        with pytest.raises(DiskLocked, match="in use by another process"):
            claim_identity(str(tmp_path / "other"), (str(tmp_path / "runs" / "disk-0"),), known, FileSystem())
    finally:
        os.close(lock)
    assert not (tmp_path / "other" / "dfc-node-id").exists()


def test_two_directories_are_not_one_disk(tmp_path: Path) -> None:
    known = map_of()
    for name in ("old", "new"):
        Disk.format(str(tmp_path / name), known.cluster_id, "d1")
    with pytest.raises(DiskRefused, match="are both disk d1"):
        claim_identity(str(tmp_path / "node"), (str(tmp_path / "old"), str(tmp_path / "new")), known, FileSystem())
    assert not (tmp_path / "node" / "dfc-node-id").exists()


def test_a_disk_moves_once_it_is_released(tmp_path: Path) -> None:
    known = map_of()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = settle(tmp_path / "a", known), settle(tmp_path / "b", known, 1)
    moved = (tmp_path / "a" / "disk-1").rename(tmp_path / "b" / "disk-1")
    with pytest.raises(DiskRefused, match=f"belongs to node {first}, but this is {second}"):
        settle(tmp_path / "b", known)
    assert node_of(moved) == first
    assert give_to_node(str(moved), "", FileSystem()) == first
    assert settle(tmp_path / "b", known) == second
    assert node_of(moved) == second


def test_a_disk_that_never_said_is_given_to_the_node_that_has_it(tmp_path: Path) -> None:
    known = map_of()
    Disk.format(str(tmp_path / "disk-0"), known.cluster_id)
    assert node_of(tmp_path / "disk-0") is None
    assert node_of(tmp_path / "disk-0") != settle(tmp_path, known, 1) == node_of(tmp_path / "disk-0")


def test_a_disk_of_another_cluster_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settle(tmp_path, map_of())
    (tmp_path / "node" / "dfc-node-id").unlink()
    with pytest.raises(DiskRefused, match="belongs to cluster c, but the registry is of cluster other"):
        settle(tmp_path, msgspec.structs.replace(map_of(), cluster_id="other"))
    assert not (tmp_path / "node" / "dfc-node-id").exists()
