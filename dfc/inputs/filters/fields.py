"""Filters for the fields of a sample: rename, copy, extract as tuples, add from a table, replace.

Wherever a field is named, "jpg;png" or "jpg png" means the first of them that the sample has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from dfc.inputs.base import Counts, Handler
from dfc.inputs.filters.stages import SKIP, FieldMissing, Filter, alternatives, each, missing, pick

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
