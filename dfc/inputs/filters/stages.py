"""Filters: made and composed, on values, and for batches.

A filter is called with a source and returns an iterable of what passes through it, which can be iterated as often as its
source: over a list or a dataset each `for` is a new pass; over an iterator there is one pass, and the result is itself an
iterator, for `next`. A filter can be pickled if its arguments can.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec

import numpy as np

from dfc.inputs import decoding
from dfc.inputs.base import Counts, Handler, SampleBroken, resolve_handler
from dfc.inputs.decoding import Decoder, Spec, broken
from dfc.inputs.epochs.memory import stack, writing

P = ParamSpec("P")
# A filter, or anything that can be used as one.
Step = Callable[[Any], Any]


class Filter:
    """`function(source, *arguments, **options)` without its source. `counts` tells what it dropped, if the function counts."""

    def __init__(self, function: Callable[..., Iterator[Any]], *arguments: Any, numbered: bool = False, **options: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.options = options
        self.numbered = numbered  # whether the function takes `number=`, the number of the pass over the source, from 0
        self.counts: Counts = options.get("counts") or Counts()

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return through(source, self._run, numbered=True)

    def _run(self, source: Iterable[Any], number: int) -> Iterator[Any]:
        numbered = {"number": number} if self.numbered else {}
        return self.function(source, *self.arguments, **self.options, **numbered)

    def __repr__(self) -> str:
        return f"<filter {self.function.__name__.strip('_')}>"


class Stage:
    """A source and a function applied to it, which can be iterated repeatedly."""

    def __init__(self, source: Any, function: Callable[[Any, int], Iterator[Any]]) -> None:
        self.source = source
        self._function = function
        self._number = 0

    def __iter__(self) -> Iterator[Any]:
        number = self._number
        self._number += 1
        return self._function(self.source, number)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass (from 0), on which random orders depend; also for the source, if it has epochs."""
        self._number = epoch
        for source in self.source if isinstance(self.source, list | tuple) else (self.source,):
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)


def through(source: Any, function: Callable[..., Iterator[Any]], *, numbered: bool = False) -> Iterable[Any]:
    """Apply a function to a source: iterable once if that is an iterator, else repeatedly. A tuple is several sources."""
    run = function if numbered else _Unnumbered(function)
    sources = source if isinstance(source, tuple) else (source,)
    if any(isinstance(entry, Iterator) for entry in sources):
        return run(source, 0)
    return Stage(source, run)


class _Unnumbered:
    def __init__(self, function: Callable[..., Iterator[Any]]) -> None:
        self.function = function

    def __call__(self, source: Any, number: int) -> Iterator[Any]:
        return self.function(source)


def curried(function: Callable[Concatenate[Any, P], Iterator[Any]]) -> Callable[P, Filter]:
    """Decorator for your own filters: use a generator `f(source, a, b)` as `f(a, b)(source)`."""

    @wraps(function)
    def maker(*arguments: P.args, **options: P.kwargs) -> Filter:
        return _Curried(maker, function, arguments, options)

    return maker


class _Curried(Filter):
    """Pickled as the call that made it, since the name of the function now refers to the maker."""

    def __init__(self, maker: Callable[..., Filter], function: Callable[..., Any], arguments: Any, options: Any) -> None:
        self._made_by = (maker, arguments, options)
        super().__init__(function)
        self.arguments, self.options = arguments, options

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, self._made_by


def _make(maker: Callable[..., Filter], arguments: tuple[Any, ...], options: dict[str, Any]) -> Filter:
    return maker(*arguments, **options)


class Composed:
    """Filters applied one after the other."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __call__(self, source: Any) -> Any:
        for step in self.steps:
            source = step(source)
        return source

    def __repr__(self) -> str:
        return f"compose{self.steps!r}"


def compose(*steps: Step) -> Step:
    """Compose filters, applied from left to right. Without filters, the result is the source itself."""
    return Composed(steps)


def compose2(first: Step, second: Step) -> Step:
    """`second(first(source))`."""
    return Composed((first, second))


def pipeline(source: Any, *steps: Step) -> Any:
    """Apply filters to a source from left to right."""
    return Composed(steps)(source)


def identity() -> Filter:
    """Pass all samples unchanged."""
    return Filter(_identity)


def _identity(source: Iterable[Any]) -> Iterator[Any]:
    yield from source


class FieldMissing(SampleBroken):
    """A sample lacks a field that a filter uses."""

    code = "field_missing"


SKIP: Final = object()  # returned by a function in `each` to drop a sample


def each(source: Iterable[Any], function: Callable[[Any], Any], handler: Handler, *, counts: Counts) -> Iterator[Any]:
    """Map `function` over samples, dropping SKIP. If it raises, the handler decides, and the loss is counted."""
    decide = resolve_handler(handler)
    for sample in source:
        try:
            result = function(sample)
        except ImportError:
            raise  # a library is missing; the sample is fine
        except Exception as problem:
            error = problem
            if not isinstance(problem, SampleBroken):
                error = broken(sample, "a filter failed", problem)
                error.__cause__ = problem
            counts.note(error)
            counts.add(samples_skipped=1)
            if not decide(error):
                return
            continue
        if result is not SKIP:
            yield result


def alternatives(names: str) -> tuple[str, ...]:
    """The names in `"jpg;png"` or `"jpg png"`, of which the first that a sample has is used. ValueError for no name."""
    found = tuple(names.replace(";", " ").split())
    if not found:
        raise ValueError(f"no field name in {names!r}")
    return found


def pick(sample: Any, names: tuple[str, ...]) -> Any:
    """The value of the first of these fields that the sample has. FieldMissing if it has none."""
    for name in names:
        if name in sample:
            return sample[name]
    raise missing(sample, names)


def missing(sample: Any, names: tuple[str, ...]) -> FieldMissing:
    wanted, there = " or ".join(repr(name) for name in names), ", ".join(repr(name) for name in sample)
    error = broken(sample, f"has no field {wanted}, only {there}"[:500])
    return FieldMissing(str(error), url=error.url, key=error.key)


# --- Filters that change values: functions on fields or whole samples, decoding and encoding.
#
# Each takes a `handler` for samples that fail, and counts the dropped ones in `counts`.

Function = Callable[[Any], Any]


def map(
    error_missing: bool = True,
    errors_are_fatal: bool = False,
    handler: Handler | None = None,
    counts: Counts | None = None,
    **functions: Function,
) -> Filter:
    """Apply `field=function` to fields; all other fields stay as they are.

    As in dlinputs, a sample whose function raises is dropped with a warning, unless `errors_are_fatal`. A sample without a
    field raises SampleBroken, unless `error_missing=False`: then the field is ignored. A `handler` decides about both.
    """
    if handler is None:
        handler = "raise" if errors_are_fatal else _warn_unless_missing
    return Filter(each, partial(_map, functions=functions, error_missing=error_missing), handler, counts=counts or Counts())


def _warn_unless_missing(problem: Exception) -> bool:
    return resolve_handler("raise" if isinstance(problem, FieldMissing) else "warn")(problem)


def _map(sample: Any, functions: dict[str, Function], error_missing: bool) -> Any:
    result = dict(sample)
    for name, function in functions.items():
        if name in sample:
            try:
                result[name] = function(sample[name])
            except ImportError:
                raise
            except Exception as problem:
                raise broken(sample, f"the function for field {name!r} failed", problem) from problem
        elif error_missing:
            raise missing(sample, (name,))
    return result


def transform(f: Function | None = None, handler: Handler = "raise", counts: Counts | None = None) -> Filter:
    """Apply a function to whole samples, which keep their keys. A sample for which it returns None is dropped."""
    return Filter(each, partial(_transform, function=f), handler, counts=counts or Counts())


def _transform(sample: Any, function: Function | None) -> Any:
    result = sample if function is None else function(sample)
    if result is None:
        return SKIP
    if isinstance(sample, Mapping) and isinstance(result, dict) and "__key__" in sample:
        result["__key__"] = sample["__key__"]
    return result


def decode(
    spec: Spec = True,
    only: str | Collection[str] | None = None,
    pickle: bool = False,
    handler: Handler = "raise",
    counts: Counts | None = None,
) -> Filter:
    """Decode samples. `spec`, `only` and `pickle` are those of `dfc.inputs.decoding.Decoder`."""
    return Filter(each, Decoder(spec, only, pickle=pickle), handler, counts=counts or Counts())


def encode(pickle: bool = False, handler: Handler = "raise", counts: Counts | None = None) -> Filter:
    """Encode the fields of samples as bytes, ready to be written; see `dfc.inputs.decoding.encode`."""
    return Filter(each, partial(decoding.encode, pickle=pickle), handler, counts=counts or Counts())


# --- Filters that make batches of samples, and split them. `batch` and `batched` are two published names of one filter.

_NUMBERS: Final = (int, float, np.number, np.bool_)


def collate(samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True, expand: bool = False) -> Any:
    """Make one batch of samples: a dict of columns for dicts, a tuple of columns for tuples.

    Arrays (and torch tensors) of equal shape are stacked along a new first axis, and numbers become an array. Everything else,
    including arrays of different shapes, becomes a list. With `expand`, arrays of different shapes are padded with zeros at
    their ends. `combine_tensors=False`, `combine_scalars=False` keep lists. ValueError for no samples; SampleBroken if a sample
    lacks a field that another one has.
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    first = samples[0]
    if not isinstance(first, Mapping):
        if isinstance(first, tuple | list):
            columns = zip(*samples, strict=True)
            return tuple(combine(list(column), combine_tensors, combine_scalars, expand) for column in columns)
        return combine(list(samples), combine_tensors, combine_scalars, expand)
    fields = len(first)
    try:
        if any(len(sample) != fields for sample in samples):
            raise _unequal(samples)
        return {name: combine([sample[name] for sample in samples], combine_tensors, combine_scalars, expand) for name in first}
    except KeyError:
        raise _unequal(samples) from None


def odd_one(samples: Sequence[Mapping[str, Any]]) -> tuple[int, int, str]:
    """For samples with different fields: the position of an odd one, the position of a normal one, and what is wrong.

    The odd one lacks a field that at least half of them have, or has a field that few have.
    """
    counts = Counter(name for sample in samples for name in sample)
    name, count = next((name, count) for name, count in counts.most_common() if count < len(samples))
    lacks = 2 * count >= len(samples)
    lacking = [name not in sample for sample in samples]
    what = f"has {'no' if lacks else 'a'} field {name!r}, unlike others of its batch"
    odd, other = lacking.index(lacks), lacking.index(not lacks)
    instead = next((field for field in samples[odd] if field not in samples[other]), None)
    if lacks and instead is not None:
        what += f': use fields=["{name};{instead}", …] in the loader to take whichever is there'
    return odd, other, what


def _unequal(samples: Sequence[Mapping[str, Any]]) -> SampleBroken:
    odd, _, what = odd_one(samples)
    return broken(samples[odd], what)


def combine(values: list[Any], combine_tensors: bool = True, combine_scalars: bool = True, expand: bool = False) -> Any:
    """Combine the values of one field into a column of a batch; see `collate`."""
    first = values[0]
    if isinstance(first, np.ndarray):
        return _stack_arrays(values, expand) if combine_tensors else values
    if isinstance(first, _NUMBERS):
        return _array_of_numbers(values) if combine_scalars else values
    torch = sys.modules.get("torch")  # if torch was not imported, there are no tensors
    if torch is None or not combine_tensors or not isinstance(first, torch.Tensor):
        return values
    if not all(isinstance(value, torch.Tensor) and value.shape == first.shape for value in values):
        return values
    if writing() is None:
        return torch.stack(values)
    from dfc.inputs.torch.memory import stack_tensors

    return stack_tensors(values)


def _stack_arrays(values: list[Any], expand: bool) -> Any:
    if not all(isinstance(value, np.ndarray) for value in values):
        return values
    if any(value.shape != values[0].shape for value in values):
        return _expanded(values) if expand and len({value.ndim for value in values}) == 1 else values
    return values if values[0].dtype.hasobject else stack(values)


def _expanded(values: list[Any]) -> Any:
    shape = tuple(max(sizes) for sizes in zip(*(value.shape for value in values), strict=True))
    result = np.zeros((len(values), *shape), np.result_type(*values))
    for row, value in zip(result, values, strict=True):
        row[tuple(slice(size) for size in value.shape)] = value
    return result


def _array_of_numbers(values: list[Any]) -> Any:
    if not all(isinstance(value, _NUMBERS) for value in values):
        return values
    try:
        result = np.array(values)
    except OverflowError:
        return values
    # Integers beyond 64 bits would become objects, or floats that are not equal to them.
    whole = all(isinstance(value, int | np.integer) for value in values)
    return values if result.dtype.hasobject or (whole and result.dtype.kind == "f") else result


def batched(
    batchsize: int = 20,
    combine_tensors: bool = True,
    combine_scalars: bool = True,
    partial: bool = True,
    expand: bool = False,
) -> Filter:
    """Make batches of `batchsize` samples with `collate`. The last one may be smaller; `partial=False` then drops it."""
    if batchsize < 1:
        raise ValueError(f"batchsize must be at least 1, not {batchsize}")
    return Filter(_batched, batchsize, combine_tensors, combine_scalars, partial, expand)


batch = batched


def _batched(
    source: Iterable[Any], batchsize: int, combine_tensors: bool, combine_scalars: bool, partial: bool, expand: bool
) -> Iterator[Any]:
    samples: list[Any] = []
    for sample in source:
        samples.append(sample)
        if len(samples) == batchsize:
            yield collate(samples, combine_tensors, combine_scalars, expand)
            samples = []
    if samples and partial:
        yield collate(samples, combine_tensors, combine_scalars, expand)


def unbatch() -> Filter:
    """Split batches into samples. Arrays, tensors and lists are columns; any other value goes to all samples of its batch."""
    return Filter(_unbatch)


def _unbatch(source: Iterable[Any]) -> Iterator[Any]:
    for batch in source:
        if not isinstance(batch, Mapping | tuple):  # a batch of other samples: one column
            yield from batch
            continue
        names = list(batch) if isinstance(batch, Mapping) else range(len(batch))
        columns = [batch[name] for name in names]
        length = _length(batch, columns)
        whole = [not _has_rows(column) or len(column) != length for column in columns]
        for row in range(length):
            values = [column if all_have else column[row] for column, all_have in zip(columns, whole, strict=True)]
            yield dict(zip(names, values, strict=True)) if isinstance(batch, Mapping) else tuple(values)


def _length(batch: Any, columns: list[Any]) -> int:
    if isinstance(batch, Mapping) and isinstance(batch.get("__key__"), list):
        return len(batch["__key__"])
    lengths = [len(column) for column in columns if _has_rows(column)]
    if not lengths:
        raise SampleBroken("cannot unbatch: the batch has no list or array")
    return lengths[0]


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or (hasattr(value, "ndim") and value.ndim > 0)
