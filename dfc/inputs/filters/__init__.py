"""Filters of samples, compatible with dlinputs: `df.shuffle(1000)` makes a filter, `df.shuffle(1000)(source)` applies it.

    import dfc.inputs.filters as df

    pipeline = df.compose(df.shuffle(1000), df.batch(20))
    for batch in pipeline(dataset): …

docs/inputs.md, "Filters", lists all of them in a table.
"""

from dfc.inputs.filters.batching import batch, batched, collate, unbatch
from dfc.inputs.filters.choosing import check, grep, info, select, unique
from dfc.inputs.filters.fields import annotate, copy, extract, map_tuple, patched, rename, to_tuple, with_keys
from dfc.inputs.filters.ordering import cached, concat, merge, shuffle, sliced
from dfc.inputs.filters.stages import FieldMissing, Filter, compose, compose2, curried, identity, pipeline
from dfc.inputs.filters.values import decode, encode, map, transform

__all__ = [
    "FieldMissing",
    "Filter",
    "annotate",
    "batch",
    "batched",
    "cached",
    "check",
    "collate",
    "compose",
    "compose2",
    "concat",
    "copy",
    "curried",
    "decode",
    "encode",
    "extract",
    "grep",
    "identity",
    "info",
    "map",
    "map_tuple",
    "merge",
    "patched",
    "pipeline",
    "rename",
    "select",
    "shuffle",
    "sliced",
    "to_tuple",
    "transform",
    "unbatch",
    "unique",
    "with_keys",
]
