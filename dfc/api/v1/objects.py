"""`/v1/objects` at a proxy: redirect clients to the owner of an object."""

from __future__ import annotations

from dfc.api.owners import nodes_for, redirect_to, relay_to
from dfc.http.answers import Answer
from dfc.http.common import OBJECT_QUERY, flag
from dfc.http.exchange import Exchange
from dfc.http.relay import Relay
from dfc.names import parse_object_path
from dfc.proxy.objects import Objects


class ProxyObjectHandlers:
    """Handlers of `/v1/objects/{bucket}/{object…}`."""

    def __init__(self, objects: Objects, relay: Relay) -> None:
        self._when_ready = objects.when_ready
        self._relay = relay

    async def object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Redirect to the owner with 307, before reading any of the body; with `?relay=1`, relay the request."""
        owners = self._when_ready()
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        relays = exchange.raw_query and flag(exchange.query_parameters(OBJECT_QUERY), "relay")
        nodes = await nodes_for(exchange, owners, path)
        return await relay_to(nodes, exchange, self._relay, owners, path) if relays else redirect_to(nodes[0], exchange)

    def object_at_once(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer | None:
        """`object` for a read that is simply redirected; else None."""
        if exchange.raw_query:
            return None
        owners = self._when_ready()
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        return redirect_to(owners.readers(path.bucket, path.name)[0], exchange)
