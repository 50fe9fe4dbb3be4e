"""Reads through a proxy of objects with two copies: they go on at the other copy, whatever happens to the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from doors import BlackHole
from fake_node import FakeNode, batch_item, readers_among
from registering import said

from dfc.batch.items import BatchItem
from dfc.config import Settings
from dfc.servers.proxy import ProxyNode

BODY = b"".join(at.to_bytes(4, "big") for at in range(300_000))
SMALL = b"a few bytes"


class Copies:
    """A proxy and two targets that both have the objects of the bucket `b`, with so many copies by the map."""

    def __init__(self, node: ProxyNode, copies: int) -> None:
        self.node = node
        self.copies = copies
        self.targets = [FakeNode("target"), FakeNode("target")]
        self.targets[1].objects = self.targets[0].objects
        self.objects = self.targets[0].objects
        self.objects["b", "large"], self.objects["b", "small"] = BODY, SMALL

    async def start(self) -> None:
        self.url = await self.node.start()
        cluster = self.node.cluster
        for target in self.targets:
            target.replies["/v1/node/map"] = b'{"version":1000000,"step":1000000}'
            await self.say(target, target.url)
        await cluster.bucket_for_write("b")
        await cluster.change_bucket("b", copies=self.copies)
        async with asyncio.timeout(20):
            while len([node for node in cluster.map.targets() if node.state == "up"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def say(self, target: FakeNode, url: str) -> None:
        """Register a target at an address."""
        number, cluster = self.targets.index(target), self.node.cluster
        where = {"url": url, "advertise_url": url}
        # Of a version: as long as nobody has told of any, the first changes after a start wait for that.
        await cluster.hear(said(f"t{number}", (f"d{number}",), cluster.map.cluster_id, map_version=1, **where))

    def readers(self, name: str) -> list[FakeNode]:
        return readers_among(self.targets, self.node.cluster.map, name)

    async def stop(self) -> None:
        await self.node.stop()
        for target in self.targets:
            target.stop()


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    made: list[Copies] = []

    async def make(copies: int = 2, **settings: object) -> Copies:
        chosen = {"down_after_s": 60, "drain_timeout_s": 1, "hold_s": 1.0, "expected_targets": 2, **settings}
        node = ProxyNode(Settings(dir=str(tmp_path), port=0, access_log=False, **chosen))  # type: ignore[arg-type]
        made.append(Copies(node, copies))
        await made[-1].start()
        return made[-1]

    yield make
    for each in made:
        await each.stop()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        yield client


def asked(node: FakeNode, method: str = "GET") -> int:
    return len(node.requests(method, "objects"))


RELAYED = "{url}/v1/objects/b/{name}?relay=1"
WAYS = {
    "killed": lambda node: node.kill(),
    "503": lambda node: [node.fail("GET", status=503) for _ in range(9)],
    "no lease": lambda node: [node.fail("GET", status=503, code="no_lease") for _ in range(9)],
    "421": lambda node: [node.fail("GET", status=421, code="not_the_primary", headers={"X-DFC-Map": "9"}) for _ in range(9)],
    "500": lambda node: [node.fail("GET", status=500, code="object_corrupt") for _ in range(9)],
    "hangs up": lambda node: [node.fail("GET", hang_up=True) for _ in range(9)],
}


@pytest.mark.parametrize("name", ["small", "large"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_read_goes_on_at_the_other_copy(make, http: httpx.AsyncClient, way: str, name: str) -> None:
    copies = await make()
    first, second = copies.readers(name)
    url = RELAYED.format(url=copies.url, name=name)
    assert (await http.get(url)).content == copies.objects["b", name]
    assert (asked(first), asked(second)) == (1, 0)
    await asyncio.to_thread(WAYS[way], first)
    begun_s = time.monotonic()
    for _ in range(3):
        answer = await http.get(url)
        assert (answer.status_code, answer.content) == (200, copies.objects["b", name])
    assert time.monotonic() - begun_s < 1
    assert asked(second) == 3


async def test_ranges_heads_and_members_too(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("large")
    await asyncio.to_thread(first.kill)
    url = RELAYED.format(url=copies.url, name="large")
    part = await http.get(url, headers={"Range": "bytes=5-8"})
    assert (part.status_code, part.content) == (206, BODY[5:9])
    head = await http.head(url)
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(BODY)))
    await http.get(url + "&member=a")
    assert second.requests("GET", "objects")[-1][0].endswith("member=a")


async def test_the_mark_of_a_stale_answer_is_passed_on(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("small")
    await asyncio.to_thread(first.kill)
    second.extra["X-DFC-Possibly-Stale"] = "1"
    assert (await http.get(RELAYED.format(url=copies.url, name="small"))).headers["X-DFC-Possibly-Stale"] == "1"


async def test_a_machine_that_is_gone_costs_one_second_once(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("small")
    url = RELAYED.format(url=copies.url, name="small")
    with BlackHole() as hole:
        await copies.say(first, hole.url)
        begun_s = time.monotonic()
        for _ in range(5):
            assert (await http.get(url)).content == SMALL
        assert time.monotonic() - begun_s < 2
    assert asked(second) == 5


async def test_redirects_do_not_lead_to_who_refused_just_now(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("small")
    plain = f"{copies.url}/v1/objects/b/small"
    assert (await http.get(plain)).headers["Location"].startswith(first.url)
    await asyncio.to_thread(first.kill)
    assert (await http.get(f"{plain}?relay=1")).content == SMALL
    for url in (plain, f"{copies.url}/b/small?redirect=1"):
        for method in ("GET", "HEAD"):
            answer = await http.request(method, url)
            assert (answer.status_code, answer.headers["Location"].startswith(second.url)) == (307, True)
    for method in ("PUT", "DELETE"):  # which only the first decides about
        answer = await http.request(method, plain)
        assert (answer.status_code, answer.headers["Location"].startswith(first.url)) == (307, True)


async def test_what_both_refuse_is_refused_by_their_own_answer(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("small")
    for _ in range(9):
        first.fail("GET", status=503, code="no_lease", headers={"Retry-After": "7"})
        second.fail("GET", status=503, code="unavailable")
    answer = await http.get(RELAYED.format(url=copies.url, name="small"))
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["Retry-After"]) == (503, "no_lease", "7")
    await asyncio.to_thread(second.kill)
    answer = await http.get(RELAYED.format(url=copies.url, name="small"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_lease")


async def test_a_final_answer_is_nobody_elses(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("none")
    assert (await http.get(RELAYED.format(url=copies.url, name="none"))).status_code == 404
    first.fail("GET", status=421, code="misdirected")
    assert (await http.get(RELAYED.format(url=copies.url, name="none"))).status_code == 421
    assert asked(second) == 0


async def test_when_nobody_can_be_reached_the_read_is_held(make, http: httpx.AsyncClient) -> None:
    copies = await make(hold_s=10.0)
    first, second = copies.readers("small")
    for node in (first, second):
        await asyncio.to_thread(node.kill)
    reading = asyncio.create_task(http.get(RELAYED.format(url=copies.url, name="small")))
    await asyncio.sleep(0.5)
    assert not reading.done()
    back = FakeNode("target")
    back.objects = copies.objects
    try:
        await copies.say(second, back.url)
        assert (await reading).content == SMALL
    finally:
        await asyncio.to_thread(back.stop)


async def test_writes_go_to_the_first_alone(make, http: httpx.AsyncClient) -> None:
    copies = await make()
    first, second = copies.readers("new")
    assert (await http.put(RELAYED.format(url=copies.url, name="new"), content=b"new")).status_code == 201
    first.fail("PUT", status=503)
    assert (await http.put(RELAYED.format(url=copies.url, name="new"), content=b"newer")).status_code == 503
    assert (await http.delete(RELAYED.format(url=copies.url, name="new"))).status_code == 204
    assert (asked(second, "PUT"), asked(second, "DELETE")) == (0, 0)
    await asyncio.to_thread(first.kill)
    assert (await http.put(RELAYED.format(url=copies.url, name="new"), content=b"new")).status_code == 503
    assert asked(second, "PUT") == 0


async def test_one_copy_is_asked_of_its_owner_alone(make, http: httpx.AsyncClient) -> None:
    copies = await make(copies=1)
    (owner,) = copies.readers("small")
    owner.fail("GET", status=503)
    url = RELAYED.format(url=copies.url, name="small")
    assert (await http.get(url)).status_code == 503
    assert asked(owner) == 1
    await asyncio.to_thread(owner.kill)
    begun_s = time.monotonic()
    assert (await http.get(url)).status_code == 503
    assert 0.7 < time.monotonic() - begun_s < 5  # it was held
    assert all(not node.requests("GET", "objects") for node in copies.targets if node is not owner)


def batch(*names: str) -> bytes:
    return msgspec.json.encode({"items": [{"bucket": "b", "object": name} for name in names]})


@pytest.mark.parametrize("way", ["killed", "503", "cut"])
async def test_batches_go_on_at_the_other_copy(make, http: httpx.AsyncClient, way: str) -> None:
    copies = await make()
    names = ["large", "small", "large", *(f"n{number}" for number in range(20)), "large"]
    for name in names[3:-1]:
        copies.objects["b", name] = name.encode() * 1000
    wanted = b"".join(batch_item(BatchItem("b", name), copies.objects["b", name]) for name in names) + bytes(1024)
    body = batch(*names)
    assert (await http.post(f"{copies.url}/v1/batch", content=body)).content == wanted
    first, second = copies.readers("large")
    if way == "killed":
        await asyncio.to_thread(first.kill)
    elif way == "503":
        first.fail("POST", status=503)
    else:
        first.fail("POST", cut_after=1_500_000)
    before = len(second.requests("POST", "/v1/node/batch"))
    begun_s = time.monotonic()
    answer = await http.post(f"{copies.url}/v1/batch", content=body)
    assert (answer.status_code, answer.content) == (200, wanted)
    assert time.monotonic() - begun_s < 2
    assert len(second.requests("POST", "/v1/node/batch")) > before


async def test_buckets_have_as_many_copies_as_the_setting_says(make, http: httpx.AsyncClient) -> None:
    copies = await make(default_copies=2)
    made = await http.put(f"{copies.url}/v1/buckets/settings")
    assert (made.status_code, made.json()["copies"], made.json()["min_copies"]) == (201, 2, 1)
    made = await http.put(f"{copies.url}/v1/buckets/one", json={"copies": 1})
    assert (made.status_code, made.json()["copies"]) == (201, 1)
    assert (await copies.node.cluster.bucket_for_write("first-put")).copies == 2


async def test_a_bucket_needs_enough_targets_for_its_default(make, http: httpx.AsyncClient) -> None:
    """Nobody gets a bucket with fewer copies than the operator wanted."""
    copies = await make()
    copies.node.cluster.default_copies = 3
    for answer in (
        await http.put(f"{copies.url}/v1/buckets/new"),
        await http.put(f"{copies.url}/new/x", content=b"abc"),
        await http.post(f"{copies.url}/v1/node/buckets/new/ensure"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "too_few_domains")
    assert copies.node.cluster.map.bucket("new") is None
