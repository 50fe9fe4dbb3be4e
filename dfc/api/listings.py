"""Parse queries for bucket listings and render the pages, for all faces that have listings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

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
    await exchange.enter(LISTINGS, limit * LISTING_ROW_BYTES)
    return await listings.page(query, limit)


async def page_answer(exchange: Exchange, listings: Listings, query: ListingQuery, limit: int, kind: str) -> Answer:
    """A page of a listing as `{"objects", "prefixes", "next_token"}`, in JSON or msgpack. Unavailable.

    Until it is sent, its bytes alone count: a reader may take its time."""
    page = await page_of(exchange, listings, query, limit)
    if len(page.rows) <= ROWS_AT_ONCE:
        answer = listing_answer(page, kind)
    else:
        answer = await asyncio.to_thread(listing_answer, page, kind)
    settle(exchange, answer)
    return answer


async def datasets_of(exchange: Exchange, listings: Listings, query: ListingQuery) -> list[DatasetInfo]:
    """The shards of a listing grouped by their names, within the budget for listings. Unavailable; TooLarge."""
    await exchange.enter(LISTINGS, DATASETS_BYTES)
    return await listings.datasets(query)


def settle(exchange: Exchange, answer: Answer) -> None:
    """Let the bytes of a whole answer be all that its request holds."""
    if exchange.place is not None:
        exchange.place.shrink(len(answer.body))


def listing_answer(page: Page, kind: str) -> Answer:
    """Render a page as `{"objects", "prefixes", "next_token"}`, in JSON or msgpack."""
    token = page.last if page.more else None
    value = {"objects": listed(page.rows), "prefixes": page.prefixes, "next_token": token}
    if kind == "msgpack":
        return Answer(200, msgspec.msgpack.encode(value), [("Content-Type", MSGPACK)])
    return json_answer(value)
