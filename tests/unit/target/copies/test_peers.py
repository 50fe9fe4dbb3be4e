"""Calls to other targets about copies, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from copied import BUCKET, V1, Target, item, key_of, map_of, name_with, state_of

from dfc.http.peer import ControlClient
from dfc.limits import DISK_WRITE_THREADS
from dfc.target.copies import peers as peers_module
from dfc.target.copies.messages import CopiesSent, CopiesTaken, CopyKey, NameReply
from dfc.target.copies.peers import Peers

NAME = name_with("d1", "d2")
BODY = bytes(range(256)) * 2000
TO_D2 = {"of": "d1", "to": "d2"}


class OtherTarget:
    """Target t2: `answer` handles each request, `bodies` are those of PUT."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.answer: Callable[[web.Request], web.Response] = lambda request: web.Response(status=404)
        self.handle: Callable[[web.Request], Awaitable[web.Response]] | None = None  # instead
        self.bodies: list[bytes] = []
        application = web.Application(client_max_size=0)
        application.router.add_route("*", "/{tail:.*}", self._handle)
        self.server = TestServer(application)
        self.control = ControlClient("", 5.0)
        self.peers = Peers(target.local, self.control, "")

    async def start(self) -> None:
        await self.server.start_server()
        found, url = map_of(2), str(self.server.make_url("")).rstrip("/")
        nodes = (msgspec.structs.replace(node, url=url) if node.id == "t2" else node for node in found.nodes)
        self.target.take_map(msgspec.structs.replace(found, nodes=tuple(nodes)))

    async def stop(self) -> None:
        await self.peers.close()
        await self.control.close()
        await self.server.close()

    async def _handle(self, request: web.Request) -> web.Response:
        if self.handle is not None:
            return await self.handle(request)
        self.bodies.append(await request.read())
        return self.answer(request)


@pytest.fixture
async def other(target: Target) -> AsyncIterator[OtherTarget]:
    made = OtherTarget(target)
    await made.start()
    yield made
    await made.stop()


def packed(value: Any) -> web.Response:
    return web.Response(body=msgspec.msgpack.encode(value))


async def test_bodies_need_no_thread_that_other_targets_wait_for(target: Target, other: OtherTarget) -> None:
    """If both sides had all their threads for writes in use for bodies to each other, nobody could take one."""
    state = target.write(NAME, BODY)
    release, threads = threading.Event(), target.local.threads(target.disk)
    writes = [asyncio.create_task(threads.write(release.wait)) for _ in range(DISK_WRITE_THREADS)]
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(20):
            other.answer = lambda request: packed(CopiesTaken(["taken"]))
            sent = item(NAME, state.version, BODY, **TO_D2)
            assert await other.peers.stream(sent, target.disk, state.row) == "taken"  # type: ignore[arg-type]
            other.answer = lambda request: web.Response(body=BODY)
            writer = await other.peers.fetch(CopyKey("d2", BUCKET, NAME), state_of(V1, BODY), target.disk, "fsync")
    finally:
        release.set()
        await asyncio.gather(*writes)
    assert other.bodies == [BODY, b""]
    assert writer.received == len(BODY)
    writer.abort()


@pytest.mark.parametrize("job", ["", "job-1"])
async def test_a_target_of_the_version_before_is_told_nothing_that_it_does_not_know(
    target: Target, other: OtherTarget, job: str
) -> None:
    """While a cluster is updated: it refuses parameters that are new."""
    state, queries = target.write(NAME, BODY), list[set[str]]()

    def answer(request: web.Request) -> web.Response:
        queries.append(set(request.query))
        return packed(CopiesTaken(["taken"]))

    other.answer = answer
    sent = item(NAME, state.version, BODY, **TO_D2, job=job)
    assert await other.peers.stream(sent, target.disk, state.row) == "taken"  # type: ignore[arg-type]
    known = {"kind", "of", "version", "durability", "pending", "node", "map"}
    assert queries == [known | {"job"} if job else known]


async def test_an_answer_that_is_too_long_is_none(other: OtherTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    told = NameReply(state_of(V1, b"x"), speaks=True)
    other.answer = lambda request: packed({"replies": [told]})
    key = key_of(NAME, "d2")
    assert await other.peers.state(key) == told
    monkeypatch.setattr(peers_module, "COPY_ANSWER_BYTES_MAX", 10)
    assert await other.peers.state(key) is None


async def test_a_disk_that_does_not_answer_is_silent_until_it_does(
    target: Target, other: OtherTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CALL_S", 0.1)
    state, hangs = target.write(NAME, BODY), True

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        if hangs:
            await asyncio.sleep(0.5)
        return packed(CopiesTaken(["refused"]))

    other.handle = handle
    sent = item(NAME, state.version, b"body", **TO_D2)
    assert await other.peers.send(sent) is None
    assert other.peers.reached.silent() == ["d2"]
    hangs = False
    assert await other.peers.send(sent) == "refused"
    assert other.peers.reached.silent() == []
    other.peers.reached.heard("d2", answers=False)
    monkeypatch.setattr(peers_module, "SILENT_S", 0.0)
    assert other.peers.reached.silent() == [], "that was long ago"


async def test_a_refusal_of_the_request_is_an_answer(target: Target, other: OtherTarget) -> None:
    state = target.write(NAME, BODY)
    other.answer = lambda request: web.Response(status=503)
    assert await other.peers.send(item(NAME, state.version, b"body", **TO_D2)) is None
    assert other.peers.reached.silent() == []


async def test_a_body_whose_connection_breaks_makes_its_disk_silent(target: Target, other: OtherTarget) -> None:
    state = target.write(NAME, BODY)
    sent = item(NAME, state.version, None, **TO_D2)
    await other.server.close()
    assert await other.peers.stream(sent, target.disk, state.row) is None  # type: ignore[arg-type]
    assert other.peers.reached.silent() == ["d2"]


async def test_rows_that_come_meanwhile_do_not_wait_for_another_time_out(
    target: Target, other: OtherTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "CALL_S", 0.3)

    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return web.Response()

    other.handle = handle
    sent = item(NAME, target.write(NAME, BODY).version, b"body", **TO_D2)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    tasks = []
    for _ in range(5):
        tasks.append(asyncio.create_task(other.peers.send(sent)))
        await asyncio.sleep(0.02)
    assert await asyncio.gather(*tasks) == [None] * 5
    assert loop.time() - begun_s < 0.55


async def test_a_row_whose_sender_has_left_is_not_sent(target: Target, other: OtherTarget) -> None:
    going_on, names = asyncio.Event(), []

    async def handle(request: web.Request) -> web.Response:
        found = msgspec.msgpack.decode(await request.read(), type=CopiesSent)
        names.extend(each.name for each in found.items)
        await going_on.wait()
        return packed(CopiesTaken(["taken"] * len(found.items)))

    other.handle = handle
    state = target.write(NAME, BODY)
    tasks = []
    for number in range(4):
        sent = item(f"o{number}", state.version, b"body", **TO_D2)
        tasks.append(asyncio.create_task(other.peers.send(sent)))
        await asyncio.sleep(0.02)
    tasks[2].cancel()
    await asyncio.sleep(0)
    going_on.set()
    assert await asyncio.gather(*tasks[:2], tasks[3]) == ["taken"] * 3
    assert names == ["o0", "o1", "o3"]


async def test_rows_of_one_disk_do_not_wait_for_those_of_another(other: OtherTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor small ones for a large one, whose body may be late."""
    small, large = item(NAME, V1, b"x", **TO_D2), item(NAME, V1, None, **TO_D2, state=state_of(V1, BODY))
    elsewhere = item(NAME, V1, b"x", of="d1", to="d3")
    release, sent = asyncio.Event(), list[list[Any]]()

    async def send(url: str, items: list[Any]) -> list[Any]:
        sent.append(items)
        if elsewhere in items or large in items:
            await release.wait()
        return ["taken"] * len(items)

    monkeypatch.setattr(other.peers, "_send", send)
    monkeypatch.setattr(other.peers, "node_of", lambda disk: other.target.local.map.node("t2"))
    slow = [asyncio.create_task(other.peers.send(each)) for each in (elsewhere, large) * 4]
    await asyncio.sleep(0)
    async with asyncio.timeout(2):
        assert await other.peers.send(small) == "taken"
        assert await other.peers.send(item(NAME, V1, None, **TO_D2)) == "taken", "a tombstone is small"
    release.set()
    assert await asyncio.gather(*slow) == ["taken"] * 8
    assert all(len({(each.to, each.body is None) for each in items}) == 1 for items in sent)


async def test_who_answers_is_known(other: OtherTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "CALL_S", 0.5)
    before = other.peers.reached.of("d2")
    assert await other.peers.send(item(NAME, V1, b"x", **TO_D2)) is None
    assert other.peers.reached.of("d2").is_silent_since(before)
    assert not other.peers.reached.of("d3").is_silent_since(before)
    other.answer = lambda request: packed(CopiesTaken(["refused"]))
    assert await other.peers.send(item(NAME, V1, b"x", **TO_D2)) == "refused"
    assert not other.peers.reached.of("d2").is_silent_since(before)


@pytest.mark.parametrize("what", ["right", "wrong", "short", "gone", "another version"])
async def test_a_body_is_fetched_only_if_it_is_sound(target: Target, other: OtherTarget, what: str) -> None:
    """What a disk says of an object is no proof of its bytes."""
    wrong = {"wrong": b"x" + BODY[1:], "short": BODY[:-1]}.get(what, BODY)
    status = {"gone": 500, "another version": 404}.get(what, 200)
    other.answer = lambda request: web.Response(status=status, body=wrong if status == 200 else b"")
    writer = await other.peers.fetch(key_of(NAME, "d2"), state_of(V1, BODY), target.disk, "fsync")
    assert (writer is not None) == (what == "right")
    if writer is not None:
        assert writer.version == V1
        writer.abort()
