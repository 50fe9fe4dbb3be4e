"""Write the same samples in the same order into shards of another size, or cut one huge archive into shards."""

from __future__ import annotations

from typing import Final

from dfc.jobs.data.corpus import corpus
from dfc.jobs.data.ordering import ORDER_FUNCTIONS, Ordered, OrderOptions, check_order
from dfc.jobs.data.orders import Arrangement, Section, Stride
from dfc.jobs.tasks import JobInput, Results, Stage
from dfc.listing.specs import OutputPattern


class Options(OrderOptions, frozen=True, kw_only=True):
    """The options. Without a size, each input becomes one canonical output."""


def check(options: Options, pattern: OutputPattern) -> None:
    """Raise BadRequest for conflicting sizes, or a pattern without a number."""
    check_order(options, pattern)


def plan(job: JobInput) -> list[Stage]:
    """Plan the stages. BadRequest for gathering from compressed shards whose size is to change."""

    def arrange(results: Results) -> Arrangement:
        parts = corpus(job, results)
        counts = [part.shard.samples for part in parts]
        return Arrangement(parts, Stride(0, 1, sum(counts)), [Section("", 0, counts)])

    return Ordered(job, arrange, follows=True).stages()


FUNCTIONS: Final = ORDER_FUNCTIONS
