"""Faces: a face is the HTTP interface of a node for one kind of client.

A face has routes, decides who may use them, and renders errors in the form that its clients know. What a route does is decided
below it; the server only finds the face for a request and calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dfc.errors import DfcError
from dfc.http.answers import Answer, json_error
from dfc.http.exchange import Exchange
from dfc.http.router import Route, Router

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
