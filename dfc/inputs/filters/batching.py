"""Filters that make batches of samples, and split them. `batch` and `batched` are two published names of one filter."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from dfc.inputs.base import SampleBroken
from dfc.inputs.decoding import broken
from dfc.inputs.epochs.batchmemory import stack, writing
from dfc.inputs.filters.stages import Filter

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
    alike = all(isinstance(value, torch.Tensor) and value.shape == first.shape for value in values)
    if not alike:
        return values
    if writing() is None:
        return torch.stack(values)
    from dfc.inputs.torch.batchmemory import stack_tensors

    return stack_tensors(values)


def _stack_arrays(values: list[Any], expand: bool) -> Any:
    first = values[0]
    shape, dtype = first.shape, first.dtype
    alike = True
    for value in values:
        if not isinstance(value, np.ndarray):
            return values
        alike = alike and value.shape == shape
    if not alike:
        return _expanded(values) if expand and len({value.ndim for value in values}) == 1 else values
    if dtype.hasobject:
        return values
    return stack(values)


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
        whole = [not _is_column(column, length) for column in columns]
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


def _is_column(value: Any, length: int) -> bool:
    return _has_rows(value) and len(value) == length


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or (hasattr(value, "ndim") and value.ndim > 0)
