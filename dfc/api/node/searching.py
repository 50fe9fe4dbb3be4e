"""`/v1/node/search` at a target: search its shards for samples by their keys."""

from __future__ import annotations

import asyncio

import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.keysearch import SearchAsked
from dfc.limits import SEARCH_BODY_BYTES_MAX
from dfc.target.search.service import OwnSearches
from dfc.wire import MSGPACK


class OwnSearchHandlers(Handlers):
    """Handler for proxies that search the shards of a bucket."""

    def __init__(self, searches: OwnSearches) -> None:
        self._searches = searches

    async def search(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Search some of this target's shards, within the time that is left."""
        body = await exchange.read_small(SEARCH_BODY_BYTES_MAX)
        asked = await asyncio.to_thread(_asked, body)
        part = await exchange.while_open(self._searches.search(asked))
        return Answer(200, await asyncio.to_thread(msgspec.msgpack.encode, part), [("Content-Type", MSGPACK)])

    ENDPOINTS = (Endpoint("/v1/node/search", {"POST": search}),)


def _asked(body: bytes) -> SearchAsked:
    try:
        return msgspec.msgpack.decode(body, type=SearchAsked)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"invalid msgpack: {error}") from None
