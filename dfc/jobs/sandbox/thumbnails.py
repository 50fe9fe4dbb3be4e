"""Makes pictures small, in the process of a sandbox: what arrives is untrusted, and decoders are written in C."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final, cast

from dfc.jobs.sandbox.wire import Call, WireSample
from dfc.jobs.shards.images import Undecodable, first_look, undecodable

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE: Final = "picture"  # the field of a sample that is to be made small, and of the one that is the result
REFUSED: Final = "refused"  # the field with the reason, if there is none
QUALITY: Final = 80  # of the JPEG
_GREY: Final = (128, 128, 128, 255)  # behind what is transparent


def request(data: bytes, pixels: int) -> Call:
    """Ask for a picture whose longer side has at most so many pixels."""
    return Call(pixels, WireSample("", {PICTURE: data}))


def work(call: Call) -> list[WireSample]:
    """Make a picture small: a JPEG of it, or why there is none."""
    try:
        return [WireSample("", {PICTURE: thumbnail(call.sample.fields[PICTURE], call.seed)})]
    except Undecodable as error:
        return [WireSample("", {REFUSED: str(error).encode()})]


def thumbnail(data: bytes, pixels: int) -> bytes:
    """Return a JPEG of a picture, the first one if it moves, upright, its longer side at most `pixels` long. Undecodable."""
    image = first_look(data)
    try:
        made = _small(image, pixels)
    except MemoryError:
        raise Undecodable("decoding the picture takes too much memory") from None
    except Exception as error:  # decoders can raise anything for hostile bytes
        raise undecodable(error) from None
    content = io.BytesIO()
    made.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def _small(image: Image, pixels: int) -> Image:
    from PIL import Image as library
    from PIL import ImageOps

    # JPEGs are decoded at a half, a quarter or an eighth of their size, whichever is still large enough.
    image.draft("RGB", (pixels, pixels))
    image.load()
    if image.mode in ("P", "PA", "LA", "La", "RGBa", "1") or "transparency" in image.info:
        # Colours of a palette have no mean, and what is transparent may have any.
        image = image.convert("RGBA" if image.mode != "1" else "L")
    elif image.mode.startswith(("I", "F")):
        image = _eight_bits(image)
    elif image.mode not in ("L", "RGB", "RGBA"):
        image = image.convert("RGB")
    image.thumbnail((pixels, pixels), library.Resampling.BILINEAR, reducing_gap=2.0)
    image = ImageOps.exif_transpose(image)
    if image.mode == "RGBA":
        ground = library.new("RGBA", image.size, _GREY)
        image = library.alpha_composite(ground, image).convert("RGB")
    return image


def _eight_bits(image: Image) -> Image:
    """Scale numbers of more bits: 16 bits, or what is there if it is not in their range."""
    numbers = image.convert("F")
    found = cast(tuple[float, float], numbers.getextrema())
    low, high = (0.0, 65535.0) if image.mode.startswith("I;16") else (min(0.0, found[0]), max(255.0, found[1]))
    return numbers.point(lambda value: (value - low) * (255.0 / (high - low))).convert("L")
