"""`/ui/members`: the members of a shard as they are in the archive, or only those that belong to no sample."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple
from urllib.parse import urlencode

from dfc.errors import BadRequest
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.names import object_path
from dfc.proxy.shardviews import MemberRow
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import members_url, shard_url
from dfc.ui.pages.places import ShownPlace, place_of
from dfc.ui.rendering import Rendering

LINES: Final = 200
QUERY: Final = frozenset(("bucket", "object", "start", "of"))


class ShownMember(NamedTuple):
    """A member, and the path of its bytes, empty if it has none."""

    row: MemberRow
    url: str


class MemberPages(Handlers):
    """Handler of the page of a shard's members."""

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
        self._shards = uses.shards
        self._rendering = rendering

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show members from an ordinal on; or, `of=none`, those of no sample from an offset on. NotAShard."""
        query = exchange.query_parameters(QUERY)
        place, of_none = place_of(query, "start"), query.get("of", "")
        if of_none not in ("", "none"):
            raise BadRequest("of must be none, or left out")
        # One more than is shown, to know whether there are more: how many members there are, no header says.
        look = self._shards.unsampled if of_none else self._shards.members
        rows, count = await asyncio.gather(look(*place, LINES + 1), self._shards.unsampled_count(place.bucket, place.name))
        return await self._shown(exchange, place, rows, count, of_none=bool(of_none))

    async def _shown(
        self, exchange: Exchange, place: ShownPlace, rows: list[MemberRow], count: int, *, of_none: bool
    ) -> Answer:
        bucket, name, start = place
        url = object_path(bucket, name)
        members = [
            ShownMember(row, f"{url}?{urlencode({'member': row.name})}" if row.type == "file" else "") for row in rows[:LINES]
        ]
        before = 0 if of_none else max(0, start - LINES)  # what is before an offset cannot be counted back
        after = (rows[LINES].offset if of_none else start + LINES) if len(rows) > LINES else None
        return await self._rendering.page(
            exchange,
            "members.html",
            **place.shown,
            samples_page=shard_url(bucket, name),
            others_page=members_url(bucket, name, of_none=not of_none),
            start=start,
            of_none=of_none,
            count=count,
            members=members,
            previous=members_url(bucket, name, before, of_none=of_none) if start else "",
            following="" if after is None else members_url(bucket, name, after, of_none=of_none),
        )

    ENDPOINTS = (Endpoint("/ui/members", {"GET": page}, QUERY, budget=PAGES),)
