"""Serve the objects of a target, the members and samples inside shards, and byte ranges of both, for all its faces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dfc.api.bodies import asked_part, content_answer
from dfc.api.inside import inside_query, member_answer, shard_answer
from dfc.checksum import CHECKSUM_NAME, ExpectedChecksums
from dfc.errors import BadRequest, NotThePrimary, Unavailable
from dfc.http.answers import Answer, header_lines, json_answer
from dfc.http.common import INSIDE_QUERY, SAFETY_HEADERS, content_type
from dfc.http.conditions import entity_tags, http_date, is_plain
from dfc.http.exchange import Exchange
from dfc.http.relay import Relay
from dfc.names import ObjectPath
from dfc.target.local import Local, OwnPlace
from dfc.target.members import Members
from dfc.target.objects import OwnObject, OwnObjects, WriteConditions
from dfc.target.uploads import Uploaded
from dfc.wire import CHECKSUM_HEADER, HOP_HEADER, MAP_HEADER, SAMPLES_HEADER, STALE_HEADER, VERSION_HEADER
from dfc.wire.objects import StoredObject

HOLD_LOOK_S: Final = 0.2  # between two looks at whether the map has changed
_STALE_LINE: Final = f"{STALE_HEADER}: 1\r\n"
_VERSION: Final = re.compile("[0-9]{1,18}")
_MEMBER_ALONE: Final = frozenset(("member",))


# --- objects


@lru_cache(maxsize=16_384)
def _validators(name: str, checksum: str, version: str, modified_us: int, samples: int | None) -> str:
    """Return the header lines common to all answers about an object."""
    counts = () if samples is None else ((SAMPLES_HEADER, str(samples)),)
    return header_lines(
        (
            ("Content-Type", content_type(name)),
            ("ETag", f'"{checksum}"'),
            (CHECKSUM_HEADER, f"{CHECKSUM_NAME}={checksum}"),
            (VERSION_HEADER, version),
            ("Last-Modified", http_date(modified_us)),
            ("Accept-Ranges", "bytes"),
            *counts,
            *SAFETY_HEADERS,
        )
    )


async def object_answer(exchange: Exchange, found: OwnObject) -> Answer:
    """Answer with an object, or the requested part of it."""
    row = found.row
    modified_us = row.modified_us
    status, start, stop, line = asked_part(exchange.headers, row.size, row.checksum, modified_us)
    lines = _validators(row.name, row.checksum, row.version, modified_us, row.samples) + line
    if status == 304 or exchange.method == "HEAD":
        return Answer(status, b"", lines, content_length=stop - start)
    return content_answer(status, await found.read(start, stop), stop - start, lines)


def upload_answer(uploaded: Uploaded) -> Answer:
    """Describe what was stored: 201 for a new object, 200 for one that was replaced."""
    row = uploaded.row
    body = StoredObject(
        bucket=uploaded.bucket,
        object=row.name,
        size=row.size,
        checksum=row.checksum,
        version=row.version,
        copies=uploaded.copies,
        copies_wanted=uploaded.copies_wanted,
        samples=row.samples,
        members=row.members,
        warnings=uploaded.warnings,
    )
    return json_answer(body, 200 if uploaded.replaced else 201, [("ETag", f'"{row.checksum}"')])


def write_conditions(headers: Mapping[str, str]) -> WriteConditions:
    """Parse the conditions of a PUT or DELETE. BadRequest."""
    tags: list[str | None] = []
    for header in ("If-Match", "If-None-Match"):
        value = headers.get(header)
        found = entity_tags(value) if value is not None else frozenset[str]()
        if len(found) > 1:
            raise BadRequest(f"{header} of a write must name a single entity tag")
        tags.append(next(iter(found), None))
    return WriteConditions(*tags)


# --- handlers


def hold_s(exchange: Exchange) -> float:
    """How long a request may wait for a lease. One that a proxy has passed on, not for as long as that waits for an answer."""
    settings = exchange.settings
    return min(settings.hold_s, settings.peer_timeout_s / 2) if HOP_HEADER in exchange.headers else settings.hold_s


class Elsewhere:
    """Passes requests that are not for this target on to a proxy."""

    def __init__(self, local: Local, relay: Relay) -> None:
        self._local = local
        self._relay = relay

    async def answer(self, exchange: Exchange, _parameters: tuple[str, ...] = ()) -> Answer:
        """Return a proxy's answer. Unavailable for a request that came from a proxy already."""
        to = await self._local.elsewhere(hopped=HOP_HEADER in exchange.headers)
        return await self._relay.forward(exchange, to)


class StoredHandlers:
    """Handles GET, PUT and DELETE of an object, for paths of any face."""

    def __init__(self, local: Local, objects: OwnObjects, members: Members, elsewhere: Elsewhere) -> None:
        self._local = local
        self._objects = objects
        self._members = members
        self._elsewhere = elsewhere

    def at_once(self, exchange: Exchange, path: ObjectPath) -> Answer | None:
        """`answer` for a GET of what is in memory: small objects, and small members of plain tars; else None."""
        if not path.name or not is_plain(exchange.headers) or not self._local.is_leased:
            return None
        found = self._objects.known(path)
        if found is None:
            return None
        row = found.row
        if exchange.raw_query:
            query = exchange.query_parameters(None)
            member = self._members.at_hand(found, query["member"]) if query.keys() == _MEMBER_ALONE else None
            if member is None:
                return None
            return member_answer(member, row.modified_us)
        body = found.at_hand()
        return (
            None
            if body is None
            else Answer(200, body, _validators(row.name, row.checksum, row.version, row.modified_us, row.samples))
        )

    async def answer(self, exchange: Exchange, path: ObjectPath, query: Mapping[str, str]) -> Answer:
        """Answer a request for the object of a path; if it belongs to another target, pass the request to a proxy, once."""
        method, name = exchange.method, path.name
        writes = method not in ("GET", "HEAD")
        place = await self._objects.place(path, writes=writes, create=method == "PUT") if name else None
        if place is None and name and MAP_HEADER in exchange.headers and HOP_HEADER not in exchange.headers:
            place = await self._place_again(path, exchange.headers[MAP_HEADER], writes=writes)
        if place is None and name and HOP_HEADER in exchange.headers:
            place = await self._place_soon(exchange, path, writes=writes)
        if place is None:
            return await self._elsewhere.answer(exchange)
        inside = bool(query) and not query.keys().isdisjoint(INSIDE_QUERY)
        if not writes:
            return await self._read(exchange, place, name, query if inside else {})
        if inside:
            raise BadRequest("what is inside a shard can only be read; leave out the query to write or delete the whole object")
        if not self._local.is_leased:
            place = await self._held(exchange, path)
        if method == "PUT":
            return await self._put(exchange, place, name)
        await self._objects.delete(place, name, write_conditions(exchange.headers))
        return Answer(204)

    async def _held(self, exchange: Exchange, path: ObjectPath) -> OwnPlace:
        """Hold a write until there is a lease, and return the place of its object by the map of then. NoLease, Unavailable."""
        await self._local.until_leased(hold_s(exchange))
        exchange.check_still_open()
        place = await self._objects.place(path, writes=True, create=exchange.method == "PUT")
        if place is None:
            raise Unavailable("the cluster map changed while the request was held; try again")
        return place

    async def _place_soon(self, exchange: Exchange, path: ObjectPath, *, writes: bool) -> OwnPlace | None:
        """Return the place of an object with copies that a proxy has sent here by a newer map, once that has come here; None if
        it does not."""
        local, deadline_s = self._local, asyncio.get_running_loop().time() + hold_s(exchange)
        place = None
        while place is None and asyncio.get_running_loop().time() < deadline_s:
            bucket = local.map.bucket(path.bucket)
            if bucket is None or not bucket.has_several:
                return None
            await local.refresh_map(at_once=True)
            place = await self._objects.place(path, writes=writes)
            if place is None:
                await asyncio.sleep(HOLD_LOOK_S)
                exchange.check_still_open()
        return place

    async def _place_again(self, path: ObjectPath, version: str, *, writes: bool) -> OwnPlace:
        """Return the place of an object for a client with this version of the map, after getting a map that is as new.
        NotThePrimary."""
        if not _VERSION.fullmatch(version):
            raise BadRequest(f"{MAP_HEADER} must be the version of a cluster map")
        local, place = self._local, None
        if int(version) > local.map.version:
            await local.refresh_map()  # at most one request in a while, however many clients say this
            place = await self._objects.place(path, writes=writes)
        if place is None:
            raise NotThePrimary(
                f"by version {local.map.version} of the cluster map, this target does not hold the object",
                headers={MAP_HEADER: str(local.map.version)},
            )
        return place

    async def _read(self, exchange: Exchange, place: OwnPlace, name: str, query: Mapping[str, str]) -> Answer:
        is_leased = self._local.is_leased  # what is read from now on is at least as new as this
        if not is_leased and exchange.settings.reads_without_lease == "refuse":
            self._local.check_leased()
        with self._local.certain():
            answer = await self._objects.read(place, name, lambda found: self.stored(exchange, found, query))
        if not is_leased:
            answer.headers += _STALE_LINE
        return answer

    async def stored(self, exchange: Exchange, found: OwnObject, query: Mapping[str, str]) -> Answer:
        """Answer with an object, or with what a query selects inside it. RowChanged: try again."""
        if not query:
            return await object_answer(exchange, found)
        kind = inside_query(query)
        thumbnails = self._members.thumbnails
        return await self._members.look_into(found, lambda shard: shard_answer(exchange, shard, kind, query, thumbnails))

    async def _put(self, exchange: Exchange, place: OwnPlace, name: str) -> Answer:
        headers = exchange.headers
        expected = ExpectedChecksums.from_headers(headers.get(CHECKSUM_HEADER), headers.get("Content-MD5"))
        if "Content-Range" in headers:
            raise BadRequest("Content-Range is not supported: a PUT replaces the whole object")
        return upload_answer(await self._objects.put(place, name, exchange, expected, write_conditions(headers)))
