"""Buckets: create, change, count, list, delete, and the keys of their samples."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import aiohttp
import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer, AnswerCut, StreamAnswer, json_answer
from dfc.http.common import flag, page_limit
from dfc.http.exchange import Exchange
from dfc.names import check_bucket_name
from dfc.placement.map import BucketEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.deletions import Deletions
from dfc.proxy.web import listing_answer, listing_query, wants
from dfc.shards import check
from dfc.wire import JSON, NDJSON

STREAM_QUEUE: Final = 8  # pieces of ~64 KiB that wait for a slow reader of the keys
SHARDS_DEFAULT: Final = "**"
NO_QUERY: Final[frozenset[str]] = frozenset()  # `force` goes with DELETE only


class BucketSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PUT."""

    copies: Annotated[int, msgspec.Meta(ge=1)] = 1
    durability: Literal["fsync", "relaxed"] = "fsync"


class BucketChanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of PATCH: only what changes."""

    copies: Annotated[int, msgspec.Meta(ge=1)] | None = None
    durability: Literal["fsync", "relaxed"] | None = None


def _check_copies(copies: int | None) -> None:
    if copies not in (None, 1):
        raise BadRequest("copies other than 1 are not built yet")


class BucketRoutes:
    """Handlers under `/v1/buckets`."""

    def __init__(self, cluster: Cluster, deletions: Deletions) -> None:
        self._cluster = cluster
        self._deletions = deletions

    def _describe(self, bucket: BucketEntry, counts: dict[str, tuple[int, int]]) -> dict[str, Any]:
        objects, size = counts.get(bucket.id, (0, 0))
        return {
            "name": bucket.name,
            "created": bucket.created,
            "objects": objects,
            "bytes": size,
            "copies": bucket.copies,
            "durability": bucket.durability,
        }

    async def list(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        counts = await self._cluster.counts() if self._cluster.map.buckets else {}
        return json_answer({"buckets": [self._describe(bucket, counts) for bucket in self._cluster.map.buckets]})

    async def get(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        exchange.query_parameters(NO_QUERY)
        bucket = self._cluster.bucket(check_bucket_name(parameters[0]))
        return json_answer(self._describe(bucket, await self._cluster.counts()))

    async def put(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        exchange.query_parameters(NO_QUERY)
        name = check_bucket_name(parameters[0])
        settings: BucketSettings = await exchange.json(BucketSettings)
        _check_copies(settings.copies)
        self._cluster.check_ready()
        bucket, created = await self._cluster.create_bucket(name, settings.copies, settings.durability)
        return json_answer(self._describe(bucket, {}) if created else await self._with_counts(bucket), 201 if created else 200)

    async def _with_counts(self, bucket: BucketEntry) -> dict[str, Any]:
        return self._describe(bucket, await self._cluster.counts())

    async def patch(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        exchange.query_parameters(NO_QUERY)
        name = check_bucket_name(parameters[0])
        changes: BucketChanges = await exchange.json(BucketChanges)
        _check_copies(changes.copies)
        given = {key: value for key, value in msgspec.structs.asdict(changes).items() if value is not None}
        self._cluster.bucket(name)
        counts = await self._cluster.counts()  # before the change: an error must not follow on one that was made
        bucket = await self._cluster.change_bucket(name, **given)
        return json_answer(self._describe(bucket, counts))

    async def ensure(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """For targets: the map with this bucket in it, made when the settings allow."""
        await self._cluster.bucket_for_write(check_bucket_name(parameters[0]))
        return Answer(200, self._cluster.map.encode(), [("Content-Type", JSON)])

    async def objects(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        bucket = self._cluster.bucket(check_bucket_name(parameters[0]))
        query = exchange.query_parameters(None)
        kind = "msgpack" if wants(exchange) == "msgpack" else "json"
        return await listing_answer(self._cluster, listing_query(bucket.id, query), page_limit(query, 1000), kind)

    async def delete(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        name = check_bucket_name(parameters[0])
        await self._deletions.delete(name, force=flag(exchange.query_parameters(None), "force"))
        return Answer(204)

    # --- keys

    async def samples(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """*List keys*: all targets in parallel, a line a sample, shards in no order."""
        bucket = self._cluster.bucket(check_bucket_name(parameters[0]))
        query = exchange.query_parameters(None)
        shards = query.get("shards", SHARDS_DEFAULT)
        check(shards)
        fields = query.get("fields", "")
        if fields not in ("", "key"):
            raise BadRequest("fields is 'key' or absent")
        arguments = urlencode({"bucket": bucket.name, "shards": shards, "fields": fields})
        streams: list[aiohttp.ClientResponse] = []
        try:
            for opened in await asyncio.gather(
                *(
                    self._cluster.control.open_stream(f"{n.url}/v1/node/samples?{arguments}")
                    for n in self._cluster.live_targets()
                ),
                return_exceptions=True,
            ):
                if isinstance(opened, BaseException):
                    raise opened
                streams.append(opened)
        except BaseException:
            _close(streams)
            raise
        return StreamAnswer(200, _interleave(streams), [("Content-Type", NDJSON)], on_close=lambda: _close(streams))


def _close(streams: Sequence[aiohttp.ClientResponse]) -> None:
    for stream in streams:
        stream.close()


async def _interleave(streams: Sequence[aiohttp.ClientResponse]) -> AsyncIterator[bytes]:
    """Whole lines of all streams as they come; the failure of one ends it with an error, never cleanly short."""
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(STREAM_QUEUE)

    async def pump(stream: aiohttp.ClientResponse) -> None:
        begun = b""
        try:
            async for piece in stream.content.iter_any():
                lines, newline, rest = (begun + piece).rpartition(b"\n")
                if newline:
                    await queue.put(lines + newline)
                begun = rest
            await queue.put(AnswerCut("a target ended in mid-line") if begun else None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await queue.put(AnswerCut(f"a target broke off: {error}"))

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
