"""Servers of tests that need no more than a few handlers: one face, with DFC's own way of asking for the token."""

from __future__ import annotations

from collections.abc import Sequence

from dfc.config import Settings
from dfc.http.faces import Face, Route, TokenAccess
from dfc.http.server import NodeServer


def serving(settings: Settings, routes: Sequence[Route], rest: Route) -> NodeServer:
    """A server of these routes; `rest` gets all paths that are not under `/v1`."""
    face = Face("test", routes, TokenAccess(settings).check, segments=frozenset(("v1",)), rest=rest)
    return NodeServer(settings, [face])
