"""The built-in functions of `map`. Each takes a sample and returns samples, or raises SampleFailed.

`FUNCTIONS` maps each name to the struct of its arguments; instances of the struct are called with samples.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import numpy as np
import xxhash
from msgspec import Meta, Struct

from dfc.errors import BadRequest
from dfc.formats.sample import DataMember
from dfc.jobs.sandbox.parent import SampleFailed
from dfc.jobs.sandbox.wire import WireSample
from dfc.jobs.shards.images import Undecodable, check_field, is_image, open_image, pillow
from dfc.limits import JOB_IMAGE_PIXELS_MAX, SAMPLE_RECORDS_MAX, TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.samples import split_key

if TYPE_CHECKING:
    from PIL.Image import Image

ImageFormat = Literal["jpg", "jpeg", "png", "webp", "bmp", "gif", "ppm", "tif", "tiff"]
_Side = Annotated[int, Meta(ge=1, le=65_500)]
_Quality = Annotated[int, Meta(ge=1, le=100)]
_LOSSY: Final = frozenset(("JPEG", "WEBP"))
_FORMAT_OF: Final = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "tiff": "TIFF", "pbm": "PPM", "pgm": "PPM"}


class _Arguments(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    def check(self) -> None:
        """Check what the types cannot express. BadRequest."""

    def __call__(self, sample: WireSample) -> list[WireSample]:
        raise NotImplementedError


class Drop(_Arguments, frozen=True, kw_only=True):
    """Drop fields. A sample without other fields is dropped, too."""

    fields: list[str]

    def __call__(self, sample: WireSample) -> list[WireSample]:
        dropped = {ext.lower() for ext in self.fields}
        kept = {ext: data for ext, data in sample.fields.items() if ext not in dropped}
        return [WireSample(sample.key, kept)] if kept else []


class Rename(_Arguments, frozen=True, kw_only=True):
    """Rename extensions (old to new), and add a `prefix` to keys."""

    fields: dict[str, str] = {}
    prefix: str = ""

    def check(self) -> None:
        if not self.fields and not self.prefix:
            raise BadRequest("rename needs 'fields', or a prefix for keys")

    def __call__(self, sample: WireSample) -> list[WireSample]:
        names = {old.lower(): new.lower() for old, new in self.fields.items()}
        fields: dict[str, bytes] = {}
        for ext, data in sample.fields.items():
            name = names.get(ext, ext)
            if name in fields:
                raise SampleFailed(f"two of its fields would be named {name!r}")
            fields[name] = data
        return [WireSample(self.prefix + sample.key, fields)]


class _OfImages(_Arguments, frozen=True, kw_only=True):
    """Changes pictures. `fields`: their extensions; None: all extensions of pictures."""

    fields: list[str] | None = None

    def __call__(self, sample: WireSample) -> list[WireSample]:
        wanted = None if self.fields is None else {ext.lower() for ext in self.fields}
        fields: dict[str, bytes] = {}
        for ext, data in sample.fields.items():
            name, content = ext, data
            if is_image(ext) if wanted is None else ext in wanted:
                try:
                    name, content = self.change(ext, open_image(data))
                except Undecodable as error:
                    raise SampleFailed(f"field {ext!r}: {error}") from None
            if name in fields:
                raise SampleFailed(f"two of its fields would be named {name!r}")
            fields[name] = content
        return [WireSample(sample.key, fields)]

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        """Return the new extension and bytes of a picture."""
        raise NotImplementedError


class Resize(_OfImages, frozen=True, kw_only=True):
    """Resize pictures to `size` [width, height], or by the length of the `shortest` or `longest` side; keep the format."""

    size: tuple[_Side, _Side] | None = None
    shortest: _Side | None = None
    longest: _Side | None = None
    quality: _Quality = 90

    def check(self) -> None:
        if sum(each is not None for each in (self.size, self.shortest, self.longest)) != 1:
            raise BadRequest("resize needs exactly one of size [width, height], shortest and longest")

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        width, height = self.size or _scaled(image.size, self.shortest, self.longest)
        if width * height > JOB_IMAGE_PIXELS_MAX:
            raise SampleFailed(f"field {ext!r} would have {width} x {height} pixels, more than {JOB_IMAGE_PIXELS_MAX}")
        format = image.format or "PNG"
        plain = image.convert("RGB") if image.mode == "P" and "transparency" not in image.info else image
        plain = plain.convert("RGBA") if plain.mode in ("P", "PA") else plain.convert("L") if plain.mode == "1" else plain
        resized = plain.resize((width, height), pillow().Resampling.LANCZOS)
        return ext, _encode(resized, format, self.quality)


class Transcode(_OfImages, frozen=True, kw_only=True):
    """Convert pictures to another format (`quality`: for jpg and webp), and change the extension to match."""

    format: ImageFormat
    quality: _Quality = 90

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        return _with_ending(ext, self.format), _encode(image, _FORMAT_OF.get(self.format, self.format.upper()), self.quality)


class Tensor(_OfImages, frozen=True, kw_only=True):
    """Convert pictures to .npy: uint8 of shape (height, width, 3), or (height, width) if grey; others as in Pillow."""

    def change(self, ext: str, image: Image) -> tuple[str, bytes]:
        plain = image if image.mode in ("L", "RGB", "I", "F", "I;16") else image.convert("RGB")
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(plain), allow_pickle=False)
        return _with_ending(ext, "npy"), buffer.getvalue()


class DecodeCheck(_Arguments, frozen=True, kw_only=True):
    """Fail for samples with pictures or JSON that cannot be decoded; keep others unchanged."""

    def __call__(self, sample: WireSample) -> list[WireSample]:
        for ext, data in sample.fields.items():
            try:
                check_field(ext, data)
            except Undecodable as error:
                raise SampleFailed(f"field {ext!r}: {error}") from None
        return [sample]


FUNCTIONS: Final[Mapping[str, type[_Arguments]]] = {
    "decode-check": DecodeCheck,
    "drop": Drop,
    "rename": Rename,
    "resize": Resize,
    "tensor": Tensor,
    "transcode": Transcode,
}


def built_in(name: str, arguments: dict[str, Any]) -> Callable[[WireSample], list[WireSample]]:
    """Return a built-in function with its arguments. BadRequest for invalid arguments, KeyError for an unknown name."""
    try:
        function = msgspec.convert(arguments, FUNCTIONS[name])
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid arguments for {name}: {error}") from None
    function.check()
    return function


def _scaled(size: tuple[int, int], shortest: int | None, longest: int | None) -> tuple[int, int]:
    """Scale a size, rounding half up in integers, so that the result is the same everywhere."""
    side, other = (min(size), shortest) if shortest is not None else (max(size), longest or 1)
    width, height = ((2 * each * other + side) // (2 * side) for each in size)
    return max(1, width), max(1, height)


def _with_ending(ext: str, ending: str) -> str:
    head, dot, _ = ext.rpartition(".")
    return head + dot + ending


def _encode(image: Image, format: str, quality: int) -> bytes:
    if format in ("JPEG", "PPM", "BMP") and image.mode not in ("L", "RGB", "CMYK" if format == "JPEG" else "RGB"):
        image = image.convert("RGB")
    buffer = io.BytesIO()
    try:
        if format in _LOSSY:
            image.save(buffer, format, quality=quality)
        else:
            image.save(buffer, format)
    except (OSError, ValueError, KeyError) as error:
        raise Undecodable(f"cannot write a picture of mode {image.mode} as {format} ({str(error)[:100]})") from None
    return buffer.getvalue()


def seed_of(seed: int, ordinal: int) -> int:
    """Return 64 random bits for a sample: the same on every worker and every run."""
    return xxhash.xxh3_64_intdigest(struct.pack("<QQ", seed, ordinal))


def as_members(sample: WireSample) -> tuple[str, list[DataMember]]:
    """Convert a sample to members. SampleFailed for keys and extensions that would be parsed differently when read."""
    if not 1 <= len(sample.fields) <= SAMPLE_RECORDS_MAX:
        raise SampleFailed(f"the output sample {sample.key[:80]!r} has {len(sample.fields)} fields")
    members = []
    for ext, data in sample.fields.items():
        name = f"{sample.key}.{ext.lower()}"
        if split_key(name) != (sample.key, ext.lower()) or not _is_member_name(name):
            raise SampleFailed(f"the output key {sample.key[:80]!r} with extension {ext[:80]!r} is not a valid member name")
        members.append(DataMember(ext.lower(), name, data))
    if len({member.ext for member in members}) < len(members):
        raise SampleFailed(f"the output sample {sample.key[:80]!r} has two extensions that differ only in case")
    return sample.key, members


def _is_member_name(name: str) -> bool:
    try:
        return "\0" not in name and len(name.encode()) <= TAR_MEMBER_NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False
