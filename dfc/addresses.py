"""Several addresses of one cluster: how they are written, and in which order they are asked.

Wherever the URL of a cluster or of its proxy is wanted, several may be given, separated by commas. Whoever has a request asks
the address that answered last, and goes on to the next when no connection can be made. One that is dead costs a process at most
`CONNECT_LIMIT_S`, once: it goes to the end of the list, and its turn comes again when the others fail, or after a while.
Asks nobody itself: `reach` and `reach_async` are given the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import urlsplit

from dfc.errors import BadRequest, DfcError, NotConnected, Unavailable, Unreachable
from dfc.limits import ADDRESSES_MAX

T = TypeVar("T")
CONNECT_LIMIT_S: Final = 1.0  # for an address while others are left: a connection across the world takes a third of it
FAILED_S: Final = 30.0  # one that did not answer stays behind the others for so long
_LISTS_REMEMBERED: Final = 64  # what is known of an address is shared by all of a process that were given the same list


def split_addresses(text: str) -> tuple[str, ...]:
    """The URLs of a list, without final slashes, each once. BadRequest when there are none or too many."""
    urls = tuple(dict.fromkeys(url.rstrip("/") for part in text.split(",") if (url := part.strip())))
    if not urls:
        raise BadRequest(f"no cluster address given: {text!r}")
    if len(urls) > ADDRESSES_MAX:
        raise BadRequest(f"too many cluster addresses: {len(urls)}, at most {ADDRESSES_MAX} are allowed")
    return urls


def is_http_url(text: str) -> bool:
    """Whether it has the form http://HOST:PORT."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        return False


def addresses_of(text: str) -> Addresses:
    """The addresses that a list names; for the same list the same object, so that all of a process learn from each other.

    BadRequest.
    """
    return _shared(split_addresses(text))


def may_ask_another(error: DfcError, *, repeatable: bool) -> bool:
    """Whether a request that nobody answered may go to another address at once.

    What was not sent, may; what was sent only if it is `repeatable`: if a second time changes nothing, not even the answer.
    Everything else is for the retry policy of its caller, who knows what an answer to a second try means; that try begins with
    another address.
    """
    return repeatable or isinstance(error, NotConnected)


class Addresses:
    """The addresses of one cluster, and what is known of them. From any thread, and in children after a fork: no locks."""

    def __init__(self, urls: tuple[str, ...], now_s: Callable[[], float] = time.monotonic) -> None:
        self.urls = urls
        self._now_s = now_s
        self._last = ""
        self._failed: dict[str, tuple[bool, float]] = {}  # whether that took long, and when it was

    def __str__(self) -> str:
        return ",".join(self.urls)

    @property
    def last(self) -> str:
        """The one that answered last; empty while none has."""
        return self._last

    def in_order(self) -> list[str]:
        """The one that answered last, those of which nothing is known, those that have failed."""
        return sorted(self.urls, key=self._rank)

    def _rank(self, url: str) -> tuple[int, bool, float]:
        # Slow ones are the last of those that failed: the last of all may take as long as its caller likes, and so one that is
        # just slow is reached after all where the others are dead.
        slow, failed_s = self._failed.get(url, (False, -FAILED_S))
        if url == self._last:
            return 0, slow, failed_s
        if self._now_s() - failed_s < FAILED_S:
            return 2, slow, failed_s
        return 1, False, 0.0

    def answered(self, url: str) -> None:
        """Begin with this one."""
        self._last = url
        self._failed.pop(url, None)

    def failed(self, url: str, took_s: float) -> None:
        """Ask the others first, for a while."""
        if len(self.urls) > 1:
            self._failed[url] = (took_s >= CONNECT_LIMIT_S / 2, self._now_s())
            if self._last == url:
                self._last = ""

    def reach(self, attempt: Callable[[str, float | None], T], *, repeatable: bool) -> T:
        """What the attempt gives at the first address that answers; its own errors but `Unreachable` are an answer.

        The attempt gets the address and how many seconds connecting to it may take, None: as many as usual. Raises what kind of
        `Unreachable` the attempts raised, naming them all.
        """
        losses: list[DfcError] = []
        for url, limit_s in self._turns():
            begun_s = self._now_s()
            try:
                found = attempt(url, limit_s)
            except Unreachable as error:
                self.failed(url, self._now_s() - begun_s)
                losses.append(error)
                if not may_ask_another(error, repeatable=repeatable):
                    break
            else:
                self.answered(url)
                return found
        raise _together(losses)

    async def reach_async(self, attempt: Callable[[str, float | None], Awaitable[T]]) -> T:
        """`reach` for nodes, to whom one that does not answer is `Unavailable`. For what is repeatable, or only connects."""
        losses: list[DfcError] = []
        for url, limit_s in self._turns():
            begun_s = self._now_s()
            try:
                found = await attempt(url, limit_s)
            except Unavailable as error:
                self.failed(url, self._now_s() - begun_s)
                losses.append(error)
            else:
                self.answered(url)
                return found
        raise _together(losses)

    def _turns(self) -> Iterator[tuple[str, float | None]]:
        order = self.in_order()
        for number, url in enumerate(order, 1):
            yield url, CONNECT_LIMIT_S if number < len(order) else None


@lru_cache(_LISTS_REMEMBERED)
def _shared(urls: tuple[str, ...]) -> Addresses:
    return Addresses(urls)


def _together(losses: list[DfcError]) -> DfcError:
    """One error for all: the one that leaves most hope, telling what happened at each address."""
    error = max(losses, key=_hope)
    if len(losses) > 1:
        error.message = f"none of the {len(losses)} addresses answered: {'; '.join(loss.message for loss in losses)}"
        error.args = (error.message,)
    return error


def _hope(error: DfcError) -> int:
    """More for a request that was sent and may have been carried out, less for an address that is hardly meant so."""
    return 2 if not isinstance(error, NotConnected) else 1 if type(error) is NotConnected else 0
