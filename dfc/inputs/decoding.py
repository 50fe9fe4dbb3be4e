"""Decode the fields of samples by their extensions.

`decode(sample)` does what dlinputs did: numbers, JSON, MessagePack, arrays, and pictures as floats. The names for other forms
of pictures ("rgb8", "pil", …) are those of WebDataset. The data is not trusted: every size is checked before memory is
allocated for it, and pickles are not decoded unless the caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from dfc.inputs.base import Sample, SampleBroken
from dfc.inputs.fields.extensions import IMAGES, FieldFunction, decompress, standard, suffixes
from dfc.limits import INPUT_EXTENSIONS_KEPT

_BYTES: Final = (bytes, bytearray, memoryview)
# See `Decoder` for what each form does.
Spec = bool | None | str | Mapping[str, Any] | Sequence[Any] | Callable[[Sample], Sample]


def decode(sample: Sample, spec: Spec = True, only: str | Collection[str] | None = None, *, pickle: bool = False) -> Sample:
    """Return a new sample with decoded fields; see `Decoder`. SampleBroken if a field cannot be decoded."""
    try:
        decoder = _kept_decoder(spec, only if only is None or isinstance(only, str) else frozenset(only), pickle)
    except TypeError:  # dicts and lists are not hashable
        decoder = Decoder(spec, only, pickle=pickle)
    return decoder(sample)


class Decoder:
    """Decodes samples: make one and call it with each sample. It can be pickled, and called from several threads at once.

    `spec` says how:
    True               by the last part of the extension; pictures as float32 RGB in [0, 1], shape (height, width, 3)
    a name             the same, with pictures in this form: rgb8, rgb, rgba8, rgba, l8, l (numpy), torchrgb8, … (torch),
                       pil, pilrgb, pilrgba, pill; see `dfc.inputs.fields.images.FORMS`
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


@lru_cache(maxsize=64)
def _kept_decoder(spec: Spec, only: str | frozenset[str] | None, pickle: bool) -> Decoder:
    return Decoder(spec, only, pickle=pickle)


_NOT_CHOSEN: Final = object()


def _check_spec(spec: Any) -> None:
    if isinstance(spec, str):
        from dfc.inputs.fields.images import FORMS

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
        from dfc.inputs.fields.images import image_decoder

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
