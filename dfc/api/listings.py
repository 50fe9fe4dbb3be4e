"""Parse queries for bucket listings and render the pages, for all faces that have listings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dfc.http.answers import Answer, json_answer
from dfc.http.exchange import Exchange
from dfc.pages import ListingQuery, Page, listed
from dfc.wire import JSON, MSGPACK


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


def listing_answer(page: Page, kind: str) -> Answer:
    """Render a page as `{"objects", "prefixes", "next_token"}`, in JSON or msgpack."""
    token = page.last if page.more else None
    value = {"objects": listed(page.rows), "prefixes": page.prefixes, "next_token": token}
    if kind == "msgpack":
        return Answer(200, msgspec.msgpack.encode(value), [("Content-Type", MSGPACK)])
    return json_answer(value)
