"""The asynchronous client: the same calls, and cancellation."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_node import quicken

from dfc.checksum import checksum_of
from dfc.client import AsyncClient, aio
from dfc.errors import ObjectNotFound


@pytest.fixture
async def aclient(fake: Any) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(fake.url, "secret") as made:
        quicken(made._blocking)
        yield made


async def test_objects(fake: Any, aclient: AsyncClient, body: bytes, tmp_path: Path) -> None:
    assert (await aclient.put("b", "x", body)).checksum == checksum_of(body)
    assert await aclient.get("b", "x") == body
    assert await aclient.get("b", "x", start=3, length=4) == body[3:7]
    assert (await aclient.stat("b", "x")).size == len(body)
    await aclient.get_to_file("b", "x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == body
    await aclient.delete("b", "x")
    with pytest.raises(ObjectNotFound):
        await aclient.get("b", "x")


async def test_reader(aclient: AsyncClient, body: bytes) -> None:
    await aclient.put("b", "x", body)
    async with await aclient.open("b", "x") as reader:
        buffer = bytearray(1_000_000)
        whole = b""
        while count := await reader.readinto(buffer):
            whole += buffer[:count]
        assert whole == body
        reader.seek(-3, io.SEEK_END)
        assert reader.tell() == len(body) - 3
        assert await reader.read() == body[-3:]
        assert await reader.read() == b""
        assert reader.info.size == len(body)


async def test_many_at_once(aclient: AsyncClient) -> None:
    await asyncio.gather(*(aclient.put("b", f"{at}", str(at).encode()) for at in range(100)))
    found = await asyncio.gather(*(aclient.get("b", f"{at}") for at in range(100)))
    assert found == [str(at).encode() for at in range(100)]
    assert len([info async for info in aclient.list("b")]) == 100


async def test_an_asynchronous_body(fake: Any, aclient: AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(5):
            await asyncio.sleep(0)
            yield bytes([at]) * 1000

    await aclient.put("b", "x", pieces())
    assert len(fake.target.objects["b", "x"]) == 5000


async def test_an_asynchronous_body_that_fails_stores_nothing(fake: Any, aclient: AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"1"
        raise TimeoutError("own")

    with pytest.raises(TimeoutError, match="own"):
        await aclient.put("b", "x", pieces())
    assert fake.target.objects == {}


async def test_shards_and_buckets(fake: Any, aclient: AsyncClient) -> None:
    lines = b"".join(b'{"key": "%d", "members": {}}\n' % at for at in range(1000))
    fake.target.replies["/v1/objects/b/x.tar?list=samples"] = lines
    fake.target.replies["/v1/objects/b/x.tar?list=members"] = b'{"name": "a", "offset": 0, "size": 1}\n'
    fake.target.replies["/v1/objects/b/x.tar?member=a"] = b"1"
    fake.target.replies["/v1/objects/b/x.tar?sample=a&ext=b"] = b"2"
    fake.proxy.replies["/v1/buckets/b/samples"] = b'{"shard": "x", "key": "k"}\n'
    fake.proxy.replies["/v1/buckets"] = b'{"buckets": []}'
    fake.proxy.replies["/v1/buckets/b"] = json.dumps({"name": "b"}).encode()
    assert [info.key async for info in aclient.samples("b", "x.tar")] == [str(at) for at in range(1000)]
    assert [info.name async for info in aclient.members("b", "x.tar")] == ["a"]
    assert [info.key async for info in aclient.keys("b", "x/")] == ["k"]
    assert await aclient.read_member("b", "x.tar", "a") == b"1"
    assert await aclient.read_sample_member("b", "x.tar", "a", "b") == b"2"
    assert await aclient.list_buckets() == ()
    assert (await aclient.bucket("b")).name == "b"
    await aclient.create_bucket("b")
    await aclient.change_bucket("b", durability="fsync")
    await aclient.delete_bucket("b")
    assert len((await aclient.cluster_map()).nodes) == 2
    async for info in aclient.samples("b", "x.tar"):
        assert info.key == "0"
        break


async def test_cancelling_ends_the_transfer(fake: Any, aclient: AsyncClient, body: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr(aio, "CANCEL_WAIT_S", 30.0)
    await aclient.put("b", "x", body)
    hang = threading.Event()
    fake.target.fail("GET", hang=hang)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await aclient.get("b", "x")
    assert time.monotonic() - start < 10  # at once, not after the wait for a stuck thread
    hang.set()
    assert await aclient.get("b", "x") == body


async def test_cancelling_a_read_of_an_open_reader(fake: Any, aclient: AsyncClient, body: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr(aio, "CANCEL_WAIT_S", 30.0)
    await aclient.put("b", "x", body)
    hang = threading.Event()
    fake.target.fail("GET", cut_after=0)
    async with await aclient.open("b", "x") as reader:
        fake.target.fail("GET", hang=hang)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read()
        assert time.monotonic() - start < 10
        hang.set()


async def test_cancelling_an_upload_that_waits_for_its_body(fake: Any, aclient: AsyncClient) -> None:
    never = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"1"
        await never.wait()
        yield b"2"

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await aclient.put("b", "x", pieces())
    assert fake.target.objects == {}
