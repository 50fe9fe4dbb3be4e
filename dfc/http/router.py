"""Routes and faces. A route is a path pattern with its handlers by method and its known query parameters.

A face is the HTTP interface of a node for one kind of client: it has routes, decides who may use them, and renders errors in
the form that its clients know. What a route does is decided below it; the server only finds the face of a request.

In a pattern, `{name}` is one path segment and `{name…}` is all the rest. Matching works on the raw path; handlers get the
segments percent-encoded, since decoding happens once, in `dfc.names`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from dfc.errors import DfcError, MethodNotAllowed
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
        self._segments = {segment: face for face in faces for segment in face.segments}
        if len({route.expression.pattern for route in routes}) < len(routes) or len(self._segments) < sum(
            len(face.segments) for face in faces
        ):
            raise ValueError("two faces have the same route, or the same first segment")
        self._rest_face, self._rest = _rest_of(faces)

    def find(self, path: str) -> RouteFound:
        found = self._router.find(path)
        if found is not None:
            return RouteFound(self._of[found[0].pattern], *found)
        face = self._segments.get(path[1:].partition("/")[0])
        return RouteFound(self._rest_face, self._rest, ()) if face is None else RouteFound(face, None, ())


def _rest_of(faces: Sequence[Face]) -> tuple[Face, Route]:
    with_rest = [(face, face.rest) for face in faces if face.rest is not None]
    if len(with_rest) != 1:
        raise ValueError("exactly one face must have a route for the rest of the paths")
    return with_rest[0]
