"""A proxy asked for what another node has: the client is sent there, or its request is passed on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dfc.errors import BucketNotFound, Unavailable
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.faces import Handler, Handlers, Route, routes_of
from dfc.http.relay import Relay, Rewrite
from dfc.limits import HELD_MAX
from dfc.names import ObjectPath
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.objects import ObjectOwners
from dfc.wire import COORDINATOR_HEADER, LOST_HEADER

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
    return Answer(307, b"", [("Location", node.advertise_url + exchange.raw_target), ("Cache-Control", "no-store")])


# --- What a proxy answers as one of several: some requests are for the coordinator alone, and are passed on to it; and a bucket
# that is not known here may have been created at another proxy a moment ago.

LOOK_S: Final = 0.5  # between two looks whether the proxy that was asked is still the coordinator
REPLACED_LOOK_S: Final = 0.1
TO_COORDINATOR: Final = Rewrite(request=lambda lines: [*lines, (COORDINATOR_HEADER, "1")])
READS: Final = ("GET", "HEAD")
HOLD_S: Final = 10.0  # how long a request waits for the next coordinator; one that was killed is replaced within 7 s


class ProxyPeers:
    """The proxies of a cluster, as one of them sees the others. `elsewhere`: the URL of the coordinator if that is another."""

    def __init__(self, elsewhere: Callable[[], str | None], relay: Relay, cluster: Cluster) -> None:
        self._elsewhere = elsewhere
        self._relay = relay
        self._cluster = cluster

    def routes(self, *handlers: Handlers) -> list[Route]:
        """The routes that these objects handle: see `route`."""
        return [self.route(each) for each in routes_of(*handlers)]

    def route(self, route: Route) -> Route:
        """The same route, whose requests are passed on to the coordinator if they are for it alone. No bucket is denied that
        may be in a newer map."""
        made = {
            method: self._by_coordinator(self._informed(handler), route.internal)
            if self._cluster.is_shared and method in route.by_coordinator
            else self._informed(handler)
            for method, handler in route.handlers.items()
        }
        return replace(route, handlers=made)

    def _informed(self, handler: Handler) -> Handler:
        async def informed(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
            version = self._cluster.version()
            try:
                return await handler(exchange, parameters)
            except BucketNotFound:
                if await self._cluster.newest() == version:
                    raise
            return await handler(exchange, parameters)

        return informed

    def _by_coordinator(self, handler: Handler, is_internal: bool) -> Handler:
        async def passed_on(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
            until_s = asyncio.get_running_loop().time() + (0 if is_internal else HOLD_S)
            while (url := self._elsewhere()) is not None:
                if COORDINATOR_HEADER in exchange.headers:  # the one that passed it on has not heard yet, or this one has not
                    raise Unavailable("this proxy is not the coordinator of its cluster at the moment", retry_after_s=1)
                try:
                    return await self._forward(exchange, url)
                except Unavailable as error:
                    if LOST_HEADER in error.headers and exchange.method not in READS:  # it may have been carried out
                        raise
                    await self._until_replaced(exchange, url, until_s, error)
            return await handler(exchange, parameters)

        return passed_on

    async def _until_replaced(self, exchange: Exchange, url: str, until_s: float, why: Unavailable) -> None:
        """Wait for another coordinator than the one that cannot be reached; raises `why` if that takes too long."""
        while self._elsewhere() == url:
            if asyncio.get_running_loop().time() >= until_s:
                raise why
            await asyncio.sleep(REPLACED_LOOK_S)
            exchange.check_still_open()

    async def _forward(self, exchange: Exchange, url: str) -> Answer:
        """Pass a request on. It may take its time there, but nobody waits for a coordinator that was replaced. Unavailable,
        with LOST_HEADER if it was sent."""
        answering = asyncio.ensure_future(self._relay.forward(exchange, url, TO_COORDINATOR))
        try:
            while not (await asyncio.wait((answering,), timeout=LOOK_S))[0]:
                if self._elsewhere() != url:
                    lost = Unavailable("the coordinator that was to answer was replaced by another proxy", retry_after_s=1)
                    lost.headers[LOST_HEADER] = "1"
                    raise lost
            return answering.result()
        finally:
            if not answering.done():
                answering.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((answering,))
