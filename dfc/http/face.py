"""Faces: how a node speaks with one kind of client.

A face has routes, says who may use them, and gives errors the form that its clients know. What a route does is decided
below it; a server only finds the face of a request and asks it.
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
"""Asked before a handler, with the host and port by which the client asks for this node (None: it does not say). Raises
Unauthorized and Forbidden, among others."""
RenderError = Callable[[DfcError, Exchange], Answer]


@dataclass(frozen=True)
class Face:
    """`segments`: paths that begin with one of these are of this face, also where it has no such route. `rest` gets every
    path that is of no face; exactly one face of a server has it. `checks_host`: strangers' names for this node are refused
    even where the settings want the token for everything; for faces that do not ask for the token."""

    name: str
    routes: Sequence[Route]
    authenticate: Authenticate
    render_error: RenderError = json_error
    segments: frozenset[str] = frozenset()
    rest: Route | None = None
    checks_host: bool = False


class RouteFound(NamedTuple):
    """What a path leads to: no route where a face has none for a path of its own. `parameters` are the values of the
    pattern's `{…}`, still percent-encoded."""

    face: Face
    route: Route | None
    parameters: tuple[str, ...]


class Faces:
    """The faces of one server, and which of them a path is of."""

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
