"""Listings of a bucket, as several faces ask for them and give them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dfc.http.answers import Answer, json_answer
from dfc.http.exchange import Exchange
from dfc.pages import ListingQuery, Page, listed
from dfc.wire import JSON, MSGPACK


def wants(exchange: Exchange) -> str:
    """What kind of answer the Accept header asks for: 'html', 'json', 'msgpack' or 'text'."""
    accept = exchange.headers.get("Accept", "")
    for kind, name in (("text/html", "html"), (JSON, "json"), (MSGPACK, "msgpack")):
        if kind in accept:
            return name
    return "text"


def listing_query(bucket_id: str, parameters: Mapping[str, str]) -> ListingQuery:
    """From the query of a listing; `token` is the last name or prefix of the page before. BadRequest."""
    return ListingQuery(
        bucket_id,
        parameters.get("prefix", ""),
        max(parameters.get("token", ""), parameters.get("start_after", "")),
        parameters.get("delimiter", ""),
    )


def listing_answer(page: Page, kind: str) -> Answer:
    """The page as `{"objects", "prefixes", "next_token"}`."""
    token = page.last if page.more else None
    value = {"objects": listed(page.rows), "prefixes": page.prefixes, "next_token": token}
    if kind == "msgpack":
        return Answer(200, msgspec.msgpack.encode(value), [("Content-Type", MSGPACK)])
    return json_answer(value)
