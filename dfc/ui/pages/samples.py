"""`/ui/shard`, `/ui/sample` and `/ui/members`: what is in a shard, and tiles of samples for other pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from dfc.errors import BadRequest, DfcError, MemberNotFound, NotAShard, SampleNotFound
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Handlers
from dfc.limits import SAMPLE_FIELDS_DECOMPRESSED_MAX, SAMPLE_FIELDS_NAMED_MAX, SAMPLE_FIELDS_SHOWN_MAX, THUMBNAIL_PIXELS
from dfc.listing.datasets import names_beside
from dfc.names import check_bucket_name, check_object_name, object_path
from dfc.proxy.admin import ProxyServices
from dfc.proxy.samples import FieldPlace, MemberRow, SampleRow, ShardFacts
from dfc.ui.datasetfacts import fields_of
from dfc.ui.rendering import Rendering
from dfc.ui.snippets import ShardUrls, Snippet, asked_url, snippets
from dfc.ui.words import (
    HEX_BYTES,
    PICTURES,
    THUMBNAILS,
    UNSHOWN_PICTURES,
    Kind,
    above,
    array_of,
    dataset_above,
    field_url,
    folded,
    hexadecimal,
    kind_of,
    last_part,
    members_url,
    sample_url,
    shard_url,
    text_of,
    thumbnail_url,
)

# --- The tiles of samples, in the grids of several pages.

TILE_TEXTS: Final = 3  # fields of a sample whose beginnings are shown in its tile
TILE_TEXT_BYTES: Final = 400
TILE_PIXELS: Final = 192
EXT_CHARS_MAX: Final = 64  # of an extension in a tile
SHOWN_MAX: Final = 32  # fields that are chosen
TILE_PICTURE_BYTES_MAX: Final = 4_000_000  # of one that is shown as it is, where no small one can be made
COMPRESSED_GRID_BYTES_MAX: Final = 16_000_000  # of a compressed shard whose pictures are shown in the grid


class TextField(NamedTuple):
    """The beginning of a field that is text, in a tile."""

    ext: str
    text: str


class TileStyle(NamedTuple):
    """How samples are shown: the pixels of the longer side of pictures, and only these fields, if any are named."""

    pixels: int = TILE_PIXELS
    fields: tuple[str, ...] = ()

    @property
    def query(self) -> dict[str, str]:
        """What of it an address has to say."""
        pixels = {"pixels": str(self.pixels)} if self.pixels != TILE_PIXELS else {}
        return {**pixels, **({"fields": ",".join(self.fields)} if self.fields else {})}

    def of(self, row: SampleRow) -> SampleRow:
        """A sample with the fields that are shown alone, at most SAMPLE_FIELDS_SHOWN_MAX: it may have thousands."""
        if not self.fields:
            return SampleRow(row.key, dict(islice(row.members.items(), SAMPLE_FIELDS_SHOWN_MAX)))
        chosen = [(ext, row.members[ext]) for ext in self.fields if ext in row.members]
        return SampleRow(row.key, dict(sorted(chosen, key=lambda each: each[1].offset)))


class Tile(NamedTuple):
    """A sample in a grid. `picture`: the path of its first picture, made small, or empty; `original`: the picture itself, for
    browsers to show if there is no small one, or empty. `more`: so many fields are left out. `shard`: the name of its shard."""

    number: int
    key: str
    url: str
    picture: str
    original: str
    picture_ext: str
    texts: list[TextField]
    fields: list[tuple[str, int]]
    more: int
    shard: str


def style_of(query: Mapping[str, str]) -> TileStyle:
    """Return how a page is asked to show samples. BadRequest."""
    pixels = query.get("pixels", "") or str(TILE_PIXELS)
    if pixels not in map(str, THUMBNAIL_PIXELS):
        raise BadRequest(f"pixels must be one of {', '.join(map(str, THUMBNAIL_PIXELS))}")
    fields = dict.fromkeys(each.strip().lower() for each in query.get("fields", "").split(",") if each.strip())
    if len(fields) > SHOWN_MAX:
        raise BadRequest(f"at most {SHOWN_MAX} fields can be chosen")
    return TileStyle(int(pixels), tuple(fields))


async def tiles_of(
    uses: ProxyServices, bucket: str, shard: ShardFacts, rows: Mapping[int, SampleRow], style: TileStyle | None = None
) -> list[Tile]:
    """Make the tiles of some samples of a shard, by ordinal, with the beginnings of their texts if it is not compressed."""
    style = style or TileStyle()
    wanted: list[tuple[int, str, FieldPlace]] = []
    if is_plain(shard.name):
        for number, row in rows.items():
            texts = [
                (number, ext, field) for ext, field in style.of(row).members.items() if kind_of(ext) == "text" and field.size
            ]
            wanted += texts[:TILE_TEXTS]
    found = await uses.shards.beginnings(bucket, shard, [field for _, _, field in wanted], TILE_TEXT_BYTES)
    shown: dict[int, list[TextField]] = {}
    for (number, ext, field), content in zip(wanted, found, strict=True):
        text = text_of(content, is_whole=field.size <= len(content))
        if text:
            shown.setdefault(number, []).append(TextField(ext, text))
    # A picture in a compressed shard costs reading all that is before it.
    has_pictures = is_plain(shard.name) or shard.size <= COMPRESSED_GRID_BYTES_MAX
    return [
        tile_of(bucket, shard, number, row, shown.get(number, []), has_pictures=has_pictures, style=style)
        for number, row in rows.items()
    ]


def short(ext: str) -> str:
    """An extension as it is shown where there are many."""
    return ext if len(ext) <= EXT_CHARS_MAX else ext[:EXT_CHARS_MAX] + "…"


def is_plain(name: str) -> bool:
    """Whether a shard is not compressed, by its name: members can be read one by one."""
    return name.endswith(".tar")


def tile_of(
    bucket: str,
    shard: ShardFacts,
    number: int,
    row: SampleRow,
    texts: list[TextField],
    *,
    has_pictures: bool,
    style: TileStyle,
) -> Tile:
    """Make the tile of a sample."""
    more = 0 if style.fields else max(0, len(row.members) - SAMPLE_FIELDS_SHOWN_MAX)
    row = style.of(row)
    ext = next((each for each in row.members if kind_of(each) == "picture"), "") if has_pictures else ""
    small = original = ""
    if ext and last_part(ext) in PICTURES and row.members[ext].size <= TILE_PICTURE_BYTES_MAX:
        original = field_url(bucket, shard.name, number, ext)
    if ext and last_part(ext) in THUMBNAILS:
        small = thumbnail_url(bucket, shard.name, number, ext, style.pixels, shard.version)
    url, fields = sample_url(bucket, shard.name, number), [(short(each), field.size) for each, field in row.members.items()]
    picture = (small or original, original, ext if small or original else "")
    return Tile(number, row.key, url, *picture, texts, fields, more, shard.name)


# --- What a page about a shard, or about something in it, is asked for, and what its template is told of that.

_ORDINAL: Final = re.compile("[0-9]{1,15}")


class ShownPlace(NamedTuple):
    """What a page is about: a shard, and the ordinal of a sample or of a member."""

    bucket: str
    name: str
    ordinal: int

    @property
    def shown(self) -> dict[str, Any]:
        """What templates show of the shard: its names, the folders that it is in, the path of its bytes."""
        return {
            "bucket": self.bucket,
            "name": self.name,
            "folders": above(self.bucket, self.name),
            "url": object_path(self.bucket, self.name),
        }


def place_of(query: Mapping[str, str], ordinal: str) -> ShownPlace:
    """Return what the query of a page names. BadRequest, BadName."""
    text = query.get(ordinal, "0") or "0"
    if not _ORDINAL.fullmatch(text):
        raise BadRequest(f"{ordinal} must be a number from 0, in decimal digits")
    if "bucket" not in query or "object" not in query:
        raise BadRequest("the address must name a bucket and an object")
    return ShownPlace(check_bucket_name(query["bucket"]), check_object_name(query["object"]), int(text))


# --- `/ui/shard` and `/ui/sample`: what is in a shard.

TILES: Final = 60
TEXT_BYTES_MAX: Final = 65_536
EXTENSIONS_MAX: Final = 32  # that are proposed
BESIDE_S: Final = 1.0  # to look whether there are shards beside one
SHARD_QUERY: Final = frozenset(("bucket", "object", "start", "pixels", "fields"))
SAMPLE_QUERY: Final = frozenset(("bucket", "object", "number"))


class ShownField(NamedTuple):
    """A field of a sample. `kind` None: it is not looked at. `url`: its bytes; `picture`: what is shown of a picture, and
    `small`: where it can be had made small, if it is shown as it is; `text`: what is shown of others, if anything is; `is_cut`:
    there is more."""

    ext: str
    size: int
    offset: int
    kind: Kind | None
    url: str
    picture: str
    small: str
    text: str
    is_cut: bool


class SamplePages(Handlers):
    """Handlers of the pages about samples."""

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._uses, self._shards = uses, uses.shards
        self._rendering = rendering

    async def shard(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show samples of a shard as a grid, from an ordinal on."""
        query = exchange.query_parameters(SHARD_QUERY)
        place, style = place_of(query, "start"), style_of(query)
        bucket, name, start = place
        try:
            shard = await self._shards.shard(bucket, name)
        except NotAShard as error:
            return await self._rendering.page(exchange, "noshard.html", **place.shown, why=error.message)
        count = shard.samples
        rows, beside, unsampled = await asyncio.gather(
            self._rows(place, count), self._beside(place, style), self._shards.unsampled_count(bucket, name)
        )
        tiles = await tiles_of(self._uses, bucket, shard, dict(enumerate(rows, start)), style)
        return await self._rendering.page(
            exchange,
            "shard.html",
            **place.shown | {"folders": [*above(bucket, name), dataset_above(bucket, name)]},
            shard=shard,
            start=start,
            tiles=tiles,
            pages=pages_of(place, count, style),
            beside=beside,
            style=style,
            members_page=members_url(bucket, name),
            unsampled=unsampled,
            unsampled_page=members_url(bucket, name, of_none=True),
            sizes=list(zip(THUMBNAIL_PIXELS, ("small", "medium", "large"), strict=True)),
            toggles=toggles_of(place, style, rows),
            unknown=[each for each in style.fields if not any(each in row.members for row in rows)] if rows else [],
            snippets=shard_snippets(exchange, self._rendering, place, rows, count) if count else [],
        )

    async def _rows(self, place: ShownPlace, count: int) -> list[SampleRow]:
        return await self._shards.samples(*place, TILES) if place.ordinal < count else []

    async def _beside(self, place: ShownPlace, style: TileStyle) -> list[tuple[str, str]]:
        """The shards whose numbers are those before and after that of a shard, if they are there: words and addresses."""
        found: dict[str, str] = {}

        async def look(word: str, name: str) -> None:
            with suppress(DfcError):
                await self._shards.shard(place.bucket, name)
                found[word] = shard_url(place.bucket, name, 0, **style.query)

        previous, following = names_beside(place.name)
        wanted = [*(("Previous shard", name) for name in previous), *(("Next shard", name) for name in following)]
        with suppress(TimeoutError):
            async with asyncio.timeout(BESIDE_S):
                await asyncio.gather(*(look(*each) for each in wanted))
        return [(word, found[word]) for word in ("Previous shard", "Next shard") if word in found]

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
        members = list(islice(rows[0].members.items(), SAMPLE_FIELDS_NAMED_MAX))
        fields = [await self._field(place, ext, member, is_shown=at < most) for at, (ext, member) in enumerate(members)]
        return await self._rendering.page(
            exchange,
            "sample.html",
            **place.shown | {"folders": [*above(bucket, name), dataset_above(bucket, name)]},
            shard_url=shard_url(bucket, name, number - number % TILES),
            number=number,
            count=count,
            key=rows[0].key,
            fields=fields,
            more=len(rows[0].members) - len(fields),
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
        url = picture = field_url(*place, ext)
        small = thumbnail_url(*place, ext, THUMBNAIL_PIXELS[-1], "") if last_part(ext) in THUMBNAILS else ""
        if last_part(ext) in UNSHOWN_PICTURES:
            picture, small = small, ""
        return ShownField(ext, member.size, member.offset, kind, url, picture, small, text, is_cut)

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
        Endpoint("/ui/shard", {"GET": shard}, SHARD_QUERY, budget=PAGES),
        Endpoint("/ui/sample", {"GET": sample}, SAMPLE_QUERY, budget=PAGES),
    )


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


def extensions_of(rows: list[SampleRow]) -> list[str]:
    """The fields of some samples, to choose from."""
    found = {ext for row in map(TileStyle().of, rows) for ext in row.members if len(ext) <= EXT_CHARS_MAX}
    askable = (ext for ext in found if "," not in ext and style_of({"fields": ext}).fields == (ext,))
    return sorted(askable)[:EXTENSIONS_MAX]


def shard_snippets(
    exchange: Exchange, rendering: Rendering, place: ShownPlace, rows: list[SampleRow], count: int
) -> list[Snippet]:
    """Programs that read a shard of `count` samples, of which `rows` are shown."""
    urls = ShardUrls.of_shard(asked_url(exchange), place.bucket, place.name)
    return snippets(urls, fields_of(map(TileStyle().of, rows)), len(rows), count, wants_token=rendering.reads_want_token)


def pages_of(place: ShownPlace, count: int, style: TileStyle) -> list[tuple[str, str]]:
    """The other pages of a shard: words and addresses."""
    bucket, name, start = place
    found = []
    if start > 0:
        found += [("First", 0), ("Previous", max(0, start - TILES))]
    if start + TILES < count:
        found += [("Next", start + TILES), ("Last", max(0, (count - 1) // TILES * TILES))]
    return [(word, shard_url(bucket, name, first, **style.query)) for word, first in found]


def toggles_of(place: ShownPlace, style: TileStyle, rows: list[SampleRow]) -> list[tuple[str, str, bool]]:
    """The fields of some samples: each with the page that shows it, too, or no longer, and whether it is chosen."""
    found = []
    for ext in extensions_of(rows):
        others = tuple(each for each in style.fields if each != ext)
        is_chosen = len(others) < len(style.fields)
        if not is_chosen and len(others) >= SHOWN_MAX:
            continue
        shown = style._replace(fields=others if is_chosen else (*others, ext))
        found.append((ext, shard_url(place.bucket, place.name, place.ordinal, **shown.query), is_chosen))
    return found


# --- `/ui/members`: the members of a shard as they are in the archive, or only those that belong to no sample.

LINES: Final = 200
QUERY: Final = frozenset(("bucket", "object", "start", "of"))


class ShownMember(NamedTuple):
    """A member, and the path of its bytes, empty if it has none."""

    row: MemberRow
    url: str


class MemberPages(Handlers):
    """Handler of the page of a shard's members."""

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._shards = uses.shards
        self._rendering = rendering

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show members from an ordinal on; or, `of=none`, those of no sample from an offset on. NotAShard."""
        query = exchange.query_parameters(QUERY)
        place, of_none = place_of(query, "start"), query.get("of", "")
        if of_none not in ("", "none"):
            raise BadRequest("of must be none, or left out")
        # One more than is shown, to know whether there are more: how many members there are, no header says.
        look = self._shards.unsampled if of_none else self._shards.members
        rows, count = await asyncio.gather(look(*place, LINES + 1), self._shards.unsampled_count(place.bucket, place.name))
        return await self._shown(exchange, place, rows, count, of_none=bool(of_none))

    async def _shown(
        self, exchange: Exchange, place: ShownPlace, rows: list[MemberRow], count: int, *, of_none: bool
    ) -> Answer:
        bucket, name, start = place
        url = object_path(bucket, name)
        members = [
            ShownMember(row, f"{url}?{urlencode({'member': row.name})}" if row.type == "file" else "") for row in rows[:LINES]
        ]
        before = 0 if of_none else max(0, start - LINES)  # what is before an offset cannot be counted back
        after = (rows[LINES].offset if of_none else start + LINES) if len(rows) > LINES else None
        return await self._rendering.page(
            exchange,
            "members.html",
            **place.shown,
            samples_page=shard_url(bucket, name),
            others_page=members_url(bucket, name, of_none=not of_none),
            start=start,
            of_none=of_none,
            count=count,
            members=members,
            previous=members_url(bucket, name, before, of_none=of_none) if start else "",
            following="" if after is None else members_url(bucket, name, after, of_none=of_none),
        )

    ENDPOINTS = (Endpoint("/ui/members", {"GET": page}, QUERY, budget=PAGES),)
