"""Pictures made small: of every kind that is read, upright, and without anything to decode that is too large."""

from __future__ import annotations

import io
import warnings

import pytest
from pictures import bomb, encoded
from PIL import Image

from dfc.jobs.data.images import PICTURE, REFUSED, Undecodable, request, thumbnail, work

RED, BLUE = (200, 20, 20), (20, 20, 200)


def picture(mode: str = "RGB", size: tuple[int, int] = (400, 300), kind: str = "PNG", **options: object) -> bytes:
    """The left half red, the right half blue, as far as the mode has colours."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, size[0], size[1]))
    return encoded(image.convert(mode), kind, **options)


def small(data: bytes, pixels: int = 96) -> Image.Image:
    made = Image.open(io.BytesIO(thumbnail(data, pixels)))
    assert made.format == "JPEG"
    assert made.mode in ("RGB", "L")
    made.load()
    return made


def is_near(found: object, wanted: tuple[int, ...], distance: int = 25) -> bool:
    assert isinstance(found, tuple)
    return all(abs(one - other) <= distance for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("RGB", "WEBP"),
     ("RGB", "BMP"), ("RGB", "TIFF"), ("CMYK", "TIFF"), ("RGB", "PPM"), ("LAB", "TIFF")],
)  # fmt: skip
def test_every_kind_keeps_its_colours(mode: str, kind: str) -> None:
    if mode == "LAB":
        assert small(encoded(Image.new("LAB", (400, 300), (128, 128, 128)), kind)).size == (96, 72)
        return
    made = small(picture(mode, kind=kind)).convert("RGB")
    assert made.size == (96, 72)
    assert is_near(made.getpixel((10, 36)), RED), kind
    assert is_near(made.getpixel((85, 36)), BLUE), kind


def test_the_longer_side_counts_and_nothing_grows() -> None:
    assert small(picture(size=(300, 600)), 192).size == (96, 192)
    assert small(picture(size=(50, 40)), 384).size == (50, 40)
    assert small(picture(size=(5000, 3)), 96).size == (96, 1)


def test_it_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned to the left by the camera
    made = small(picture(kind="JPEG", exif=exif))
    assert made.size == (72, 96)
    assert is_near(made.getpixel((36, 10)), RED)
    assert is_near(made.getpixel((36, 85)), BLUE)


def test_sixteen_bits_and_bilevel() -> None:
    image = Image.new("I;16", (400, 300), 0)
    image.paste(65535, (200, 0, 400, 300))
    made = small(encoded(image))
    assert (made.mode, made.getpixel((10, 36)), made.getpixel((85, 36))) == ("L", 0, 255)
    made = small(picture("1", kind="PNG"))
    assert made.size == (96, 72)
    assert small(encoded(Image.new("F", (40, 30), 0.5), "TIFF")).size == (40, 30)


def test_what_is_transparent_is_grey() -> None:
    clear = encoded(Image.new("RGBA", (40, 30), (255, 0, 0, 0)))
    palette = Image.new("P", (40, 30), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    for data in (clear, encoded(palette, transparency=1)):
        assert is_near(small(data).getpixel((20, 15)), (128, 128, 128), 3)


def test_the_first_picture_of_those_that_move() -> None:
    first, *others = [Image.new("RGB", (40, 30), colour) for colour in (RED, BLUE, BLUE)]
    moving = encoded(first, "GIF", save_all=True, append_images=others)
    assert is_near(small(moving).convert("RGB").getpixel((20, 15)), RED)


def test_what_is_too_large_is_not_decoded() -> None:
    with pytest.raises(Undecodable, match="more than 67108864 pixels is too large"):
        thumbnail(bomb(20_000), 96)
    warnings.simplefilter("ignore")  # up to twice the limit Pillow only warns
    with pytest.raises(Undecodable, match="8193 x 8193 pixels is too large"):
        thumbnail(bomb(8_193), 96)


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", picture(kind="JPEG")[:2000], picture()[:300], b"<svg xmlns='http://www.w3.org/2000/svg'/>",
     b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"GIF89a\xff\xff\xff\xff"],
    ids=["empty", "text", "half a JPEG", "half a PNG", "SVG", "PostScript", "GIF"],
)  # fmt: skip
def test_what_is_no_picture_is_refused_in_the_same_words_each_time(data: bytes) -> None:
    (first,), (second,) = work(request(data, 96)), work(request(data, 96))
    assert list(first.fields) == [REFUSED]
    assert first == second
    assert first.fields[REFUSED].startswith(b"not a picture that can be decoded (")


def test_the_answer_of_the_process_has_the_picture() -> None:
    (made,) = work(request(picture(), 192))
    assert Image.open(io.BytesIO(made.fields[PICTURE])).size == (192, 144)
