"""Draw a small image dataset for the demo: JPEG and PNG files by Pillow, or PNG by zlib without Pillow.

The contents depend only on the number of the image.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

try:
    from PIL import Image
except ImportError:  # Pillow is a test dependency, not a dependency of DFC
    Image = None  # type: ignore[assignment]

CLASSES = ("n01440764", "n02102040", "n02979186", "n03028079")
SIDE_PIXELS = 192
GREY, RGB = 0, 2  # of a PNG

Pixels = npt.NDArray[np.uint8]


def make_dataset(directory: Path, count: int, *, first: int) -> int:
    """Write `count` images and their class files, with one directory per class. Returns the number of bytes written.

    Images are numbered from `first`. Every eighth is a PNG, the others are JPEG (all are PNG without Pillow).
    """
    total = 0
    for number in range(first, first + count):
        label = number % len(CLASSES)
        folder = directory / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw(number)
        jpeg = Image is not None and number % 8 != 0
        data = encode_jpeg(pixels) if jpeg else encode_png(pixels)
        stem = f"{CLASSES[label]}_{number:06d}"
        (folder / f"{stem}.{'jpg' if jpeg else 'png'}").write_bytes(data)
        (folder / f"{stem}.cls").write_bytes(str(label).encode())
        total += len(data) + 1
    return total


def draw(number: int) -> Pixels:
    """Draw a coloured disk on a gradient with some noise: (192, 192, 3) bytes."""
    chance = random.Random(number)
    noise = np.random.default_rng(number)
    place = np.arange(SIDE_PIXELS, dtype=np.int32)
    rows, columns = place[:, None], place[None, :]
    picture = noise.integers(-8, 8, (SIDE_PIXELS, SIDE_PIXELS, 3), dtype=np.int32)
    x, y, radius = (chance.randrange(20, SIDE_PIXELS - 20) for _ in range(3))
    inside = (rows - y) ** 2 + (columns - x) ** 2 < (radius // 2) ** 2
    for channel, slope in enumerate((rows, columns, (rows + columns) // 2)):
        picture[:, :, channel] += np.where(inside, chance.randrange(256), slope + chance.randrange(64))
    pixels: Pixels = np.clip(picture, 0, 255).astype(np.uint8)
    return pixels


def encode_jpeg(pixels: Pixels) -> bytes:
    """Encode a JPEG. Needs Pillow."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def encode_png(pixels: Pixels) -> bytes:
    """Encode an 8-bit RGB PNG (ISO/IEC 15948): every row with filter 0, one IDAT chunk."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return png(width, height, RGB, zlib.compress(rows, 1))


def png(width: int, height: int, colours: int, compressed: bytes) -> bytes:
    """Make a PNG of 8 bits a channel from its compressed rows."""
    head = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", compressed) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
