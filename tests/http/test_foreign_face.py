"""A foreign face before a real cluster: its own paths, signatures and errors, and DFC's use cases behind them."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from inprocess import InProcess, until
from toy_face import SIGNATURE, ToyFace, parse_error, signed

from dfc.config import Settings
from dfc.http import relay as relay_module
from dfc.http.peer import PeerPool
from dfc.http.relay import Relay
from dfc.http.server import NodeServer
from dfc.http.transfer import Splice

TOKEN = "of-the-cluster"
LARGE = 100_000_000
MEDIUM = 600_000  # more than is read before it is passed on, less than is read away of a body that nobody wants


class Toy:
    """The cluster, a server with the toy's face beside the proxy's own, and a client of it."""

    def __init__(self, cluster: InProcess) -> None:
        assert cluster.proxy is not None
        self.cluster, self.uses = cluster, cluster.proxy.uses
        settings = Settings(port=0, access_log=False, drain_timeout_s=1, token=TOKEN)
        self.pool = PeerPool(5.0)
        toy = ToyFace(Relay(self.pool, 10.0), self._find, TOKEN).face()
        self.server = NodeServer(settings, [*cluster.proxy.server.faces, toy])
        self.session = aiohttp.ClientSession()

    async def _find(self, method: str, bucket: str, key: str) -> str:
        owners = self.uses.objects.when_ready()
        return (await owners.for_write(bucket, key) if method == "PUT" else owners.of(bucket, key)).url

    async def start(self) -> Toy:
        self.server.bind()
        await self.server.serve()
        self.url = f"http://127.0.0.1:{self.server.port}"
        return self

    async def stop(self) -> None:
        await self.session.close()
        await self.server.stop()
        self.pool.close()

    async def ask(
        self, method: str, path: str, data: bytes | None = None, sign: bool = True, **headers: str
    ) -> tuple[int, aiohttp.ClientResponse, bytes]:
        given = {**(signed(method, path) if sign else {}), **{name.replace("_", "-"): text for name, text in headers.items()}}
        body = None if data is None else io.BytesIO(data)
        async with self.session.request(method, self.url + path, data=body, headers=given) as answer:
            return answer.status, answer, await answer.read()

    async def error(self, method: str, path: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
        status, answer, body = await self.ask(method, path, data, **headers)
        assert answer.headers["Content-Type"] == "application/xml"
        return status, parse_error(body)["Code"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with InProcess(tmp_path, token=TOKEN) as made:
        yield await made.start(2)


@pytest.fixture
async def toy(cluster: InProcess) -> AsyncIterator[Toy]:
    made = Toy(cluster)
    try:
        yield await made.start()
    finally:
        await made.stop()


async def test_objects_through_another_face(toy: Toy) -> None:
    """A client that has never heard of the token stores, reads and deletes; DFC's own faces see the same object."""
    for number in range(8):  # of both targets
        path, body = f"/toy/b/folder/{number}.bin", b"0123456789" * (number + 1)
        status, answer, content = await toy.ask("PUT", path, body)
        assert (status, content) == (200, b"")
        tag = answer.headers["ETag"]
        status, answer, content = await toy.ask("GET", path)
        assert (status, content, answer.headers["ETag"]) == (200, body, tag)
        assert answer.headers["X-Toy-Checksum"].endswith(tag.strip('"'))
        assert not [name for name in answer.headers if name.startswith("X-DFC")]
        status, answer, content = await toy.ask("HEAD", path)
        assert (status, answer.headers["Content-Length"], answer.headers["X-Toy-Status"]) == (200, str(len(body)), "200")
        status, answer, content = await toy.ask("GET", path, Range="bytes=3-5")
        assert (status, content, answer.headers["Content-Range"]) == (206, b"345", f"bytes 3-5/{len(body)}")
        assert (await toy.ask("GET", path, If_None_Match=tag))[0] == 304
        assert await toy.cluster.ask("GET", f"/b/folder/{number}.bin") == (200, body.decode())
        assert (await toy.ask("DELETE", path))[0] == 204
        assert await toy.error("GET", path) == (404, "object_not_found")


async def test_a_large_body_goes_through_by_splice(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    spliced = []

    class Counted(Splice):
        def close(self) -> None:
            spliced.append(self.moved)
            super().close()

    monkeypatch.setattr(relay_module, "Splice", Counted)
    body = os.urandom(1_000_000) * (LARGE // 1_000_000)
    assert (await toy.ask("PUT", "/toy/b/large", body))[0] == 200
    assert sum(spliced) > LARGE * 0.9
    spliced.clear()
    digest = hashlib.sha256()
    async with toy.session.get(toy.url + "/toy/b/large", headers=signed("GET", "/toy/b/large")) as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, str(LARGE))
        async for piece in answer.content.iter_chunked(1 << 20):
            digest.update(piece)
    assert digest.digest() == hashlib.sha256(body).digest()

    async def is_closed() -> bool:
        return bool(spliced)

    await until(is_closed)  # after the last byte has gone, which may be here before
    assert sum(spliced) > LARGE * 0.9
    assert (await toy.ask("GET", "/toy/b/large", Range=f"bytes={LARGE - 5}-"))[2] == body[-5:]


async def test_errors_of_the_node_behind_are_the_faces(toy: Toy) -> None:
    small, large = b"x" * 100, bytes(MEDIUM)
    assert await toy.error("GET", "/toy/none/x") == (404, "bucket_not_found")  # before any node is asked
    status, answer, _ = await toy.ask("PUT", "/toy/b/there", small)
    tag = answer.headers["ETag"]
    assert await toy.error("GET", "/toy/b/none") == (404, "object_not_found")
    assert await toy.error("DELETE", "/toy/b/none") == (404, "object_not_found")
    for body in (small, large):
        assert await toy.error("PUT", "/toy/b/there", body, If_None_Match="*") == (412, "precondition_failed")
        assert await toy.error("PUT", "/toy/b/there", body, If_Match='"' + "0" * 32 + '"') == (412, "precondition_failed")
        assert await toy.error("PUT", "/toy/b/there", body, X_DFC_Checksum="xxh3-128=" + "0" * 32) == (422, "checksum_mismatch")
    status, answer, content = await toy.ask("GET", "/toy/b/there", Range="bytes=200-")
    assert (status, parse_error(content)["Code"]) == (416, "range_not_satisfiable")
    assert answer.headers["Content-Range"] == "bytes */100"
    status, answer, content = await toy.ask("HEAD", "/toy/b/none")
    assert (status, content, answer.headers["Content-Type"]) == (404, b"", "application/xml")
    status, answer, content = await toy.ask("GET", "/toy/b/there")
    assert (content, answer.headers["ETag"]) == (small, tag)  # nothing of all that has changed it


async def test_a_node_that_is_gone(toy: Toy) -> None:
    for number in range(8):
        assert (await toy.ask("PUT", f"/toy/b/{number}", b"x"))[0] == 200
    gone = toy.cluster.targets.pop()
    await gone.stop()
    owners = toy.uses.objects.when_ready()
    lost = [f"/toy/b/{number}" for number in range(8) if owners.of("b", str(number)).id == gone.id]
    assert lost
    for path in lost:
        assert await toy.error("GET", path) == (503, "unavailable")
        assert await toy.error("PUT", path, b"y") == (503, "unavailable")
        assert await toy.error("PUT", path, bytes(MEDIUM)) == (503, "unavailable")
        assert (await toy.ask("HEAD", path))[0] == 503


async def test_who_may_do_what_is_the_faces_word_alone(toy: Toy) -> None:
    assert (await toy.ask("PUT", "/toy/b/x", b"kept"))[0] == 200
    wrong = signed("GET", "/toy/b/y")[SIGNATURE]
    token = {"Authorization": f"Bearer {TOKEN}"}
    for method, body in (("GET", None), ("PUT", b"y"), ("PUT", bytes(MEDIUM)), ("DELETE", None)):
        assert await toy.error(method, "/toy/b/x", body, sign=False) == (403, "forbidden")
        assert await toy.error(method, "/toy/b/x", body, sign=False, X_Toy_Signature=wrong) == (403, "forbidden")
        assert await toy.error(method, "/toy/b/x", body, sign=False, **token) == (403, "forbidden")
    # Nor does a signature of the toy open what wants the token.
    for path in ("/b/x", "/v1/objects/b/x", "/toys/b/x"):
        async with toy.session.put(toy.url + path, data=b"y", headers=signed("PUT", path)) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (401, "unauthorized")
    assert (await toy.ask("GET", "/toy/b/x"))[2] == b"kept"


async def test_names_are_checked_whatever_the_face(toy: Toy) -> None:
    for path in ("/toy/v1/x", "/toy/b%20c/x", "/toy/b/%00", "/toy/b/a%2F%2F..%2Fb"):
        assert await toy.error("PUT", path, b"x") == (400, "bad_name")


async def test_before_the_targets_have_joined_no_face_places_anything(tmp_path: Path) -> None:
    async with InProcess(tmp_path, token=TOKEN) as cluster:
        await cluster.start_proxy(expected_targets=1)
        toy = await Toy(cluster).start()
        try:
            for method, body in (("GET", None), ("PUT", b"x")):
                assert await toy.error(method, "/toy/b/x", body) == (503, "unavailable")
        finally:
            await toy.stop()
