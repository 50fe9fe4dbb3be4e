"""Filters of samples, compatible with dlinputs: `df.shuffle(1000)` makes a filter, `df.shuffle(1000)(source)` applies it.

    import dfc.inputs.filters as df

    pipeline = df.compose(df.shuffle(1000), df.batch(20))
    for batch in pipeline(dataset): …

docs/inputs.md, "Filters", lists all of them in a table.
"""

from dfc.inputs.filters.samples import (
    annotate,
    cached,
    check,
    concat,
    copy,
    extract,
    grep,
    info,
    map_tuple,
    merge,
    patched,
    rename,
    select,
    shuffle,
    sliced,
    to_tuple,
    unique,
    with_keys,
)
from dfc.inputs.filters.stages import (
    FieldMissing,
    Filter,
    batch,
    batched,
    collate,
    compose,
    compose2,
    curried,
    decode,
    encode,
    identity,
    map,
    pipeline,
    transform,
    unbatch,
)

__all__ = [
    "FieldMissing", "Filter", "annotate", "batch", "batched", "cached", "check", "collate", "compose", "compose2", "concat",
    "copy", "curried", "decode", "encode", "extract", "grep", "identity", "info", "map", "map_tuple", "merge", "patched",
    "pipeline", "rename", "select", "shuffle", "sliced", "to_tuple", "transform", "unbatch", "unique", "with_keys",
]  # fmt: skip
