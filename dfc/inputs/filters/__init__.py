"""Filters of samples, as dlinputs had them: `df.shuffle(1000)` is a filter, and `df.shuffle(1000)(source)` what passes it.

    import dfc.inputs.filters as df

    pipeline = df.compose(df.shuffle(1000), df.batch(20))
    for batch in pipeline(dataset): …

docs/inputs.md, "Filters", has them all in a table.
"""

from dfc.inputs.filters.batching import batch, batched, collate, unbatch
from dfc.inputs.filters.ordering import cached, concat, merge, shuffle, sliced
from dfc.inputs.filters.stages import Filter, compose, compose2, curried, identity, pipeline

__all__ = [
    "Filter",
    "batch",
    "batched",
    "cached",
    "collate",
    "compose",
    "compose2",
    "concat",
    "curried",
    "identity",
    "merge",
    "pipeline",
    "shuffle",
    "sliced",
    "unbatch",
]
