"""Which extensions there are, and how each is decoded by default.

The lists are those of dlinputs and WebDataset. The last part of an extension decides: `left.png` is a picture.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgpack
import msgspec

from dfc.limits import INPUT_FIELD_BYTES_MAX

_PADDING: Final = re.compile(rb"\0*")  # zeros are allowed between members of gzip, and at the end
# zlib copies the bytes after a member. So feed the first member the whole field, but later ones, which may be many, in steps.
_MEMBER_BYTES: Final = 1024
FieldFunction = Callable[[bytes], Any]

NUMBERS: Final = frozenset(("cls", "cls2", "count", "index", "inx"))
NUMBERS_OR_WORDS: Final = frozenset(("class", "id"))  # classes and ids are words as often as numbers
TEXTS: Final = frozenset(("txt", "text", "transcript"))
JSONS: Final = frozenset(("json", "jsn"))
MESSAGES: Final = frozenset(("mp", "msgpack", "msg"))
TENSORS: Final = frozenset(("ten", "tb"))
PICKLES: Final = frozenset(("pyd", "pkl", "pickle"))
IMAGES: Final = frozenset(
    (
        "png",
        "jpg",
        "jpeg",
        "jpe",
        "jfif",
        "img",
        "image",
        "pbm",
        "pgm",
        "ppm",
        "pnm",
        "gif",
        "webp",
        "bmp",
        "tif",
        "tiff",
        "jp2",
        "avif",
    )
)


def suffixes(ext: str) -> Iterator[str]:
    """`left.seg.png` → `left.seg.png`, `seg.png`, `png`."""
    while True:
        yield ext
        _, dot, ext = ext.partition(".")
        if not dot:
            return


def standard(ext: str, *, pickle: bool = False) -> FieldFunction | None:
    """The default decoder of an extension, as in dlinputs; None if it stays bytes. ImportError if pictures need a library."""
    kind = ext.rpartition(".")[2]
    if kind in IMAGES:
        from dfc.inputs.fields.images import image_decoder

        return image_decoder("rgb")
    if kind in TENSORS or kind in ("npy", "npz"):
        from dfc.inputs.fields import arrays

        if kind == "npz":
            return arrays.decode_npz
        return arrays.decode_npy if kind == "npy" else arrays.decode_ten
    if pickle and kind in PICKLES:
        return _unpickle
    if pickle and kind == "pth":
        return _torch_load
    return _SIMPLE.get(kind)


def decompress(data: bytes) -> bytes:
    """Decompress a .gz field with all its members, up to INPUT_FIELD_BYTES_MAX bytes. ValueError, zlib.error if broken."""
    parts: list[bytes] = []
    left = INPUT_FIELD_BYTES_MAX
    view = memoryview(data)
    at, amount = 0, len(data)
    while at < len(data):
        member = zlib.decompressobj(31)  # 31: with the header and the checksum of gzip
        while not member.eof:
            if at >= len(data):
                raise ValueError("the gzip data is truncated")
            piece = view[at : at + amount]
            parts.append(member.decompress(piece, left + 1))  # 0 would mean no bound
            left -= len(parts[-1])
            if left < 0:
                raise ValueError(f"decompresses to more than {INPUT_FIELD_BYTES_MAX} bytes")
            at += len(piece) - len(member.unused_data)
            amount *= 2
        at = _PADDING.match(data, at).end()  # type: ignore[union-attr]
        amount = _MEMBER_BYTES
    if not parts:
        raise ValueError("the gzip data is empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _number_or_word(data: bytes) -> int | str:
    try:
        return int(data)
    except ValueError:
        return data.decode("utf-8")


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data)  # also accepts NaN, a byte order mark and UTF-16, which JSON forbids but people write


def _unpickle(data: bytes) -> Any:
    import pickle

    return pickle.loads(data)  # noqa: S301 — the caller asked for it


def _torch_load(data: bytes) -> Any:
    import io

    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


_SIMPLE: Final[dict[str, FieldFunction]] = {
    **dict.fromkeys(NUMBERS, int),
    **dict.fromkeys(NUMBERS_OR_WORDS, _number_or_word),
    **dict.fromkeys(TEXTS, partial(str, encoding="utf-8")),
    **dict.fromkeys(JSONS, _json),
    **dict.fromkeys(MESSAGES, partial(msgpack.unpackb, strict_map_key=False)),
}
