"""Single fields of samples: read without the rest, taken as the class, matched by regular expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
import re2
import xxhash

from dfc.errors import BadRequest, Conflict
from dfc.jobs.data.corpus import CorpusPart, ForwardSource, Sources, open_index
from dfc.jobs.data.gathering import COPY_BYTES, read_spans, window_bytes
from dfc.jobs.store import Source, Store
from dfc.limits import JOB_CLASS_CHARS_MAX, JOB_REGEX_BYTES_MAX, JOB_REGEX_CHARS_MAX, KIB
from dfc.tar.index.columns import SampleArrays
from dfc.tar.index.lines import extensions, sample_keys

_BATCH_SAMPLES: Final = 4096
_WINDOW_MIN: Final = 64 * KIB


class BadField(Conflict):
    """A field of a sample is not what the job needs."""

    code = "bad_field"


@dataclass(frozen=True)
class Fields:
    """A range of samples. `start`: the global ordinal of the first. `values[e][i]`: field e of sample i, or None."""

    start: int
    keys: list[bytes]
    values: list[list[bytes | None]]
    sizes: list[list[int]]  # of the fields, -1 when absent

    def __len__(self) -> int:
        return len(self.keys)


def read_fields(
    store: Store, part: CorpusPart, wanted: Sequence[str], sized: Sequence[str] = (), *, digests: bool = False
) -> Iterator[Fields]:
    """Yield samples in order, with the fields `wanted` (extensions) and the sizes of the fields in `sized`.

    `digests`: yield the xxh3-128 of each field, of any size, instead; otherwise BadField for fields too large for memory.
    """
    index = open_index(store, part.shard)
    window = max(_WINDOW_MIN, window_bytes(store.memory_bytes, local=False))
    with Sources(store, [part.shard]) as sources:
        for start in range(0, part.shard.samples, _BATCH_SAMPLES):
            samples = index.arrays(np.arange(start, min(part.shard.samples, start + _BATCH_SAMPLES)))
            found = _Batch(samples, wanted, sized)
            values = found.read(sources, part, window, digests) if wanted else iter([(0, len(samples), [])])
            for lo, hi, columns in values:
                yield Fields(part.start + start + lo, found.keys[lo:hi], columns, [sizes[lo:hi] for sizes in found.sizes])
            store.check()


class _Batch:
    def __init__(self, samples: SampleArrays, wanted: Sequence[str], sized: Sequence[str]) -> None:
        self._samples = samples
        self.keys = sample_keys(samples)
        exts = np.array(extensions(samples) if wanted or sized else [], dtype=object)
        owners = np.repeat(np.arange(len(samples)), samples.counts)
        self._rows = [self._find(exts, owners, ext) for ext in wanted]
        found = (self._find(exts, owners, ext) for ext in sized)
        self.sizes = [np.where(rows < 0, -1, samples.sizes[rows]).tolist() for rows in found]

    def _find(self, exts: Any, owners: Any, ext: str) -> Any:
        """The member row of each sample's field, or -1."""
        rows = np.full(len(self._samples), -1, dtype=np.int64)
        members = np.flatnonzero(exts == ext.encode())
        rows[owners[members]] = members
        return rows

    def read(
        self, sources: Sources, part: CorpusPart, window: int, digests: bool
    ) -> Iterator[tuple[int, int, list[list[bytes | None]]]]:
        """Ranges of samples whose fields fit into the window, with their values."""
        samples, rows = self._samples, np.stack(self._rows, axis=1)
        sizes = np.where(rows < 0, 0, samples.sizes[rows])
        ends = np.cumsum(sizes.sum(axis=1))
        lo = 0
        while lo < len(ends):
            base = int(ends[lo - 1]) if lo else 0
            hi = int(np.searchsorted(ends, base + window, side="right"))
            if hi == lo:
                if not digests:
                    raise BadField(f"{part.shard.label}: the fields of {self.keys[lo].decode()!r} are too large to be compared")
                yield lo, lo + 1, [[self._digest(sources[0], int(row))] for row in rows[lo]]
                lo += 1
                continue
            mine = rows[lo:hi].ravel()
            there = np.flatnonzero(mine >= 0)
            buffer = bytearray(int(ends[hi - 1]) - base)
            lengths = samples.sizes[mine[there]]
            places = np.cumsum(lengths) - lengths
            some = lengths > 0
            read_spans(
                sources, np.zeros(int(some.sum()), dtype=np.int64), samples.offsets[mine[there]][some], lengths[some],
                places[some], memoryview(buffer),
            )  # fmt: skip
            values: list[bytes | None] = [None] * len(mine)
            view = memoryview(buffer)
            for at, place, length in zip(there.tolist(), places.tolist(), lengths.tolist(), strict=True):
                data = view[place : place + length]
                values[at] = xxhash.xxh3_128_digest(data) if digests else bytes(data)
            count = len(self._rows)
            yield lo, hi, [values[e::count] for e in range(count)]
            lo = hi

    def _digest(self, source: Source | ForwardSource, row: int) -> bytes | None:
        if row < 0:
            return None
        hasher, offset, left = xxhash.xxh3_128(), int(self._samples.offsets[row]), int(self._samples.sizes[row])
        buffer = memoryview(bytearray(min(left, COPY_BYTES)))
        while left:
            piece = buffer[: min(left, COPY_BYTES)]
            source.read_into(offset, piece)
            hasher.update(piece)
            offset += len(piece)
            left -= len(piece)
        return hasher.digest()


class Absent(Exception):
    """There is no value at a path."""


def value_at(data: bytes, path: Sequence[str]) -> Any:
    """Return the value at a path in JSON. Absent if there is none; ValueError if it is not JSON."""
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:100]})") from None
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
            value = value[int(step)]
        else:
            raise Absent(".".join(path))
    return value


# --- The class of a sample, as text: the content of a field, or the value at a path in its JSON.


class NotAClass(Conflict):
    """The field that holds the class is not a short text or number."""

    code = "not_a_class"


class ClassField(NamedTuple):
    """A field such as `cls` or `json:label.name`: an extension, and a path of keys (or list indexes) in its JSON."""

    ext: str
    path: tuple[str, ...]


def parse_class_field(text: str) -> ClassField:
    """Parse the name of a field. BadRequest if it is invalid."""
    ext, colon, path = text.partition(":")
    steps = tuple(path.split(".")) if colon else ()
    if not ext or "/" in ext or "" in steps:
        raise BadRequest(f"a field must be an extension, or extension:json.path, not {text[:80]!r}")
    return ClassField(ext.lower(), steps)


def class_of(field: ClassField, data: bytes | None) -> str | None:
    """Return the class; None if field or path are absent (or JSON null). NotAClass for values that cannot be one."""
    if data is None:
        return None
    if not field.path:
        return _checked(data[: 4 * JOB_CLASS_CHARS_MAX + 1].decode(errors="backslashreplace").strip())
    try:
        value = value_at(data, field.path)
    except Absent:
        return None
    except ValueError as error:
        raise NotAClass(f"its field {field.ext!r} is {error}") from None
    if value is None:
        return None
    return _checked(value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode())


def _checked(text: str) -> str:
    if len(text) > JOB_CLASS_CHARS_MAX:
        raise NotAClass(f"a class can have at most {JOB_CLASS_CHARS_MAX} characters; this one begins with {text[:40]!r}")
    return text


# --- Untrusted regular expressions, matched by RE2, whose time is linear in the text for any expression.


class Regex:
    """A compiled expression over UTF-8. BadRequest if RE2 does not accept it."""

    def __init__(self, text: str) -> None:
        options = re2.Options()
        options.max_mem = JOB_REGEX_BYTES_MAX
        options.log_errors = False
        if len(text) > JOB_REGEX_CHARS_MAX:
            raise BadRequest(f"a regular expression can have at most {JOB_REGEX_CHARS_MAX} characters")
        try:
            self._compiled: Any = re2.compile(text, options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise BadRequest(f"invalid regular expression {text[:80]!r}: {said[:200]}") from None

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None

    def prefix(self, text: str) -> str | None:
        """Return the match at the beginning of the text, or None."""
        found = self._compiled.match(text)
        return None if found is None else cast(str, found.group(0))
