"""The routes under `/v1/node/` at a target."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from dfc.api.node.copies import CompareHandlers, CopyHandlers
from dfc.api.objects import content_answer, hold_s, requested_part, upload_answer
from dfc.api.shared import FigureHandlers, msgpack_answer
from dfc.batch.gather import part_answer, read_request
from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest
from dfc.http.answers import Answer, StreamAnswer, flag, header_lines, json_answer, page_limit
from dfc.http.budget import PARTS
from dfc.http.exchange import Exchange
from dfc.http.faces import Authenticate, Endpoint, Face, Handlers, routes_of
from dfc.limits import CLUSTER_MAP_BYTES_MAX, JSON_BODY_BYTES_MAX, SEARCH_BODY_BYTES_MAX
from dfc.listing.search import SearchRequest
from dfc.names import ObjectPath, check_bucket_name, check_object_name, parse_object_path
from dfc.placement.map import ClusterMap
from dfc.target.batch import OwnBatches
from dfc.target.disks import Scrubbers
from dfc.target.jobs import JobInputs, JobStaging, OutputName
from dfc.target.listing import OwnListings, OwnSearches, ShardSelection
from dfc.target.local import TargetState
from dfc.target.objects import OwnObjects
from dfc.wire import CHECKSUM_HEADER, MSGPACK, NDJSON, OCTETS

# --- What proxies ask a target about all its disks: listings, counts, sample keys, bucket removal, the map, scrubbing.

PAGE_QUERY: Final = frozenset(("bucket_id", "prefix", "start_after", "delimiter", "limit", "step"))
_STEP: Final = re.compile("[0-9]{1,18}")
KEYS_QUERY: Final = frozenset(("bucket", "shards", "fields", "step"))


class HoldingHandlers(Handlers):
    """Handlers of the internal paths that do not concern jobs."""

    def __init__(
        self, local: TargetState, objects: OwnObjects, listings: OwnListings, selection: ShardSelection, scrubbers: Scrubbers
    ) -> None:
        self._local = local
        self._objects = objects
        self._listings = listings
        self._selection = selection
        self._scrubbers = scrubbers

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """List a page of the objects of a bucket."""
        query = exchange.query_parameters(None)
        request = (
            query.get("bucket_id", ""),
            query.get("prefix", ""),
            query.get("start_after", ""),
            query.get("delimiter", ""),
        )
        return msgpack_answer(await self._listings.page(*request, page_limit(query), step_of(query)))

    async def counts(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Count the objects and bytes of every bucket."""
        return json_answer(await self._listings.counts())

    async def remove_bucket(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Delete what is left of a bucket that the map calls `deleting`."""
        removed, disks = await self._objects.remove_bucket(parameters[0])
        return json_answer({"removed": removed, "disks": disks})

    async def take_map(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Use this map from now on. Answers once no commit decided by an older map is under way."""
        return json_answer(await self._local.decide_by(await exchange.json(ClusterMap, CLUSTER_MAP_BYTES_MAX)))

    async def keys(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """List the samples of this target's shards that match a spec, one per line."""
        query = exchange.query_parameters(None)
        request = query.get("bucket", ""), query.get("shards", ""), query.get("fields", "")
        return StreamAnswer(200, await self._selection.keys(*request, step_of(query)), [("Content-Type", NDJSON)])

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


# --- `/v1/node/staged…` and `/v1/node/deposits` at a target: store, publish and discard the outputs of jobs.

SITE_QUERY: Final = frozenset(("bucket", "object", "temporary"))
STAGED_QUERY: Final = frozenset(("temporary", "deposit", "size"))
PUBLISH_QUERY: Final = frozenset(("begin",))
_SIZE: Final = re.compile("[0-9]{1,18}")


class OutputsRequest(msgspec.Struct, frozen=True):
    """A question about outputs of a job in a bucket; `version`: the oldest that they have."""

    bucket: str
    objects: list[str]
    version: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{18}$")]


class StagingHandlers(Handlers):
    """Handlers for workers and proxies, which write and publish outputs."""

    def __init__(self, staging: JobStaging) -> None:
        self._staging = staging

    async def put(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Store a body as an output of a job; with `deposit`, a file that a worker on this machine writes."""
        query = exchange.query_parameters(STAGED_QUERY) if exchange.raw_query else {}
        output, size = _output(parameters, query), query.get("size")
        if size is not None and not _SIZE.fullmatch(size):
            raise BadRequest("size must be a number of bytes")
        expected = ExpectedChecksums.from_headers(exchange.headers.get(CHECKSUM_HEADER), None)
        await self._staging.until_leased(hold_s(exchange))
        return upload_answer(
            await self._staging.put(output, exchange, expected, query.get("deposit"), None if size is None else int(size))
        )

    async def get(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Return the staged bytes, or a range of them."""
        query = exchange.query_parameters(STAGED_QUERY) if exchange.raw_query else {}
        found = await self._staging.find(_output(parameters, query))
        row = found.entry.row
        status, start, stop, line = requested_part(exchange.headers, row.size, row.checksum, row.modified_us)
        lines = header_lines((("Content-Type", OCTETS), ("ETag", f'"{row.checksum}"'), ("Accept-Ranges", "bytes"))) + line
        if status == 304:
            return Answer(304, b"", lines)
        return content_answer(status, await found.open(start, stop), stop - start, lines)

    async def site(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the place where a worker on this machine may write an output itself."""
        query = exchange.query_parameters(SITE_QUERY)
        return json_answer(await self._staging.site(path_of(query), temporary=flag(query, "temporary")))

    async def totals(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the totals that every job has staged here."""
        return json_answer(await self._staging.totals())

    async def prepare(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Prepare publishing: return everything that is to become an object."""
        return json_answer({"objects": await self._staging.prepare(parameters[0])})

    async def publish(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Make the outputs of a job visible. With `begin=1`, without waiting until others have them, too."""
        query = exchange.query_parameters(PUBLISH_QUERY) if exchange.raw_query else {}
        done = await self._staging.publish(parameters[0], begins_only=flag(query, "begin"))
        return json_answer({"objects": done.objects, "bytes": done.bytes})

    async def missing(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say which names that are decided about here have no output of the job, nor anything newer."""
        try:
            request = msgspec.json.decode(await exchange.read_small(JSON_BODY_BYTES_MAX), type=OutputsRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"invalid JSON: {error}") from None
        reply = await self._staging.missing(request.bucket, request.objects, request.version)
        return json_answer({"missing": reply.missing, "unknown": reply.unknown})

    async def discard(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Drop what a job has staged."""
        return json_answer({"discarded": await self._staging.discard(parameters[0])})

    ENDPOINTS = (
        Endpoint("/v1/node/staged", {"GET": totals}),
        Endpoint("/v1/node/staged/{job}", {"DELETE": discard}),
        Endpoint("/v1/node/staged/{job}/prepare", {"POST": prepare}),
        Endpoint("/v1/node/staged/{job}/publish", {"POST": publish}, PUBLISH_QUERY),
        Endpoint("/v1/node/staged/{job}/missing", {"POST": missing}),
        Endpoint("/v1/node/staged/{job}/{bucket}/{object…}", {"GET": get, "PUT": put}, STAGED_QUERY),
        Endpoint("/v1/node/deposits", {"GET": site}, SITE_QUERY),
    )


def path_of(query: Mapping[str, str]) -> ObjectPath:
    """Return the object that a query names. BadRequest, BadName."""
    for parameter in ("bucket", "object"):
        if parameter not in query:
            raise BadRequest(f"the query parameter {parameter!r} is missing")
    return ObjectPath(check_bucket_name(query["bucket"]), check_object_name(query["object"]))


def _output(parameters: tuple[str, ...], query: Mapping[str, str]) -> OutputName:
    job, bucket, name = parameters
    path = parse_object_path(f"/{bucket}/{name}")
    check_bucket_name(path.bucket)
    return OutputName(job, path, flag(query, "temporary"))


# --- `/v1/node/shards`, `/v1/node/locate` and `/v1/node/index` at a target: find the inputs of jobs.

SHARDS_QUERY: Final = frozenset(("bucket", "shards", "any", "step"))
LOCATE_QUERY: Final = frozenset(("bucket", "object", "version", "job", "temporary"))
INDEX_QUERY: Final = frozenset(("bucket", "object", "version"))


class JobInputHandlers(Handlers):
    """Handlers for the plans and tasks of jobs, which ask about their inputs."""

    def __init__(self, inputs: JobInputs) -> None:
        self._inputs = inputs

    async def shards(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """List this target's shards that match a spec; with `any=1` also objects without an index."""
        query = exchange.query_parameters(SHARDS_QUERY)
        request = query.get("bucket", ""), query.get("shards", "")
        content = await self._inputs.shards(*request, anything=flag(query, "any"), step=step_of(query))
        return Answer(200, content, [("Content-Type", MSGPACK)])

    async def locate(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the paths of a blob for a worker on the same machine."""
        query = exchange.query_parameters(LOCATE_QUERY)
        path, version = path_of(query), query.get("version")
        what = OutputName(query["job"], path, flag(query, "temporary")) if "job" in query else path
        return json_answer(await self._inputs.locate(what, version))

    async def index(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the bytes of a shard's index."""
        query = exchange.query_parameters(INDEX_QUERY)
        found = await self._inputs.index(path_of(query), query.get("version"))
        return content_answer(200, found, found.size, f"Content-Type: {OCTETS}\r\n")

    ENDPOINTS = (
        Endpoint("/v1/node/shards", {"GET": shards}, SHARDS_QUERY),
        Endpoint("/v1/node/locate", {"GET": locate}, LOCATE_QUERY),
        Endpoint("/v1/node/index", {"GET": index}, INDEX_QUERY),
    )


class OwnBatchHandlers(Handlers):
    """Handler of `/v1/node/batch`, for nodes that assemble a batch and ask the owners of its items."""

    def __init__(self, batches: OwnBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer a list of this target's items: first the length of each, then their bytes."""
        request, _ = await read_request(exchange, PARTS)
        return part_answer(await self._batches.gather_own(request))

    ENDPOINTS = (Endpoint("/v1/node/batch", {"POST": batch}),)


class OwnSearchHandlers(Handlers):
    """Handler of `/v1/node/search`, for proxies that search the shards of a bucket for samples by their keys."""

    def __init__(self, searches: OwnSearches) -> None:
        self._searches = searches

    async def search(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Search some of this target's shards, within the time that is left."""
        body = await exchange.read_small(SEARCH_BODY_BYTES_MAX)
        request = await asyncio.to_thread(_asked, body)
        part = await exchange.while_open(self._searches.search(request))
        return Answer(200, await asyncio.to_thread(msgspec.msgpack.encode, part), [("Content-Type", MSGPACK)])

    ENDPOINTS = (Endpoint("/v1/node/search", {"POST": search}),)


def _asked(body: bytes) -> SearchRequest:
    try:
        return msgspec.msgpack.decode(body, type=SearchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"invalid msgpack: {error}") from None


def target_face(
    holdings: HoldingHandlers,
    staging: StagingHandlers,
    inputs: JobInputHandlers,
    batches: OwnBatchHandlers,
    searches: OwnSearchHandlers,
    copies: CopyHandlers,
    compare: CompareHandlers,
    figures: FigureHandlers,
    may_use: Authenticate,
) -> Face:
    """Make the face; all its routes require the token."""
    return Face("node", routes_of(holdings, staging, inputs, batches, searches, copies, compare, figures), may_use)
