"""Answer with what is inside a shard: members, samples, lists of them, and small pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, get_args

from dfc.api.bodies import asked_part, content_answer
from dfc.errors import BadRequest, MemberNotFound
from dfc.http.answers import Answer, StreamAnswer, header_lines, json_error
from dfc.http.budget import THUMBNAILS
from dfc.http.common import SAFETY_HEADERS, content_type, page_limit
from dfc.http.conditions import http_date, is_not_modified
from dfc.http.exchange import Exchange
from dfc.limits import THUMBNAIL_PIXELS, THUMBNAILS_KEPT_S, THUMBNAILS_TOGETHER_MAX
from dfc.target.members import Extract, ListedKind, MemberAtHand, StoredShard
from dfc.target.thumbnails.making import PictureKey, Thumbnails
from dfc.target.thumbnails.together import NoPicture, WantedPicture, pictures_tar
from dfc.wire import NDJSON, OCTETS, SAMPLES_HEADER, TAR, UNSAMPLED_HEADER

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
    status, start, stop, line = asked_part(exchange.headers, extract.size, extract.etag, modified_us, has_parts=has_parts)
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
