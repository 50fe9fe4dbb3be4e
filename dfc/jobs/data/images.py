"""Pictures and JSON in samples: decoded, checked, made small. Needs Pillow (extra `images`) for pictures.

The data is untrusted: only a few formats are allowed, none that starts another program, and pixels are limited before decoding.
"""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from dfc.errors import Conflict
from dfc.jobs.sandbox.isolation import Call, WireSample
from dfc.limits import JOB_IMAGE_PIXELS_MAX

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_EXTENSIONS: Final = frozenset(
    ("png", "jpg", "jpeg", "img", "image", "pbm", "pgm", "ppm", "gif", "webp", "bmp", "tif", "tiff")
)
JSON_EXTENSIONS: Final = frozenset(("json", "jsn"))
_FORMATS: Final = ("PNG", "JPEG", "PPM", "GIF", "WEBP", "BMP", "TIFF")


class MissingLibrary(Conflict):
    """A worker lacks an optional library that the job needs; the message says how to install it."""

    code = "missing_library"


class Undecodable(Exception):
    """The bytes are not what their extension says. The message is for users."""


@cache
def pillow() -> Any:
    """Return the module `PIL.Image`, configured. MissingLibrary if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingLibrary("pictures need Pillow on every worker: pip install Pillow") from None
    Image.MAX_IMAGE_PIXELS = JOB_IMAGE_PIXELS_MAX
    return Image


def is_image(ext: str) -> bool:
    """Whether an extension is a picture's, by its last part, so that `left.jpg` is one."""
    return ext.rpartition(".")[2] in IMAGE_EXTENSIONS


def first_look(data: bytes) -> Image:
    """Open a picture without decoding it. Undecodable, also for more than JOB_IMAGE_PIXELS_MAX pixels."""
    library = pillow()
    try:
        image: Image = library.open(io.BytesIO(data), formats=_FORMATS)
    except Exception as error:  # decoders can raise anything for hostile bytes, including struct.error and IndexError
        raise undecodable(error) from None
    if image.width * image.height > JOB_IMAGE_PIXELS_MAX:
        raise Undecodable(f"a picture of {image.width} x {image.height} pixels is too large")
    return image


def open_image(data: bytes) -> Image:
    """Decode a picture completely. Undecodable, also for more than JOB_IMAGE_PIXELS_MAX pixels."""
    image = first_look(data)
    try:
        image.load()
    except Exception as error:
        raise undecodable(error) from None
    return image


def undecodable(error: Exception) -> Undecodable:
    """Say what a decoder has raised; the texts of some errors have the addresses of objects in memory, which change."""
    if type(error).__name__.startswith("DecompressionBomb"):
        return Undecodable(f"a picture of more than {JOB_IMAGE_PIXELS_MAX} pixels is too large")
    said = "its format is not known" if type(error).__name__ == "UnidentifiedImageError" else str(error)[:100]
    return Undecodable(f"not a picture that can be decoded ({said or type(error).__name__})")


def check_field(ext: str, data: bytes) -> None:
    """Raise Undecodable if a picture or JSON cannot be decoded. Other extensions are not checked."""
    kind = ext.rpartition(".")[2]
    if kind in IMAGE_EXTENSIONS:
        open_image(data)
    elif kind in JSON_EXTENSIONS:
        try:
            msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Undecodable(f"not JSON ({str(error)[:100]})") from None


# --- Makes pictures small, in the process of a sandbox: what arrives is untrusted, and decoders are written in C.

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
