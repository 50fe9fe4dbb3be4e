"""What a proxy answers as one of several: some requests are for the coordinator alone, and are passed on to it; and a bucket
that is not known here may have been created at another proxy a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from dfc.errors import BucketNotFound, Unavailable
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.relay import Relay
from dfc.http.router import Handler, Handlers, Route, routes_of
from dfc.wire import HOP_HEADER

LOOK_S: Final = 0.5  # between two looks whether the proxy that was asked is still the coordinator


class Office(Protocol):
    """Who is the coordinator."""

    def elsewhere(self) -> str | None:
        """The URL of the coordinator if that is another proxy."""


class Peers:
    """The proxies of a cluster, as one of them sees the others. `see_newest` reads the map from the registry, and returns
    whether it is newer than what was known; None: nobody else changes the registry."""

    def __init__(self, office: Office, relay: Relay, see_newest: Callable[[], Awaitable[bool]] | None) -> None:
        self._office = office
        self._relay = relay
        self._see_newest = see_newest

    def routes(self, *handlers: Handlers) -> list[Route]:
        """The routes that these objects handle: see `route`."""
        return [self.route(each) for each in routes_of(*handlers)]

    def route(self, route: Route) -> Route:
        """The same route, whose requests are passed on to the coordinator if they are for it alone."""
        if self._see_newest is None:
            return route
        made = {
            method: self._by_coordinator(self._informed(handler)) if method in route.by_coordinator else self._informed(handler)
            for method, handler in route.handlers.items()
        }
        return replace(route, handlers=made)

    def _informed(self, handler: Handler) -> Handler:
        async def informed(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
            try:
                return await handler(exchange, parameters)
            except BucketNotFound:
                if self._see_newest is None or not await self._see_newest():
                    raise
            return await handler(exchange, parameters)

        return informed

    def _by_coordinator(self, handler: Handler) -> Handler:
        async def passed_on(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
            url = self._office.elsewhere()
            if url is None:
                return await handler(exchange, parameters)
            if HOP_HEADER in exchange.headers:  # the one that passed it on has not heard yet, or this one has not
                raise Unavailable("this proxy is not the coordinator of its cluster at the moment", retry_after_s=1)
            return await self._forward(exchange, url)

        return passed_on

    async def _forward(self, exchange: Exchange, url: str) -> Answer:
        """Pass a request on. It may take its time there, but nobody waits for a coordinator that was replaced. Unavailable."""
        answering = asyncio.ensure_future(self._relay.forward(exchange, url))
        try:
            while not (await asyncio.wait((answering,), timeout=LOOK_S))[0]:
                if self._office.elsewhere() != url:
                    raise Unavailable("the coordinator that was to answer was replaced by another proxy", retry_after_s=1)
            return answering.result()
        finally:
            if not answering.done():
                answering.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((answering,))
