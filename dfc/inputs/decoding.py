"""Decode and encode the fields of samples by their extensions.

`decode(sample)` does what dlinputs did: numbers, JSON, MessagePack, arrays, and pictures as floats. The names for other forms
of pictures ("rgb8", "pil", …) are those of WebDataset. The data is not trusted: every size is checked before memory is
allocated for it, and pickles are not decoded unless the caller asks for it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import msgpack
import msgspec

from dfc.inputs.base import Sample, SampleBroken
from dfc.limits import INPUT_EXTENSIONS_KEPT, INPUT_FIELD_BYTES_MAX

# --- Which extensions there are, and how each is decoded by default.
#
# The lists are those of dlinputs and WebDataset. The last part of an extension decides: `left.png` is a picture.

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
IMAGES: Final = frozenset((
    "png", "jpg", "jpeg", "jpe", "jfif", "img", "image", "pbm", "pgm", "ppm", "pnm", "gif", "webp", "bmp", "tif", "tiff", "jp2",
    "avif",
))  # fmt: skip


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
        from dfc.inputs.images import image_decoder

        return image_decoder("rgb")
    if kind in TENSORS or kind in ("npy", "npz"):
        from dfc.inputs import images

        if kind == "npz":
            return images.decode_npz
        return images.decode_npy if kind == "npy" else images.decode_ten
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


# --- Decode the fields of samples by their extensions.

_BYTES: Final = (bytes, bytearray, memoryview)
# See `Decoder` for what each form does.
Spec = bool | None | str | Mapping[str, Any] | Sequence[Any] | Callable[[Sample], Sample]


def decode(sample: Sample, spec: Spec = True, only: str | Collection[str] | None = None, *, pickle: bool = False) -> Sample:
    """Return a new sample with decoded fields; see `Decoder`. SampleBroken if a field cannot be decoded."""
    try:
        names = only if only is None or isinstance(only, str) else frozenset(only)
        decoder = _kept_decoder(spec, names, pickle=pickle)
    except TypeError:  # dicts and lists are not hashable
        decoder = Decoder(spec, only, pickle=pickle)
    return decoder(sample)


class Decoder:
    """Decodes samples: make one and call it with each sample. It can be pickled, and called from several threads at once.

    `spec` says how:
    True               by the last part of the extension; pictures as float32 RGB in [0, 1], shape (height, width, 3)
    a name             the same, with pictures in this form: rgb8, rgb, rgba8, rgba, l8, l (numpy), torchrgb8, … (torch),
                       pil, pilrgb, pilrgba, pill; see `dfc.inputs.images.FORMS`
    False, None        nothing is decoded
    {ext: how}         how is a function of the bytes, a name, or False for bytes; "seg.png" takes precedence over "png", and
                       "*" matches all others; without "*" they are decoded as with True
    [how, how, …]      names, dicts and WebDataset's handlers f(".ext", data), tried in order; a handler that returns None
                       passes the field on to the next. The rest is decoded as with True, or not at all after a False
    a function         takes the whole undecoded sample and returns the decoded one

    `only` names the extensions to decode (a set, or words in a string); the others stay bytes. Both match whole parts from the
    right. If the last part is "gz", the field is decompressed first. `pickle=True` also decodes pickles and torch's `pth`: use
    it only with your own data, since a pickle may run any program. Fields whose name begins with "_", and values that are not
    bytes, stay as they are. ValueError for an invalid spec.
    """

    def __init__(self, spec: Spec = True, only: str | Collection[str] | None = None, *, pickle: bool = False) -> None:
        self.spec = spec
        self.only = frozenset(only.lower().split() if isinstance(only, str) else only) if only is not None else None
        self.pickle = pickle
        self._bytes_only = spec is None or spec is False
        self._functions: dict[str, FieldFunction | None] = {}
        if callable(spec) and only is not None:
            raise ValueError("only= cannot be combined with a function of the whole sample")
        _check_spec(spec)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_functions": {}}

    def __call__(self, sample: Sample) -> Sample:
        """Return the decoded sample. SampleBroken, with the key and the shard, for a field that cannot be decoded."""
        if self._bytes_only:
            return dict(sample)
        if callable(self.spec):
            return self._whole(self.spec, sample)
        result = dict(sample)
        functions = self._functions
        for ext, data in sample.items():
            if not isinstance(data, _BYTES):
                continue
            try:
                function = functions[ext]
            except KeyError:
                function = self._function(ext)
            if function is not None:
                try:
                    result[ext] = function(data if type(data) is bytes else bytes(data))
                except Exception as problem:  # decoders of hostile bytes raise anything, struct.error and MemoryError included
                    raise broken(sample, f"field {ext!r} cannot be decoded", problem) from problem
        return result

    def _whole(self, function: Callable[[Sample], Sample], sample: Sample) -> Sample:
        try:
            return function(sample)
        except Exception as problem:
            raise broken(sample, "cannot be decoded", problem) from problem

    def _function(self, ext: str) -> FieldFunction | None:
        function = None if ext.startswith("_") else self._resolve(ext.lower())
        if len(self._functions) < INPUT_EXTENSIONS_KEPT:  # names come with the data, so the table needs a bound
            self._functions[ext] = function
        return function

    def _resolve(self, ext: str) -> FieldFunction | None:
        names = list(suffixes(ext))
        wanted = self.only is None or not self.only.isdisjoint(names)
        if names[-1] == "gz" and not (isinstance(self.spec, Mapping) and any(name in self.spec for name in names)):
            rest = ext[:-3]
            if not wanted and not any(name in self.only for name in suffixes(rest)):  # type: ignore[operator]
                return None
            return partial(_decompressed, None if rest.endswith("gz") else self._plain(rest))
        return self._plain(ext) if wanted else None

    def _plain(self, ext: str) -> FieldFunction | None:
        found: Any = _chosen(self.spec, ext, self.pickle)
        function: FieldFunction | None = standard(ext, pickle=self.pickle) if found is _NOT_CHOSEN else found
        return function


def _decompressed(function: FieldFunction | None, data: bytes) -> Any:
    return decompress(data) if function is None else function(decompress(data))


_kept_decoder = lru_cache(maxsize=64)(Decoder)
_NOT_CHOSEN: Final = object()


def _check_spec(spec: Any) -> None:
    if isinstance(spec, str):
        from dfc.inputs.images import FORMS

        if spec not in FORMS:
            raise ValueError(f"unknown form of pictures {spec!r}; choose one of {', '.join(FORMS)}")
    elif isinstance(spec, Mapping):
        for ext, how in spec.items():
            if not callable(how):
                _check_spec(how)
            if not isinstance(ext, str):
                raise ValueError(f"extensions must be strings, not {ext!r}")
    elif isinstance(spec, Sequence):
        for how in spec:
            if not callable(how):
                _check_spec(how)
    elif spec is not None and not isinstance(spec, bool) and not callable(spec):
        raise ValueError(f"decode= takes True, False, a name, a dict, a list or a function, not {type(spec).__name__}")


def _chosen(spec: Any, ext: str, pickle: bool) -> Any:
    """How a spec decodes an extension: a function, None for bytes, or _NOT_CHOSEN if it does not say."""
    if spec is None or spec is False:
        return None
    if isinstance(spec, str):
        from dfc.inputs.images import image_decoder

        return image_decoder(spec) if ext.rpartition(".")[2] in IMAGES else _NOT_CHOSEN
    if isinstance(spec, Mapping):
        for suffix in (*suffixes(ext), "*"):
            if suffix in spec:
                how = spec[suffix]
                if callable(how):
                    return how
                found = _chosen(how, ext, pickle)
                return standard(ext, pickle=pickle) if found is _NOT_CHOSEN else found
        return _NOT_CHOSEN
    if isinstance(spec, Sequence):
        return _chain(spec, ext, pickle)
    return _NOT_CHOSEN


def _chain(spec: Sequence[Any], ext: str, pickle: bool) -> Any:
    """WebDataset's list of handlers. Those before the first that certainly takes this extension must be called each time."""
    asked: list[Callable[[str, bytes], Any]] = []
    last: Any = _NOT_CHOSEN
    for how in spec:
        if callable(how):
            asked.append(how)
        elif (last := _chosen(how, ext, pickle)) is not _NOT_CHOSEN:
            break
    if not asked:
        return last
    fallback = standard(ext, pickle=pickle) if last is _NOT_CHOSEN else last
    return partial(_ask, asked, "." + ext, fallback)


def _ask(handlers: list[Callable[[str, bytes], Any]], name: str, fallback: FieldFunction | None, data: bytes) -> Any:
    for handler in handlers:
        value = handler(name, data)
        if value is not None:
            return value
    return data if fallback is None else fallback(data)


def broken(sample: Any, what: str, problem: BaseException | None = None) -> SampleBroken:
    """Make an error about a sample, with its key and its shard. A SampleBroken keeps its message and its type."""
    named = sample if isinstance(sample, Mapping) else {}
    key, url = str(named.get("__key__", "")), str(named.get("__source__", named.get("__url__", "")))  # `__url__`: WebDataset's
    if isinstance(problem, SampleBroken):
        return type(problem)(str(problem), url=problem.url or url, key=problem.key or key)
    reason = "" if problem is None else f": {type(problem).__name__}: {str(problem)[:200]}".removesuffix(": ")
    place = f" of {url}" if url else ""
    return SampleBroken(f"sample {key!r}{place}: {what}{reason}", url=url, key=key)


# --- Encode the fields of samples as bytes by their extensions: the inverse.


def encode(sample: Sample, *, pickle: bool = False) -> Sample:
    """Return a new sample whose fields are bytes. Bytes, and fields whose name begins with "_", stay as they are.

    SampleBroken for a value that its extension cannot hold, and for pickles unless `pickle=True`.
    """
    result = dict(sample)
    for ext, value in sample.items():
        if type(value) is not bytes and not ext.startswith("_"):
            try:
                result[ext] = encode_field(ext.lower(), value, pickle=pickle)
            except ImportError:
                raise
            except Exception as problem:
                raise broken(sample, f"field {ext!r} cannot be encoded", problem) from problem
    return result


def encode_field(ext: str, value: Any, *, pickle: bool = False) -> bytes:
    """The bytes of one field. TypeError, ValueError for a value that its extension cannot hold."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if ext.endswith(".gz"):
        return gzip.compress(encode_field(ext[:-3], value, pickle=pickle), mtime=0)
    kind = ext.rpartition(".")[2]
    if kind in JSONS:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8")
    if kind in MESSAGES:
        return bytes(msgpack.packb(value, default=_plain))
    if kind in PICKLES:
        return _pickle(kind, value, pickle)
    if kind in IMAGES:
        from dfc.inputs.images import encode_image

        return encode_image(value, kind)
    if kind in TENSORS or kind in ("npy", "npz"):
        from dfc.inputs import images

        return {"npy": images.encode_npy, "npz": images.encode_npz}.get(kind, images.encode_ten)(value)
    return _text(kind, value)


def _text(kind: str, value: Any) -> bytes:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # of NumPy or torch
    if kind in NUMBERS:
        if not isinstance(value, int | float) or value != int(value):
            raise ValueError(f"extension {kind!r} holds a whole number, not {value!r}"[:200])
        return str(int(value)).encode("ascii")
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, int | float):
        return str(value).encode("ascii")
    raise TypeError(f"extension {kind!r} cannot hold a {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Convert arrays, tensors, mappings and sets to types that JSON and MessagePack support."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"JSON and MessagePack cannot hold a {type(value).__name__}")


def _pickle(kind: str, value: Any, allowed: bool) -> bytes:
    if not allowed:
        raise ValueError(f"extension {kind!r} holds a pickle; pass pickle=True to write it")
    import pickle

    return pickle.dumps(value)
