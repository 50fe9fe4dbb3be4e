"""Clients that are given several addresses of a cluster: what a dead one costs, what survives the death of another."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from doors import BlackHole, Door, Knocks, NoDoor
from fake_node import FakeCluster, quicken

from dfc.client import AsyncClient, Client
from dfc.errors import BadRequest, NotFound, PreconditionFailed, Unreachable

Doors = tuple[Door, Door]
ENOUGH_S = 5.0  # a dead address may cost a second; without the limit it would be five


def client_of(*urls: str) -> Client:
    made = Client(",".join(urls), "secret")
    quicken(made)
    return made


@pytest.fixture
def knocks(monkeypatch: pytest.MonkeyPatch) -> Knocks:
    return Knocks(monkeypatch)


@pytest.fixture
def doors(fake: FakeCluster) -> Iterator[Doors]:
    """Two names of the one proxy. Its target cannot be reached from here, so that objects go through a door, too."""
    with NoDoor() as nowhere, Door(fake.url) as first, Door(fake.url) as second:
        fake.target.advertise_url = nowhere.url
        yield first, second


def test_a_list_is_checked() -> None:
    for wrong in ("", ",", "http://a,b:1", "http://a,http://b/x", "http://a,ftp://b"):
        with pytest.raises(BadRequest):
            Client(wrong)
    with Client("http://a:1/, http://b:1") as client:
        assert client.url == "http://a:1,http://b:1"


@pytest.mark.parametrize("kind", [NoDoor, BlackHole])
def test_a_dead_address_is_tried_once_a_process(fake: FakeCluster, knocks: Knocks, kind: type[NoDoor]) -> None:
    fake.proxy.objects["b", "x"] = b"data"
    with kind() as dead:
        begun_s = time.monotonic()
        for _ in range(2):
            with client_of(dead.url, fake.url) as client:
                assert client.get("b", "x") == b"data"
                assert [info.name for info in client.list("b")] == ["x"]
                client.create_bucket("b")
        assert time.monotonic() - begun_s < ENOUGH_S
        assert knocks.at(dead) == 1


def test_a_name_that_nobody_knows(fake: FakeCluster) -> None:
    fake.proxy.objects["b", "x"] = b"data"
    with client_of("http://no-such-host.invalid:1", fake.url) as client:
        assert client.get("b", "x") == b"data"


def test_a_name_that_cannot_be_one() -> None:
    """Also the last address, whose look-up has no limit, fails with an error of ours."""
    with NoDoor() as dead, Client(f"{dead.url},http://a..b:1", retries=0) as client:
        with pytest.raises(Unreachable, match=r"none of the 2 addresses answered: .*Connection refused; .*a\.\.b"):
            client.list_buckets()


def test_bulk_bytes_come_through_whichever_door_is_open(doors: Doors, body: bytes) -> None:
    first, second = doors
    with client_of(first.url, second.url) as client:
        client.put("b", "x", body)
        first.shut()
        client.put("b", "y", body)
        assert client.get("b", "x") == client.get("b", "y") == body
        came = first.came
        first.open()
        assert client.get("b", "y") == body
        assert first.came == came  # the other one answered last
        second.shut()
        assert client.get("b", "x") == body
        assert first.came > came


def test_a_read_goes_on_when_the_proxy_dies_in_mid_stream(doors: Doors, body: bytes) -> None:
    first, second = doors
    large = body * 10  # more than all sockets on the way hold
    with client_of(first.url, second.url) as client:
        client.put("b", "x", large)
        with client.open("b", "x") as reader:
            begin = reader.read(1000)
            first.shut()
            assert begin + reader.readall() == large
        assert second.came > 0


def test_an_iterator_is_sent_where_somebody_listens(doors: Doors) -> None:
    first, second = doors
    with client_of(first.url, second.url) as client:
        client.cluster_map()
        first.shut()
        client.put("b", "x", iter([b"only ", b"once"]))
        assert client.get("b", "x") == b"only once"


def test_a_write_whose_answer_is_lost_is_known_to_have_been_done(fake: FakeCluster, doors: Doors) -> None:
    """The next try may go to another address, and is not taken for the first one; nor is one on a kept connection."""
    first, second = doors
    with client_of(first.url, second.url) as client:
        fake.proxy.fail("PUT", hang_up=True, done_first=True)
        assert client.put("b", "x", b"data", if_none_match="*").size == 4
        assert fake.proxy.objects["b", "x"] == b"data"
        fake.proxy.fail("DELETE", hang_up=True, done_first=True)
        client.delete("b", "x")
        with pytest.raises(NotFound):
            client.stat("b", "x")
        assert second.came > 0


def test_what_was_not_sent_is_not_taken_for_a_write_whose_answer_was_lost(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = doors
    with client_of(first.url, second.url) as client:
        client.put("b", "x", b"data")
        for call in (lambda: client.delete("b", "missing"), lambda: client.put("b", "x", b"data", if_none_match="*")):
            first.shut()
            second.shut()
            monkeypatch.setattr(client._calls, "wait", lambda _seconds: first.open())
            with pytest.raises((NotFound, PreconditionFailed)):
                call()


def test_a_write_that_was_sent_on_a_kept_connection_is_not_sent_to_another_address_at_once(
    fake: FakeCluster, doors: Doors
) -> None:
    first, second = doors
    with Client(f"{first.url},{second.url}", "secret", retries=0) as client:
        client.put("b", "x", b"old")
        fake.proxy.log.clear()
        hang = threading.Event()
        fake.proxy.fail("PUT", hang=hang, hang_up=True)

        def end_first() -> None:
            while not fake.proxy.requests("PUT"):
                time.sleep(0.01)
            first.shut()
            hang.set()

        ending = threading.Thread(target=end_first)
        ending.start()
        with pytest.raises(Unreachable):
            client.put("b", "x", b"new")
        ending.join()
        assert len(fake.proxy.requests("PUT")) == 1
        client.put("b", "x", b"new")
        assert fake.proxy.objects["b", "x"] == b"new"


def test_a_job_is_submitted_where_somebody_listens_and_never_twice(fake: FakeCluster, doors: Doors) -> None:
    first, second = doors
    fake.proxy.replies["/v1/jobs"] = json.dumps({"id": "j1", "operation": "stats", "state": "queued"}).encode()
    with client_of(first.url, second.url) as client:
        first.shut()
        assert client.jobs.submit({}).id == "j1"
        assert len(fake.proxy.requests("POST", "/v1/jobs")) == 1
        first.open()
        fake.proxy.fail("POST", hang_up=True)
        with pytest.raises(Unreachable):
            client.jobs.submit({})
        assert len(fake.proxy.requests("POST", "/v1/jobs")) == 2
        assert client.jobs.submit({}).id == "j1"


def test_reads_go_on_when_a_connection_ends_before_an_answer(fake: FakeCluster, doors: Doors) -> None:
    first, second = doors
    first.reset = True
    fake.proxy.replies["/v1/batch"] = b"\0" * 1024
    with Client(f"{first.url},{second.url}", retries=0) as client:
        assert client.cluster_map().cluster_id == "c"
        assert first.came == 1
        second.shut()
        second.open()
        first.reset = False
        assert list(client.batch([{"bucket": "b", "object": "x"}])) == []


def test_events_of_a_job_are_followed_through_another_address(fake: FakeCluster, doors: Doors) -> None:
    first, second = doors
    job = {"id": "j1", "operation": "stats", "state": "succeeded", "finished": "2026-11-01T00:00:00Z"}
    fake.proxy.replies["/v1/jobs/j1/events"] = b"data: " + json.dumps(job).encode() + b"\n\n"
    first.shut()
    with client_of(first.url, second.url) as client:
        assert [job.state for job in client.jobs.events("j1", patient=False)] == ["succeeded"]


def test_when_nobody_answers_all_are_named() -> None:
    with NoDoor() as first, NoDoor() as second, Client(f"{first.url},{second.url}", retries=1) as client:
        with pytest.raises(Unreachable) as raised:
            client.list_buckets()
        message = raised.value.message
        assert message.startswith("none of the 2 addresses answered: http://127.0.0.1:")
        assert f"{first.url}: cannot connect: [Errno 111] Connection refused" in message
        assert f"{second.url}/v1/buckets: cannot connect: [Errno 111] Connection refused" in message


def test_three_that_end_every_connection_are_not_all_there_is(fake: FakeCluster) -> None:
    """The first call of a client gives up soon, but not before each address had its turn."""
    with Door(fake.url) as one, Door(fake.url) as two, Door(fake.url) as three:
        for _ in range(3):
            fake.proxy.fail("PUT", hang_up=True)
        with client_of(one.url, two.url, three.url, fake.url) as client:
            client.create_bucket("b")
        assert (one.came, two.came, three.came) == (2, 2, 2)  # each was probed, which it answered


def test_where_nobody_listens_at_all_one_hears_so_soon(knocks: Knocks) -> None:
    with NoDoor() as one, NoDoor() as two, NoDoor() as three, client_of(one.url, two.url, three.url) as client:
        for call in (client.list_buckets, lambda: client.create_bucket("b")):
            knocks.ports.clear()
            with pytest.raises(Unreachable):
                call()
            assert [knocks.at(door) for door in (one, two, three)] == [2, 2, 2]


async def test_for_asyncio(doors: Doors, body: bytes) -> None:
    first, second = doors
    async with AsyncClient(f"{first.url},{second.url}", "secret") as client:
        quicken(client._blocking)
        await client.put("b", "x", body)
        first.shut()
        found: list[Any] = await asyncio.gather(*(client.get("b", "x") for _ in range(4)))
        assert found == [body] * 4
        assert [info.name async for info in client.list("b")] == ["x"]
