"""Parse queries for bucket listings and render the pages, for all faces that have listings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dfc.http.answers import Answer, json_answer
from dfc.http.budget import LISTINGS
from dfc.http.exchange import Exchange
from dfc.limits import DATASETS_BYTES, LISTING_ROW_BYTES
from dfc.pages import ListingQuery, Page, listed
from dfc.wire import JSON, MSGPACK

if TYPE_CHECKING:
    from dfc.proxy.listing import Listings
    from dfc.wire.catalogue import DatasetInfo

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


def as_json(page: Page) -> Answer:
    """Render a page as `{"objects", "prefixes", "next_token"}`."""
    return json_answer(_value(page))


def as_msgpack(page: Page) -> Answer:
    """The same in msgpack."""
    return Answer(200, msgspec.msgpack.encode(_value(page)), [("Content-Type", MSGPACK)])


def _value(page: Page) -> dict[str, Any]:
    return {"objects": listed(page.rows), "prefixes": page.prefixes, "next_token": page.last if page.more else None}
