"""Access control for DFC's own faces: require the bearer token or a browser's session, and refuse pages of other origins."""

from __future__ import annotations

import hmac
from typing import Final

from dfc.config import Settings
from dfc.errors import Forbidden, Unauthorized
from dfc.http.exchange import Exchange
from dfc.http.router import Route
from dfc.http.sessions import Sessions

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
HEALTH_PATH: Final = "/v1/health"  # open to everyone: load balancers use their own host names and have no token


class TokenAccess:
    """Requires the token of the settings for changes and internal routes, and with `token_for_reads` for reads, too. The cookie
    of a session counts like it where a browser may go."""

    def __init__(self, settings: Settings) -> None:
        self._token = f"Bearer {settings.token}".encode() if settings.token else b""
        self._always = bool(settings.token and settings.token_for_reads)
        self.sessions = Sessions(settings.token or "")

    def check(self, exchange: Exchange, route: Route, authority: str | None) -> None:
        """Check a request (see `dfc.http.face.Authenticate`). Unauthorized, Forbidden."""
        safe = exchange.method in SAFE_METHODS
        if not safe:
            check_origin(exchange, authority)
        if not self._token:
            return
        if "Cookie" in exchange.headers:
            exchange.in_session = self._is_in_session(exchange, route)
        wanted = not (safe or route.reads) or route.internal or self._always
        if wanted and route.pattern != HEALTH_PATH and not (exchange.in_session or self.has_token(exchange)):
            raise Unauthorized

    @property
    def reads_want_token(self) -> bool:
        """Whether reads need the token, too."""
        return self._always

    def has_token(self, exchange: Exchange) -> bool:
        """Whether the request has the token itself."""
        given = exchange.headers.get("Authorization", "")
        return bool(self._token) and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)

    def _is_in_session(self, exchange: Exchange, route: Route) -> bool:
        """Whether a browser has sent this that has logged in. Pages of other servers on this host, or on hosts beside it, may
        make it send the cookie: so for all but reads it has to say that the page was ours. Nodes have no sessions."""
        if route.internal or (exchange.method not in SAFE_METHODS and "Origin" not in exchange.headers):
            return False
        return self.sessions.is_begun(exchange.headers["Cookie"])


def check_origin(exchange: Exchange, authority: str | None) -> None:
    """Refuse what a page of another origin sends. Forbidden."""
    origin = exchange.headers.get("Origin")
    if origin is not None and not (authority and origin.partition("://")[2] == authority):
        raise Forbidden("pages of another origin may not use this method")
