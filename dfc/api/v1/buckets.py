"""`/v1/buckets`: the buckets of a cluster, their listings and the keys of their samples."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from dfc.api.shared import as_json, as_msgpack, datasets_of, listing_query, page_answer, wants
from dfc.errors import BadRequest
from dfc.http.answers import LISTING_QUERY, Answer, StreamAnswer, flag, json_answer, page_limit
from dfc.http.budget import LISTINGS, SEARCHES
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Handlers
from dfc.limits import COPIES_MAX, KEYS_BYTES, LIST_PAGE_DEFAULT, SEARCH_LINES_DEFAULT, SEARCH_UNSEARCHED_MAX
from dfc.listing.search import BY_PARAMETER, FoundSamples, key_query, place_of
from dfc.names import check_bucket_name
from dfc.placement.map import Durability
from dfc.wire import NDJSON
from dfc.wire.objects import BucketInfo, BucketList, SampleMatch

if TYPE_CHECKING:
    from dfc.proxy.admin import ProxyServices
    from dfc.proxy.buckets import CountedBucket

BUCKET_QUERY: Final = frozenset(("force",))
DATASETS_QUERY: Final = frozenset(("prefix",))
KEYS_QUERY: Final = frozenset(("shards", "fields", "limit", "token", *BY_PARAMETER))
NO_QUERY: Final[frozenset[str]] = frozenset()  # `force` goes with DELETE only

CopyCount = Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)]


class BucketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PUT. `copies` left out: the proxy's setting `default_copies`. `min_copies` left out: half of the copies."""

    copies: CopyCount | None = None
    min_copies: CopyCount | None = None
    durability: Durability = "fsync"


class BucketChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PATCH: only what changes."""

    copies: CopyCount | None = None
    min_copies: CopyCount | None = None
    durability: Durability | None = None


def _described(bucket: CountedBucket) -> BucketInfo:
    return BucketInfo(
        name=bucket.entry.name,
        created=bucket.entry.created,
        objects=bucket.objects,
        bytes=bucket.size,
        exact=bucket.exact,
        copies=bucket.entry.copies,
        copies_wanted=bucket.entry.goal,
        min_copies=bucket.entry.min_copies or (bucket.entry.goal + 1) // 2,
        durability=bucket.entry.durability,
    )


def found_lines(found: FoundSamples) -> bytes:
    """The lines of what a search has found, and as the last one what there is to say of all of it."""
    end = {
        "found": len(found.hits),
        "shards": found.shards,
        "searched": found.searched,
        "stopped": found.stopped,
        "next_token": found.next_token,
        "unsearched": found.unsearched[:SEARCH_UNSEARCHED_MAX],
        "unsearched_count": len(found.unsearched),
    }
    lines: list[Any] = []
    for hit in found.hits:
        sizes = {ext: size for ext, (_, size) in hit.members.items()}
        lines.append(SampleMatch(shard=hit.shard, number=hit.number, key=hit.key, members=sizes))
    return msgspec.json.Encoder().encode_lines([*lines, {"end": end}])


class BucketHandlers(Handlers):
    """Handlers under `/v1/buckets`."""

    def __init__(self, uses: ProxyServices) -> None:
        self._buckets, self._listings, self._keys, self._search = uses.buckets, uses.listings, uses.keys, uses.search

    async def list(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        return json_answer(BucketList(buckets=tuple(map(_described, await self._buckets.all()))))

    async def get(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        exchange.query_parameters(NO_QUERY)
        return json_answer(_described(await self._buckets.get(check_bucket_name(parameters[0]))))

    async def put(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        exchange.query_parameters(NO_QUERY)
        name = check_bucket_name(parameters[0])
        settings: BucketSettings = await exchange.json(BucketSettings)
        bucket, created = await self._buckets.create(name, settings.copies, settings.durability, settings.min_copies or 0)
        return json_answer(_described(bucket), 201 if created else 200)

    async def patch(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        exchange.query_parameters(NO_QUERY)
        name = check_bucket_name(parameters[0])
        changes: BucketChanges = await exchange.json(BucketChanges)
        changed = await self._buckets.change(name, changes.copies, changes.durability, changes.min_copies)
        return json_answer(_described(changed))

    async def delete(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        name = check_bucket_name(parameters[0])
        await self._buckets.delete(name, force=flag(exchange.query_parameters(None), "force"))
        return Answer(204)

    async def objects(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        bucket_id = self._listings.bucket_id(check_bucket_name(parameters[0]))
        parameters_given = exchange.query_parameters(None)
        query = listing_query(bucket_id, parameters_given)
        limit, render = page_limit(parameters_given, LIST_PAGE_DEFAULT), as_msgpack if wants(exchange) == "msgpack" else as_json
        return await page_answer(exchange, self._listings, query, limit, render)

    async def samples(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """*List keys* or, with a key, *search samples*."""
        name, query = check_bucket_name(parameters[0]), exchange.query_parameters(None)
        wanted = key_query(query)
        if wanted is not None:
            if "fields" in query:
                raise BadRequest("fields is for the list of all keys, without a key")
            limit = page_limit(query, SEARCH_LINES_DEFAULT)
            start = place_of(query["token"]) if "token" in query else None
            place = await exchange.enter(SEARCHES, self._search.room(limit))
            searching = self._search.find(name, wanted, query.get("shards"), limit, start, place.shrink)
            found = await exchange.while_open(searching)
            return Answer(200, await asyncio.to_thread(found_lines, found), [("Content-Type", NDJSON)])
        for only in ("limit", "token"):
            if only in query:
                raise BadRequest(f"{only} is for searches: give key, key_prefix or key_contains as well")
        await exchange.enter(LISTINGS, KEYS_BYTES)
        lines = await self._keys.open(name, query.get("shards"), query.get("fields", ""))
        return StreamAnswer(200, lines.pieces(), [("Content-Type", NDJSON)], on_close=lines.close)

    async def datasets(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Shards grouped by their names."""
        bucket_id = self._listings.bucket_id(check_bucket_name(parameters[0]))
        query = listing_query(bucket_id, exchange.query_parameters(DATASETS_QUERY))
        return json_answer({"datasets": await datasets_of(exchange, self._listings, query)})

    ENDPOINTS = (
        Endpoint("/v1/buckets", {"GET": list}),
        Endpoint("/v1/buckets/{bucket}/objects", {"GET": objects}, LISTING_QUERY),
        Endpoint("/v1/buckets/{bucket}/datasets", {"GET": datasets}, DATASETS_QUERY),
        Endpoint("/v1/buckets/{bucket}/samples", {"GET": samples}, KEYS_QUERY),
        Endpoint(
            "/v1/buckets/{bucket}",
            {"GET": get, "PUT": put, "PATCH": patch, "DELETE": delete},
            BUCKET_QUERY,
            by_coordinator=frozenset(("PATCH", "DELETE")),
        ),
    )
