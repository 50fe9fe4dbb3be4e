"""Pictures for tests."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of a picture."""
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def photo(colour: tuple[int, int, int], size: tuple[int, int] = (500, 375)) -> bytes:
    """A JPEG of one colour."""
    return encoded(Image.new("RGB", size, colour), "JPEG")


def bomb(side: int) -> bytes:
    """A PNG that says it has so many pixels a side, and has almost no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
