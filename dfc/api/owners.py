"""Find the owner of an object and redirect clients to it, for the faces of a proxy."""

from __future__ import annotations

from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.names import ObjectPath
from dfc.placement.map import NodeEntry
from dfc.proxy.objects import ObjectOwners


async def owner_for(exchange: Exchange, owners: ObjectOwners, path: ObjectPath) -> NodeEntry:
    """Return the node that owns the object of a request. BucketNotFound, BucketDeleting, Unavailable."""
    if exchange.method == "PUT":
        return await owners.for_write(path.bucket, path.name)
    return owners.of(path.bucket, path.name)


def redirect_to(node: NodeEntry, exchange: Exchange) -> Answer:
    """Redirect the client with 307 to repeat the same request at another node."""
    location = ("Location", node.advertise_url + exchange.raw_target)
    return Answer(307, b"", [location, ("Cache-Control", "no-store")])
