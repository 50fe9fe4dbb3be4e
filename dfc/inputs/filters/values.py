"""Filters that change values: functions on fields or whole samples, decoding and encoding.

Each takes a `handler` for samples that fail, and counts the dropped ones in `counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from dfc.inputs import encoding
from dfc.inputs.base import Counts, Handler, resolve_handler
from dfc.inputs.decoding import Decoder, Spec, broken
from dfc.inputs.filters.stages import SKIP, FieldMissing, Filter, each, missing

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
    """Encode the fields of samples as bytes, ready to be written; see `dfc.inputs.encoding.encode`."""
    return Filter(each, partial(encoding.encode, pickle=pickle), handler, counts=counts or Counts())
