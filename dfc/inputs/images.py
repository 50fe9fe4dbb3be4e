"""Pictures and arrays: decoded to NumPy, PIL and tensors, and encoded.

Pictures need the extra `images`: Pillow, and simplejpeg if installed. The data is not trusted: few formats are read, none that
starts another program, and the number of pixels is checked before any is decoded. The bytes decide about the format, not the
extension: a PNG named .jpg is read. EXIF orientation is not applied.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dfc.inputs.epochs.memory import empty
from dfc.limits import INPUT_FIELD_BYTES_MAX, INPUT_IMAGE_PIXELS_MAX, INPUT_IMAGE_SCANS_MAX

Pixels = NDArray[np.uint8]
Room = Callable[[tuple[int, ...], Any], NDArray[Any]]  # allocates an array of a shape and a type


class Form(NamedTuple):
    """The form of a decoded picture: float in [0, 1] (`real`) or uint8; RGB, RGBA or L (grey, without a channel axis)."""

    kind: Literal["numpy", "torch", "pil"]
    real: bool
    mode: Literal["RGB", "RGBA", "L"]


# WebDataset's names. The torch forms have the channels first.
FORMS: Final[dict[str, Form]] = {
    "rgb8": Form("numpy", False, "RGB"),
    "rgb": Form("numpy", True, "RGB"),
    "rgba8": Form("numpy", False, "RGBA"),
    "rgba": Form("numpy", True, "RGBA"),
    "l8": Form("numpy", False, "L"),
    "l": Form("numpy", True, "L"),
    "torchrgb8": Form("torch", False, "RGB"),
    "torchrgb": Form("torch", True, "RGB"),
    "torch": Form("torch", True, "RGB"),
    "torchrgba8": Form("torch", False, "RGBA"),
    "torchrgba": Form("torch", True, "RGBA"),
    "torchl8": Form("torch", False, "L"),
    "torchl": Form("torch", True, "L"),
    "pil": Form("pil", False, "RGB"),
    "pilrgb": Form("pil", False, "RGB"),
    "pilrgba": Form("pil", False, "RGBA"),
    "pill": Form("pil", False, "L"),
}
JPEG_QUALITY: Final = 95  # the highest that still improves files, so that repeated storing does not show
_JPEG: Final = b"\xff\xd8"  # how one begins
_SCAN: Final = 0xDA  # the kind of the segment before each scan
_SEQUENTIAL: Final = frozenset((0xC0, 0xC1))  # of that about the whole picture, if it is not progressive
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_COMPRESSION, _AS_JPEG = 259, frozenset((6, 7))  # of TIFFs: the tag, and what says that parts are JPEGs
_BIG_TIFF: Final = 43  # the number of its format
_ENTRIES_MAX: Final = 1000  # tags; real pictures have fewer than 100
_PARTS: Final = ((324, 325), (273, 279))  # the tags of the offsets and sizes of tiles, and of strips
_FORMATS: Final = ("JPEG", "PNG", "PPM", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "AVIF")
_DEEP: Final = 65535  # white in pictures with 16 bits per channel
_SAVED_AS: Final = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), "JPEG"),
    **dict.fromkeys(("pbm", "pgm", "ppm", "pnm"), "PPM"),
    **dict.fromkeys(("tif", "tiff"), "TIFF"),
    "gif": "GIF",
    "webp": "WEBP",
    "bmp": "BMP",
    "jp2": "JPEG2000",
    "avif": "AVIF",
}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "JPEG": {"quality": JPEG_QUALITY, "subsampling": 0},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": JPEG_QUALITY},
}


@cache
def _pillow() -> tuple[Any, tuple[str, ...]]:
    """`PIL.Image`, and the allowed formats that it can read."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("decoding pictures needs Pillow: pip install Pillow simplejpeg") from None
    Image.init()
    return Image, tuple(name for name in _FORMATS if name in Image.OPEN)


@cache
def _simplejpeg() -> Any:
    """The library that decodes JPEG twice as fast as Pillow, to the same pixels; None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


@cache
def image_decoder(form: str) -> Callable[[bytes], Any]:
    """The decoder for a name in FORMS. If a library is missing, ImportError says what to install."""
    kind, real, mode = FORMS[form]
    _pillow()
    if kind == "pil":
        return partial(_decode_pil, mode=mode)
    if kind == "torch":
        from dfc.inputs.torch.memory import to_tensor

        return lambda data: to_tensor(_decode_array(data, real, mode, np.empty))
    return partial(_decode_array, real=real, mode=mode)


def _decode_array(data: bytes, real: bool, mode: str, room: Room = empty) -> NDArray[Any]:
    """Decode to shape (height, width, channels), or (height, width) for mode L; uint8, or float32 in [0, 1].

    `room` allocates the array if the decoder supports that. ValueError, OSError.
    """
    _check_scans(data)
    pixels = _decode_jpeg(data, mode, np.empty if real else room) if data.startswith(_JPEG) else None
    if pixels is None:
        image = _open(data)
        if image.mode.startswith(("I", "F")):
            return _deep_pixels(image, real, mode)
        pixels = np.array(image if image.mode == mode else image.convert(mode), np.uint8)
    if not real:
        return pixels
    values = room(pixels.shape, np.float32)
    values[:] = pixels
    values /= np.float32(255)  # not times 1/255, which rounds every second value differently from the other libraries
    return values


def _decode_jpeg(data: bytes, mode: str, room: Room) -> Pixels | None:
    """Decode a JPEG with simplejpeg. None if only Pillow can decode it (CMYK) or must judge it (damaged data)."""
    library = _simplejpeg()
    if library is None:
        return None
    try:
        height, width, colors, _ = library.decode_jpeg_header(data)
        _check_size(width, height)
        if colors in ("CMYK", "YCCK"):
            return None
        pixels: Pixels = room((height, width, 1 if mode == "L" else len(mode)), np.uint8)
        library.decode_jpeg(data, "GRAY" if mode == "L" else mode, buffer=pixels)
    except PictureTooLarge:
        raise
    except ValueError:
        return None
    return pixels[:, :, 0] if mode == "L" else pixels


class PictureTooLarge(ValueError):
    """A picture has more than INPUT_IMAGE_PIXELS_MAX pixels, or INPUT_IMAGE_SCANS_MAX scans."""


def _check_size(width: int, height: int) -> None:
    if width * height > INPUT_IMAGE_PIXELS_MAX:
        raise PictureTooLarge(f"a picture of {width} x {height} is too large: at most {INPUT_IMAGE_PIXELS_MAX} pixels")


def _check_scans(data: bytes) -> None:
    """Each further scan of a JPEG takes as long as all its pixels do, and may have a few bytes only."""
    if data.startswith(_JPEG) and not _has_one_scan(data):
        _check_count(len(_scans(data)))  # a few more than there are, if a thumbnail is inside


def _check_parts(image: Any, data: bytes) -> None:
    """The same for a TIFF whose tiles or strips are JPEGs, each of its own bytes."""
    if image.format != "TIFF":
        return
    try:
        _check_tags(data)
    except struct.error:
        raise ValueError("a TIFF whose directory is cut off") from None
    if image.tag_v2.get(_COMPRESSION) not in _AS_JPEG:
        return
    tags = next((each for each in _PARTS if each[0] in image.tag_v2), None)
    if tags is None:  # in the old way, of which there is one for the whole picture
        _check_count(len(_scans(data)))
        return
    begins, sizes = (np.atleast_1d(np.asarray(image.tag_v2.get(tag, ()), np.int64)) for tag in tags)
    if len(begins) != len(sizes) or np.any(sizes <= 0):
        raise ValueError("a TIFF with parts of no size")
    if np.any(begins < 0) or np.any(begins > len(data)) or np.any(sizes > len(data)):
        raise ValueError("a TIFF with parts beyond its end")
    in_order = np.argsort(begins, kind="stable")
    begins, ends = begins[in_order], (begins + sizes)[in_order]
    if np.any(ends[:-1] > begins[1:]):
        raise ValueError("a TIFF of which parts overlap")
    scans = _scans(data)
    _check_count(int(np.max(np.searchsorted(scans, ends) - np.searchsorted(scans, begins), initial=0)))


def _check_tags(data: bytes) -> None:
    """The first directory of a TIFF says once where its parts are, and how they are compressed: of two tags Pillow takes the
    last, and libtiff, which decodes, the first."""
    order = "<" if data.startswith(b"II") else ">"
    (kind,) = struct.unpack_from(f"{order}H", data, 2)
    where, count, entry_bytes = ("Q", "Q", 20) if kind == _BIG_TIFF else ("I", "H", 12)
    (directory,) = struct.unpack_from(f"{order}{where}", data, 8 if kind == _BIG_TIFF else 4)
    (entries,) = struct.unpack_from(f"{order}{count}", data, directory)
    if entries > _ENTRIES_MAX:
        raise ValueError(f"a TIFF with {entries} tags")
    first = directory + struct.calcsize(f"{order}{count}")
    tags = [struct.unpack_from(f"{order}H", data, first + number * entry_bytes)[0] for number in range(entries)]
    if any(tags.count(tag) > 1 for tag in (_COMPRESSION, *_PARTS[0], *_PARTS[1])) or {_PARTS[0][0], _PARTS[1][0]} <= set(tags):
        raise ValueError("a TIFF that says twice where its parts are, or what they are")


def _scans(data: bytes) -> NDArray[np.int64]:
    """Where scans may begin in JPEGs."""
    found = np.frombuffer(data, np.uint8)
    marked = np.flatnonzero(found[:-1] == 0xFF)
    scans: NDArray[np.int64] = marked[found[marked + 1] == _SCAN]
    return scans


def _check_count(scans: int) -> None:
    if scans > INPUT_IMAGE_SCANS_MAX:
        raise PictureTooLarge(f"a JPEG with {scans} scans: at most {INPUT_IMAGE_SCANS_MAX}")


def _has_one_scan(data: bytes) -> bool:
    """Whether a JPEG certainly has all its components in one scan, as most have, by the segments before it."""
    at, components = 2, 0
    while len(data) > at + 9 and data[at] == 0xFF:
        kind = data[at + 1]
        if kind == _SCAN:
            return 0 < components == data[at + 4]
        if kind in _FRAMES:
            components = data[at + 9] if kind in _SEQUENTIAL else 0
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return False


def _open(data: bytes) -> Any:
    library, formats = _pillow()
    image = library.open(io.BytesIO(data), formats=formats)
    _check_size(image.width, image.height)
    _check_parts(image, data)
    image.load()
    return image


def _deep_pixels(image: Any, real: bool, mode: str) -> NDArray[Any]:
    """Scale pictures of 16 bits and of floats, which Pillow would clip at 255."""
    found = np.asarray(image)
    values = found.astype(np.float32) if image.mode == "F" else found.astype(np.float32) / np.float32(_DEEP)
    np.clip(values, 0, 1, out=values)
    result: NDArray[Any] = values if real else np.rint(values * 255).astype(np.uint8)
    if mode != "L":
        result = np.repeat(result[:, :, np.newaxis], len(mode), axis=2)
    if mode == "RGBA":
        result[:, :, 3] = 1 if real else 255
    return result


def _decode_pil(data: bytes, mode: str) -> Any:
    _check_scans(data)
    image = _open(data)
    if image.mode.startswith(("I", "F")):
        return _pillow()[0].fromarray(_deep_pixels(image, False, "L")).convert(mode)
    return image.convert(mode)  # even if it has this mode already, for a plain image that holds no file


def encode_image(value: Any, kind: str) -> bytes:
    """Encode a picture in the format of an extension's last part; PNG if that names no format.

    Takes PIL images; arrays of shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4), uint8 or floats in [0, 1], and uint16 (grey,
    PNG and TIFF only); tensors with the channels first. ValueError, TypeError for others. JPEG drops transparency.
    """
    library, _ = _pillow()
    format_name = _SAVED_AS.get(kind, "PNG")
    if isinstance(value, library.Image):
        image = value
    else:
        pixels = _to_pixels(value)
        jpeg = _simplejpeg()
        if format_name == "JPEG" and jpeg is not None and pixels.ndim == 3 and pixels.shape[2] == 3:
            return bytes(jpeg.encode_jpeg(np.ascontiguousarray(pixels), JPEG_QUALITY, "RGB", "444"))
        image = library.fromarray(np.ascontiguousarray(pixels))
    if format_name == "PPM":
        wanted = {"pbm": "1", "pgm": "L", "ppm": "RGB"}.get(kind, image.mode)
        image = image if image.mode == wanted or image.mode.startswith("I") else image.convert(wanted)
    elif format_name == "JPEG" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    stream = io.BytesIO()
    image.save(stream, format_name, **_OPTIONS.get(format_name, {}))
    return stream.getvalue()


def _to_pixels(value: Any) -> NDArray[Any]:
    pixels = _numpy_pixels(value)
    if np.issubdtype(pixels.dtype, np.floating):
        if not (pixels.min() > -0.001 and pixels.max() < 1.001):  # dlinputs' bounds; also refuses NaN
            raise ValueError(f"a picture of floats must have values in [0, 1], not {pixels.min()} to {pixels.max()}")
        pixels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    if pixels.dtype == np.uint8 or (pixels.dtype == np.uint16 and pixels.ndim == 2):
        return pixels
    raise ValueError(f"cannot encode a picture of {pixels.dtype} with {pixels.ndim} dimensions")


def _numpy_pixels(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor, on any device
        value = value.detach().cpu().numpy()
        if value.ndim == 3:
            value = value.transpose(1, 2, 0)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a {type(value).__name__} cannot be encoded as a picture")
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    if value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (3, 4)) or not value.size:
        raise ValueError(f"a picture cannot have the shape {value.shape}")
    pixels: NDArray[Any] = value
    return pixels


# --- Decode and encode arrays: NumPy's .npy and .npz, and .ten, WebDataset's tensors (Tensorcom). Never pickles.
#
# A .ten file is a list of chunks: the magic number, the length in bytes (64 bits, little-endian), then the bytes, padded to a
# multiple of 64. Two chunks make an array: its header (type and name of 8 characters each, number of dimensions, dimensions; 64
# bits each) and its data in C order. Source: webdataset/tenbin.py.

TEN_MAGIC: Final = b"~TenBin~"
_TEN_ALIGN: Final = 64
_TEN_DIMENSIONS_MAX: Final = 9  # WebDataset writes no more
_TEN_TYPES: Final = frozenset(("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))


def decode_npy(data: bytes) -> NDArray[Any]:
    """The array of a .npy file, writable. ValueError if it is not one, is truncated, or holds Python objects."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        if version == (3, 0):
            data = _as_version_2(data)
            stream = io.BytesIO(data)
            stream.seek(8)
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects, which would have to be unpickled")
    count = math.prod(shape)
    if count and not dtype.itemsize:  # as many as one likes would fit; NumPy gives texts of no length a size
        raise ValueError(f"shape {shape} of {dtype}: items of no size")
    if min(shape, default=0) < 0 or count * dtype.itemsize > len(data) - stream.tell():
        raise ValueError(f"truncated: shape {shape} of {dtype} does not fit into {len(data)} bytes")
    array = np.frombuffer(data, dtype, count, stream.tell()) if count else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C").copy(order="K")


def _as_version_2(data: bytes) -> bytes:
    """A .npy file of version 3.0, whose header is in UTF-8 instead of Latin-1. It is a Python literal: escapes will do."""
    end = 12 + int.from_bytes(data[8:12], "little")
    header = data[12:end].decode().encode("ascii", "backslashreplace")
    return data[:8] + len(header).to_bytes(4, "little") + header + data[end:]


def decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name. ValueError, BadZipFile if broken, or decompressed beyond INPUT_FIELD_BYTES_MAX."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(info.file_size for info in archive.infolist()) > INPUT_FIELD_BYTES_MAX:  # no more is ever read of a member
            raise ValueError(f"decompresses to more than {INPUT_FIELD_BYTES_MAX} bytes")
        return {name.removesuffix(".npy"): decode_npy(archive.read(name)) for name in archive.namelist()}


def decode_ten(data: bytes) -> list[NDArray[Any]]:
    """The arrays of a .ten file, in order; writable. ValueError if it is broken."""
    memory = memoryview(bytearray(data))  # one copy, shared by all arrays
    chunks = _ten_chunks(memory)
    if len(chunks) % 2:
        raise ValueError("a header without its array")
    return [_ten_array(header, body) for header, body in zip(chunks[::2], chunks[1::2], strict=True)]


def _ten_chunks(memory: memoryview) -> list[memoryview]:
    chunks: list[memoryview] = []
    at, total = 0, len(memory)
    while at < total:
        if bytes(memory[at : at + 8]) != TEN_MAGIC or at + 16 > total:
            raise ValueError(f"no chunk at offset {at}")
        (size,) = struct.unpack_from("<q", memory, at + 8)
        at += 16
        if not 0 <= size <= total - at:
            raise ValueError(f"truncated: {size} bytes at offset {at} of {total}")
        chunks.append(memory[at : at + size])
        at += size + -size % _TEN_ALIGN
    return chunks


def _ten_array(header: memoryview, body: memoryview) -> NDArray[Any]:
    if len(header) < 24 or len(header) % 8:
        raise ValueError(f"invalid header of {len(header)} bytes")
    dtype = bytes(header[:8]).rstrip(b"\0").decode("ascii")
    dimensions, *shape = struct.unpack(f"<{len(header) // 8 - 2}q", header[16:])
    if dtype not in _TEN_TYPES:
        raise ValueError(f"arrays of type {dtype!r} are not supported")
    if dimensions != len(shape) or dimensions > _TEN_DIMENSIONS_MAX or min(shape, default=0) < 0:
        raise ValueError(f"invalid shape {shape} with {dimensions} dimensions")
    count = math.prod(shape)
    if count * int(dtype[1]) != len(body):
        raise ValueError(f"shape {tuple(shape)} of {dtype} does not fit {len(body)} bytes")
    return np.frombuffer(body, "<" + dtype, count).reshape(shape)


def as_array(value: Any) -> NDArray[Any]:
    """Convert to an array: NumPy arrays, torch tensors on any device, numbers, lists of numbers. TypeError for the rest."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"a {type(value).__name__} cannot become an array of numbers")
    return array


def encode_npy(value: Any) -> bytes:
    """An array as .npy. ValueError for objects, which would need pickle."""
    stream = io.BytesIO()
    np.save(stream, as_array(value), allow_pickle=False)
    return stream.getvalue()


def encode_npz(value: Mapping[str, Any]) -> bytes:
    """Make a .npz file. It is not compressed, since the shard can be."""
    if not isinstance(value, Mapping):
        raise TypeError(f".npz holds a dict of arrays, not {type(value).__name__}")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in value.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))  # without the time, so that it is reproducible
    return stream.getvalue()


def encode_ten(value: Any) -> bytes:
    """Make a .ten file of one array or a list of them. TypeError for types and dimensions that the format does not support."""
    is_list = isinstance(value, Sequence) and not (value and isinstance(value[0], int | float))
    arrays = [as_array(entry) for entry in value] if is_list else [as_array(value)]
    parts: list[bytes] = []
    for array in arrays:
        dtype = array.dtype.str[1:]
        if dtype not in _TEN_TYPES or array.ndim > _TEN_DIMENSIONS_MAX:
            raise TypeError(f".ten does not support arrays of {array.dtype} with {array.ndim} dimensions")
        header = struct.pack(f"<8s8sq{array.ndim}q", dtype.encode("ascii"), b"", array.ndim, *array.shape)
        for chunk in (header, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()):
            parts += (TEN_MAGIC, struct.pack("<q", len(chunk)), chunk, bytes(-len(chunk) % _TEN_ALIGN))
    return b"".join(parts)
