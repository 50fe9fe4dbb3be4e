"""What the access to DFC's own faces keeps from browsers: other people's pages, workers, and caches on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from one_face import serving

from dfc.config import Settings
from dfc.http.answers import Answer, StreamAnswer
from dfc.http.exchange import Exchange
from dfc.http.faces import Route, Sessions

TOKEN = "sesame"


async def answered(exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
    if exchange.target_path == "/kept":
        return Answer(200, b"x", (("Cache-Control", "max-age=60"), ("Vary", "Accept")))
    if exchange.target_path == "/stream":
        return StreamAnswer(200, pieces(), ())
    return Answer(200, b"x")


async def pieces() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(port=0, access_log=False, drain_timeout_s=2.0, token=TOKEN)
    server = serving(settings, [], Route("/", dict.fromkeys(("GET", "HEAD", "PUT"), answered), query=None))
    server.bind()
    await server.serve()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, timeout=20) as made:
        yield made
    await server.stop()


def cookie() -> str:
    said = Sessions(TOKEN).begin(TOKEN)
    assert said is not None
    return said.partition(";")[0]


async def test_every_answer_is_for_pages_of_this_node(client: httpx.AsyncClient) -> None:
    answers = [await client.get(path) for path in ("/x", "/stream", "/v1/none")]
    answers += [await client.head("/x"), await client.put("/x"), await client.get("/x", headers={"A": "b" * 100_000})]
    assert [each.status_code for each in answers] == [200, 200, 404, 200, 401, 400]
    assert {each.headers["Cross-Origin-Resource-Policy"] for each in answers} == {"same-origin"}


async def test_nothing_becomes_a_service_worker(client: httpx.AsyncClient) -> None:
    answer = await client.get("/x.js", headers={"Service-Worker": "script"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("scheme", "forwarded", "status"),
    [
        ("http", "", 200),
        ("https", "", 200),
        ("https", "https", 200),
        ("http", "http", 200),
        ("http", "HTTPS", 403),
        ("ftp", "", 403),
    ],
)
async def test_a_page_that_came_without_tls_is_not_ours_where_others_come_by_tls(
    client: httpx.AsyncClient, scheme: str, forwarded: str, status: int
) -> None:
    headers = {"Origin": f"{scheme}://{client.base_url.netloc.decode()}", "Authorization": f"Bearer {TOKEN}"}
    if forwarded:
        headers["X-Forwarded-Proto"] = forwarded
    assert (await client.put("/x", headers=headers)).status_code == status


async def test_what_a_session_has_read_is_kept_by_no_cache_on_the_way(client: httpx.AsyncClient) -> None:
    mine = {"Cookie": cookie()}
    for path in ("/x", "/stream"):
        headers = (await client.get(path, headers=mine)).headers
        assert (headers["Cache-Control"], headers["Vary"]) == ("private", "Cookie")
        assert not (await client.get(path, headers={"Cookie": "a=b"})).headers.keys() & {"cache-control", "vary"}
    headers = (await client.get("/kept", headers=mine)).headers
    assert (headers["Cache-Control"], headers["Vary"]) == ("max-age=60", "Accept"), "its own rules are those of pages"
