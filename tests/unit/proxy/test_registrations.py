"""Two processes with one id: the one that runs stays, and one that was started anew is taken at once."""

from __future__ import annotations

import pytest
from harness import until
from stepped import LEASE_S

from dfc.errors import IdInUse, Unavailable
from dfc.proxy.cluster import FOREIGN_S

TWIN = {"url": "http://t1:2", "process": "second"}


async def beat(proxy, **fields):
    return await proxy.beat(1, **{"process": "first", "url": "http://t1", **fields})


async def test_a_copy_of_a_target_that_runs_is_refused(proxy):
    assert (await beat(proxy)).lease_s
    with pytest.raises(IdInUse, match="target t1 runs at http://t1 already"):
        await beat(proxy, **TWIN)
    assert proxy.cluster.twins() == {"t1": "http://t1:2"}
    assert proxy.cluster.map.node("t1").url == "http://t1"
    assert (await beat(proxy)).lease_s, "the one that runs goes on"
    proxy.seconds += FOREIGN_S + 1
    assert proxy.cluster.twins() == {}


async def test_one_that_may_still_run_is_not_replaced_before_its_lease_is_over(proxy, monkeypatch):
    """It hangs, or is cut off from here alone: by its clock it may write."""
    await beat(proxy)

    for answer in (Unavailable("cannot reach it: TimeoutError"), b"too many connections", b"{}"):

        async def fetch(*_, answer=answer, **__):
            if isinstance(answer, Exception):
                raise answer
            return 503, "text/plain", answer

        monkeypatch.setattr(proxy, "fetch", fetch)
        with pytest.raises(Unavailable, match="may still run there"):
            await beat(proxy, **TWIN)
    assert proxy.cluster.map.node("t1").url == "http://t1"
    proxy.seconds += LEASE_S + 1
    await beat(proxy, **TWIN)
    assert proxy.cluster.map.node("t1").url == TWIN["url"]


async def test_two_at_one_address_are_told_by_their_turns(proxy):
    await beat(proxy)
    await beat(proxy, process="second")  # as after a restart
    with pytest.raises(Unavailable):  # which may be a word that came late
        await beat(proxy)
    assert proxy.cluster.twins() == {}
    assert (await beat(proxy, process="second")).lease_s
    with pytest.raises(IdInUse):
        await beat(proxy)
    assert (await beat(proxy, process="second")).lease_s
    assert proxy.cluster.twins() == {"t1": "http://t1"}


@pytest.mark.parametrize("why", ["ended", "silent", "leaving", "same address", "unknown process", "another answers"])
async def test_a_target_that_was_started_anew_is_taken_at_once(proxy, why, monkeypatch):
    await beat(proxy, leaving=why == "leaving", process="" if why == "unknown process" else "first")
    if why == "ended":
        proxy.deaf.add("t1")
    elif why == "silent":
        proxy.seconds += 20  # it has no lease any more, whatever it does
    elif why == "another answers":

        async def fetch(*_, **__):
            return 200, "application/json", b'{"ready": true, "id": "t7"}'

        monkeypatch.setattr(proxy, "fetch", fetch)
    anew = {**TWIN, "url": "http://t1"} if why == "same address" else TWIN
    await beat(proxy, **anew)
    assert proxy.cluster.map.node("t1").url == anew["url"]
    assert proxy.cluster.twins() == {}


# --- disks that were put back to an earlier state


@pytest.fixture
def older(proxy):
    """What is known of disks, by a proxy that looks at it."""
    found: dict[str, int] = {}
    proxy.registrations._check_epochs = lambda said: dict(found)
    return found


async def test_a_target_whose_disk_was_put_back_gets_no_lease_and_is_told(proxy, older):
    assert (await beat(proxy)).lease_s
    older["d1"] = 7
    answer = await beat(proxy)
    assert (answer.lease_s, answer.older) == (0.0, {"d1": 7})
    assert "disk d1 was put back to an earlier state" in answer.why_no_lease
    await until(lambda: proxy.states()[1] == "down")  # at once: others take over
    older.clear()
    assert (await beat(proxy)).lease_s


async def test_a_new_coordinator_that_has_heard_nothing_else_declares_it_down_as_well(proxy, older):
    older["d1"] = 7
    await beat(proxy)
    await until(lambda: proxy.states()[1] == "down")


async def test_what_only_it_had_has_to_be_accepted(proxy):
    assert (await beat(proxy)).lease_s
    answer = await beat(proxy, rolled_back=("d1",), unaccepted=("d1",))
    assert answer.lease_s == 0.0
    assert "dfc disk accept" in answer.why_no_lease
    assert proxy.states()[1] == "up", "what it has is read, and marked"
    assert (await beat(proxy)).lease_s


async def test_objects_with_copies_are_served_by_others_until_then(proxy):
    await proxy.cluster.create_bucket("two", 2, "fsync")
    assert (await beat(proxy, rolled_back=("d1",))).lease_s, "nothing is to be accepted"
    assert not (await beat(proxy, rolled_back=("d1",), unaccepted=("d1",))).lease_s
    await until(lambda: proxy.states()[1] == "down")
