"""The face `/ui` at a target, which sends browsers to a proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.face import Authenticate, Face
from dfc.http.router import Route

SEGMENTS: Final = frozenset(("ui",))


def target_face(proxy_url: Callable[[], str], may_use: Authenticate) -> Face:
    """Make the face. Whatever the page, a proxy has it: `proxy_url` returns the URL of one for clients."""

    async def elsewhere(exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return Answer(307, b"", [("Location", proxy_url().rstrip("/") + exchange.raw_target), ("Cache-Control", "no-store")])

    routes = [Route(pattern, {"GET": elsewhere}, query=None) for pattern in ("/ui", "/ui/{page…}")]
    return Face("ui", routes, may_use, segments=SEGMENTS, checks_host=True)
