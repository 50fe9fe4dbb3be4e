"""The face `/ui` at a target, which sends browsers to a proxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.faces import Face, Route

SEGMENTS: Final = frozenset(("ui",))


def target_face(proxy_url: Callable[[], str]) -> Face:
    """Make the face. Whatever the page, a proxy has it: `proxy_url` returns the URL of one for clients. Whoever asks is sent
    there, and has to show there what he may do."""

    def anybody(_exchange: Exchange, _route: Route, _authority: str | None) -> None:
        pass

    async def elsewhere(exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return Answer(307, b"", [("Location", proxy_url().rstrip("/") + exchange.raw_target), ("Cache-Control", "no-store")])

    routes = [Route(pattern, {"GET": elsewhere}, query=None) for pattern in ("/ui", "/ui/{page…}")]
    return Face("ui", routes, anybody, segments=SEGMENTS, checks_host=True)
