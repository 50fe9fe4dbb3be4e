"""Filters that select, check or print samples."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, TextIO

import msgpack
import numpy as np

from dfc.inputs.base import Counts, Handler
from dfc.inputs.decoding import broken
from dfc.inputs.filters.stages import SKIP, Filter, alternatives, each, pick

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
