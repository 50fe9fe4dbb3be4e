"""`/ui/search`: samples by their keys, in all shards of a bucket or in some."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import groupby
from typing import Final, NamedTuple, get_args
from urllib.parse import quote, urlencode

from dfc.errors import BadName, BadRequest, BadShardSpec, BucketNotFound, DfcError, TooLarge
from dfc.http.answers import Answer
from dfc.http.budget import SEARCHES
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.keysearch import PARAMETERS, FoundSamples, How, KeyQuery, SampleHit, place_of
from dfc.names import check_bucket_name
from dfc.proxy.shardviews import FieldPlace, SampleRow, ShardFacts
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import above, shard_url
from dfc.ui.pages.samples import TILES
from dfc.ui.pages.tiles import Tile, TileStyle, tile_of, tiles_of
from dfc.ui.rendering import Rendering

QUERY: Final = frozenset(("bucket", "shards", "how", "key", "token"))
SHARDS_AT_ONCE: Final = 8  # of which the texts of tiles are fetched
TEXTS_S: Final = 3.0  # for all of them; after that, tiles have none
UNSEARCHED_SHOWN: Final = 10
# How keys are compared, and in what words.
WAYS: Final[Mapping[How, str]] = {"exact": "is", "prefix": "begins with", "contains": "contains"}


class HitTile(NamedTuple):
    """A sample that was found, as a tile, and its shard with its page."""

    tile: Tile
    shard: str
    url: str


class SearchForm(NamedTuple):
    """What is in the form: as it was given. `token`: where the search goes on. `wrong`: what is wrong with which field."""

    bucket: str = ""
    shards: str = ""
    how: str = "exact"
    key: str = ""
    token: str = ""
    wrong: Mapping[str, str] = {}

    def url(self, token: str = "") -> str:
        """The page of what is found, from the beginning or with a token."""
        query = {"bucket": self.bucket, "shards": self.shards, "how": self.how, "key": self.key, "token": token}
        return f"/ui/search?{urlencode({name: value for name, value in query.items() if value})}"


class SearchPage(Handlers):
    """Handler of the page for searches."""

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
        self._uses, self._search = uses, uses.search
        self._rendering = rendering

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the form and, if a key is given, what is found; an error is shown at its field."""
        given = exchange.query_parameters(QUERY)
        form = SearchForm(
            given.get("bucket", ""),
            given.get("shards", ""),
            given.get("how", "exact"),
            given.get("key", ""),
            given.get("token", ""),
        )
        if "key" not in given:
            return await self._shown(exchange, form)
        start = place_of(form.token) if form.token else None
        try:
            bucket = _bucket_of(form)
            query = KeyQuery(_way_of(form), form.key)
            place = await exchange.enter(SEARCHES, self._search.room(TILES))
            searching = self._search.find(bucket, query, form.shards or None, TILES, start, place.shrink)
            found = await exchange.while_open(searching)
        except DfcError as error:
            field = _field_of(error)
            if field is None:
                raise
            return await self._shown(exchange, form._replace(wrong={field: error.message}), error.status)
        return await self._shown(exchange, form, found=found, tiles=await self._tiles(bucket, found.hits))

    async def _shown(
        self,
        exchange: Exchange,
        form: SearchForm,
        status: int = 200,
        found: FoundSamples | None = None,
        tiles: list[HitTile] | None = None,
    ) -> Answer:
        query = {PARAMETERS[_way_of(form)]: form.key, "shards": form.shards, "token": form.token} if found else {}
        query = {name: value for name, value in query.items() if value}
        return await self._rendering.page(
            exchange,
            "search.html",
            status,
            form=form,
            ways=WAYS,
            folders=above(form.bucket, "") if found else [],
            found=found,
            tiles=tiles or [],
            beginning=form.url() if form.token else "",
            following=form.url(found.next_token) if found and found.next_token else "",
            unsearched=found.unsearched[:UNSEARCHED_SHOWN] if found else [],
            route=f"/v1/buckets/{form.bucket}/samples?{urlencode(query, quote_via=quote)}" if found else "",
        )

    async def _tiles(self, bucket: str, hits: list[SampleHit]) -> list[HitTile]:
        """Make the tiles of samples, in their order, with texts as far as these can be had soon."""
        by_shard = {shard: list(group) for shard, group in groupby(hits, lambda hit: hit.shard)}
        slots = asyncio.Semaphore(SHARDS_AT_ONCE)
        tasks = {name: asyncio.create_task(self._of_shard(slots, bucket, name, group)) for name, group in by_shard.items()}
        try:
            if tasks:
                await asyncio.wait(tasks.values(), timeout=TEXTS_S)
            made = {name: task.result() for name, task in tasks.items() if task.done()}
        finally:
            for task in tasks.values():
                task.cancel()
        tiles = []
        for name, group in by_shard.items():
            for tile in made.get(name) or _plain_tiles(bucket, name, group):
                tiles.append(HitTile(tile, name, shard_url(bucket, name, tile.number - tile.number % TILES)))
        return tiles

    async def _of_shard(self, slots: asyncio.Semaphore, bucket: str, name: str, hits: list[SampleHit]) -> list[Tile]:
        """The tiles of some samples of a shard; none if it cannot be read, or is another one by now."""
        async with slots:
            try:
                shard: ShardFacts = await self._uses.shards.shard(bucket, name)
                return await tiles_of(self._uses, bucket, shard, _rows(hits))
            except DfcError:
                return []

    ENDPOINTS = (Endpoint("/ui/search", {"GET": page}, QUERY),)


def _rows(hits: list[SampleHit]) -> dict[int, SampleRow]:
    return {
        hit.number: SampleRow(hit.key, {ext: FieldPlace(offset, size) for ext, (offset, size) in hit.members.items()})
        for hit in hits
    }


def _plain_tiles(bucket: str, name: str, hits: list[SampleHit]) -> list[Tile]:
    shard = ShardFacts(name, 0, "", "", "", 0)
    style = TileStyle()
    return [tile_of(bucket, shard, number, row, [], has_pictures=False, style=style) for number, row in _rows(hits).items()]


def _bucket_of(form: SearchForm) -> str:
    if not form.bucket:
        raise BadName("name a bucket")
    return check_bucket_name(quote(form.bucket, safe=""))


def _way_of(form: SearchForm) -> How:
    for way in get_args(How):
        if form.how == way:
            return way  # type: ignore[no-any-return]
    raise BadRequest(f"how must be one of {', '.join(get_args(How))}")


def _field_of(error: DfcError) -> str | None:
    """The field of the form that an error is about."""
    match error:
        case BadName() | BucketNotFound():
            return "bucket"
        case BadShardSpec() | TooLarge():
            return "shards"
        case BadRequest():
            return "key"
    return None
