"""`/ui/shard` and `/ui/sample`: what is in a shard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from dfc.errors import BadRequest, DfcError, MemberNotFound, NotAShard, SampleNotFound
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.limits import SAMPLE_FIELDS_DECOMPRESSED_MAX, SAMPLE_FIELDS_SHOWN_MAX
from dfc.names import check_bucket_name, check_object_name, object_path
from dfc.proxy.shardviews import FieldPlace, SampleRow, ShardFacts
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import above, field_url, sample_url, shard_url
from dfc.ui.kinds import HEX_BYTES, Kind, array_of, folded, hexadecimal, kind_of, text_of
from dfc.ui.rendering import Rendering

TILES: Final = 60
TILE_TEXTS: Final = 3  # fields of a sample whose beginnings are shown in its tile
TILE_TEXT_BYTES: Final = 400
TILE_PICTURE_BYTES_MAX: Final = 4_000_000  # larger ones are shown on the page of their sample alone
COMPRESSED_GRID_BYTES_MAX: Final = 16_000_000  # of a compressed shard whose pictures are shown in the grid
TEXT_BYTES_MAX: Final = 65_536
SHARD_QUERY: Final = frozenset(("bucket", "object", "start"))
SAMPLE_QUERY: Final = frozenset(("bucket", "object", "number"))
_ORDINAL: Final = re.compile("[0-9]{1,12}")


class ShownPlace(NamedTuple):
    """What a page is about."""

    bucket: str
    name: str
    ordinal: int


class TextField(NamedTuple):
    """The beginning of a field that is text, in a tile."""

    ext: str
    text: str


class Tile(NamedTuple):
    """A sample in a grid. `picture`: the path of its first picture, or empty."""

    number: int
    key: str
    url: str
    picture: str
    picture_ext: str
    texts: list[TextField]
    fields: list[tuple[str, int]]


class ShownField(NamedTuple):
    """A field of a sample. `kind` None: it is not looked at. `url`: its bytes; `text`: what is shown of it, if anything is;
    `is_cut`: there is more."""

    ext: str
    size: int
    offset: int
    kind: Kind | None
    url: str
    text: str
    is_cut: bool


class SamplePages(Handlers):
    """Handlers of the pages about samples."""

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
        self._uses, self._shards = uses, uses.shards
        self._rendering = rendering

    async def shard(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show samples of a shard as a grid, from an ordinal on."""
        place = place_of(exchange.query_parameters(SHARD_QUERY), "start")
        bucket, name, start = place
        try:
            shard = await self._shards.shard(bucket, name)
        except NotAShard as error:
            return await self._rendering.page(
                exchange, "noshard.html", bucket=bucket, name=name, folders=above(bucket, name), url=object_path(bucket, name),
                why=error.message,
            )  # fmt: skip
        count = shard.samples
        rows = await self._shards.samples(bucket, name, start, TILES) if start < count else []
        tiles = await tiles_of(self._uses, place, shard, {start + at: row for at, row in enumerate(rows)})
        return await self._rendering.page(
            exchange,
            "shard.html",
            bucket=bucket,
            name=name,
            folders=above(bucket, name),
            url=object_path(bucket, name),
            shard=shard,
            start=start,
            tiles=tiles,
            pages=pages_of(place, count),
        )

    async def sample(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show every field of a sample."""
        place = place_of(exchange.query_parameters(SAMPLE_QUERY), "number")
        bucket, name, number = place
        shard = await self._shards.shard(bucket, name)
        count = shard.samples
        rows = await self._shards.samples(bucket, name, number, 1) if number < count else []
        if not rows:
            raise SampleNotFound(f"{name!r} has no sample {number}: it has {count}, counted from 0")
        most = SAMPLE_FIELDS_SHOWN_MAX if is_plain(name) else SAMPLE_FIELDS_DECOMPRESSED_MAX
        members = list(rows[0].members.items())
        fields = [await self._field(place, ext, member, is_shown=at < most) for at, (ext, member) in enumerate(members)]
        return await self._rendering.page(
            exchange,
            "sample.html",
            bucket=bucket,
            name=name,
            folders=above(bucket, name),
            shard_url=shard_url(bucket, name, number - number % TILES),
            number=number,
            count=count,
            key=rows[0].key,
            fields=fields,
            whole=f"{object_path(bucket, name)}?number={number}",
            previous=sample_url(bucket, name, number - 1) if number else "",
            following=sample_url(bucket, name, number + 1) if number + 1 < count else "",
        )

    async def _field(self, place: ShownPlace, ext: str, member: FieldPlace, *, is_shown: bool) -> ShownField:
        kind: Kind | None = kind_of(ext) if is_shown else None
        text, is_cut = "", False
        if kind in ("text", "array", "bytes"):
            content = await self._beginning(place, ext, member)
            if content is None:
                kind, text = "text", "(no bytes: it is no file)"
            else:
                kind, text, is_cut = await asyncio.to_thread(looked_at, ext, content, member.size)
        return ShownField(ext, member.size, member.offset, kind, field_url(*place, ext), text, is_cut)

    async def _beginning(self, place: ShownPlace, ext: str, member: FieldPlace) -> bytes | None:
        """The first bytes of a field; None of one that has none, such as a link."""
        if not member.size:
            return b""
        try:
            return await self._shards.beginning(*place, ext, TEXT_BYTES_MAX)
        except DfcError as error:
            if error.code == MemberNotFound.code:
                return None
            raise

    ENDPOINTS = (
        Endpoint("/ui/shard", {"GET": shard}, SHARD_QUERY),
        Endpoint("/ui/sample", {"GET": sample}, SAMPLE_QUERY),
    )


def is_plain(name: str) -> bool:
    """Whether a shard is not compressed, by its name."""
    return name.endswith(".tar")


def looked_at(ext: str, content: bytes, size: int) -> tuple[Kind, str, bool]:
    """What the beginning of a field of `size` bytes turns out to be, with what is shown of it, and whether there is more."""
    is_cut = size > len(content)
    array = array_of(content) if kind_of(ext) == "array" else None
    if array is not None:
        return "array", array, False
    text = text_of(content, is_whole=not is_cut)
    if text is None:
        return "bytes", hexadecimal(content), size > HEX_BYTES
    if ext.rpartition(".")[2] == "json" and not is_cut:
        text = folded(text) or text
    return "text", text, is_cut


async def tiles_of(uses: ProxyUses, place: ShownPlace, shard: ShardFacts, rows: Mapping[int, SampleRow]) -> list[Tile]:
    """Make the tiles of some samples, by ordinal, with the beginnings of their texts if the shard is not compressed."""
    wanted: list[tuple[int, str, FieldPlace]] = []
    if is_plain(place.name):
        for number, row in rows.items():
            texts = [(number, ext, field) for ext, field in row.members.items() if kind_of(ext) == "text" and field.size]
            wanted += texts[:TILE_TEXTS]
    found = await uses.shards.beginnings(place.bucket, shard, [field for _, _, field in wanted], TILE_TEXT_BYTES)
    shown: dict[int, list[TextField]] = {}
    for (number, ext, field), content in zip(wanted, found, strict=True):
        text = text_of(content, is_whole=field.size <= len(content))
        if text:
            shown.setdefault(number, []).append(TextField(ext, text))
    # A picture in a compressed shard costs reading all that is before it.
    has_pictures = is_plain(place.name) or shard.size <= COMPRESSED_GRID_BYTES_MAX
    return [tile_of(place, number, row, shown.get(number, []), has_pictures=has_pictures) for number, row in rows.items()]


def tile_of(place: ShownPlace, number: int, row: SampleRow, texts: list[TextField], *, has_pictures: bool) -> Tile:
    pictures = [ext for ext, field in row.members.items() if kind_of(ext) == "picture" and field.size <= TILE_PICTURE_BYTES_MAX]
    picture = pictures[0] if pictures and has_pictures else ""
    return Tile(
        number,
        row.key,
        sample_url(place.bucket, place.name, number),
        field_url(place.bucket, place.name, number, picture) if picture else "",
        picture,
        texts,
        [(ext, field.size) for ext, field in row.members.items()],
    )


def place_of(query: Mapping[str, str], ordinal: str) -> ShownPlace:
    """Return what the query of a page names. BadRequest, BadName."""
    text = query.get(ordinal, "0") or "0"
    if not _ORDINAL.fullmatch(text):
        raise BadRequest(f"{ordinal} must be a number from 0, in decimal digits")
    if "bucket" not in query or "object" not in query:
        raise BadRequest("the address must name a bucket and an object")
    return ShownPlace(check_bucket_name(quote(query["bucket"], safe="")), check_object_name(query["object"]), int(text))


def pages_of(place: ShownPlace, count: int) -> list[tuple[str, str]]:
    """The other pages of a shard: words and addresses."""
    bucket, name, start = place
    last = max(0, (count - 1) // TILES * TILES)
    found = []
    if start > 0:
        found += [("First", shard_url(bucket, name)), ("Previous", shard_url(bucket, name, max(0, start - TILES)))]
    if start + TILES < count:
        found += [("Next", shard_url(bucket, name, start + TILES)), ("Last", shard_url(bucket, name, last))]
    return found
