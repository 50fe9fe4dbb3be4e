"""Who may use the pages: like the API, besides the login itself; and how often a login may be tried."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

from dfc.errors import TooManyLogins
from dfc.http.access import SAFE_METHODS, TokenAccess, check_origin
from dfc.http.exchange import Exchange
from dfc.http.router import Route
from dfc.limits import LOGIN_ADDRESSES_MAX

FREE_TRIES: Final = 5
WAIT_S: Final = 1.0  # after the first try that is not free; twice as long after each further one
WAIT_S_MAX: Final = 60.0
FORGET_S: Final = 900.0
OPEN: Final = ("/ui/login", "/favicon.ico")
STATIC: Final = "/ui/static/"


class PageAccess:
    """Decides who may use which route of the pages. `access` is that of the API."""

    def __init__(self, access: TokenAccess) -> None:
        self._access = access

    def check(self, exchange: Exchange, route: Route, authority: str | None) -> None:
        """Check a request (see `dfc.http.face.Authenticate`). Unauthorized, Forbidden."""
        if route.pattern in OPEN or route.pattern.startswith(STATIC):
            if exchange.method not in SAFE_METHODS:
                check_origin(exchange, authority)
            return
        self._access.check(exchange, route, authority)

    def may_change(self, exchange: Exchange) -> bool:
        """Whether whoever sent this may change things."""
        return not self.wants_login or exchange.in_session or self._access.has_token(exchange)

    @property
    def reads_want_token(self) -> bool:
        """Whether the settings want the token for reads, too."""
        return self._access.reads_want_token

    @property
    def wants_login(self) -> bool:
        """Whether the settings have a token, so that changes want a login."""
        return self._access.sessions.exist


class LoginTries:
    """Failed logins by address: after the free ones each has to wait for longer. `clock_s` is replaced by tests."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, and when the last one was

    def check(self, address: str) -> None:
        """Check whether this address may try now. TooManyLogins with `Retry-After`."""
        count, last_s = self._failed.get(_neighbours(address), (0, 0.0))
        if count < FREE_TRIES or self._clock_s() - last_s > FORGET_S:
            return
        left_s = last_s + min(WAIT_S_MAX, WAIT_S * 2.0 ** min(count - FREE_TRIES, 10)) - self._clock_s()
        if left_s > 0:
            raise TooManyLogins(f"too many logins have failed: try again in {left_s:.0f} s", retry_after_s=int(left_s) + 1)

    def succeeded(self, address: str) -> None:
        """Forget what failed before."""
        self._failed.pop(_neighbours(address), None)

    def failed(self, address: str) -> None:
        """Note a failed login."""
        now_s, key = self._clock_s(), _neighbours(address)
        count, last_s = self._failed.pop(key, (0, 0.0))
        before = count if now_s - last_s <= FORGET_S else 0
        while self._failed and (
            len(self._failed) >= LOGIN_ADDRESSES_MAX or now_s - next(iter(self._failed.values()))[1] > FORGET_S
        ):
            self._failed.popitem(last=False)
        self._failed[key] = before + 1, now_s


def _neighbours(address: str) -> str:
    """The addresses that count as one: whoever has an IPv6 address has 2**64 of them."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found) if found.version == 4 else found.exploded[:19]
