"""How addresses are written, which is asked first, and what is sent to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from clocks import Clock

from dfc.addresses import ANSWERED_S, CONNECT_LIMIT_S, FAILED_S, Addresses, addresses_of, split_addresses
from dfc.errors import BadRequest, DfcError, NotConnected, NotFound, Unavailable, Unreachable
from dfc.http.blocking import Broken, WrongAddress
from dfc.limits import ADDRESSES_MAX


class Servers:
    """What is asked of addresses `a`, `b`, `c`: those with an error raise it after some seconds, others give their name."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.addresses = Addresses(("a", "b", "c"), self.clock)
        self.errors: dict[str, Callable[[str], DfcError]] = {}
        self.took_s: dict[str, float] = {}
        self.asked: list[str] = []
        self.limits: list[float | None] = []
        self.hanging: set[str] = set()
        self.probed: list[str] = []

    def probe(self, url: str, limit_s: float) -> None:
        self.probed.append(url)
        if url in self.hanging:
            self.clock.seconds += limit_s
            raise NotConnected(f"{url} says nothing")

    def attempt(self, url: str, limit_s: float | None) -> str:
        self.asked.append(url)
        self.limits.append(limit_s)
        self.clock.seconds += self.took_s.get(url, 0.0)
        if url in self.errors:
            raise self.errors[url](f"{url} said no")
        return url

    def reach(self, *, repeatable: bool = False) -> list[str]:
        """Whom it takes to get an answer."""
        self.asked.clear()
        self.probed.clear()
        assert self.addresses.reach(self.attempt, self.probe, repeatable=repeatable) == self.asked[-1]
        return list(self.asked)


@pytest.fixture
def servers() -> Servers:
    return Servers()


def test_how_a_list_is_written() -> None:
    assert split_addresses("http://a:1") == ("http://a:1",)
    assert split_addresses(" http://a:1/ ,http://b:2,, http://a:1,") == ("http://a:1", "http://b:2")
    for empty in ("", " , "):
        with pytest.raises(BadRequest, match="no cluster address given"):
            split_addresses(empty)
    many = [f"http://a:{port}" for port in range(1, ADDRESSES_MAX + 2)]
    assert split_addresses(",".join(many[1:])) == tuple(many[1:])
    with pytest.raises(BadRequest, match=f"too many cluster addresses: {ADDRESSES_MAX + 1}, at most {ADDRESSES_MAX}"):
        split_addresses(",".join(many))


def test_all_of_a_process_learn_from_each_other() -> None:
    assert addresses_of("http://a:1, http://b:1/") is addresses_of("http://a:1,http://b:1")
    assert addresses_of("http://b:1,http://a:1") is not addresses_of("http://a:1,http://b:1")


def test_begins_with_the_one_that_answered_last(servers: Servers) -> None:
    servers.errors["a"] = NotConnected
    assert servers.reach() == ["a", "b"]
    assert servers.reach() == ["b"]
    servers.errors.clear()
    servers.clock.seconds += 10 * FAILED_S
    assert servers.reach() == ["b"]


def test_one_that_failed_is_asked_when_the_others_fail_or_after_a_while(servers: Servers) -> None:
    servers.errors["a"] = NotConnected
    servers.reach()
    servers.errors["b"] = NotConnected
    assert servers.reach() == ["b", "c"]
    servers.errors = {"c": NotConnected}
    assert servers.reach() == ["c", "a"]
    servers.errors = {"a": NotConnected}
    servers.clock.seconds += FAILED_S
    assert servers.reach() == ["a", "b"]


def test_connecting_is_limited_while_others_are_left(servers: Servers) -> None:
    servers.errors = {"a": NotConnected, "b": NotConnected}
    servers.reach()
    assert servers.limits == [CONNECT_LIMIT_S, CONNECT_LIMIT_S, None]
    servers.addresses = Addresses(("a",), servers.clock)
    servers.limits.clear()
    servers.errors.clear()
    servers.reach()
    assert servers.limits == [None]


def test_one_that_is_just_slow_is_given_its_time_at_last(servers: Servers) -> None:
    """Where the others are dead: it comes after them, and the last of all has no limit."""
    servers.errors = {"a": NotConnected, "b": NotConnected, "c": NotConnected}
    servers.took_s["a"] = CONNECT_LIMIT_S
    with pytest.raises(NotConnected):
        servers.reach()
    del servers.errors["a"]
    assert servers.reach() == ["b", "c", "a"]
    assert servers.limits[-1] is None


def test_when_all_fail_the_error_tells_of_each(servers: Servers) -> None:
    servers.errors = {"a": NotConnected, "b": WrongAddress, "c": NotConnected}
    with pytest.raises(Unreachable) as raised:
        servers.reach()
    assert type(raised.value) is NotConnected
    assert raised.value.message == str(raised.value) == "none of the 3 addresses answered: a said no; b said no; c said no"
    servers.errors = dict.fromkeys("abc", WrongAddress)
    with pytest.raises(WrongAddress):
        servers.reach()
    servers.addresses = Addresses(("a",))
    with pytest.raises(WrongAddress, match=r"^a said no$"):
        servers.reach()


@pytest.mark.parametrize("repeatable", [True, False])
def test_nothing_is_sent_to_one_that_hangs(servers: Servers, repeatable: bool) -> None:
    servers.hanging = {"a"}
    assert servers.reach(repeatable=repeatable) == ["b"]
    assert servers.probed == ["a", "b"]
    servers.clock.seconds += ANSWERED_S
    assert servers.reach(repeatable=repeatable) == ["b"]
    assert servers.probed == ["b"]
    servers.hanging = {"a", "b", "c"}
    servers.clock.seconds += ANSWERED_S
    assert servers.reach(repeatable=repeatable) == ["a"]  # the one that hung long ago; it may not hang any more
    assert servers.probed == ["b", "c"]


def test_one_that_has_just_answered_is_not_probed(servers: Servers) -> None:
    servers.reach()
    assert servers.reach() == ["a"]
    assert servers.probed == []
    servers.addresses = Addresses(("a",), servers.clock)
    servers.reach()
    assert servers.probed == []  # there is no other one


def test_what_may_have_been_carried_out_is_not_sent_again(servers: Servers) -> None:
    servers.errors["a"] = Broken
    with pytest.raises(Broken, match=r"^a said no$"):
        servers.reach()
    assert servers.asked == ["a"]
    assert servers.reach() == ["b"]  # the next try begins elsewhere


def test_what_may_be_repeated_is(servers: Servers) -> None:
    servers.errors["a"] = Broken
    assert servers.reach(repeatable=True) == ["a", "b"]
    servers.errors = {"a": NotConnected, "b": Broken, "c": NotConnected}
    with pytest.raises(Broken):  # the one that leaves most hope
        servers.reach(repeatable=True)


def test_an_error_that_was_answered_is_an_answer(servers: Servers) -> None:
    for kind in (NotFound, Unavailable):
        servers.errors["a"] = kind
        with pytest.raises(kind):
            servers.reach(repeatable=True)
        assert servers.asked == ["a"]


def test_nodes_ask_in_turn_as_well(servers: Servers) -> None:
    async def attempt(url: str, limit_s: float | None) -> str:
        return servers.attempt(url, limit_s)

    servers.errors = {"a": Unavailable}
    for expected in (["a", "b"], ["b"]):
        servers.asked.clear()
        assert asyncio.run(servers.addresses.reach_async(attempt)) == "b"
        assert servers.asked == expected
    servers.errors = dict.fromkeys("abc", Unavailable)
    with pytest.raises(Unavailable, match="none of the 3 addresses answered: b said no; c said no; a said no"):
        asyncio.run(servers.addresses.reach_async(attempt))
    servers.errors = {"a": NotFound, "b": NotFound, "c": NotFound}
    with pytest.raises(NotFound):
        asyncio.run(servers.addresses.reach_async(attempt))
