"""The tiles of samples, in the grids of several pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dfc.proxy.shardviews import FieldPlace, SampleRow, ShardFacts
from dfc.proxy.uses import ProxyUses
from dfc.ui.addresses import field_url, sample_url, thumbnail_url
from dfc.ui.kinds import PICTURES, THUMBNAILS, kind_of, last_part, text_of

TILE_TEXTS: Final = 3  # fields of a sample whose beginnings are shown in its tile
TILE_TEXT_BYTES: Final = 400
TILE_PIXELS: Final = 192
TILE_PICTURE_BYTES_MAX: Final = 4_000_000  # of one that is shown as it is, where no small one can be made
COMPRESSED_GRID_BYTES_MAX: Final = 16_000_000  # of a compressed shard whose pictures are shown in the grid


class TextField(NamedTuple):
    """The beginning of a field that is text, in a tile."""

    ext: str
    text: str


class Tile(NamedTuple):
    """A sample in a grid. `picture`: the path of its first picture, made small, or empty; `original`: the picture itself, for
    browsers to show if there is no small one, or empty."""

    number: int
    key: str
    url: str
    picture: str
    original: str
    picture_ext: str
    texts: list[TextField]
    fields: list[tuple[str, int]]


async def tiles_of(uses: ProxyUses, bucket: str, shard: ShardFacts, rows: Mapping[int, SampleRow]) -> list[Tile]:
    """Make the tiles of some samples of a shard, by ordinal, with the beginnings of their texts if it is not compressed."""
    wanted: list[tuple[int, str, FieldPlace]] = []
    if is_plain(shard.name):
        for number, row in rows.items():
            texts = [(number, ext, field) for ext, field in row.members.items() if kind_of(ext) == "text" and field.size]
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
        tile_of(bucket, shard, number, row, shown.get(number, []), has_pictures=has_pictures) for number, row in rows.items()
    ]


def is_plain(name: str) -> bool:
    """Whether a shard is not compressed, by its name: members can be read one by one."""
    return name.endswith(".tar")


def tile_of(bucket: str, shard: ShardFacts, number: int, row: SampleRow, texts: list[TextField], *, has_pictures: bool) -> Tile:
    """Make the tile of a sample."""
    ext = next((each for each in row.members if kind_of(each) == "picture"), "") if has_pictures else ""
    small = original = ""
    if ext and last_part(ext) in PICTURES and row.members[ext].size <= TILE_PICTURE_BYTES_MAX:
        original = field_url(bucket, shard.name, number, ext)
    if ext and last_part(ext) in THUMBNAILS:
        small = thumbnail_url(bucket, shard.name, number, ext, TILE_PIXELS, shard.version)
    url, fields = sample_url(bucket, shard.name, number), [(each, field.size) for each, field in row.members.items()]
    return Tile(number, row.key, url, small or original, original, ext if small or original else "", texts, fields)
