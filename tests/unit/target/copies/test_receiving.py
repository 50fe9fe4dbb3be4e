"""What a target does with rows and questions of other targets."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from calls import after, before
from copied import BUCKET, V1, V2, V3, Sent, Target, item, key_of, map_of, name_with, sender, state_of
from msgspec.structs import replace

from dfc.api.node.copies import CopyHandlers
from dfc.checksum import checksum_of
from dfc.errors import BadName, BadRequest, ChecksumMismatch, DfcError, NotFound, Unavailable
from dfc.limits import SMALL_BODY_BYTES
from dfc.placement.map import ClusterMap
from dfc.storage.rows import GOOD, NO_REPLICA, UNSYNCED
from dfc.target.copies import receive as receiving
from dfc.target.copies import walks
from dfc.target.copies.messages import ConfirmedRow, CopiesTaken, CopyItem, CopyKey, NameReply, PendingReply, RowState
from dfc.target.copies.peers import ATTRIBUTES_HEADER
from dfc.target.copies.receive import STORED_TOGETHER, CopyReceiver, Prepared
from dfc.wire import CHECKSUM_HEADER

NAME, OWN, NEITHER = name_with("d2", "d1"), name_with("d1", "d2"), name_with("d2", "d3")
OTHER = name_with("d1", "d2", number=1)
LARGE = random.Random(1).randbytes(SMALL_BODY_BYTES + 100)
NO_PUBLICATIONS: Any = None


@pytest.fixture
def receiver(target: Target) -> CopyReceiver:
    return CopyReceiver(target.local, target.ledger, Prepared(target.local))


async def take(receiver: CopyReceiver, *items: CopyItem, version: int = 1) -> list[str]:
    return list((await receiver.take(sender(version=version), list(items))).outcomes)


# --- commits of the primary


async def test_a_row_of_the_primary_is_taken_and_pending(target: Target, receiver: CopyReceiver) -> None:
    assert await take(receiver, item(NAME, V1, b"one")) == ["taken"]
    assert (target.body(NAME), target.version(NAME), target.is_pending(NAME)) == (b"one", V1, True)
    assert [(row.name, row.rank) for row in target.disk.copies.rows()[0]] == [(NAME, 1)]
    assert await take(receiver, item(NAME, V1, b"one")) == ["taken"], "again, as after an answer that was lost"
    assert await take(receiver, item(NAME, V2, b"two")) == ["taken"]
    assert await take(receiver, item(NAME, V1, b"one")) == ["refused"], "something newer is here"
    assert (target.body(NAME), target.version(NAME)) == (b"two", V2)


async def test_who_asks_about_a_name_sees_that_something_arrives(target: Target, receiver: CopyReceiver) -> None:
    with target.ledger.watching([key_of(NAME), key_of(NEITHER)]) as has_changed:
        assert not has_changed(key_of(NAME))
        await take(receiver, item(NAME, V2, b"two"))
        assert (has_changed(key_of(NAME)), has_changed(key_of(NEITHER))) == (True, False)
    with target.ledger.watching([key_of(NAME)]) as has_changed:
        assert not has_changed(key_of(NAME))
        assert await take(receiver, item(NAME, V1, b"one")) == ["refused"]
        assert has_changed(key_of(NAME)), "also what is refused"


async def test_several_rows_have_an_outcome_each(target: Target, receiver: CopyReceiver) -> None:
    """Those with small bodies are stored together, in groups."""
    names = [name_with("d2", "d1", number=number) for number in range(STORED_TOGETHER + 3)]
    await take(receiver, item(names[2], V2, b"newer"))
    items = [item(name, V1, name.encode()) for name in names]
    items[1:1] = [item(NEITHER, V1, None), item(OTHER, V1, LARGE, body=None, of="d1")]
    items.append(replace(items[-1], to="d9"))
    outcomes = await take(receiver, *items)
    assert outcomes == ["taken", "taken", "unknown", "taken", "refused", *["taken"] * STORED_TOGETHER, "refused"]
    assert [target.body(name) for name in names] == [b"newer" if name == names[2] else name.encode() for name in names]
    assert target.version(NEITHER) == V1


async def test_rows_that_move_here_stay_out_of_memory(target: Target, receiver: CopyReceiver) -> None:
    """There may be millions of them, and others are read now."""
    await take(receiver, item(NAME, V1, b"one"), item(NEITHER, V1, b"two", kind="adopt"))
    assert target.disk.lookup_cached(BUCKET, NAME) is not None
    assert (target.disk.lookup_cached(BUCKET, NEITHER), target.body(NEITHER)) == (None, b"two")


async def test_a_tombstone_is_taken(target: Target, receiver: CopyReceiver) -> None:
    await take(receiver, item(NAME, V1, b"one"))
    assert await take(receiver, item(NAME, V2, None)) == ["taken"]
    assert (target.version(NAME), target.is_pending(NAME)) == (V2, True)
    assert target.disk.find(BUCKET, NAME) is None
    assert await take(receiver, item(NAME, V2, None)) == ["taken"]
    assert await take(receiver, item(NAME, V1, b"one"), item(NAME, V1, None)) == ["refused", "refused"]
    assert await take(receiver, item(NEITHER, V1, None)) == ["taken"], "of an object that never was here"


async def test_a_handoff_takes_rows_of_which_it_is_no_replica(target: Target, receiver: CopyReceiver) -> None:
    assert await take(receiver, item(NEITHER, V1, b"one")) == ["taken"]
    assert [row.rank for row in target.disk.copies.rows()[0]] == [NO_REPLICA]


async def test_replicas_that_are_away_are_hinted(target: Target, receiver: CopyReceiver) -> None:
    target.take_map(map_of(2, 2, down=("d3",)))
    name = name_with("d2", "d3")
    assert await take(receiver, item(name, V1, b"one"), version=2) == ["taken"]
    assert target.hints("d3") == [name]
    target.take_map(map_of(3, 3, out_of_sync_with={"d3": ("d2",)}))
    name = name_with("d2", "d3", number=1)
    assert await take(receiver, item(name, V1, bytes(5)), version=3) == ["taken"]
    assert name in target.hints("d3")


async def test_who_is_not_the_primary_by_a_newer_map_gets_that_map(target: Target, receiver: CopyReceiver) -> None:
    target.take_map(map_of(5, 2, out_of_sync_with={"d2": ("d1",)}))
    answer = await receiver.take(sender(version=4), [item(NAME, V1), item(NAME, V1, None), item(NAME, V1, LARGE, body=None)])
    assert answer.outcomes == ["newer_map"] * 3
    assert answer.map is target.local.map
    assert target.version(NAME) is None
    answer = await receiver.take(sender(version=4), [item(name_with("d3", "d1"), V1, of="d3")])
    assert (answer.outcomes, answer.map) == (["taken"], None)


async def test_nothing_is_committed_without_a_lease(target: Target, receiver: CopyReceiver) -> None:
    target.local.lease.end()
    assert await take(receiver, item(NAME, V1), item(NAME, V1, None), item(NAME, V1, LARGE, body=None)) == ["refused"] * 3
    assert target.version(NAME) is None


async def test_a_large_row_is_wanted_with_its_body(target: Target, receiver: CopyReceiver) -> None:
    asked = item(NAME, V2, LARGE, body=None)
    assert await take(receiver, asked) == ["unknown"]
    assert (await receiver.receive(sender(), asked, Sent(LARGE))).outcomes == ["taken"]
    assert target.disk.find(BUCKET, NAME).checksum == checksum_of(LARGE)  # type: ignore[union-attr]
    assert target.is_pending(NAME)
    assert await take(receiver, asked) == ["taken"]
    assert await take(receiver, item(NAME, V1, LARGE, body=None)) == ["refused"]
    assert await take(receiver, item(NAME, V3, LARGE, body=None)) == ["unknown"]
    assert target.version(NAME) == V2


async def test_a_large_row_arrives_before_it_is_looked_whether_it_is_here(target: Target, receiver: CopyReceiver) -> None:
    """Else it could be undone by an answer that is older than it."""
    seen: list[bool] = []
    with target.ledger.watching([key_of(NAME)]) as has_changed:
        before(target.disk.copies, "state", lambda *_: seen.append(has_changed(key_of(NAME))))
        await take(receiver, item(NAME, V2, LARGE, body=None))
    assert seen == [True]


async def test_a_large_row_that_is_being_undone_is_not_here(target: Target, receiver: CopyReceiver) -> None:
    """By what the primary before has said; the new one, which has adopted it, counts on the answer."""
    asked = item(NAME, V2, LARGE, body=None)
    await receiver.receive(sender(), asked, Sent(LARGE))
    after(target.disk.copies, "state", lambda *name: target.disk.copies.revert(*name, V2, None))
    assert await take(receiver, asked) == ["unknown"]


async def test_a_large_row_that_is_here_is_hinted_for_replicas_that_are_away(target: Target, receiver: CopyReceiver) -> None:
    name = name_with("d2", "d3")
    await receiver.receive(sender(), item(name, V1, LARGE, body=None), Sent(LARGE))
    assert target.hints("d3") == []
    target.take_map(map_of(2, 2, down=("d3",)))
    assert await take(receiver, item(name, V1, LARGE, body=None)) == ["taken"]
    assert target.hints("d3") == [name]


async def test_a_sound_copy_is_wanted_where_the_blob_is_lost(target: Target, receiver: CopyReceiver) -> None:
    asked = item(NAME, V1, LARGE, body=None)
    await receiver.receive(sender(), asked, Sent(LARGE))
    os.unlink(target.disk.blob_path(target.disk.find(BUCKET, NAME)))
    with pytest.raises(DfcError):
        target.body(NAME)
    assert await take(receiver, asked) == ["unknown"]
    assert (await receiver.receive(sender(), asked, Sent(LARGE))).outcomes == ["taken"]
    assert target.body(NAME) == LARGE


async def test_damaged_and_contradicting_rows_are_refused(target: Target, receiver: CopyReceiver) -> None:
    assert await take(receiver, item(NAME, V1, b"one", body=b"eno")) == ["refused"]
    assert target.version(NAME) is None
    await take(receiver, item(NAME, V1, b"one"))
    assert await take(receiver, item(NAME, V1, b"two"), item(NAME, V1, None)) == ["refused", "refused"]
    assert target.body(NAME) == b"one"


async def test_one_bad_row_spoils_no_others(target: Target, receiver: CopyReceiver) -> None:
    other = name_with("d2", "d1", number=1)
    items = [item(NAME, V1, b"one", body=b"x"), item(other, V1, b"two"), item(NAME, V1, to="d3"), item(NAME, V1, to="d9")]
    assert await take(receiver, *items) == ["refused", "taken", "refused", "refused"]
    assert target.body(other) == b"two"


# --- other kinds


async def test_a_row_that_counts_is_adopted_without_a_mark(target: Target, receiver: CopyReceiver) -> None:
    assert await take(receiver, item(NAME, V1, b"one")) == ["taken"]
    assert target.is_pending(NAME)
    assert await take(receiver, item(NAME, V1, b"one", kind="adopt")) == ["taken"]
    assert not target.is_pending(NAME)
    assert await take(receiver, item(NAME, V2, b"two", kind="adopt")) == ["taken"]
    assert (target.body(NAME), target.is_pending(NAME)) == (b"two", False)
    assert await take(receiver, item(NAME, V3, None, kind="adopt")) == ["taken"]
    assert target.version(NAME) == V3
    assert await take(receiver, item(NAME, V2, b"two", kind="adopt")) == ["taken"], "the note is not needed any more"
    assert target.version(NAME) == V3


async def test_only_the_primary_has_rows_adopted(target: Target, receiver: CopyReceiver) -> None:
    assert await take(receiver, item(NAME, V1, kind="adopt", of="d3")) == ["newer_map"]
    assert await take(receiver, item(NAME, V1, kind="direct")) == ["newer_map"], "there is a primary"
    assert await take(receiver, item(NAME, V1, LARGE, kind="adopt", of="d3", body=None)) == ["newer_map"]
    assert target.version(NAME) is None


async def test_without_a_primary_any_holder_may_send_a_row_as_it_is(target: Target, receiver: CopyReceiver) -> None:
    target.take_map(map_of(2, 2, down=("d2",), out_of_sync_with={"d1": ("d2",)}))
    assert target.ledger.roles(BUCKET, NAME).primary is None
    assert await take(receiver, item(NAME, V1, b"one", kind="direct", of="d3", is_pending=True), version=2) == ["taken"]
    assert (target.body(NAME), target.is_pending(NAME)) == (b"one", True)
    assert await take(receiver, item(NAME, V2, b"two", kind="direct", of="d3"), version=2) == ["taken"]
    assert (target.body(NAME), target.is_pending(NAME)) == (b"two", False)
    assert await take(receiver, item(NAME, V3, kind="commit"), version=2) == ["newer_map"]
    assert await take(receiver, item(NAME, V3, kind="adopt"), version=2) == ["newer_map"]


# --- bodies


async def test_a_body_for_a_disk_that_is_not_here(receiver: CopyReceiver) -> None:
    with pytest.raises(Unavailable, match="not here"):
        await receiver.receive(sender(), item(NAME, V1, LARGE, to="d3", body=None), Sent(LARGE))


async def test_a_body_that_breaks_off_or_is_damaged_leaves_nothing(target: Target, receiver: CopyReceiver) -> None:
    asked = item(NAME, V1, LARGE, body=None)
    with pytest.raises(BadRequest):
        await receiver.receive(sender(), asked, Sent(LARGE, BadRequest("it broke off")))
    with pytest.raises(ChecksumMismatch):
        await receiver.receive(sender(), asked, Sent(LARGE[::-1]))
    assert target.version(NAME) is None
    assert blobs(target) == []


async def test_the_map_may_change_while_a_body_comes(target: Target, receiver: CopyReceiver) -> None:
    body = Sent(LARGE, after=lambda: target.take_map(map_of(2, 2, out_of_sync_with={"d2": ("d1",)})))
    answer = await receiver.receive(sender(), item(NAME, V1, LARGE, body=None), body)
    assert (answer.outcomes, answer.map) == (["newer_map"], target.local.map)
    assert (target.version(NAME), blobs(target)) == (None, [])


@pytest.mark.parametrize("body", [b"one", LARGE], ids=["small", "large"])
async def test_a_copy_is_as_durable_as_the_sender_wants(target: Target, receiver: CopyReceiver, body: bytes) -> None:
    relaxed = name_with("d2", "d1", number=1)
    for name, durability, state in ((NAME, "fsync", GOOD), (relaxed, "relaxed", UNSYNCED)):
        if body is LARGE:
            sent = item(name, V1, body, body=None, durability=durability)
            assert (await receiver.receive(sender(), sent, Sent(body))).outcomes == ["taken"]
        else:
            assert await take(receiver, item(name, V1, body, durability=durability)) == ["taken"]
        assert target.disk.find(BUCKET, name).state == state


async def test_a_body_without_need_leaves_the_object(target: Target, receiver: CopyReceiver) -> None:
    await take(receiver, item(NAME, V2, b"two"))
    assert (await receiver.receive(sender(), item(NAME, V1, LARGE, body=None), Sent(LARGE))).outcomes == ["refused"]
    assert target.body(NAME) == b"two"
    target.disk.parts.discarder.wait()
    assert len(blobs(target)) == 1


def blobs(target: Target) -> list[str]:
    return [name for _, _, names in os.walk(f"{target.disk.path}/objects") for name in names]


# --- outputs of jobs that are not published yet

JOB = "job-1"


async def test_a_copy_of_an_output_is_staged_as_it_is(target: Target, receiver: CopyReceiver) -> None:
    asked = item(NAME, V2, LARGE, body=None, kind="staged", job=JOB)
    for _ in range(2):  # an answer may be lost
        assert (await receiver.receive(sender(), asked, Sent(LARGE))).outcomes == ["taken"]
    [entry] = target.disk.staging.outputs(JOB)
    assert (entry.row.name, entry.row.version, entry.row.size, entry.boot) == (NAME, V2, len(LARGE), None)
    assert entry.row.drawn, "it can be told from what was staged here"
    assert target.version(NAME) is None, "it is no object yet"
    await receiver.receive(sender(), item(NAME, V1, LARGE, body=None, kind="staged", job=JOB), Sent(LARGE))
    assert [each.row.version for each in target.disk.staging.outputs(JOB)] == [V2]
    target.disk.parts.discarder.wait()
    assert len(blobs(target)) == 1


@pytest.mark.parametrize("why", ["the job is over", "no lease", "the bucket is deleted", "no job", "other bytes"])
async def test_a_copy_of_an_output_that_must_not_be_kept(target: Target, receiver: CopyReceiver, why: str) -> None:
    if why == "the job is over":
        target.disk.staging.discard(JOB)
    elif why == "no lease":
        target.local.lease.end()
    elif why == "the bucket is deleted":
        target.take_map(map_of(2, 2, state="deleting"))
    asked = item(NAME, V2, LARGE, body=None, kind="staged", job="" if why == "no job" else JOB)
    with pytest.raises(DfcError):
        await receiver.receive(sender(), asked, Sent(LARGE[::-1] if why == "other bytes" else LARGE))
    assert target.disk.staging.outputs(JOB) == []
    target.disk.parts.discarder.wait()
    assert blobs(target) == []


# --- maps


async def test_a_newer_map_is_fetched_from_the_sender(target: Target, receiver: CopyReceiver) -> None:
    target.control.maps["http://t2"] = map_of(7, 2, down=("d3",))
    assert await take(receiver, item(name_with("d2", "d3"), V1), version=7) == ["taken"]
    assert target.local.map.version == 7
    assert target.control.calls == ["GET http://t2/v1/cluster"]
    assert target.hints("d3") == [name_with("d2", "d3")], "it decided by the newer map"
    await receiver.catch_up(sender(version=3))
    assert len(target.control.calls) == 1, "nothing is asked for an older one"


async def test_or_from_the_coordinator(target: Target, receiver: CopyReceiver) -> None:
    target.control.maps["http://proxy"] = map_of(7)
    await receiver.catch_up(sender(version=7))
    await receiver.catch_up(sender("nobody", 6))
    assert target.local.map.version == 7
    target.control.maps["http://proxy"] = map_of(8)
    await receiver.catch_up(sender("nobody", 8))
    assert target.local.map.version == 8


async def test_nothing_is_decided_by_an_older_map(target: Target, receiver: CopyReceiver) -> None:
    for maps in ({}, {"http://t2": map_of(6), "http://proxy": map_of(6)}):
        target.control.maps = maps
        with pytest.raises(Unavailable):
            await take(receiver, item(NAME, V1), version=7)
        with pytest.raises(Unavailable):
            await receiver.receive(sender(version=7), item(NAME, V1, LARGE, body=None), Sent(LARGE))
        for question in (receiver.states, receiver.missing):
            with pytest.raises(Unavailable):
                await question(sender(version=7), [key_of(NAME)])
        with pytest.raises(Unavailable):
            await receiver.pending(sender(version=7), 1)
        with pytest.raises(Unavailable):
            await receiver.is_resolved(sender(version=7), "d1")
    assert target.version(NAME) is None


# --- questions


async def test_what_is_here_of_names(target: Target, receiver: CopyReceiver) -> None:
    own = target.write(OWN, b"own", pending=False)
    target.write(OTHER, b"x")
    gone = target.bury(OTHER)
    await take(receiver, item(NAME, V1, b"one"))
    target.ledger.in_doubt.add(key_of(OTHER))
    known = [key_of(OWN), key_of(OTHER), key_of(NAME), key_of(NEITHER)]
    told = await receiver.states(sender(), [*known, key_of(OWN, "d2"), CopyKey("d1", "none", "x")])
    assert told[0] == NameReply(state_of(own.version, b"own"), speaks=True, is_replicated=True, decides=True)
    assert told[1] == NameReply(RowState(gone.version), speaks=False, is_replicated=False, decides=True)
    assert told[2] == NameReply(state_of(V1, b"one"), speaks=False, is_replicated=True)
    assert told[3] == NameReply(None, speaks=False, is_replicated=True)
    assert told[4] == NameReply(is_known=False), "another target's disk"
    assert told[5].state is None


async def test_an_object_is_given_in_one_version_only(target: Target, receiver: CopyReceiver) -> None:
    await take(receiver, item(NAME, V2, b"two"))
    found = await receiver.open(key_of(NAME), V2)
    try:
        assert os.pread(found.file, found.size, found.offset) == b"two"
    finally:
        os.close(found.file)
    for key, version in ((key_of(NAME), V1), (key_of(NAME), ""), (key_of("none"), V2), (CopyKey("d2", BUCKET, NAME), V2)):
        with pytest.raises(NotFound):
            await receiver.open(key, version)
    await take(receiver, item(NAME, V3, None))
    with pytest.raises(NotFound):
        await receiver.open(key_of(NAME), V3)


async def test_rows_are_confirmed_in_exactly_their_version(target: Target, receiver: CopyReceiver) -> None:
    await take(receiver, item(NAME, V2, b"two"))
    await receiver.confirm([ConfirmedRow("d1", BUCKET, NAME, V1), ConfirmedRow("d9", BUCKET, NAME, V2)])
    assert target.is_pending(NAME)
    await receiver.confirm([ConfirmedRow("d1", BUCKET, NAME, V2), ConfirmedRow("d1", BUCKET, "none", V2)])
    assert not target.is_pending(NAME)


async def test_the_primary_hints_who_lacks_its_rows(target: Target, receiver: CopyReceiver) -> None:
    target.write(OWN, b"own", pending=False)
    await receiver.missing(sender(), [CopyKey("d2", BUCKET, OWN), CopyKey("d1", BUCKET, OWN), CopyKey("d3", BUCKET, OWN)])
    assert (target.hints("d2"), target.hints("d1"), target.hints("d3")) == ([OWN], [], []), "replica only, and not itself"
    also = name_with("d1", "d2", number=1)
    with pytest.raises(Unavailable):
        await receiver.missing(sender(), [CopyKey("d3", BUCKET, NAME), CopyKey("d2", BUCKET, also)])
    assert target.hints("d2") == sorted([OWN, also]), "what is not known here keeps no other name from being noted"
    target.settles = False
    target.take_map(map_of(2, 2, down=("d2",)))
    with pytest.raises(Unavailable):
        await receiver.missing(sender(), [CopyKey("d2", BUCKET, NAME)])


async def test_pending_rows_are_told_to_their_new_primary(target: Target, receiver: CopyReceiver) -> None:
    other, dropped = name_with("d3", "d1"), name_with("d2", "d1", number=1)
    await take(receiver, item(NAME, V1, b"one"), item(dropped, V1, None), item(NEITHER, V1, b"handoff replica"))
    await take(receiver, item(other, V1, b"x", of="d3"))
    told = await receiver.pending(sender(), 1)
    assert {(row.key, row.state.version, row.state.size) for row in told.rows} == {
        (key_of(NAME), V1, 3),
        (key_of(dropped), V1, -1),
    }, "of names whose primary asks, if this disk is a reader of them"
    assert told.map is None
    assert [row.key.name for row in (await receiver.pending(sender("t3"), 1)).rows] == [other]
    target.take_map(map_of(2, 2, out_of_sync_with={"d1": ("d2",)}))
    assert (await receiver.pending(sender(version=2), 2)).rows == []
    assert (await receiver.pending(sender(), 1)).map is target.local.map, "the question is of an older step"


async def test_a_new_primary_hears_of_pending_rows_when_nothing_comes_for_the_old_one(
    target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit for the primary before may be under way: its row would be missing in the answer."""
    release = threading.Event()
    monkeypatch.setattr(target.disk, "barrier", release.wait)
    target.take_map(map_of(2, 2, down=("d3",)))
    asked = asyncio.create_task(receiver.pending(sender(version=2), 2))
    done, _ = await asyncio.wait((asked,), timeout=0.05)
    late = await take(receiver, item(NAME, V1, b"one"), version=2)
    release.set()
    told = await asked
    assert not done, "it was told while commits decided by the step before were under way"
    assert (late, [row.key.name for row in told.rows]) == (["taken"], [NAME])


def with_failed(cluster_map: ClusterMap, disk: str) -> ClusterMap:
    """The same map, with a disk that has failed."""
    nodes = []
    for node in cluster_map.nodes:
        disks = tuple(replace(each, state="failed" if each.id == disk else each.state) for each in node.disks)
        nodes.append(replace(node, disks=disks))
    return replace(cluster_map, nodes=tuple(nodes))


async def test_a_disk_that_hangs_keeps_no_new_primary_waiting_once_it_has_failed(
    target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows do not count. Before that, the question is answered with an error, in time for who asks."""
    await take(receiver, item(NAME, V1, b"one"))
    release = threading.Event()
    monkeypatch.setattr(target.disk, "barrier", release.wait)
    monkeypatch.setattr(receiving, "ANSWER_S", 0.05)
    target.take_map(map_of(2, 2, down=("d3",)))
    try:
        with pytest.raises(Unavailable):
            await receiver.pending(sender(version=2), 2)
        target.take_map(with_failed(map_of(3, 3, down=("d3",)), "d1"))
        monkeypatch.setattr(receiving, "ANSWER_S", 5.0)
        async with asyncio.timeout(2):
            assert await receiver.pending(sender(version=3), 3) == PendingReply([])
    finally:
        release.set()


async def test_a_disk_is_resolved_when_no_row_of_an_older_step_can_come(
    target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(target.disk, "barrier", release.wait)
    monkeypatch.setattr(receiving, "ANSWER_S", 0.5)
    target.take_map(map_of(2, 2))
    asked = asyncio.create_task(receiver.is_resolved(sender(version=2), "d1"))
    done, _ = await asyncio.wait((asked,), timeout=0.05)
    await take(receiver, item(NAME, V1, b"one"), version=2)
    release.set()
    assert not done
    with pytest.raises(Unavailable):
        await asked


async def test_pending_rows_are_told_in_pages(target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "PENDING_PAGE", 2)
    names = {name_with("d2", "d1", number=number) for number in range(5)}
    others = [name_with("d3", "d1", number=number) for number in range(7)]
    await take(receiver, *(item(name, V1, b"one") for name in names))
    await take(receiver, *(item(name, V1, b"one", of="d3") for name in others))
    found, pages, told = list[str](), 0, await receiver.pending(sender(), 1)
    while told.after is not None:
        found += [row.key.name for row in told.rows]
        pages, told = pages + 1, await receiver.pending(sender(), 1, told.after)
    assert (sorted(found), told.rows) == (sorted(names), [])
    assert 1 < pages <= 5


async def test_nobody_is_told_of_rows_whose_bytes_are_damaged(target: Target, receiver: CopyReceiver) -> None:
    other = name_with("d2", "d1", number=1)
    await take(receiver, item(NAME, V1, b"one"), item(other, V1, b"two"))
    target.damage(NAME)
    told = await receiver.pending(sender(), 1)
    assert [row.key.name for row in told.rows] == [other]


async def test_whether_a_disk_is_resolved(target: Target, receiver: CopyReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "ANSWER_S", 0.3)
    assert await receiver.is_resolved(sender(), "d1")
    target.write(OWN, b"own")
    assert await receiver.is_resolved(sender(), "d1"), "it settles those of its own"
    await take(receiver, item(NAME, V1, b"one"))
    with pytest.raises(Unavailable):
        await receiver.is_resolved(sender(), "d1")
    target.take_map(map_of(2, 2, down=("d2", "d3"), out_of_sync_with={"d1": ("d2", "d3")}))
    assert await receiver.is_resolved(sender(version=2), "d1"), "nobody could"
    with pytest.raises(Unavailable):
        await receiver.is_resolved(sender(version=2), "d2")


@pytest.mark.parametrize("how", ["confirmed", "newer"])
async def test_rows_that_come_after_the_question_do_not_keep_a_disk_from_being_resolved(
    target: Target, receiver: CopyReceiver, how: str
) -> None:
    other = name_with("d2", "d1", number=1)
    await take(receiver, item(NAME, V1, b"one"))
    asked = asyncio.create_task(receiver.is_resolved(sender(), "d1"))
    done, _ = await asyncio.wait((asked,), timeout=3 * receiving.RESOLVED_LOOK_S)
    await take(receiver, item(other, V1, b"one"))
    if how == "confirmed":
        await receiver.confirm([ConfirmedRow("d1", BUCKET, NAME, V1)])
    else:
        await take(receiver, item(NAME, V2, b"two"))
    assert not done
    assert await asked


async def test_a_disk_is_not_resolved_by_an_older_step(target: Target, receiver: CopyReceiver) -> None:
    await take(receiver, item(NAME, V1, b"one"))
    asked = asyncio.create_task(receiver.is_resolved(sender(), "d1"))
    await asyncio.wait((asked,), timeout=3 * receiving.RESOLVED_LOOK_S)
    target.take_map(map_of(2, 2, down=("d2", "d3"), out_of_sync_with={"d1": ("d2", "d3")}))
    assert not await asked


# --- messages that nobody should send


def exchange(body: Any = b"", headers: dict[str, str] | None = None, length: int | None = None, **query: str) -> Any:
    content = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)

    async def read_small(_limit: int) -> bytes:
        return content

    asked = {"headers": headers or {}, "declared_length": length, "query_parameters": lambda _known: query}
    return SimpleNamespace(read_small=read_small, **asked)


HOSTILE: list[Any] = [
    b"",
    b"\xc1",
    b"\xff" * 100,
    b"\x91" * 100_000,
    None,
    [],
    {},
    {"sender": {"node": "t2", "version": 1}},
    {"sender": {"node": "../t2", "version": 1}, "items": [], "names": [], "rows": [], "step": 1, "disk": "d1"},
    {"sender": {"node": "t2", "version": "1"}, "items": [], "names": [], "rows": [], "step": 1, "disk": "d1"},
    {"sender": {"node": "t2", "version": 1}, "items": [1], "names": [1], "rows": [1], "step": "1", "disk": 1},
    {"sender": {"node": "t2", "version": 1}, "items": [[]] * 100_000, "names": [["a", "b", "c"]] * 100_000,
     "rows": [["a", "b", "c", "d"]] * 100_000, "step": None, "disk": "x" * 100},
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", ["take", "states", "confirm", "missing", "pending", "resolved"])
async def test_messages_of_another_form_are_refused(receiver: CopyReceiver, kind: str, body: Any) -> None:
    with pytest.raises(BadRequest):
        await getattr(CopyHandlers(receiver, NO_PUBLICATIONS), kind)(exchange(body), ())


def packed(**changes: Any) -> Any:
    """A message with one row, as it is on the wire, with other values."""
    row = msgspec.to_builtins(item(NAME, V1, b"one"), builtin_types=(bytes,))
    state = {**row["state"], **changes.pop("state", {})}
    return {"sender": {"node": "t2", "version": 1}, "items": [{**row, "state": state, **changes}]}


async def test_a_row_as_it_is_on_the_wire(target: Target, receiver: CopyReceiver) -> None:
    answer = await CopyHandlers(receiver, NO_PUBLICATIONS).take(exchange(packed()), ())
    assert msgspec.msgpack.decode(answer.body, type=CopiesTaken).outcomes == ["taken"]
    assert target.body(NAME) == b"one"


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "commits"},
        {"kind": "staged", "job": "job-1"},
        {"to": "../d1"},
        {"bucket_id": "a/b"},
        {"durability": "none"},
        {"body": bytes(SMALL_BODY_BYTES + 1)},
        {"body": "text"},
        *({"name": name} for name in ("../x", "", "x" * 5000, 1)),
        *({"state": {"version": version}} for version in ("x", "F" * 18)),
        *({"state": {"size": size}} for size in (-2, 1.5)),
        {"state": {"attributes": bytes(1_000_000)}},
    ],
    ids=str,
)
async def test_rows_with_impossible_values_are_refused(target: Target, receiver: CopyReceiver, changes: Any) -> None:
    with pytest.raises((BadRequest, BadName)) as caught:
        await CopyHandlers(receiver, NO_PUBLICATIONS).take(exchange(packed(**changes)), ())
    assert caught.value.status == 400
    assert target.disk.totals() == (0, 0)


@pytest.mark.parametrize(
    "state", [{"checksum": ""}, {"checksum": "../../etc"}, {"checksum": "0" * 32}, {"version": "f" * 18}], ids=str
)
async def test_rows_that_contradict_themselves_store_nothing(target: Target, receiver: CopyReceiver, state: Any) -> None:
    """Another checksum than that of the body; a version beyond the end of time."""
    answer = await CopyHandlers(receiver, NO_PUBLICATIONS).take(exchange(packed(state=state)), ())
    assert msgspec.msgpack.decode(answer.body, type=CopiesTaken).outcomes == ["refused"]
    assert target.disk.totals() == (0, 0)


async def test_the_size_of_a_body_is_its_own(target: Target, receiver: CopyReceiver) -> None:
    """The checksum has been compared, so it is the right body whatever its sender says."""
    await CopyHandlers(receiver, NO_PUBLICATIONS).take(exchange(packed(state={"size": 1 << 62})), ())
    assert target.disk.totals() == (1, 3)


GOOD_QUERY = {"kind": "commit", "of": "d2", "version": V1, "durability": "fsync", "pending": "0", "node": "t2", "map": "1"}
TOO_LONG = base64.b64encode(bytes(100_000)).decode()
GOOD_HEADERS = {CHECKSUM_HEADER: f"xxh3-128={checksum_of(LARGE)}", ATTRIBUTES_HEADER: base64.b64encode(b"\x80").decode()}


async def put(receiver: CopyReceiver, *path: str, headers: dict[str, str] | None = None, length: int | None = len(LARGE),
              **query: str) -> CopiesTaken:  # fmt: skip
    made = exchange(headers=GOOD_HEADERS if headers is None else headers, length=length, **{**GOOD_QUERY, **query})
    made.receive = Sent(LARGE).receive
    answer = await CopyHandlers(receiver, NO_PUBLICATIONS).put(made, path or ("d1", BUCKET, NAME))
    return msgspec.msgpack.decode(answer.body, type=CopiesTaken)


async def test_a_body_as_it_is_on_the_wire(target: Target, receiver: CopyReceiver) -> None:
    assert (await put(receiver)).outcomes == ["taken"]
    row = target.disk.find(BUCKET, NAME)
    assert (row.version, row.size, row.attributes) == (V1, len(LARGE), b"\x80")
    assert target.disk.copies.publisher(BUCKET, NAME) == ""
    assert (await put(receiver, version=V2, job="job-1")).outcomes == ["taken"]
    assert target.disk.copies.publisher(BUCKET, NAME) == "job-1"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"kind": kind} for kind in ("", "put")),
        {"of": "../d2"},
        *({"version": version} for version in ("", V1 + "0")),
        {"durability": ""},
        {"pending": "yes"},
        {"job": "../job"},
        *({"map": version} for version in ("", "-1", "1" * 30, "١")),
        {"length": None},
        {"headers": {}},
        {"headers": {**GOOD_HEADERS, CHECKSUM_HEADER: "md5=0"}},
        *({"headers": {**GOOD_HEADERS, ATTRIBUTES_HEADER: text}} for text in ("!", TOO_LONG, "é")),
    ],
    ids=str,
)
async def test_bodies_with_an_impossible_head_are_refused(target: Target, receiver: CopyReceiver, wrong: Any) -> None:
    with pytest.raises(BadRequest):
        await put(receiver, **wrong)
    assert target.disk.totals() == (0, 0)


@pytest.mark.parametrize("path", [("../d1", BUCKET, NAME), ("d1", "a/b", NAME), ("d1", BUCKET, "../x"), ("d1", BUCKET, "")])
async def test_bodies_for_impossible_places_are_refused(target: Target, receiver: CopyReceiver, path: Any) -> None:
    with pytest.raises((BadRequest, BadName)):
        await put(receiver, *path)
    assert target.disk.totals() == (0, 0)
