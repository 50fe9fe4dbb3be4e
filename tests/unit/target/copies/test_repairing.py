"""Damaged objects get their bytes from another disk: while they are read, and in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from copied import BUCKET, V1, V3, item, key_of, map_of, name_with
from kept import OWN, Kept

from dfc.errors import Unavailable
from dfc.target.copies import objects, upkeep


def damage(kept: Kept, *names: str, body: bytes = b"own") -> str:
    """Objects here whose bytes are gone, which d2 has whole; the version of the last one."""
    version = ""
    for name in names:
        version = kept.target.write(name, body, pending=False).version
        kept.target.damage(name)
        kept.peers.said("d2", name, version, body)
    return version


async def test_all_damaged_objects_are_repaired(kept: Kept) -> None:
    names = [name_with("d1", "d2", number=number) for number in range(2 * upkeep.TRIED_AT_ONCE)]
    damage(kept, *names)
    assert kept.target.disk.copies.has_damaged
    await kept.look()
    assert (kept.target.disk.copies.has_damaged, kept.target.disk.quarantined()) == (False, [])
    assert [kept.target.body(name) for name in names] == [b"own"] * len(names)
    assert kept.target.disk.parts.stats.repaired_rows == len(names)
    assert not kept.target.is_pending(OWN)


async def test_a_copy_is_repaired_too(kept: Kept) -> None:
    """Not only the primary's."""
    name = name_with("d2", "d1")
    await kept.receive(item(name, V1, b"one", kind="adopt"))
    kept.target.damage(name)
    kept.peers.said("d2", name, V1, b"one")
    await kept.look()
    assert kept.target.body(name) == b"one"


async def test_a_row_that_is_pending_stays_pending(kept: Kept) -> None:
    name = name_with("d2", "d1")
    await kept.receive(item(name, V1, b"one"))
    kept.target.damage(name)
    kept.peers.said("d2", name, V1, b"one", speaks=False)
    await kept.upkeep._damaged.repair()
    assert (kept.target.body(name), kept.target.is_pending(name)) == (b"one", True)


@pytest.mark.parametrize("what", ["damaged", "older", "newer", "other bytes", "silent", "cannot be fetched"])
async def test_bytes_are_taken_only_of_the_same_version_and_sound(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    version = damage(kept, OWN)
    if what == "silent":
        kept.peers.silent = {"d2"}
    elif what == "cannot be fetched":
        kept.peers.bodies.clear()
    else:
        told = {"older": V1, "newer": "f" * 13 + V3[13:]}.get(what, version)
        kept.peers.said("d2", OWN, told, b"not" if what == "other bytes" else b"own", is_damaged=what == "damaged")
    await kept.look(3)
    assert [each.name for each in kept.target.disk.quarantined()] == [OWN]
    assert caplog.text.count("is damaged, and no other disk has its bytes; upload") == 1, "not at each look"
    assert len(kept.peers.asked) == 1, "nor asked for"
    monkeypatch.setattr(objects, "AGAIN_S", 0)
    kept.repairer._next_s.clear()
    kept.peers.silent = set()
    kept.peers.said("d2", OWN, version, b"own")
    await kept.look()
    assert kept.target.body(OWN) == b"own"


async def test_what_is_replaced_while_its_bytes_are_fetched_stays(kept: Kept) -> None:
    damage(kept, OWN)
    kept.peers.after_fetch = lambda: kept.target.write(OWN, b"newer", pending=False)
    await kept.look()
    assert kept.target.body(OWN) == b"newer"


async def test_what_was_removed_while_its_bytes_are_fetched_stays_away(kept: Kept) -> None:
    """Even its tombstone may be gone by then."""
    version = damage(kept, OWN)
    kept.peers.after_fetch = lambda: kept.target.disk.copies.remove_excess([(BUCKET, OWN, version)])
    await kept.look()
    assert kept.target.version(OWN) is None


async def test_an_object_with_one_copy_is_looked_for_nowhere(kept: Kept) -> None:
    kept.target.take_map(map_of(2, copies=1))
    damage(kept, OWN)
    await kept.look()
    assert (len(kept.target.disk.quarantined()), kept.peers.asked) == (1, [])


async def test_one_attempt_is_shared_and_goes_on_without_whoever_waited(kept: Kept) -> None:
    damage(kept, OWN)
    fetches, release = list[int](), asyncio.Event()

    def slow() -> Any:
        fetches.append(1)
        return release.wait()

    kept.peers.after_fetch = slow
    both = [asyncio.create_task(kept.repairer.repair(kept.target.disk, key_of(OWN))) for _ in range(2)]
    await asyncio.sleep(0.05)
    both[0].cancel()
    await asyncio.gather(both[0], return_exceptions=True)
    release.set()
    assert await both[1]
    assert fetches == [1]
    assert kept.target.body(OWN) == b"own"


async def test_a_stop_ends_what_is_under_way(kept: Kept) -> None:
    damage(kept, OWN)
    ended = list[bool]()

    async def hang(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    kept.peers.fetch = hang  # type: ignore[method-assign]
    waiting = asyncio.create_task(kept.repairer.repair(kept.target.disk, key_of(OWN)))
    await asyncio.sleep(0.05)
    await kept.repairer.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert ended == [True]


async def test_nothing_is_begun_after_the_stop(kept: Kept) -> None:
    damage(kept, OWN)
    await kept.repairer.close()
    with pytest.raises(Unavailable):
        await kept.repairer.repair(kept.target.disk, key_of(OWN))


async def test_an_excess_row_stays_while_a_replica_has_lost_its_bytes(kept: Kept) -> None:
    """It may be the only one that is whole."""
    name = name_with("d2", "d3")
    await kept.receive(item(name, V1, b"one", kind="adopt"))
    for replica in ("d2", "d3"):
        kept.peers.said(replica, name, V1, b"one", is_damaged=replica == "d3")
    await kept.look()
    assert kept.target.version(name) == V1
    kept.peers.said("d3", name, V1, b"one")
    await kept.look()
    assert kept.target.disk.find(BUCKET, name) is None
