"""`/ui/members`: the members of a shard as they are in the archive, also those that belong to no sample."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlencode

from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.names import object_path
from dfc.proxy.shardviews import MemberRow
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import members_url, shard_url
from dfc.ui.pages.places import place_of
from dfc.ui.rendering import Rendering

LINES: Final = 200
QUERY: Final = frozenset(("bucket", "object", "start"))


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
        """Show members from an ordinal on. NotAShard."""
        place = place_of(exchange.query_parameters(QUERY), "start")
        bucket, name, start = place
        # One more than is shown, to know whether there are more: how many there are, no header says.
        rows = await self._shards.members(bucket, name, start, LINES + 1)
        url = object_path(bucket, name)
        members = [
            ShownMember(row, f"{url}?{urlencode({'member': row.name})}" if row.type == "file" else "") for row in rows[:LINES]
        ]
        return await self._rendering.page(
            exchange,
            "members.html",
            **place.shown,
            samples_page=shard_url(bucket, name),
            start=start,
            members=members,
            previous=members_url(bucket, name, max(0, start - LINES)) if start else "",
            following=members_url(bucket, name, start + LINES) if len(rows) > LINES else "",
        )

    ENDPOINTS = (Endpoint("/ui/members", {"GET": page}, QUERY),)
