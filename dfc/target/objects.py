"""Objects of a target: GET, HEAD, PUT and DELETE. A handler parses, decides, acts, answers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from dfc.checksum import CHECKSUM_NAME, ExpectedChecksums
from dfc.errors import BadRequest, PreconditionFailed, TooLarge, Unavailable
from dfc.http.answers import Answer, header_lines, json_answer
from dfc.http.common import INSIDE_QUERY, OBJECT_QUERY, SAFETY_HEADERS, content_type
from dfc.http.conditions import entity_tags, http_date, is_not_modified, is_plain, requested_range
from dfc.http.exchange import Exchange
from dfc.http.relay import Relay
from dfc.limits import DECOMPRESSED_PUT_WAIT_S, SMALL_BODY_BYTES, SMALL_READ_BYTES
from dfc.names import ObjectPath, parse_object_path
from dfc.placement.map import BucketEntry
from dfc.storage.blobs.nowait import read_object
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, Precondition, PutResult, RowChanged
from dfc.tar.index import index_kind
from dfc.target.decoders import Slots
from dfc.target.local import Local, OwnPlace
from dfc.target.members import MemberRoutes, blob_answer
from dfc.target.uploads import store
from dfc.wire import CHECKSUM_HEADER, HOP_HEADER, SAMPLES_HEADER

REREADS_MAX: Final = 8  # a row that changes under the reader so often is a storm of uploads


@lru_cache(maxsize=16_384)
def _validators(name: str, checksum: str, modified_us: int, samples: int | None) -> str:
    """The header lines that every answer about an object has."""
    counts = () if samples is None else ((SAMPLES_HEADER, str(samples)),)
    return header_lines(
        (
            ("Content-Type", content_type(name)),
            ("ETag", f'"{checksum}"'),
            (CHECKSUM_HEADER, f"{CHECKSUM_NAME}={checksum}"),
            ("Last-Modified", http_date(modified_us)),
            ("Accept-Ranges", "bytes"),
            *counts,
            *SAFETY_HEADERS,
        )
    )


def object_headers(row: ObjectRow) -> str:
    return _validators(row.name, row.checksum, row.modified_us, row.samples)


class ObjectRoutes:
    """Handlers of the web namespace and of `/v1/objects`; what is not of this target goes to a proxy, once."""

    def __init__(self, local: Local, relay: Relay, members: MemberRoutes, object_size_max_bytes: int) -> None:
        self._local = local
        self._relay = relay
        self._members = members
        self._size_max = object_size_max_bytes
        self.slots = Slots(DECOMPRESSED_PUT_WAIT_S)

    async def web(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        path = parse_object_path(exchange.target_path)
        query = exchange.query_parameters(None) if exchange.raw_query else {}
        return await self._serve(exchange, path, query)

    def web_at_once(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer | None:
        """`web` for what is in memory: small objects, and small members of plain tars."""
        return self._at_once(exchange, parse_object_path(exchange.target_path))

    def object_at_once(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer | None:
        """The same for `object`."""
        return self._at_once(exchange, parse_object_path(f"/{parameters[0]}/{parameters[1]}"))

    def _at_once(self, exchange: Exchange, path: ObjectPath) -> Answer | None:
        bucket = self._local.map.bucket(path.bucket)
        if bucket is None or not path.name or not is_plain(exchange.headers):
            return None
        disk = self._local.owned_disk(bucket, path.name)
        row = disk.lookup_cached(bucket.id, path.name) if disk is not None else None
        if disk is None or row is None:
            return None
        if exchange.raw_query:
            return self._members.at_once(exchange, disk, row)
        if row.size > SMALL_READ_BYTES:
            return None
        body = read_object(disk.blob_path(row), row)
        return None if body is None else Answer(200, body, object_headers(row))

    async def object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        query = exchange.query_parameters(OBJECT_QUERY) if exchange.raw_query else {}
        return await self._serve(exchange, path, query)

    async def _serve(self, exchange: Exchange, path: ObjectPath, query: Mapping[str, str]) -> Answer:
        if not path.name:
            return await self.elsewhere(exchange)
        bucket = self._local.map.bucket(path.bucket)
        if bucket is None or exchange.method == "PUT":
            bucket = await self._local.bucket(path.bucket, create=exchange.method == "PUT")
        disk = self._local.owned_disk(bucket, path.name)
        if disk is None:
            return await self.elsewhere(exchange)
        if exchange.method not in ("GET", "HEAD") and not query.keys().isdisjoint(INSIDE_QUERY):
            raise BadRequest("what is inside a shard is read, not written; leave the query away to write the whole object")
        if exchange.method == "PUT":
            return await self._put(exchange, OwnPlace(bucket, disk), path.name)
        if exchange.method == "DELETE":
            return await self._delete(exchange, OwnPlace(bucket, disk), path.name)
        return await self._get(exchange, bucket, disk, path.name, query)

    async def elsewhere(self, exchange: Exchange, _parameters: tuple[str, ...] = ()) -> Answer:
        """Hand a request to a proxy: one hop, then the map is in question."""
        if HOP_HEADER in exchange.headers:
            await self._local.refresh_map()
            raise Unavailable("this target does not hold the object by its map; the map may be changing")
        return await self._relay.forward(exchange, self._local.proxies)

    # --- GET

    async def _get(self, exchange: Exchange, bucket: BucketEntry, disk: Disk, name: str, query: Mapping[str, str]) -> Answer:
        row = disk.lookup_cached(bucket.id, name)
        if row is None:
            row = await self._local.threads(disk).read(disk.lookup, bucket.id, name)
        for _ in range(REREADS_MAX):
            try:
                if query and not query.keys().isdisjoint(INSIDE_QUERY):
                    return await self._members.answer(exchange, disk, row, query)
                return await self._body(exchange, disk, row)
            except RowChanged as change:
                row = change.row
        raise Unavailable("the object is being replaced faster than it can be read")

    async def _body(self, exchange: Exchange, disk: Disk, row: ObjectRow) -> Answer:
        headers = exchange.headers
        lines = object_headers(row)
        start, stop, status = 0, row.size, 200
        if not is_plain(headers):
            if is_not_modified(headers, row.checksum, row.modified_us):
                return Answer(304, b"", lines)
            part = requested_range(headers, row.size, row.checksum, row.modified_us)
            if part is not None:
                start, stop, status = part.start, part.stop, 206
                lines += f"Content-Range: bytes {start}-{stop - 1}/{row.size}\r\n"
        if exchange.method == "HEAD":
            return Answer(status, b"", lines, content_length=stop - start)
        if row.size <= SMALL_READ_BYTES:
            body = read_object(disk.blob_path(row), row)
            if body is None:
                body = await self._local.threads(disk).read(disk.read_small, row)
            return Answer(status, body if status == 200 else body[start:stop], lines)
        return await blob_answer(self._local, disk, row, status, start, stop - start, lines)

    # --- PUT

    async def _put(self, exchange: Exchange, place: OwnPlace, name: str) -> Answer:
        expected = ExpectedChecksums.from_headers(exchange.headers.get(CHECKSUM_HEADER), exchange.headers.get("Content-MD5"))
        if "Content-Range" in exchange.headers:
            raise BadRequest("a PUT replaces the whole object; Content-Range is not for it")
        length = exchange.declared_length
        if length is not None and length > self._size_max:
            raise TooLarge(f"an object has at most {self._size_max} bytes")
        precondition = self._precondition(exchange, place, name)
        if precondition.names_an_object:
            # Asked before the body is read; decided inside the transaction.
            await self._local.threads(place.disk).read(_check_early, precondition, place, name)
        put = self._put_small if length is not None and length <= SMALL_BODY_BYTES else self._put_large
        has_slot = await self.slots.take(index_kind(name))
        try:
            result = await put(exchange, place, name, expected, precondition)
        finally:
            if has_slot:
                self.slots.give()
        return put_answer(place.bucket, result)

    def _precondition(self, exchange: Exchange, place: OwnPlace, name: str) -> Precondition:
        tags: list[str | None] = []
        for header in ("If-Match", "If-None-Match"):
            value = exchange.headers.get(header)
            found = entity_tags(value) if value is not None else frozenset[str]()
            if len(found) > 1:
                raise BadRequest(f"{header} of a write names one entity tag")
            tags.append(next(iter(found), None))
        guard = self._local.commit_guard(place.bucket, name, place.disk)
        return Precondition(if_match=tags[0], if_none_match=tags[1], guard=guard)

    async def _put_small(
        self, exchange: Exchange, place: OwnPlace, name: str, expected: ExpectedChecksums, precondition: Precondition
    ) -> PutResult:
        body = await exchange.read_small(SMALL_BODY_BYTES)
        return await self._local.threads(place.disk).write(
            place.disk.put_small,
            place.bucket.id,
            name,
            body,
            expected=expected,
            durability=place.bucket.durability,
            precondition=precondition,
        )

    async def _put_large(
        self, exchange: Exchange, place: OwnPlace, name: str, expected: ExpectedChecksums, precondition: Precondition
    ) -> PutResult:
        disk, bucket = place.disk, place.bucket
        begin = partial(
            disk.begin_put, bucket.id, name, size=exchange.declared_length, expected=expected, durability=bucket.durability
        )
        return await store(self._local, exchange, disk, begin, precondition)

    # --- DELETE

    async def _delete(self, exchange: Exchange, place: OwnPlace, name: str) -> Answer:
        precondition = self._precondition(exchange, place, name)
        await self._local.threads(place.disk).write(place.disk.delete, place.bucket.id, name, precondition=precondition)
        return Answer(204)


def _check_early(precondition: Precondition, place: OwnPlace, name: str) -> None:
    row = place.disk.find(place.bucket.id, name)
    try:
        precondition.check(row.checksum if row is not None else None)
    except PreconditionFailed:
        raise
    except Exception:  # the guard speaks again inside the transaction
        pass


def put_answer(bucket: BucketEntry, result: PutResult) -> Answer:
    """What was stored: 201 when it is new, 200 when something was there."""
    row = result.row
    body = {
        "bucket": bucket.name,
        "object": row.name,
        "size": row.size,
        "checksum": row.checksum,
        "version": row.version,
        "samples": row.samples,
        "members": row.members,
        "warnings": result.warnings,
    }
    return json_answer(body, 200 if result.replaced else 201, [("ETag", f'"{row.checksum}"')])
