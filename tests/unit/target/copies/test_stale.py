"""A disk that was given up and is back drops what does not belong there, and says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from copied import V1, V2, map_of
from kept import Kept, reports

from dfc.placement.map import ClusterMap, LayoutEntry, SliceRun
from dfc.registry.messages import ClearedReport
from dfc.target.copies import walks

NAMES = [f"o{number}" for number in range(12)]


def evicted(version: int = 2, disk: str = "d1", **given: Any) -> ClusterMap:
    """A disk was given up."""
    layouts = (LayoutEntry(number=2, disks=("d1", "d2", "d3"), gone=(disk,)),)
    return msgspec.structs.replace(map_of(version, version, **given), layouts=layouts, slices=(SliceRun(first=0, at=2),))


@pytest.fixture
def back(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """It has objects of before, which others have changed or deleted since."""
    monkeypatch.setattr(walks, "STALE_AGAIN_S", 0)
    for name in NAMES:
        kept.target.write(name, b"old", pending=False)
    kept.target.take_map(evicted())
    return kept


def left(kept: Kept) -> list[str]:
    return [name for name in NAMES if kept.target.version(name)]


async def test_all_goes_whatever_others_have(back: Kept) -> None:
    back.peers.both_said(NAMES[0], V1, b"older")
    back.peers.both_said(NAMES[1], V2)  # a tombstone; of the others nobody knows anything
    await back.look()
    assert left(back) == []
    await back.look(2)
    assert ClearedReport(disk="d1", step=2) in reports(back)


async def test_nothing_goes_while_nobody_decides(back: Kept) -> None:
    back.peers.silent |= {"d2"}
    for name in NAMES:
        back.peers.said("d3", name, V1, b"old", speaks=False)
    await back.look(2)
    assert left(back) == NAMES
    assert reports(back) == []


async def test_nothing_goes_while_the_disk_is_out_of_sync(back: Kept) -> None:
    back.target.take_map(evicted(3, out_of_sync_with={"d1": ("d2",)}))
    await back.look(2)
    assert left(back) == NAMES


async def test_objects_with_one_copy_stay(back: Kept) -> None:
    back.target.take_map(evicted(3, copies=1))
    await back.look(2)
    kept = left(back)
    assert 0 < len(kept) < len(NAMES)
    cluster_map = back.target.local.map
    assert kept == [name for name in NAMES if cluster_map.owner(back.target.bucket, name).disk.id == "d1"]
    assert ClearedReport(disk="d1", step=3) in reports(back)


async def test_hints_for_a_disk_that_was_evicted_go_while_it_is_away(kept: Kept) -> None:
    """Otherwise they, and the tombstones that they are about, would stay for ever if it never comes back."""
    kept.lacks("d3", *NAMES)
    kept.target.take_map(map_of(2, 2, down=("d3",)))
    await kept.look(2)
    assert sorted(kept.target.hints("d3")) == sorted(NAMES)
    kept.target.take_map(evicted(3, "d3", down=("d3",)))
    await kept.look(2)
    assert kept.target.hints("d3") == []
    assert left(kept) == NAMES


async def test_a_disk_that_was_not_evicted_keeps_all(kept: Kept) -> None:
    kept.target.write(NAMES[0], b"own", pending=False)
    await kept.look(2)
    assert left(kept) == NAMES[:1]
    assert not any(isinstance(each, ClearedReport) for each in reports(kept))


async def test_what_a_newer_map_overtakes_stays(back: Kept) -> None:
    back.peers.after_states = lambda _: back.target.take_map(map_of(5, 5))
    await back.look()
    assert left(back) == NAMES
    assert reports(back) == []
