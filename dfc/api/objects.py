"""Objects at a target for all its faces: parts of bodies, what is inside a shard, plain URLs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple, get_args

from dfc.checksum import CHECKSUM_NAME, ExpectedChecksums
from dfc.errors import BadRequest, MemberNotFound, NotThePrimary, Unavailable
from dfc.http.answers import (
    INSIDE_QUERY,
    SAFETY_HEADERS,
    Answer,
    FileAnswer,
    StreamAnswer,
    content_type,
    entity_tags,
    header_lines,
    http_date,
    is_not_modified,
    is_plain,
    json_answer,
    json_error,
    page_limit,
    requested_range,
)
from dfc.http.budget import THUMBNAILS
from dfc.http.exchange import Exchange
from dfc.http.faces import Authenticate, Face, Route
from dfc.http.relay import Relay
from dfc.limits import THUMBNAIL_PIXELS, THUMBNAILS_KEPT_S, THUMBNAILS_TOGETHER_MAX
from dfc.names import ObjectPath, parse_object_path
from dfc.target.local import OwnPlace, TargetState
from dfc.target.objects import Extract, ListedKind, MemberAtHand, Members, OwnObject, OwnObjects, StoredShard, WriteConditions
from dfc.target.threads import Content, FileRange
from dfc.target.thumbnails import NoPicture, PictureKey, Thumbnails, WantedPicture, pictures_tar
from dfc.target.uploads import Uploaded
from dfc.wire import (
    CHECKSUM_HEADER,
    HOP_HEADER,
    MAP_HEADER,
    NDJSON,
    OCTETS,
    SAMPLES_HEADER,
    STALE_HEADER,
    TAR,
    UNSAMPLED_HEADER,
    VERSION_HEADER,
)
from dfc.wire.objects import StoredObject

# --- The part of a body that a request asks for, and the answer that sends it.


class RequestedPart(NamedTuple):
    """The part of a body that a GET or HEAD asks for: bytes `start` to `stop`, and the Content-Range line; none for 304."""

    status: int
    start: int
    stop: int
    line: str = ""


def requested_part(
    headers: Mapping[str, str], size: int, etag: str, modified_us: int, *, has_parts: bool = True
) -> RequestedPart:
    """Evaluate a request's conditions and range. PreconditionFailed, RangeNotSatisfiable, BadRequest."""
    if not is_plain(headers):
        if is_not_modified(headers, etag, modified_us):
            return RequestedPart(304, 0, 0)
        part = requested_range(headers, size, etag, modified_us) if has_parts else None
        if part is not None:
            start, stop = part
            return RequestedPart(206, start, stop, f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n")
    return RequestedPart(200, 0, size)


def content_answer(status: int, content: Content, size: int, lines: str) -> Answer:
    """Make an answer of `size` bytes that were read. The answer owns the open file, so no await may come in between."""
    if isinstance(content, bytes):
        return Answer(status, content, lines)
    if isinstance(content, FileRange):
        file, offset, count, threads, on_error, tail = content
        return FileAnswer(status, file, offset, count, lines, threads, on_error, tail)
    return StreamAnswer(status, content.chunks, lines, content_length=size, on_close=content.close)


# --- Answer with what is inside a shard: members, samples, lists of them, and small pictures.

_SAFETY_LINES: Final = header_lines(SAFETY_HEADERS)
_RANGES_LINE: Final = "Accept-Ranges: bytes\r\n"
_QUERIES: Final = ("member", "archpath", "sample", "number", "list")
_LISTED: Final[Mapping[str, ListedKind]] = {kind: kind for kind in get_args(ListedKind)}
_ORDINAL: Final = re.compile("[0-9]{1,15}")
_THUMBNAILS: Final = tuple(str(pixels) for pixels in THUMBNAIL_PIXELS)


def member_answer(member: MemberAtHand, modified_us: int) -> Answer:
    """Answer with a small member that is in memory."""
    return Answer(200, member.body, _inside_lines(content_type(member.name), member.etag, modified_us) + _RANGES_LINE)


def _inside_lines(kind: str, etag: str, modified_us: int) -> str:
    return f'Content-Type: {kind}\r\nETag: "{etag}"\r\nLast-Modified: {http_date(modified_us)}\r\n{_SAFETY_LINES}'


async def extract_answer(exchange: Exchange, extract: Extract) -> Answer:
    """Answer with a member or sample, or the requested part of it."""
    kind = TAR if extract.name is None else content_type(extract.name)
    modified_us, has_parts = extract.shard.found.row.modified_us, extract.has_parts
    status, start, stop, line = requested_part(exchange.headers, extract.size, extract.etag, modified_us, has_parts=has_parts)
    lines = _inside_lines(kind, extract.etag, modified_us)
    if status == 304:
        return Answer(304, b"", lines)
    if has_parts:
        lines += _RANGES_LINE + line
    if exchange.method == "HEAD":
        return Answer(status, b"", lines, content_length=stop - start)
    return content_answer(status, await extract.read(start, stop), stop - start, lines)


async def thumbnail_answer(exchange: Exchange, extract: Extract, thumbnails: Thumbnails, query: Mapping[str, str]) -> Answer:
    """Answer with a small picture of a member. It never changes for a version of the object, so browsers keep it if the URL
    says which one."""
    row, pixels = extract.shard.found.row, int(query["thumbnail"])
    etag = f"{extract.etag}-{pixels}"
    lines = header_lines((("Content-Type", "image/jpeg"), ("ETag", f'"{etag}"'), _keeping(query, row.version), *SAFETY_HEADERS))
    if is_not_modified(exchange.headers, etag, row.modified_us):
        return Answer(304, b"", lines)
    key = PictureKey(extract.shard.path, extract.offset, extract.size, pixels)
    if not thumbnails.is_at_hand(key):
        await exchange.enter(THUMBNAILS)
    content = await thumbnails.get(key, extract.whole)
    return Answer(200, b"", lines, content_length=len(content)) if exchange.method == "HEAD" else Answer(200, content, lines)


async def thumbnails_answer(exchange: Exchange, shard: StoredShard, thumbnails: Thumbnails, query: Mapping[str, str]) -> Answer:
    """Answer with a tar of the small pictures of several samples."""
    pixels, numbers = int(query["thumbnail"]), ordinals(query["number"])
    several = await shard.several(numbers, query["ext"])

    def wanted(number: int) -> WantedPicture | NoPicture:
        found = several[number]
        if isinstance(found, MemberNotFound):
            return NoPicture(number, found)
        return WantedPicture(number, PictureKey(shard.path, found.offset, found.size, pixels), found.whole)

    pictures = [wanted(number) for number in numbers]
    keys = [each.key for each in pictures if isinstance(each, WantedPicture)]
    if not all(map(thumbnails.is_at_hand, keys)):
        thumbnails.check()  # what can be said before an answer has begun
        await exchange.enter(THUMBNAILS)
    keeping = _keeping(query, shard.found.row.version, lasts=all(map(thumbnails.has_picture, keys)))
    headers = (("Content-Type", TAR), keeping, *SAFETY_HEADERS)
    pieces = pictures_tar(thumbnails, pictures, lambda error: json_error(error, exchange).body)
    return StreamAnswer(200, pieces, headers)


def _keeping(query: Mapping[str, str], version: str, *, lasts: bool = True) -> tuple[str, str]:
    """The header that says how long small pictures may be kept. `lasts` is false for those that another attempt may make."""
    kept = "private, max-age=31536000, immutable" if lasts else f"private, max-age={THUMBNAILS_KEPT_S}"
    return "Cache-Control", kept if query.get("version") == version else "private, no-cache"


async def shard_answer(
    exchange: Exchange, shard: StoredShard, kind: str, query: Mapping[str, str], thumbnails: Thumbnails
) -> Answer:
    """Answer a query about the inside of a shard; `kind` is the result of `inside_query`."""
    if kind != "list":
        if "," in query.get("number", ""):
            return await thumbnails_answer(exchange, shard, thumbnails, query)
        if kind == "sample":
            extract = await shard.sample(query[kind], query.get("ext"))
        elif kind == "number":
            extract = await shard.numbered(ordinal(query, kind), query.get("ext"))
        else:
            extract = await shard.member(query[kind])
        if "thumbnail" in query:
            return await thumbnail_answer(exchange, extract, thumbnails, query)
        return await extract_answer(exchange, extract)
    what, listed = query[kind], _LISTED.get(query[kind])
    if what == "offsets" and query.keys().isdisjoint(("start", "limit")):
        headers = (("Content-Type", OCTETS), ("ETag", f'"{shard.found.row.checksum}"'), *SAFETY_HEADERS)
        return StreamAnswer(200, shard.offsets(), headers, content_length=8 * (shard.index.sample_count + 1))
    if listed is None:
        raise BadRequest("list must be 'members', 'samples', 'unsampled' or 'offsets'; start and limit are not for offsets")
    limit = page_limit(query) if "limit" in query else None
    lines = shard.lines(listed, ordinal(query, "start"), limit)
    counts = (SAMPLES_HEADER, str(shard.index.sample_count)), (UNSAMPLED_HEADER, str(shard.index.dropped))
    etag = ("ETag", f'"{shard.found.row.checksum}"')
    return StreamAnswer(200, lines, [("Content-Type", NDJSON), *counts, etag, *SAFETY_HEADERS])


def inside_query(query: Mapping[str, str]) -> str:
    """Return which of `_QUERIES` was asked; BadRequest for none or several."""
    given = [name for name in _QUERIES if name in query]
    if len(given) != 1 or ("ext" in query and given[0] not in ("sample", "number")):
        raise BadRequest("ask for one of member, sample, number and list at a time; ext is only for sample and number")
    if given != ["list"] and not query.keys().isdisjoint(("start", "limit")):
        raise BadRequest("start and limit are only for list")
    if "thumbnail" in query and (given == ["list"] or (given[0] in ("sample", "number") and "ext" not in query)):
        raise BadRequest("a thumbnail is of one picture: ask for a member, or for a sample or number with ext")
    if "thumbnail" in query and query["thumbnail"] not in _THUMBNAILS:
        raise BadRequest(f"thumbnail must be {', '.join(_THUMBNAILS)}: pixels of the longer side")
    if "," in query.get("number", "") and "thumbnail" not in query:
        raise BadRequest("several numbers are only for thumbnail")
    if "version" in query and "thumbnail" not in query:
        raise BadRequest("version is only for thumbnail")
    return given[0]


def ordinal(query: Mapping[str, str], name: str) -> int:
    """Return the place of a sample or member in a shard, an ordinal or an offset, from 0; 0 if none is given. BadRequest."""
    text = query.get(name, "0")
    if not _ORDINAL.fullmatch(text):
        raise BadRequest(f"{name} must be a number from 0, in decimal digits")
    return int(text)


def ordinals(text: str) -> list[int]:
    """Return the ordinals of several samples. BadRequest."""
    found = text.split(",")
    if len(found) > THUMBNAILS_TOGETHER_MAX or not all(_ORDINAL.fullmatch(each) for each in found):
        raise BadRequest(f"number must be an ordinal from 0, or up to {THUMBNAILS_TOGETHER_MAX} with commas between them")
    return [int(each) for each in found]


# --- Serve the objects of a target, the members and samples inside shards, and byte ranges of both, for all its faces.

HOLD_LOOK_S: Final = 0.2  # between two looks at whether the map has changed
_STALE_LINE: Final = f"{STALE_HEADER}: 1\r\n"
_VERSION: Final = re.compile("[0-9]{1,18}")
_MEMBER_ALONE: Final = frozenset(("member",))


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
    status, start, stop, line = requested_part(exchange.headers, row.size, row.checksum, row.modified_us)
    lines = _validators(row.name, row.checksum, row.version, row.modified_us, row.samples) + line
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


def hold_s(exchange: Exchange) -> float:
    """How long a request may wait for a lease. One that a proxy has passed on, not for as long as that waits for an answer."""
    settings = exchange.settings
    return min(settings.hold_s, settings.peer_timeout_s / 2) if HOP_HEADER in exchange.headers else settings.hold_s


class Elsewhere:
    """Passes requests that are not for this target on to a proxy."""

    def __init__(self, local: TargetState, relay: Relay) -> None:
        self._local = local
        self._relay = relay

    async def answer(self, exchange: Exchange, _parameters: tuple[str, ...] = ()) -> Answer:
        """Return a proxy's answer. Unavailable for a request that came from a proxy already."""
        return await self._relay.forward(exchange, await self._local.elsewhere(hopped=HOP_HEADER in exchange.headers))


class StoredHandlers:
    """Handles GET, PUT and DELETE of an object, for paths of any face."""

    def __init__(self, local: TargetState, objects: OwnObjects, members: Members, elsewhere: Elsewhere) -> None:
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
            return None if member is None else member_answer(member, row.modified_us)
        body = found.at_hand()
        if body is None:
            return None
        return Answer(200, body, _validators(row.name, row.checksum, row.version, row.modified_us, row.samples))

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


class _Handlers:
    """Plain URLs at a target: it serves its own objects, and passes everything else to a proxy."""

    def __init__(self, stored: StoredHandlers) -> None:
        self._stored = stored

    async def web(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer `/{bucket}/{object…}` and `/{object}`; listings go to a proxy."""
        path = parse_object_path(exchange.target_path)
        return await self._stored.answer(exchange, path, exchange.query_parameters(None) if exchange.raw_query else {})

    def at_once(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer | None:
        """`web` for what is in memory; else None."""
        return self._stored.at_once(exchange, parse_object_path(exchange.target_path))


def target_face(stored: StoredHandlers, may_use: Authenticate) -> Face:
    """Make the face for all paths that belong to no other face."""
    handlers = _Handlers(stored)
    methods = dict.fromkeys(("GET", "PUT", "DELETE"), handlers.web)
    return Face("web", [], may_use, rest=Route("/", methods, query=None, at_once=handlers.at_once))
