"""Pictures: the same pixels as Pillow's, floats exactly x/255, bounded, and back again."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from dfc.inputs.base import SampleBroken
from dfc.inputs.decoding import decode
from dfc.inputs.images import FORMS, PictureTooLarge, _simplejpeg, encode_image, image_decoder
from dfc.limits import INPUT_IMAGE_PIXELS_MAX, INPUT_IMAGE_SCANS_MAX

RNG = np.random.default_rng(0)
SMALL = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
SMOOTH = np.asarray(Image.fromarray(SMALL).resize((64, 48), Image.Resampling.BICUBIC))
FLOATS = SMALL.astype(np.float32) / np.float32(255)


def stored(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture(params=["simplejpeg", "pillow"])
def library(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    _simplejpeg.cache_clear()
    yield request.param
    _simplejpeg.cache_clear()


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_jpeg_has_the_pixels_of_pillow(library, subsampling):
    data = stored(Image.fromarray(SMOOTH), "JPEG", quality=90, subsampling=subsampling)
    expected = np.asarray(Image.open(io.BytesIO(data)))
    assert (_simplejpeg() is None) == (library == "pillow")
    found = image_decoder("rgb8")(data)
    assert np.array_equal(found, expected)
    assert found.flags.writeable
    assert np.array_equal(image_decoder("rgb")(data), expected.astype(np.float32) / np.float32(255))
    rgba = image_decoder("rgba8")(data)
    assert np.array_equal(rgba[:, :, :3], expected)
    assert (rgba[:, :, 3] == 255).all()
    grey = image_decoder("l8")(data)
    assert grey.shape == (48, 64)
    assert np.abs(grey.astype(int) - np.asarray(Image.open(io.BytesIO(data)).convert("L")).astype(int)).max() <= 3


def test_jpeg_of_other_colors(library):
    image = Image.fromarray(SMOOTH)
    for mode in ("L", "CMYK"):
        data = stored(image.convert(mode), "JPEG", quality=90)
        found = image_decoder("rgb8")(data)
        assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))), mode


def test_a_jpeg_with_rubbish_at_its_end_is_read_and_a_cut_one_is_not(library):
    data = stored(Image.fromarray(SMOOTH), "JPEG", quality=90)
    assert image_decoder("rgb8")(data + b"rubbish").shape == (48, 64, 3)
    for end in (3, 20, len(data) // 2, len(data) - 40):
        with pytest.raises(SampleBroken):
            decode({"__key__": "a", "jpg": data[:end]})


@pytest.mark.parametrize("form", ["rgb8", "rgba", "torchrgb", "pilrgba", "l"])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "PA", "I;16", "CMYK"])
def test_every_kind_of_picture_has_the_form_asked_for(form, mode):
    grey = Image.fromarray(SMALL).convert("L")
    if mode == "I;16":
        data = stored(Image.fromarray(np.asarray(grey).astype(np.uint16) * 257), "PNG")
    else:
        image = Image.fromarray(SMALL).convert(mode) if mode != "PA" else Image.fromarray(SMALL).convert("P").convert("PA")
        data = stored(image, "PNG" if mode not in ("CMYK", "PA") else "TIFF")
    found = image_decoder(form)(data)
    kind, real, channels = FORMS[form]
    if kind == "pil":
        assert (found.mode, found.size) == ("RGBA", (9, 6))
        return
    shape = (6, 9) if channels == "L" else (6, 9, len(channels)) if kind == "numpy" else (len(channels), 6, 9)
    assert tuple(found.shape) == shape
    assert ("float32" if real else "uint8") in str(found.dtype)
    assert 0 <= found.min() <= found.max() <= (1 if real else 255)
    assert found.max() > 0.5 * (1 if real else 255)


def test_sixteen_bits_are_scaled_not_clipped():
    deep = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    for kind in ("PNG", "TIFF", "PPM"):
        data = stored(Image.fromarray(deep), kind)
        assert np.allclose(image_decoder("l")(data), deep / 65535), kind
        assert image_decoder("l8")(data).tolist() == [[0, 1, 128, 255]], kind
        assert image_decoder("rgb")(data).shape == (1, 4, 3), kind
        assert image_decoder("pill")(data).getpixel((3, 0)) == 255, kind
    real = stored(Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32)), "TIFF")
    assert image_decoder("l")(real).tolist() == [[0.0, 0.5, 1.0]]


@pytest.mark.parametrize("kind", ["PNG", "PPM", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000", "AVIF"])
def test_the_bytes_say_what_the_format_is(kind):
    data = stored(Image.fromarray(SMOOTH), kind, **({"lossless": True} if kind == "WEBP" else {}))
    found = decode({"jpg": data, "image": data}, "rgb8")
    assert found["jpg"].shape == found["image"].shape == (48, 64, 3)


def test_formats_that_start_programs_are_no_pictures():
    with pytest.raises(SampleBroken, match="cannot identify"):
        decode({"__key__": "a", "png": stored(Image.fromarray(SMALL), "EPS")})


def png_of_size(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_bombs_are_refused_before_any_pixel(library, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # Pillow's own limit, which jobs in this process may have set
    side = 8192
    assert side * side == INPUT_IMAGE_PIXELS_MAX
    with pytest.raises(PictureTooLarge, match="8193 x 8192"):
        image_decoder("rgb8")(png_of_size(side + 1, side))
    with pytest.raises(PictureTooLarge):
        image_decoder("pil")(png_of_size(side + 1, side))
    jpeg = bytearray(stored(Image.fromarray(SMOOTH), "JPEG"))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60000, 60000)
    with pytest.raises(SampleBroken):
        decode({"__key__": "a", "jpg": bytes(jpeg)})


@pytest.mark.parametrize("form", ["rgb8", "l", "pil"])
def test_a_jpeg_of_very_many_scans_is_refused_before_any_pixel(library, form):
    data = stored(Image.new("L", (64, 64)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    assert data.count(b"\xff\xda") < 20

    def with_scans(more: int) -> bytes:
        return data[:-2] + data[last:-2] * more + data[-2:]

    image_decoder(form)(with_scans(INPUT_IMAGE_SCANS_MAX // 2))
    with pytest.raises(PictureTooLarge, match="scans"):
        image_decoder(form)(with_scans(INPUT_IMAGE_SCANS_MAX))
    plain = stored(Image.fromarray(SMOOTH), "JPEG", comment=b"\xff\xda" * INPUT_IMAGE_SCANS_MAX * 2)
    image_decoder(form)(plain)  # it has one scan, whatever is said in it


def with_strip(data: bytes, strip: bytes, sizes: int = 1) -> bytes:
    """A TIFF of one strip with another one, behind the rest."""
    (directory,) = struct.unpack_from("<I", data, 4)
    found = bytearray(data)
    for at in range(directory + 2, directory + 2 + 12 * struct.unpack_from("<H", data, directory)[0], 12):
        (tag,) = struct.unpack_from("<H", data, at)
        if tag in (273, 279):
            struct.pack_into("<HII", found, at + 2, 4, 1, len(data) if tag == 273 else len(strip) * sizes)
    return bytes(found) + strip


def test_jpegs_in_a_tiff_have_as_few_scans():
    data = stored(Image.fromarray(SMOOTH[:8, :64]), "TIFF", compression="jpeg")
    begin, last, end = (data.index(each) for each in (b"\xff\xd8\xff\xc0", b"\xff\xda", b"\xff\xd9"))
    strip = data[begin : end + 2]
    whole = image_decoder("rgb8")(data)
    assert np.array_equal(image_decoder("rgb8")(with_strip(data, strip)), whole)
    many = strip[:-2] + data[last:end] * INPUT_IMAGE_SCANS_MAX + strip[-2:]
    with pytest.raises(PictureTooLarge, match="scans"):
        image_decoder("rgb8")(with_strip(data, many))
    with pytest.raises(ValueError, match="no size"):
        image_decoder("rgb8")(with_strip(data, strip, 0))


def with_tag(data: bytes, entry: bytes) -> bytes:
    """A TIFF whose directory has one more entry, at its end."""
    (directory,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, directory)
    entries = data[directory + 2 : directory + 2 + 12 * count]
    moved = struct.pack("<H", count + 1) + entries + entry + bytes(4)
    return data[:4] + struct.pack("<I", len(data)) + data[8:] + moved


@pytest.mark.parametrize("tag", [259, 273, 279, 324])
def test_a_tiff_says_once_where_its_parts_are_and_what_they_are(tag: int) -> None:
    """Pillow believes the last tag, and libtiff, which decodes, the first: what was checked would not be what is decoded."""
    data = stored(Image.fromarray(SMOOTH[:8, :64]), "TIFF", compression="jpeg")
    image_decoder("rgb8")(with_tag(data, struct.pack("<HHII", 65000, 4, 1, 1)))
    with pytest.raises(ValueError, match="twice"):
        image_decoder("rgb8")(with_tag(data, struct.pack("<HHII", tag, 4, 1, 5)))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_the_directory_of_a_tiff_is_within_it():
    """Pillow goes on with the tags that it has found."""
    whole = with_tag(stored(Image.fromarray(SMOOTH[:8, :64]), "TIFF"), struct.pack("<HHII", 65000, 4, 1, 1))
    image_decoder("rgb8")(whole)
    (directory,) = struct.unpack_from("<I", whole, 4)
    with pytest.raises(ValueError, match="cut off"):
        image_decoder("rgb8")(whole[:directory] + struct.pack("<H", 900) + whole[directory + 2 :])


def test_parts_of_a_tiff_are_within_it():
    data = stored(Image.fromarray(SMOOTH[:8, :64]), "TIFF", compression="jpeg")
    strip = b"\xff\xd8\xff\xd9"
    with pytest.raises(ValueError, match="beyond its end"):
        image_decoder("rgb8")(with_strip(data, strip, 1 << 29))


def test_strips_of_a_tiff_do_not_share_bytes():
    """Else each of very many could be the same JPEG of many scans."""
    data = stored(Image.fromarray(np.repeat(SMOOTH, 8, axis=0)), "TIFF", compression="jpeg")
    image = Image.open(io.BytesIO(data))
    assert len(image.tag_v2[273]) > 1
    image_decoder("rgb8")(data)
    sizes = struct.pack(f"<{len(image.tag_v2[279])}I", *image.tag_v2[279])
    assert data.count(sizes) == 1
    with pytest.raises(ValueError, match="overlap"):
        image_decoder("rgb8")(data.replace(sizes, struct.pack("<I", image.tag_v2[279][0] + 100) + sizes[4:]))


@pytest.mark.parametrize("ext", ["png", "img", "image", "ppm", "bmp", "tif", "webp"])
def test_pictures_come_back_exactly(ext):
    for value in (SMALL, FLOATS, FLOATS.astype(np.float64), Image.fromarray(SMALL)):
        data = encode_image(value, ext)
        assert np.array_equal(image_decoder("rgb8")(data), SMALL)
        assert np.array_equal(image_decoder("rgb")(data), FLOATS)


def test_jpeg_comes_back_nearly(library):
    for ext in ("jpg", "jpeg"):
        for value in (SMOOTH, Image.fromarray(SMOOTH)):
            data = encode_image(value, ext)
            assert simplejpeg.is_jpeg(data)
            assert np.abs(image_decoder("rgb8")(data).astype(int) - SMOOTH.astype(int)).mean() < 3
    assert image_decoder("rgb8")(encode_image(np.dstack([SMOOTH, SMOOTH[:, :, 0]]), "jpg")).shape == SMOOTH.shape
    assert Image.open(io.BytesIO(encode_image(SMOOTH[:, :, 0], "jpg"))).mode == "L"


def test_grey_and_transparent_and_deep_pictures_come_back():
    grey = SMALL[:, :, 0]
    assert np.array_equal(image_decoder("l8")(encode_image(grey, "png")), grey)
    assert np.array_equal(image_decoder("l8")(encode_image(grey[:, :, np.newaxis], "pgm")), grey)
    rgba = np.dstack([SMALL, grey])
    assert np.array_equal(image_decoder("rgba8")(encode_image(rgba, "png")), rgba)
    deep = grey.astype(np.uint16) * 200
    assert np.allclose(image_decoder("l")(encode_image(deep, "png")), deep / 65535)
    assert set(np.unique(image_decoder("l8")(encode_image(grey, "pbm")))) <= {0, 255}


def test_tensors_are_pictures_with_channels_first():
    import torch

    tensor = image_decoder("torchrgb")(encode_image(SMALL, "png"))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.is_contiguous()
    assert np.array_equal(image_decoder("rgb8")(encode_image(tensor, "png")), SMALL)


@pytest.mark.parametrize(
    "value",
    [
        np.full((2, 2), 1.5),
        np.full((2, 2), -1.0),
        np.full((2, 2), np.nan),
        np.zeros((2, 2, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 2), np.uint8),
        np.zeros((2, 2), np.int64),
        np.zeros((2, 2, 3), np.uint16),
        "text",
    ],
)
def test_what_is_no_picture(value):
    with pytest.raises((ValueError, TypeError), match="picture"):
        encode_image(value, "png")


def test_without_pillow_it_says_what_to_install():
    import subprocess

    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "import dfc.inputs.filters as df\n"
        "samples = [{'__key__': 'a', 'png': b'x'}]\n"
        "assert list(df.decode(only='cls', handler='skip')(samples)) == samples\n"
        "try: list(df.decode(handler='skip')(samples))\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "decoding pictures needs Pillow: pip install Pillow simplejpeg"
