"""`/ui/buckets` and `/ui/search`: the buckets, the objects in them, and samples by their keys."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from itertools import groupby
from typing import Final, NamedTuple, get_args
from urllib.parse import quote, urlencode

from dfc.api.shared import datasets_of, listing_query
from dfc.api.shared import page_of as listed_page
from dfc.errors import BadName, BadRequest, BadShardSpec, BucketNotFound, DfcError, TooLarge, Unavailable
from dfc.http.answers import Answer
from dfc.http.budget import PAGES, SEARCHES
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Handlers
from dfc.limits import COPIES_MAX
from dfc.listing.pages import listed
from dfc.listing.search import PARAMETERS, FoundSamples, How, KeyQuery, SampleHit, place_of
from dfc.listing.specs import is_plain
from dfc.names import HIDDEN_PREFIX, RESERVED_SEGMENTS, check_bucket_name, object_path
from dfc.proxy.admin import ProxyServices
from dfc.proxy.buckets import CountedBucket
from dfc.proxy.samples import FieldPlace, SampleRow, ShardFacts
from dfc.tar.index.format import ENDINGS
from dfc.ui.pages.samples import TILES, Tile, TileStyle, tile_of, tiles_of
from dfc.ui.rendering import Rendering, form_of, see_other
from dfc.ui.words import above, dataset_url, datasets_url, page_of, search_url, shard_url

PAGE_OBJECTS: Final = 200
DATASETS_MAX: Final = 1000  # on a page
DATASETS_QUERY: Final = frozenset(("prefix",))
QUERY: Final = frozenset(("prefix", "token"))
CHANGES: Final = frozenset(("POST",))
NAME_RULE: Final = "this cannot be its name: up to 63 letters, digits, '.', '_' and '-'; it begins with a letter or a digit"
DURABILITIES: Final = {
    "fsync": "on the disk before an upload is answered (fsync)",
    "relaxed": "on the disk up to 30 seconds after an upload is answered (relaxed)",
}
_NUMBER: Final = re.compile("[0-9]{1,4}")


class BucketPages(Handlers):
    """Handlers of the pages about buckets."""

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._buckets, self._listings, self._admin = uses.buckets, uses.listings, uses.admin
        self._rendering = rendering

    async def all(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show all buckets."""
        return await self._all(exchange)

    async def _all(self, exchange: Exchange, status: int = 200, wrong: str = "", given: str = "") -> Answer:
        try:
            found = await self._buckets.all()
        except Unavailable:  # what is down has some of the objects; the names are known all the same
            found = [CountedBucket(entry, 0, 0, exact=False) for entry in self._admin.cluster_map().buckets]
        return await self._rendering.page(
            exchange, "buckets.html", status, buckets=found, wrong=wrong, given=given, copies_max=COPIES_MAX
        )

    async def create(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Create a bucket, and show it; an error is shown beside the form."""
        fields = await form_of(exchange)
        given = fields.get("name", "")
        try:
            name = check_bucket_name(given)
            await self._buckets.create(name, number(fields, "copies"), "fsync")
        except Unavailable:
            raise
        except BadName as error:
            return await self._all(exchange, error.status, error.message if given in RESERVED_SEGMENTS else NAME_RULE, given)
        except DfcError as error:
            return await self._all(exchange, error.status, error.message, given)
        return see_other(page_of(name))

    async def one(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show a bucket, with a page of its objects."""
        return await self._one(exchange, check_bucket_name(parameters[0]))

    async def _one(self, exchange: Exchange, name: str, status: int = 200, wrong: str = "") -> Answer:
        parameters = exchange.query_parameters(QUERY)
        prefix = parameters.get("prefix", "")
        bucket = await self._buckets.get(name)
        query = listing_query(bucket.entry.id, {**parameters, "delimiter": "/"})
        page = await listed_page(exchange, self._listings, query, PAGE_OBJECTS)
        own = await self._listings.page(listing_query(bucket.entry.id, {"prefix": HIDDEN_PREFIX}), 1) if not prefix else None
        following = {"prefix": prefix, "token": page.last} if page.more else None
        return await self._rendering.page(
            exchange,
            "bucket.html",
            status,
            bucket=bucket,
            prefix=prefix,
            folders=[(each, f"{page_of(name)}?{urlencode({'prefix': each})}") for each in page.prefixes],
            objects=[(each, object_path(name, each.name)) for each in listed(page.rows)],
            shards={each[0]: shard_url(name, each[0]) for each in page.rows if each[4] is not None},
            hidden_page=f"{page_of(name)}?{urlencode({'prefix': HIDDEN_PREFIX})}" if own and own.rows else "",
            above=above(name, prefix),
            folder=prefix[: prefix.rfind("/") + 1],
            folder_path=object_path(name, prefix[: prefix.rfind("/") + 1]),
            endings=tuple(ENDINGS),
            datasets_page=datasets_url(name, prefix),
            search_page=search_url(name, _folder(prefix)),
            first_page=f"{page_of(name)}?{urlencode({'prefix': prefix})}" if "token" in parameters else "",
            next_page=f"{page_of(name)}?{urlencode(following)}" if following else "",
            durabilities=DURABILITIES,
            copies_max=COPIES_MAX,
            wrong=wrong,
        )

    async def datasets(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show the shards of a bucket grouped by their names."""
        name, given = check_bucket_name(parameters[0]), exchange.query_parameters(DATASETS_QUERY)
        found = await datasets_of(exchange, self._listings, listing_query(self._listings.bucket_id(name), given))
        return await self._rendering.page(
            exchange,
            "datasets.html",
            bucket=name,
            above=above(name, given.get("prefix", "")),
            datasets=[(each, dataset_url(name, each.pattern)) for each in found[:DATASETS_MAX]],
            search_page=search_url(name, _folder(given.get("prefix", ""))),
            more=len(found) - DATASETS_MAX,
        )

    async def change(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Change the settings of a bucket."""
        name, fields = check_bucket_name(parameters[0]), await form_of(exchange)
        durability = fields.get("durability")
        try:
            if durability not in DURABILITIES:
                raise BadRequest(f"durability is one of {', '.join(DURABILITIES)}")
            await self._buckets.change(name, number(fields, "copies"), durability, number(fields, "min_copies") or 0)  # type: ignore[arg-type]
        except Unavailable:
            raise
        except DfcError as error:
            return await self._one(exchange, name, error.status, error.message)
        return see_other(page_of(name))

    async def delete(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Delete a bucket with everything in it, if its name was typed."""
        name, fields = check_bucket_name(parameters[0]), await form_of(exchange)
        if fields.get("name") != name:
            return await self._one(exchange, name, 400, "type the name of the bucket to delete it with everything in it")
        await self._buckets.delete(name, force=True)
        return see_other("/ui/buckets")

    ENDPOINTS = (
        Endpoint("/ui/buckets", {"GET": all, "POST": create}, budget=PAGES),
        Endpoint("/ui/buckets/{bucket}", {"GET": one, "POST": change}, QUERY, by_coordinator=CHANGES),
        Endpoint("/ui/buckets/{bucket}/datasets", {"GET": datasets}, DATASETS_QUERY),
        Endpoint("/ui/buckets/{bucket}/delete", {"POST": delete}, by_coordinator=CHANGES),
    )


def _folder(prefix: str) -> str:
    """The folder that a prefix names; empty if it names none."""
    return prefix if prefix.endswith("/") and is_plain(prefix.rstrip("/")) else ""


def number(fields: dict[str, str], name: str) -> int | None:
    """Return a number of copies; None if the field is empty. BadRequest."""
    text = fields.get(name, "")
    if not text:
        return None
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= COPIES_MAX:
        raise BadRequest(f"{name} must be a number from 1 to {COPIES_MAX}")
    return int(text)


# --- `/ui/search`: samples by their keys, in all shards of a bucket or in some.

SEARCH_QUERY: Final = frozenset(("bucket", "shards", "how", "key", "token"))
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

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._uses, self._search = uses, uses.search
        self._rendering = rendering

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the form and, if a key is given, what is found; an error is shown at its field."""
        given = exchange.query_parameters(SEARCH_QUERY)
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
        return [
            HitTile(tile, name, shard_url(bucket, name, tile.number - tile.number % TILES))
            for name, group in by_shard.items()
            for tile in made.get(name) or _plain_tiles(bucket, name, group)
        ]

    async def _of_shard(self, slots: asyncio.Semaphore, bucket: str, name: str, hits: list[SampleHit]) -> list[Tile]:
        """The tiles of some samples of a shard; none if it cannot be read, or is another one by now."""
        async with slots:
            try:
                shard: ShardFacts = await self._uses.shards.shard(bucket, name)
                return await tiles_of(self._uses, bucket, shard, _rows(hits))
            except DfcError:
                return []

    ENDPOINTS = (Endpoint("/ui/search", {"GET": page}, SEARCH_QUERY),)


def _rows(hits: list[SampleHit]) -> dict[int, SampleRow]:
    return {
        hit.number: SampleRow(hit.key, {ext: FieldPlace(offset, size) for ext, (offset, size) in hit.members.items()})
        for hit in hits
    }


def _plain_tiles(bucket: str, name: str, hits: list[SampleHit]) -> list[Tile]:
    shard, style = ShardFacts(name, 0, "", "", "", 0), TileStyle()
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
