"""Filters of samples: their fields, their choice and their order.

Wherever a field is named, "jpg;png" or "jpg png" means the first of them that the sample has.
"""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TextIO

import msgpack
import numpy as np

from dfc.inputs.base import Counts, Handler
from dfc.inputs.decoding import broken
from dfc.inputs.filters.stages import SKIP, FieldMissing, Filter, alternatives, each, missing, pick, through

Rules = Mapping[str, tuple[str, ...]]


def with_keys(*fields: str) -> Filter:
    """Keep samples that have all of these fields."""
    return Filter(each, partial(_with_keys, wanted=[alternatives(field) for field in fields]), "raise", counts=Counts())


def _with_keys(sample: Any, wanted: list[tuple[str, ...]]) -> Any:
    return sample if all(any(name in sample for name in names) for names in wanted) else SKIP


def rename(
    keep_all: bool = False,
    keep_meta: bool = True,
    skip_missing: bool = False,
    error_missing: bool = True,
    handler: Handler = "raise",
    **fields: str,
) -> Filter:
    """Rename fields (`new="old"`) and drop all others except the key and, with `keep_meta`, those that begin with "_".

    `keep_all` keeps the others too, under their old names. A sample that lacks a field raises SampleBroken; with `skip_missing`
    it is dropped; with `error_missing=False` it passes without the field.
    """
    rules = {new: alternatives(old) for new, old in fields.items()}
    function = partial(
        _rename, rules=rules, keep_all=keep_all, keep_meta=keep_meta, skip_missing=skip_missing, error_missing=error_missing
    )
    return Filter(each, function, handler, counts=Counts())


def copy(
    keep_meta: bool = True,
    skip_missing: bool = False,
    error_missing: bool = True,
    handler: Handler = "raise",
    **fields: str,
) -> Filter:
    """Keep all fields, and give some a second name (`new="old"`). The options are those of `rename`."""
    return rename(True, keep_meta, skip_missing, error_missing, handler, **fields)


def _rename(
    sample: Mapping[str, Any], rules: Rules, keep_all: bool, keep_meta: bool, skip_missing: bool, error_missing: bool
) -> Any:
    result = {name: value for name, value in sample.items() if keep_all or name == "__key__" or (keep_meta and name[:1] == "_")}
    for new, names in rules.items():
        try:
            result[new] = pick(sample, names)
        except FieldMissing:
            if skip_missing:
                return SKIP
            if error_missing:
                raise
    return result


def extract(*fields: str, error_missing: bool = True, handler: Handler = "raise") -> Filter:
    """Turn samples into tuples of these fields. A missing field raises SampleBroken, or is None with `error_missing=False`."""
    return to_tuple(*[";".join(alternatives(field)) for field in fields], handler=handler, missing_is_error=error_missing)


def to_tuple(
    *fields: str,
    handler: Handler = "raise",
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
    counts: Counts | None = None,
) -> Filter:
    """Turn samples into tuples, like WebDataset: `to_tuple("jpg;png", "cls")`, or in one string: `to_tuple("jpg;png cls")`.

    A missing field, and None unless `none_is_error=False`, goes to the handler as SampleBroken.
    """
    names = fields[0].split() if len(fields) == 1 else list(fields)
    wanted = [alternatives(name) for name in names]
    no_none = missing_is_error if none_is_error is None else none_is_error
    function = partial(_to_tuple, wanted=wanted, missing_is_error=missing_is_error, none_is_error=no_none)
    return Filter(each, function, handler, counts=counts or Counts())


def _to_tuple(sample: Any, wanted: list[tuple[str, ...]], missing_is_error: bool, none_is_error: bool) -> tuple[Any, ...]:
    values = []
    for names in wanted:
        try:
            value = pick(sample, names)
        except FieldMissing:
            if missing_is_error:
                raise
            value = None
        if value is None and none_is_error:
            raise missing(sample, names)
        values.append(value)
    return tuple(values)


def map_tuple(*functions: Callable[[Any], Any] | None, handler: Handler = "raise", counts: Counts | None = None) -> Filter:
    """Apply a function to each entry of a tuple. Entries with None, or beyond the functions, stay as they are."""
    return Filter(each, partial(_map_tuple, functions=functions), handler, counts=counts or Counts())


def _map_tuple(sample: Any, functions: tuple[Callable[[Any], Any] | None, ...]) -> tuple[Any, ...]:
    changed = [value if function is None else function(value) for value, function in zip(sample, functions, strict=False)]
    return (*changed, *sample[len(changed) :])


def annotate(
    table: Mapping[Any, Mapping[str, Any]] | Callable[[Any], Mapping[str, Any] | None], key: str = "__key__"
) -> Filter:
    """Add the fields that a table has for the `key` of a sample, if any. The table may be a function of the key."""
    look_up = table.get if isinstance(table, Mapping) else table
    return Filter(each, partial(_annotate, look_up=look_up, names=(key,)), "raise", counts=Counts())


def _annotate(sample: Any, look_up: Callable[[Any], Mapping[str, Any] | None], names: tuple[str, ...]) -> Any:
    return {**sample, **(look_up(pick(sample, names)) or {})}


def patched(patches: Iterable[Mapping[str, Any]], maxpatches: int = 10_000) -> Filter:
    """Replace samples by the patches with the same key. The patches are read at once and kept in memory.

    ValueError for more than `maxpatches` patches, or two with the same key.
    """
    table: dict[Any, Mapping[str, Any]] = {}
    for patch in patches:
        key = pick(patch, ("__key__",))
        if key in table:
            raise ValueError(f"two patches for the key {key!r}")
        if len(table) == maxpatches:
            raise ValueError(f"there are more patches than maxpatches={maxpatches}")
        table[key] = patch
    return Filter(each, partial(_patched, table=table), "raise", counts=Counts())


def _patched(sample: Any, table: dict[Any, Mapping[str, Any]]) -> Any:
    return table.get(sample.get("__key__"), sample)


# --- Filters that select, check or print samples.

Predicate = Callable[[Any], Any]
_SHOWN_CHARS = 60


def grep(*, _not: bool = False, _handler: Handler = "raise", **patterns: str) -> Filter:
    """Keep samples in which each of these fields matches its regular expression; with `_not`, in which none does.

    Bytes are read as UTF-8, other values as `str` shows them. A sample without one of the fields goes to `_handler`.
    """
    compiled = {alternatives(field): re.compile(pattern) for field, pattern in patterns.items()}
    return Filter(each, partial(_grep, patterns=compiled, wanted=not _not), _handler, counts=Counts())


def _grep(sample: Any, patterns: Mapping[tuple[str, ...], re.Pattern[str]], wanted: bool) -> Any:
    for names, pattern in patterns.items():
        if (pattern.search(_text(pick(sample, names))) is not None) != wanted:
            return SKIP
    return sample


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return value if isinstance(value, str) else str(value)


def select(*predicates: Predicate, _handler: Handler = "raise", **fields: Predicate) -> Filter:
    """Keep samples for which all predicates hold: functions of the sample, and `field=function` of a field's value.

    A sample without one of the fields, or whose predicate raises, goes to `_handler`.
    """
    wanted = [(alternatives(field), predicate) for field, predicate in fields.items()]
    return Filter(each, partial(_select, predicates=predicates, fields=wanted), _handler, counts=Counts())


def _select(sample: Any, predicates: tuple[Predicate, ...], fields: list[tuple[tuple[str, ...], Predicate]]) -> Any:
    if all(predicate(sample) for predicate in predicates) and all(holds(pick(sample, names)) for names, holds in fields):
        return sample
    return SKIP


def check(*, _handler: Handler = "raise", **fields: Predicate) -> Filter:
    """Pass all samples, but send those for which a predicate `field=function` fails to `_handler` as SampleBroken."""
    wanted = [(alternatives(field), predicate) for field, predicate in fields.items()]
    return Filter(each, partial(_check, fields=wanted), _handler, counts=Counts())


def _check(sample: Any, fields: list[tuple[tuple[str, ...], Predicate]]) -> Any:
    for names, holds in fields:
        if not holds(pick(sample, names)):
            raise broken(sample, f"field {names[0]!r} failed its check")
    return sample


def unique(key: str, rekey: bool = False, skip_missing: bool = False, error: bool = True, handler: Handler = "raise") -> Filter:
    """Keep samples whose field `key` is new; a repeated one is SampleBroken, or dropped with `error=False`.

    `rekey` makes the digest of the field the key of the sample. A sample without the field is SampleBroken, or dropped with
    `skip_missing`. Needs 100 bytes of memory per sample.
    """
    return Filter(_unique, key, rekey, skip_missing, error, handler, counts=Counts())


def _unique(
    source: Iterable[Any], key: str, rekey: bool, skip_missing: bool, error: bool, handler: Handler, *, counts: Counts
) -> Iterator[Any]:
    seen: set[bytes] = set()
    names = alternatives(key)

    def look(sample: Any) -> Any:
        if skip_missing and not any(name in sample for name in names):
            return SKIP
        digest = _digest(pick(sample, names))
        if digest in seen:
            if error:
                raise broken(sample, f"field {key!r} has the same value as in an earlier sample")
            return SKIP
        seen.add(digest)
        return {**sample, "__key__": digest.hex()} if rekey else sample

    return each(source, look, handler, counts=counts)


def _digest(value: Any) -> bytes:
    """A digest of 16 bytes, which differs for values of different content, type or shape."""
    if isinstance(value, bytes | bytearray | memoryview):
        return blake2b(value, digest_size=16).digest()
    return blake2b(msgpack.packb(value, default=_parts, strict_types=True), digest_size=16, key=b"value").digest()


def _parts(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), list(value.shape), value.tobytes()]
    if isinstance(value, tuple | set | frozenset):
        return sorted(value) if isinstance(value, set | frozenset) else list(value)
    return repr(value)


def info(every: int = 0, file: TextIO | None = None) -> Filter:
    """Pass all samples, and print the first one, or every `every`-th: to standard output unless `file` is given."""
    if every < 0:
        raise ValueError(f"every must not be negative, not {every}")
    return Filter(_info, every, file)


def _info(source: Iterable[Any], every: int, file: TextIO | None) -> Iterator[Any]:
    for number, sample in enumerate(source):
        if number == 0 if every == 0 else number % every == 0:
            items = sample.items() if isinstance(sample, Mapping) else enumerate(sample)
            lines = [f"# sample {number}", *(f"{name} {_shown(value)}" for name, value in items)]
            print("\n".join(lines), file=file or sys.stdout)
        yield sample


def _shown(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"
    return repr(value)[:_SHOWN_CHARS]


# --- Filters for the order of samples: shuffle, merge and concatenate sources, slice, cache in memory.

_END: Final = object()


def shuffle(bufsize: int = 1000, initial: int = 100, seed: int | None = None) -> Filter:
    """Shuffle samples in a buffer of `bufsize` samples. The first sample comes once `initial` of them have been read.

    Every sample comes once, at most `bufsize` positions too early. With a `seed` the order is the same in each run, but differs
    in each pass. A buffer of fewer than 2 samples shuffles nothing.
    """
    if bufsize < 0 or initial < 0:
        raise ValueError(f"bufsize and initial must not be negative, not {bufsize} and {initial}")
    return Filter(_shuffle, bufsize, initial, seed, numbered=True)


def generator(seed: int | None, number: int) -> random.Random:
    """The random generator of a pass, determined by seed and number; seeded by the system if `seed` is None."""
    return random.Random() if seed is None else random.Random(f"{seed} {number}")


def _shuffle(source: Iterable[Any], bufsize: int, initial: int, seed: int | None, number: int) -> Iterator[Any]:
    if bufsize < 2:
        yield from source
        return
    rng = generator(seed, number)
    draw = rng.random  # randrange takes five times as long
    samples = iter(source)
    buffer = list(itertools.islice(samples, max(1, min(initial, bufsize))))
    # While the buffer grows, two samples come in for each that goes out.
    while len(buffer) < bufsize:
        pair = list(itertools.islice(samples, 2))
        buffer += pair
        if len(pair) < 2:
            break
        at = int(draw() * len(buffer))
        buffer[at], buffer[-1] = buffer[-1], buffer[at]
        yield buffer.pop()
    size = len(buffer)
    for sample in samples:
        at = int(draw() * size)
        sample, buffer[at] = buffer[at], sample
        yield sample
    rng.shuffle(buffer)
    yield from buffer


def merge(sources: Sequence[Iterable[Any]], weights: Sequence[float] | None = None, seed: int | None = None) -> Iterable[Any]:
    """Merge several sources at random, by `weights` if given, until all have ended.

    Takes sources, not a source: `df.merge([a, b])`. ValueError unless there is one positive weight for each source.
    """
    if weights is not None and (len(weights) != len(sources) or any(not weight > 0 for weight in weights)):
        raise ValueError(f"merge needs one positive weight for each of {len(sources)} sources, not {list(weights)}")
    run = partial(_merge, weights=None if weights is None else list(weights), seed=seed)
    return through(tuple(sources), run, numbered=True)


def _merge(sources: Iterable[Any], number: int, *, weights: list[float] | None, seed: int | None) -> Iterator[Any]:
    rng = generator(seed, number)
    left = [iter(source) for source in sources]
    limits = list(itertools.accumulate(weights or [1.0] * len(left)))
    weights = list(weights or [1.0] * len(left))
    while left:
        at = rng.choices(range(len(left)), cum_weights=limits)[0] if len(left) > 1 else 0
        sample = next(left[at], _END)
        if sample is _END:
            del left[at], weights[at]
            limits = list(itertools.accumulate(weights))
        else:
            yield sample


def concat(sources: Sequence[Iterable[Any]], maxepoch: int | None = 1) -> Iterable[Any]:
    """Concatenate sources, and number the samples in `__count__` from 0.

    A source that repeats itself and counts in `__epoch__`, like `cached`, is left when that reaches `maxepoch` (None: never).
    """
    return through(tuple(sources), partial(_concat, maxepoch=maxepoch))


def _concat(sources: Iterable[Any], *, maxepoch: int | None) -> Iterator[Any]:
    count = 0
    for source in sources:
        for sample in source:
            if maxepoch is not None and sample.get("__epoch__", 0) >= maxepoch:
                break
            yield {**sample, "__count__": count}
            count += 1


def sliced(*bounds: int | None) -> Filter:
    """Slice the samples like `itertools.islice`: `sliced(stop)`, `sliced(start, stop)`, `sliced(start, stop, step)`."""
    if not 1 <= len(bounds) <= 3:
        raise ValueError("sliced takes one to three numbers: [start,] stop [, step]")
    itertools.islice((), *bounds)  # raises its ValueError now, not at the first sample
    return Filter(_sliced, *bounds)


def _sliced(source: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    yield from itertools.islice(source, *bounds)


def cached(nepochs: int = 1_000_000, max_size: int = 1_000_000_000, key: str = "__key__", seed: int | None = None) -> Filter:
    """Cache samples in memory: the first epoch in the source's order, each further one in a new random order.

    The first epoch ends with the source, or when the `key` of its first sample comes again, for sources that repeat themselves.
    Samples get their `__epoch__`, and their number as `__index__`. MemoryError for more than `max_size` samples.
    """
    if nepochs < 1 or max_size < 1:
        raise ValueError(f"nepochs and max_size must be at least 1, not {nepochs} and {max_size}")
    return Filter(_cached, nepochs, max_size, key, seed, numbered=True)


def _cached(source: Iterable[Any], nepochs: int, max_size: int, key: str, seed: int | None, number: int) -> Iterator[Any]:
    rng = generator(seed, number)
    kept: list[dict[str, Any]] = []
    for sample in source:
        if kept and kept[0][key] == sample[key]:
            break
        if len(kept) == max_size:
            raise MemoryError(f"there are more samples to keep than max_size={max_size}")
        kept.append({**sample, "__index__": len(kept)})
        yield {**kept[-1], "__epoch__": 0}
    for epoch in range(1, nepochs if kept else 1):
        rng.shuffle(kept)
        for sample in kept:
            yield {**sample, "__epoch__": epoch}
