"""Access control for DFC's own faces: require the bearer token or a browser's session, and refuse pages of other origins.

A session is a cookie that says until when its holder counts as one who has shown the token. None is kept anywhere, so every
node with the same token takes it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from functools import cached_property
from typing import Final

from dfc.config import Settings
from dfc.errors import Forbidden, Unauthorized
from dfc.http.exchange import Exchange
from dfc.http.router import Route

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
HEALTH_PATH: Final = "/v1/health"  # open to everyone: load balancers use their own host names and have no token
SESSION_S: Final = 12 * 3600
_VALUE: Final = re.compile(r"(([0-9]{1,12})\.[0-9a-f]{16})\.([0-9a-f]{64})")


class Sessions:
    """The sessions of a cluster with this token; without a token there are none. `wall_s` is replaced by tests.

    A cookie holds a signature under the token, never the token: browsers send cookies to all ports of a host, so that other
    servers there see it. Guessing the token by it is made slow. Its name is that of the cluster, since several may be on one
    host. Another token ends all sessions.
    """

    def __init__(self, token: str, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._token = token.encode()

    @property
    def exist(self) -> bool:
        """Whether there can be any."""
        return bool(self._token)

    @cached_property
    def _key(self) -> bytes:
        """Made when it is first wanted, which takes a twentieth of a second."""
        return hashlib.scrypt(self._token, salt=b"dfc session", n=1 << 14, r=8, p=1, dklen=32)

    @cached_property
    def cookie(self) -> str:
        """The name of the cookie; empty without a token."""
        return f"dfc-session-{self._sign('name')[:8]}" if self._token else ""

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()

    def begin(self, given: str, *, is_encrypted: bool = False) -> str | None:
        """Return the `Set-Cookie` of a new session, if `given` is the token. `is_encrypted`: the browser sends it by TLS."""
        if not self._token or not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token):
            return None
        said = f"{int(self._wall_s()) + SESSION_S}.{secrets.token_hex(8)}"
        secure = "; Secure" if is_encrypted else ""
        return f"{self.cookie}={said}.{self._sign(said)}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Lax{secure}"

    def end(self) -> str:
        """Return the `Set-Cookie` by which a browser forgets its session."""
        return f"{self.cookie}=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"

    def is_begun(self, cookies: str) -> bool:
        """Whether a `Cookie` header has a session of this cluster that has not run out."""
        if not self._token or "dfc-session-" not in cookies:
            return False
        for pair in cookies.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.cookie and self._is_valid(value):
                return True
        return False

    def _is_valid(self, value: str) -> bool:
        found = _VALUE.fullmatch(value)
        if found is None or not hmac.compare_digest(found[3], self._sign(found[1])):
            return False
        left_s = int(found[2]) - self._wall_s()
        return 0 < left_s <= SESSION_S + 3600  # of a clock that is far ahead, and was set right since, it would last for ever


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
        elif "Service-Worker" in exchange.headers:  # it would stand before everything here, for all who have opened that page
            raise Forbidden("nothing here may become a service worker")
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
    if origin is None:
        return
    scheme, _, host = origin.partition("://")
    is_own = bool(authority) and host == authority
    # A node does not see TLS. Where a proxy before it says that the page was asked for by that, whoever changes what others get
    # by plain HTTP must not act here.
    if not is_own or not (scheme == "https" or (scheme == "http" and not is_by_tls(exchange))):
        raise Forbidden("pages of another origin may not use this method")


def is_by_tls(exchange: Exchange) -> bool:
    """Whether a proxy with TLS before this node says, by `X-Forwarded-Proto`, that the client has used it."""
    return exchange.headers.get("X-Forwarded-Proto", "").strip().lower() == "https"
