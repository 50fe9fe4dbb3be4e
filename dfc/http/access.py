"""Access control for DFC's own faces: require the bearer token, and refuse web pages of other origins."""

from __future__ import annotations

import hmac
from typing import Final

from dfc.config import Settings
from dfc.errors import Forbidden, Unauthorized
from dfc.http.exchange import Exchange
from dfc.http.router import Route

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
HEALTH_PATH: Final = "/v1/health"  # open to everyone: load balancers use their own host names and have no token


class TokenAccess:
    """Requires the token of the settings for changes and internal routes, and with `token_for_reads` for reads, too."""

    def __init__(self, settings: Settings) -> None:
        self._token = f"Bearer {settings.token}".encode() if settings.token else b""
        self._always = bool(settings.token and settings.token_for_reads)

    def check(self, exchange: Exchange, route: Route, authority: str | None) -> None:
        """Check a request (see `dfc.http.face.Authenticate`). Unauthorized, Forbidden."""
        safe = exchange.method in SAFE_METHODS
        if not safe:
            origin = exchange.headers.get("Origin")
            if origin is not None and not (authority and origin.partition("://")[2] == authority):
                raise Forbidden("pages of another origin may not use this method")
        wanted = not (safe or route.reads) or route.internal or self._always
        if self._token and wanted and route.pattern != HEALTH_PATH:
            given = exchange.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token):
                raise Unauthorized
