"""The tiles of samples, in the grids of several pages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from dfc.errors import BadRequest
from dfc.limits import SAMPLE_FIELDS_SHOWN_MAX, THUMBNAIL_PIXELS
from dfc.proxy.shardviews import FieldPlace, SampleRow, ShardFacts
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import field_url, sample_url, thumbnail_url
from dfc.ui.kinds import PICTURES, THUMBNAILS, kind_of, last_part, text_of

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
    uses: ProxyUses, bucket: str, shard: ShardFacts, rows: Mapping[int, SampleRow], style: TileStyle | None = None
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
