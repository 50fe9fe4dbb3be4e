"""What every node tells the proxies of itself: its last seconds, and what it is."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.rates.about import NodeAbout
from dfc.http.rates.ring import NodeSeconds
from dfc.http.router import Endpoint, Handlers
from dfc.wire import MSGPACK

SECONDS_QUERY: Final = frozenset(("since",))
_SINCE: Final = re.compile(r"([0-9a-f]{8})\.(-1|[0-9]{1,12})")


class FigureHandlers(Handlers):
    """Handlers of these paths. `seconds` returns what is known from after a second of a start on, `about` what the node is."""

    def __init__(self, seconds: Callable[[str, int], NodeSeconds], about: Callable[[], Awaitable[NodeAbout]]) -> None:
        self._seconds = seconds
        self._about = about

    async def seconds(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Tell what was done second by second; with `since`, after that second alone."""
        since = exchange.query_parameters(SECONDS_QUERY).get("since")
        found = _SINCE.fullmatch(since) if since is not None else None
        if since is not None and found is None:
            raise BadRequest("since must be BOOT.SECOND, as in an answer before")
        told = self._seconds(found[1], int(found[2])) if found else self._seconds("", -1)
        return _packed(told)

    async def about(self, _exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Tell what this node is."""
        return _packed(await self._about())

    ENDPOINTS = (
        Endpoint("/v1/node/seconds", {"GET": seconds}, SECONDS_QUERY),
        Endpoint("/v1/node/about", {"GET": about}),
    )


def _packed(value: msgspec.Struct) -> Answer:
    return Answer(200, msgspec.msgpack.encode(value), [("Content-Type", MSGPACK)])
