"""How often a login may be tried."""

from __future__ import annotations

import pytest
from clocks import Clock

from dfc.errors import TooManyLogins
from dfc.ui import rendering
from dfc.ui.rendering import FREE_TRIES, WAIT_S_MAX, LoginTries, checked


def test_each_failed_try_makes_the_next_one_wait_longer() -> None:
    clock = Clock()
    tries = LoginTries(clock)
    waited, told = [], []
    for _ in range(FREE_TRIES + 12):
        began = clock.seconds
        while True:
            try:
                tries.check("10.0.0.1")
                break
            except TooManyLogins as error:
                told.append(int(error.headers["Retry-After"]))
                clock.seconds += 0.5
        waited.append(clock.seconds - began)
        tries.failed("10.0.0.1")
    assert waited[:FREE_TRIES] == [0.0] * FREE_TRIES
    assert waited[FREE_TRIES : FREE_TRIES + 4] == [1.0, 2.0, 4.0, 8.0]
    assert waited[-1] == WAIT_S_MAX
    assert min(told) >= 1
    assert max(told) == WAIT_S_MAX + 1


def test_others_are_not_kept_waiting_but_neighbours_are() -> None:
    tries = LoginTries(Clock())
    for _ in range(FREE_TRIES + 1):
        tries.failed("10.0.0.1")
        tries.failed("2001:db8:1:2::5%eth0")
        tries.failed("somewhere")
    tries.check("10.0.0.2")
    tries.check("2001:db8:1:3::5")
    for address in ("10.0.0.1", "2001:db8:1:2:ffff::1", "somewhere"):
        with pytest.raises(TooManyLogins):
            tries.check(address)


def test_what_is_remembered_is_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "LOGIN_ADDRESSES_MAX", 3)
    clock = Clock()
    tries = LoginTries(clock)
    for number in range(10):
        for _ in range(FREE_TRIES + 1):
            tries.failed(f"10.0.0.{number}")
    assert len(tries._failed) == 3
    tries.check("10.0.0.0")
    clock.seconds += rendering.FORGET_S + 1
    tries.failed("10.0.0.50")
    assert list(tries._failed) == ["10.0.0.50"]


@pytest.mark.parametrize("then", ["/ui", "/ui/buckets", "/ui/buckets/b?prefix=a%2Fb", "/ui?x=1"])
def test_a_page_of_ours_is_shown_after_the_login(then: str) -> None:
    assert checked(then) == then


@pytest.mark.parametrize(
    "then",
    ["", "/", "//evil.example", "/uix", "/\\evil.example", "https://evil.example/ui", "/ui\r\nSet-Cookie: a=b",
     "/ui/\\..", "/ui/é", "/b/object", "javascript:alert(1)"],
)  # fmt: skip
def test_nothing_else_is(then: str) -> None:
    assert checked(then) == "/ui"
