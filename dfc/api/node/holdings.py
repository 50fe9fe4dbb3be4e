"""What proxies ask a target about all its disks: listings, counts, sample keys, bucket removal, the map, scrubbing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer, StreamAnswer, json_answer
from dfc.http.common import page_limit
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.placement.map import ClusterMap
from dfc.target.disks import Scrubbers
from dfc.target.listing import OwnListings
from dfc.target.local import Local
from dfc.target.objects import OwnObjects
from dfc.target.selection import ShardSelection
from dfc.wire import MSGPACK, NDJSON

PAGE_QUERY: Final = frozenset(("bucket_id", "prefix", "start_after", "delimiter", "limit", "step"))
_STEP: Final = re.compile("[0-9]{1,18}")
KEYS_QUERY: Final = frozenset(("bucket", "shards", "fields", "step"))


class HoldingHandlers(Handlers):
    """Handlers of the internal paths that do not concern jobs."""

    def __init__(
        self, local: Local, objects: OwnObjects, listings: OwnListings, selection: ShardSelection, scrubbers: Scrubbers
    ) -> None:
        self._local = local
        self._objects = objects
        self._listings = listings
        self._selection = selection
        self._scrubbers = scrubbers

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """List a page of the objects of a bucket."""
        query = exchange.query_parameters(None)
        asked = (query.get("bucket_id", ""), query.get("prefix", ""), query.get("start_after", ""), query.get("delimiter", ""))
        page = await self._listings.page(*asked, page_limit(query), step_of(query))
        return Answer(200, msgspec.msgpack.encode(page), [("Content-Type", MSGPACK)])

    async def counts(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Count the objects and bytes of every bucket."""
        return json_answer(await self._listings.counts())

    async def remove_bucket(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Delete what is left of a bucket that the map calls `deleting`."""
        removed, disks = await self._objects.remove_bucket(parameters[0])
        return json_answer({"removed": removed, "disks": disks})

    async def take_map(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Use this map from now on. Answers once no commit decided by an older map is under way."""
        new: ClusterMap = await exchange.json(ClusterMap, CLUSTER_MAP_BYTES_MAX)
        return json_answer(await self._local.decide_by(new))

    async def keys(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """List the samples of this target's shards that match a spec, one per line."""
        query = exchange.query_parameters(None)
        asked = query.get("bucket", ""), query.get("shards", ""), query.get("fields", "")
        keys = await self._selection.keys(*asked, step_of(query))
        return StreamAnswer(200, keys, [("Content-Type", NDJSON)])

    async def start_scrub(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Start scrubbing everything once."""
        self._scrubbers.request_pass()
        return json_answer({"started": True}, 202)

    async def scrub_status(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Report the scrub progress of each disk."""
        return json_answer({"disks": await self._scrubbers.status()})

    ENDPOINTS = (
        Endpoint("/v1/node/objects", {"GET": page}, PAGE_QUERY),
        Endpoint("/v1/node/buckets", {"GET": counts}),
        Endpoint("/v1/node/buckets/{id}", {"DELETE": remove_bucket}),
        Endpoint("/v1/node/samples", {"GET": keys}, KEYS_QUERY),
        Endpoint("/v1/node/map", {"POST": take_map}),
        Endpoint("/v1/node/scrub", {"GET": scrub_status, "POST": start_scrub}),
    )


def step_of(query: Mapping[str, str]) -> int | None:
    """By which step of placement an answer is wanted; None: by any. BadRequest."""
    step = query.get("step")
    if step is not None and not _STEP.fullmatch(step):
        raise BadRequest("step must be a number")
    return None if step is None else int(step)
