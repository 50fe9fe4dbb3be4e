"""What the faces of all nodes share: listings of buckets, and the figures of a node."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer, json_answer
from dfc.http.budget import LISTINGS
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Handlers
from dfc.http.node import NodeInfo
from dfc.http.rates import NodeSeconds
from dfc.limits import DATASETS_BYTES, LISTING_ROW_BYTES
from dfc.listing.pages import ListingQuery, Page, listed
from dfc.wire import JSON, MSGPACK

if TYPE_CHECKING:
    from dfc.proxy.objects import Listings
    from dfc.wire.objects import DatasetInfo

ROWS_AT_ONCE: Final = 2000  # rendered on the event loop: 4 ms


def wants(exchange: Exchange) -> str:
    """Return the kind of answer that the Accept header asks for: 'html', 'json', 'msgpack' or 'text'."""
    accept = exchange.headers.get("Accept", "")
    for kind, name in (("text/html", "html"), (JSON, "json"), (MSGPACK, "msgpack")):
        if kind in accept:
            return name
    return "text"


def listing_query(bucket_id: str, parameters: Mapping[str, str]) -> ListingQuery:
    """Make a `ListingQuery` from query parameters; `token` is the last name or prefix of the previous page. BadRequest."""
    return ListingQuery(
        bucket_id,
        parameters.get("prefix", ""),
        max(parameters.get("token", ""), parameters.get("start_after", "")),
        parameters.get("delimiter", ""),
    )


async def page_of(exchange: Exchange, listings: Listings, query: ListingQuery, limit: int) -> Page:
    """A page of a listing, within the budget for them. Unavailable."""
    await exchange.enter(LISTINGS, room_of(listings, query, limit))
    return await listings.page(query, limit)


def room_of(listings: Listings, query: ListingQuery, limit: int) -> int:
    """How many bytes a page of so many rows takes at most, about, while it is made."""
    return listings.rows_held(query, limit) * LISTING_ROW_BYTES


async def page_answer(
    exchange: Exchange,
    listings: Listings,
    query: ListingQuery,
    limit: int,
    render: Callable[[Page], Answer],
    rows_at_once: int = ROWS_AT_ONCE,
) -> Answer:
    """A page of a listing, rendered; in a thread if it has more rows than can be rendered at once. Unavailable."""
    page = await page_of(exchange, listings, query, limit)
    is_short = len(page.rows) + len(page.prefixes) <= rows_at_once
    return render(page) if is_short else await asyncio.to_thread(render, page)


async def datasets_of(exchange: Exchange, listings: Listings, query: ListingQuery) -> list[DatasetInfo]:
    """The shards of a listing grouped by their names, within the budget for listings. Unavailable; TooLarge."""
    await exchange.enter(LISTINGS, DATASETS_BYTES)
    return await listings.datasets(query)


def msgpack_answer(value: Any) -> Answer:
    """Answer with any msgspec-encodable value in MessagePack."""
    return Answer(200, msgspec.msgpack.encode(value), [("Content-Type", MSGPACK)])


def as_json(page: Page) -> Answer:
    """Render a page as `{"objects", "prefixes", "next_token"}`."""
    return json_answer(_value(page))


def as_msgpack(page: Page) -> Answer:
    """The same in msgpack."""
    return msgpack_answer(_value(page))


def _value(page: Page) -> dict[str, Any]:
    return {"objects": listed(page.rows), "prefixes": page.prefixes, "next_token": page.last if page.more else None}


# --- What every node tells the proxies of itself: its last seconds, and what it is.

SECONDS_QUERY: Final = frozenset(("since",))
_SINCE: Final = re.compile(r"([0-9a-f]{8})\.(-1|[0-9]{1,12})")


class FigureHandlers(Handlers):
    """Handlers of these paths. `seconds` returns what is known from after a second of a start on, `about` what the node is."""

    def __init__(self, seconds: Callable[[str, int], NodeSeconds], about: Callable[[], Awaitable[NodeInfo]]) -> None:
        self._seconds = seconds
        self._about = about

    async def seconds(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Tell what was done second by second; with `since`, after that second alone."""
        since = exchange.query_parameters(SECONDS_QUERY).get("since")
        found = _SINCE.fullmatch(since) if since is not None else None
        if since is not None and found is None:
            raise BadRequest("since must be BOOT.SECOND, as in an answer before")
        return msgpack_answer(self._seconds(found[1], int(found[2])) if found else self._seconds("", -1))

    async def about(self, _exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Tell what this node is."""
        return msgpack_answer(await self._about())

    ENDPOINTS = (
        Endpoint("/v1/node/seconds", {"GET": seconds}, SECONDS_QUERY),
        Endpoint("/v1/node/info", {"GET": about}),
    )
