"""`/v1/objects/{bucket}/{object…}` at a target: read, write and delete objects."""

from __future__ import annotations

from dfc.api.stored import StoredHandlers
from dfc.http.answers import Answer
from dfc.http.common import OBJECT_QUERY
from dfc.http.exchange import Exchange
from dfc.names import parse_object_path


class TargetObjectHandlers:
    """Handlers of GET, PUT and DELETE of an object."""

    def __init__(self, stored: StoredHandlers) -> None:
        self._stored = stored

    async def object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Answer a request for an object; if it belongs to another target, pass it to a proxy."""
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        return await self._stored.answer(exchange, path, exchange.query_parameters(OBJECT_QUERY) if exchange.raw_query else {})

    def at_once(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer | None:
        """`object` for what is in memory; else None."""
        return self._stored.at_once(exchange, parse_object_path(f"/{parameters[0]}/{parameters[1]}"))
