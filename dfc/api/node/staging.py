"""`/v1/node/staged…` and `/v1/node/deposits` at a target: store, publish and discard the outputs of jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from dfc.api.bodies import asked_part, content_answer
from dfc.api.stored import hold_s, upload_answer
from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest
from dfc.http.answers import Answer, header_lines, json_answer
from dfc.http.common import flag
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.limits import JSON_BODY_BYTES_MAX
from dfc.names import ObjectPath, check_bucket_name, check_object_name, parse_object_path
from dfc.target.staging import JobStaging, OutputName
from dfc.wire import CHECKSUM_HEADER, OCTETS

SITE_QUERY: Final = frozenset(("bucket", "object", "temporary"))
STAGED_QUERY: Final = frozenset(("temporary", "deposit", "size"))
PUBLISH_QUERY: Final = frozenset(("begin",))
_SIZE: Final = re.compile("[0-9]{1,18}")


class OutputsAsked(msgspec.Struct, frozen=True):
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
        status, start, stop, line = asked_part(exchange.headers, row.size, row.checksum, row.modified_us)
        lines = header_lines((("Content-Type", OCTETS), ("ETag", f'"{row.checksum}"'), ("Accept-Ranges", "bytes"))) + line
        if status == 304:
            return Answer(304, b"", lines)
        return content_answer(status, await found.open(start, stop), stop - start, lines)

    async def site(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the place where a worker on this machine may write an output itself."""
        query = exchange.query_parameters(SITE_QUERY)
        path = path_of(query)
        return json_answer(await self._staging.site(path, temporary=flag(query, "temporary")))

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

    async def lacking(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say which names that are decided about here have no output of the job, nor anything newer."""
        try:
            asked = msgspec.json.decode(await exchange.read_small(JSON_BODY_BYTES_MAX), type=OutputsAsked)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"invalid JSON: {error}") from None
        told = await self._staging.lacking(asked.bucket, asked.objects, asked.version)
        return json_answer({"lacking": told.lacking, "unknown": told.unknown})

    async def discard(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Drop what a job has staged."""
        return json_answer({"discarded": await self._staging.discard(parameters[0])})

    ENDPOINTS = (
        Endpoint("/v1/node/staged", {"GET": totals}),
        Endpoint("/v1/node/staged/{job}", {"DELETE": discard}),
        Endpoint("/v1/node/staged/{job}/prepare", {"POST": prepare}),
        Endpoint("/v1/node/staged/{job}/publish", {"POST": publish}, PUBLISH_QUERY),
        Endpoint("/v1/node/staged/{job}/lacking", {"POST": lacking}),
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
