"""Shuffle all samples globally, by a seed, into new shards.

A size of shards is converted to the number of samples that fit on average: shards have equal counts, not equal sizes.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from dfc.jobs.data.corpus import corpus
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import Arrangement, Section, Shuffle
from dfc.jobs.spec import Seed
from dfc.jobs.tasks import JobInput, Results, Stage
from dfc.listing.specs import OutputPattern


class Options(OrderOptions, frozen=True, kw_only=True):
    """What determines the order."""

    seed: Annotated[Seed, Meta(description="Determines the order, together with the input.", examples=[42])] = 0


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest for conflicting sizes, or a pattern without a number."""
    check_order(options, pattern)


def plan(job: JobInput) -> list[Stage]:
    """Plan the stages. BadRequest for gathering from compressed shards."""
    options: Options = job.options

    def arrange(results: Results) -> Arrangement:
        parts = corpus(job, results)
        counts = [part.shard.samples for part in parts]
        return Arrangement(parts, Shuffle(options.seed, sum(counts)), [Section("", 0, counts)])

    def per_shard(arrangement: Arrangement) -> int:
        assert options.shard_bytes is not None
        total = sum(part.shard.content_size for part in arrangement.parts)
        return max(1, options.shard_bytes * arrangement.count // max(1, total))

    return Ordered(job, arrange, per_shard=None if options.shard_bytes is None else per_shard).stages()


FUNCTIONS: Final = ORDER_FUNCTIONS
