"""The owner of an object, for faces of a proxy: whom a request concerns, and how a client is sent there."""

from __future__ import annotations

from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.names import ObjectPath
from dfc.placement.map import NodeEntry
from dfc.proxy.objects import ObjectOwners


async def owner_for(exchange: Exchange, owners: ObjectOwners, path: ObjectPath) -> NodeEntry:
    """BucketNotFound, BucketDeleting, Unavailable."""
    if exchange.method == "PUT":
        return await owners.for_write(path.bucket, path.name)
    return owners.of(path.bucket, path.name)


def redirect_to(node: NodeEntry, exchange: Exchange) -> Answer:
    """307: the same request, there."""
    location = ("Location", node.advertise_url + exchange.raw_target)
    return Answer(307, b"", [location, ("Cache-Control", "no-store")])
