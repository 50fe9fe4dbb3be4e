"""`/ui/shard` and `/ui/sample`: what is in a shard."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from dfc.datasets import names_beside
from dfc.errors import DfcError, MemberNotFound, NotAShard, SampleNotFound
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.limits import (
    SAMPLE_FIELDS_DECOMPRESSED_MAX,
    SAMPLE_FIELDS_NAMED_MAX,
    SAMPLE_FIELDS_SHOWN_MAX,
    THUMBNAIL_PIXELS,
)
from dfc.names import object_path
from dfc.proxy.shardviews import FieldPlace, SampleRow
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import above, dataset_above, field_url, members_url, sample_url, shard_url, thumbnail_url
from dfc.ui.datasets.fields import fields_of
from dfc.ui.kinds import (
    HEX_BYTES,
    THUMBNAILS,
    UNSHOWN_PICTURES,
    Kind,
    array_of,
    folded,
    hexadecimal,
    kind_of,
    last_part,
    text_of,
)
from dfc.ui.pages.places import ShownPlace, place_of
from dfc.ui.pages.tiles import EXT_CHARS_MAX, SHOWN_MAX, TileStyle, is_plain, style_of, tiles_of
from dfc.ui.rendering import Rendering
from dfc.ui.snippets import ShardUrls, Snippet, asked_url, snippets

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

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
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
