"""Find the nodes that have an object, and redirect clients or relay their requests to them, for the faces of a proxy."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dfc.errors import Unavailable
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.relay import Relay
from dfc.limits import HELD_MAX
from dfc.names import ObjectPath
from dfc.placement.map import NodeEntry
from dfc.proxy.objects import ObjectOwners

HOLD_RETRY_S: Final = 0.3


async def nodes_for(exchange: Exchange, owners: ObjectOwners, path: ObjectPath) -> list[NodeEntry]:
    """Return the nodes that the request may go to, in order: any with a copy for a read, one for a write. BucketNotFound,
    BucketDeleting, Unavailable."""
    if exchange.method == "PUT":
        return [await owners.for_write(path.bucket, path.name)]
    if exchange.method == "DELETE":
        return [owners.of(path.bucket, path.name)]
    return owners.readers(path.bucket, path.name)


async def relay_to(nodes: list[NodeEntry], exchange: Exchange, relay: Relay, owners: ObjectOwners, path: ObjectPath) -> Answer:
    """Relay the request to the first of the nodes that can be reached and serves it. While none can be reached, though they are
    not marked down, hold the request for `hold_s`: they may be restarting. Unavailable."""
    deadline_s = asyncio.get_running_loop().time() + exchange.settings.hold_s

    async def again(problem: Unavailable) -> list[str]:
        if asyncio.get_running_loop().time() >= deadline_s or relay.held >= HELD_MAX:
            raise problem
        relay.held += 1
        try:
            await asyncio.sleep(HOLD_RETRY_S * (0.5 + random.random()))
        finally:
            relay.held -= 1
        exchange.check_still_open()
        return _urls(await nodes_for(exchange, owners, path))  # they may be others now, or have other addresses

    return await relay.forward(exchange, _urls(nodes), again=again)


def _urls(nodes: list[NodeEntry]) -> list[str]:
    return [node.url for node in nodes]


def redirect_to(node: NodeEntry, exchange: Exchange) -> Answer:
    """Redirect the client with 307 to repeat the same request at another node."""
    location = ("Location", node.advertise_url + exchange.raw_target)
    return Answer(307, b"", [location, ("Cache-Control", "no-store")])
