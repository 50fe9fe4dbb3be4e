"""Plain URLs at a target: serve its own objects and pass everything else to a proxy."""

from __future__ import annotations

from dfc.api.stored import StoredHandlers
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import Authenticate, Face, Route
from dfc.names import parse_object_path


class _Handlers:
    def __init__(self, stored: StoredHandlers) -> None:
        self._stored = stored

    async def web(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer `/{bucket}/{object…}` and `/{object}`; listings go to a proxy."""
        path = parse_object_path(exchange.target_path)
        return await self._stored.answer(exchange, path, exchange.query_parameters(None) if exchange.raw_query else {})

    def at_once(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer | None:
        """`web` for what is in memory; else None."""
        return self._stored.at_once(exchange, parse_object_path(exchange.target_path))


def target_face(stored: StoredHandlers, may_use: Authenticate) -> Face:
    """Make the face for all paths that belong to no other face."""
    handlers = _Handlers(stored)
    methods = dict.fromkeys(("GET", "PUT", "DELETE"), handlers.web)
    return Face("web", [], may_use, rest=Route("/", methods, query=None, at_once=handlers.at_once))
