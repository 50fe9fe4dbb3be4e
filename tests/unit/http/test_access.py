"""What the access to DFC's own faces keeps from browsers: other people's pages, workers, caches on the way; and its cookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from http.cookies import SimpleCookie

import httpx
import pytest
from clocks import Clock
from one_face import CALM, client_of, serving

from dfc.http.answers import Answer, StreamAnswer
from dfc.http.exchange import Exchange
from dfc.http.faces import SESSION_S, Route, Sessions

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
    rest = Route("/", dict.fromkeys(("GET", "HEAD", "PUT"), answered), query=None)
    async with client_of(serving(replace(CALM, token=TOKEN), [], rest)) as made:
        yield made


def cookie() -> str:
    return Sessions(TOKEN).begin(TOKEN).partition(";")[0]


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


@pytest.fixture
def clock() -> Clock:
    return Clock(1_800_000_000.0)


def begun(sessions: Sessions, token: str = "sesame") -> str:
    """What a browser sends after it has logged in."""
    (cookie,) = SimpleCookie(sessions.begin(token)).values()
    assert (cookie["path"], cookie["samesite"], cookie["httponly"]) == ("/", "Lax", True)
    assert int(cookie["max-age"]) == SESSION_S
    return f"{cookie.key}={cookie.value}"


def test_a_session_is_one_at_every_node_with_the_token(clock: Clock) -> None:
    cookie = begun(Sessions("sesame", clock))
    assert Sessions("sesame", clock).is_begun(cookie)
    assert Sessions("sesame", clock).is_begun(f"a=b; {cookie}; c=d")
    assert "sesame" not in cookie


@pytest.mark.parametrize("token", ["", "sesam", "sesame ", "Sesame", "sesamé", "\udcff"])
def test_only_the_token_begins_one(clock: Clock, token: str) -> None:
    assert Sessions("sesame", clock).begin(token) is None


def test_without_a_token_there_are_no_sessions(clock: Clock) -> None:
    assert Sessions("", clock).begin("") is None
    assert not Sessions("", clock).is_begun("=")
    assert not Sessions("", clock).is_begun(begun(Sessions("sesame", clock)))


def test_it_runs_out_and_ends_with_the_token(clock: Clock) -> None:
    cookie = begun(Sessions("sesame", clock))
    clock.seconds += SESSION_S - 1
    assert Sessions("sesame", clock).is_begun(cookie)
    clock.seconds += 2
    assert not Sessions("sesame", clock).is_begun(cookie)
    clock.seconds -= 10 * SESSION_S  # it was begun while the clock was far ahead
    assert not Sessions("sesame", clock).is_begun(cookie)


def test_another_token_ends_it_and_has_another_cookie(clock: Clock) -> None:
    one, other = Sessions("sesame", clock), Sessions("other", clock)
    name, _, value = begun(one).partition("=")
    assert other.cookie != name, "clusters on one host share the cookies of a browser"
    assert not other.is_begun(f"{other.cookie}={value}")


def test_what_is_forged_is_none(clock: Clock) -> None:
    sessions = Sessions("sesame", clock)
    name, _, value = begun(sessions).partition("=")
    until, salt, sign = value.split(".")
    for forged in (
        f"{int(until) + 1}.{salt}.{sign}",
        f"{until}.{salt[:-1]}{'1' if salt[-1] == '0' else '0'}.{sign}",
        f"{until}.{salt}.{sign[:-1]}",
        f"{until}.{salt}.{sign.upper() if sign.upper() != sign else sign + '0'}",
        f"{until}.{salt}.",
        f"{until}..{sign}",
        f"-1.{salt}.{sign}",
        "9" * 400,
        "",
        "٣" + value[1:],
    ):
        assert not sessions.is_begun(f"{name}={forged}"), forged
    assert not sessions.is_begun(f"{name}x={value}")
    assert not sessions.is_begun(value)


def test_the_end_of_one_is_a_cookie_that_has_run_out(clock: Clock) -> None:
    sessions = Sessions("sesame", clock)
    (cookie,) = SimpleCookie(sessions.end()).values()
    assert (cookie.key, cookie.value, cookie["max-age"]) == (sessions.cookie, "", "0")
