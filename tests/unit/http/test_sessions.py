"""Cookies of sessions: who has one, for how long, and what is none."""

from __future__ import annotations

from http.cookies import SimpleCookie

import pytest

from dfc.http.faces import SESSION_S, Sessions


class Clock:
    seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begun(sessions: Sessions, token: str = "sesame") -> str:
    """What a browser sends after it has logged in."""
    said = sessions.begin(token)
    assert said is not None
    (cookie,) = SimpleCookie(said).values()
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
