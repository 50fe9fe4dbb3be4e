"""Routes, faces, and who may use them.

A route is a path pattern with its handlers by method and its known query parameters. A face is the HTTP interface of a node for
one kind of client: it has routes, decides who may use them, and renders errors in the form that its clients know. What a route
does is decided below it; the server only finds the face of a request.

In a pattern, `{name}` is one path segment and `{name…}` is all the rest. Matching works on the raw path; handlers get the
segments percent-encoded, since decoding happens once, in `dfc.names`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Final, NamedTuple

from dfc.config import Settings
from dfc.errors import DfcError, Forbidden, MethodNotAllowed, Unauthorized
from dfc.http.answers import Answer, json_error
from dfc.http.budget import Kind
from dfc.http.exchange import Exchange

Handler = Callable[[Exchange, tuple[str, ...]], Awaitable[Answer]]
Method = Callable[[Any, Exchange, tuple[str, ...]], Awaitable[Answer]]
"""A handler as a function of its class, unbound."""
AtOnce = Callable[[Exchange, tuple[str, ...]], Answer | None]
"""If it returns None, having done nothing, or raises one of our errors, the handler is called instead."""
NODE_PATHS: Final = "/v1/node/"  # what begins so is internal: for nodes alone, with the token if one is set
ALL_METHODS: Final = frozenset(("GET", "PUT", "POST", "PATCH", "DELETE"))
_PARAMETER: Final = re.compile(r"\{[a-z_]+(…?)\}")


@dataclass(frozen=True)
class Route:
    """A path pattern and its handlers.

    `query=None`: the handler checks the query itself. `reads`: changes nothing, whatever the method. `by_coordinator`: the
    methods that only the coordinator answers. `budget`: in which each request takes a place. `at_once`: gives GET's answer if
    that needs no waiting. `internal`: always requires the token, if one is set."""

    pattern: str
    handlers: Mapping[str, Handler]
    query: frozenset[str] | None = frozenset()
    reads: bool = False
    by_coordinator: frozenset[str] = frozenset()
    budget: Kind | None = None
    at_once: AtOnce | None = None
    internal: bool = field(init=False, compare=False)
    expression: re.Pattern[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "internal", self.pattern.startswith(NODE_PATHS))
        parts, end = [], 0
        for match in _PARAMETER.finditer(self.pattern):
            parts += [re.escape(self.pattern[end : match.start()]), "(.+)" if match[1] else "([^/]+)"]
            end = match.end()
        parts.append(re.escape(self.pattern[end:]))
        object.__setattr__(self, "expression", re.compile("".join(parts), re.DOTALL))

    def handler(self, method: str) -> Handler:
        """Return the handler for a method; HEAD uses GET's. MethodNotAllowed lists the allowed methods."""
        found = self.handlers.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = sorted({*self.handlers, *(("HEAD",) if "GET" in self.handlers else ())})
            raise MethodNotAllowed(tuple(allowed))
        return found


@dataclass(frozen=True)
class Endpoint:
    """A route as a class of handlers declares it, in `ENDPOINTS`. The fields are those of `Route`."""

    pattern: str
    methods: Mapping[str, Method]
    query: frozenset[str] | None = frozenset()
    reads: bool = False
    by_coordinator: frozenset[str] = frozenset()
    budget: Kind | None = None

    def route(self, handlers: object) -> Route:
        """The route whose requests this object handles."""
        bound = {name: partial(method, handlers) for name, method in self.methods.items()}
        return Route(self.pattern, bound, self.query, self.reads, self.by_coordinator, self.budget)

    def route_to(self, handler: Handler) -> Route:
        """The same route with one handler for all its methods."""
        return Route(self.pattern, dict.fromkeys(self.methods, handler), self.query, self.reads)


class Handlers:
    """Base of classes that declare the routes they handle."""

    ENDPOINTS: ClassVar[tuple[Endpoint, ...]]


def routes_of(*handlers: Handlers) -> list[Route]:
    """The routes that these objects handle."""
    return [endpoint.route(each) for each in handlers for endpoint in each.ENDPOINTS]


class Router:
    """Finds the first route of a table whose pattern matches a path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._fixed = {route.pattern: route for route in routes if "{" not in route.pattern}
        # Most requests are for plain paths of objects; their first segment alone tells them from these routes.
        self._segments = {route.pattern.split("/")[1] for route in routes if "{" in route.pattern}
        if any("{" in segment for segment in self._segments):
            raise ValueError("the first segment of a route must not be a parameter")
        self._others = tuple((route.expression.fullmatch, route) for route in routes if "{" in route.pattern)

    def find(self, path: str) -> tuple[Route, tuple[str, ...]] | None:
        route = self._fixed.get(path)
        if route is not None:
            return route, ()
        if path[1:].partition("/")[0] not in self._segments:
            return None
        for matches, candidate in self._others:
            match = matches(path)
            if match is not None:
                return candidate, match.groups()
        return None


Authenticate = Callable[[Exchange, Route, str | None], None]
"""Called before a handler, with the host and port that the client used for this node (None: not given). Raises Unauthorized,
Forbidden or another error to refuse the request."""
RenderError = Callable[[DfcError, Exchange], Answer]


@dataclass(frozen=True)
class Face:
    """The interface for one kind of client.

    `segments`: all paths that begin with one of these belong to this face, even if it has no route for them. `rest` gets all
    paths of no other face; exactly one face of a server has it. `checks_host`: refuse unknown host names even if the settings
    require the token for everything; for faces that do not check the token."""

    name: str
    routes: Sequence[Route]
    authenticate: Authenticate
    render_error: RenderError = json_error
    segments: frozenset[str] = frozenset()
    rest: Route | None = None
    checks_host: bool = False


class RouteFound(NamedTuple):
    """The face and route for a path; the route is None if the path belongs to the face but it has no such route.

    `parameters` are the values of the pattern's `{…}`, still percent-encoded."""

    face: Face
    route: Route | None
    parameters: tuple[str, ...]


class Faces:
    """The faces of one server; finds the one that a path belongs to."""

    def __init__(self, faces: Sequence[Face]) -> None:
        routes = [route for face in faces for route in face.routes]
        self._router = Router(routes)
        self._of = {route.pattern: face for face in faces for route in face.routes}
        segments = [(segment, face) for face in faces for segment in face.segments]
        self._segments = dict(segments)
        if len({route.expression.pattern for route in routes}) < len(routes) or len(self._segments) < len(segments):
            raise ValueError("two faces have the same route, or the same first segment")
        with_rest = [(face, face.rest) for face in faces if face.rest is not None]
        if len(with_rest) != 1:
            raise ValueError("exactly one face must have a route for the rest of the paths")
        self._rest_face, self._rest = with_rest[0]

    def find(self, path: str) -> RouteFound:
        found = self._router.find(path)
        if found is not None:
            return RouteFound(self._of[found[0].pattern], *found)
        face = self._segments.get(path[1:].partition("/")[0])
        return RouteFound(self._rest_face, self._rest, ()) if face is None else RouteFound(face, None, ())


# --- Access control for DFC's own faces: require the bearer token or a browser's session, and refuse pages of other origins.
#
# A session is a cookie that says until when its holder counts as one who has shown the token. None is kept anywhere, so every
# node with the same token takes it.

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
        self.exist = bool(token)  # whether there can be any

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
        pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
        return any(name == self.cookie and self._is_valid(value) for name, _, value in pairs)

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
        self.reads_want_token = bool(settings.token and settings.token_for_reads)
        self.sessions = Sessions(settings.token or "")

    def check(self, exchange: Exchange, route: Route, authority: str | None) -> None:
        """Check a request (see `dfc.http.faces.Authenticate`). Unauthorized, Forbidden."""
        safe = exchange.method in SAFE_METHODS
        if not safe:
            check_origin(exchange, authority)
        elif "Service-Worker" in exchange.headers:  # it would stand before everything here, for all who have opened that page
            raise Forbidden("nothing here may become a service worker")
        if not self._token:
            return
        if "Cookie" in exchange.headers:
            exchange.in_session = self._is_in_session(exchange, route)
        wanted = not (safe or route.reads) or route.internal or self.reads_want_token
        if wanted and route.pattern != HEALTH_PATH and not (exchange.in_session or self.has_token(exchange)):
            raise Unauthorized

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
