"""What a loader does about shards and samples that cannot be had: the handler decides, and batches stay as many as they were.

In the place of a broken sample stands the error that tells why. When the handler lets a loader go on, a good sample that was
handed out shortly before takes that place a second time, so that all ranks still have equally many batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dfc.inputs.base import Counts, Handler, InputError, Sample, SampleBroken, ShardUnreadable, resolve_handler

# A sample, or what stands in its place.
Slot = Sample | InputError


class Ended(Exception):
    """The handler said: end quietly."""


class Policy:
    """Asks the handler, and counts. More than `maxerrs` lost shards are too many, whatever it says; so are more broken samples,
    of which each good one gives one back."""

    def __init__(self, handler: Handler, maxerrs: int, counts: Counts) -> None:
        self._handler = resolve_handler(handler)
        self._maxerrs = maxerrs
        self._counts = counts
        self.strained = 0  # broken samples that no good one has made up for
        self._known: set[str] = set()  # shards of samples that were missing
        self._lost: set[str] = set()  # shards that were lost, however often they come

    def good(self) -> None:
        """A sample was as it should be."""
        if self.strained:
            self.strained -= 1

    def lost(self, problem: Exception) -> bool:
        """A shard that cannot be read to its end: the form of a handler, but that it raises Ended. Does not count."""
        self._lost.add(getattr(problem, "url", ""))
        if len(self._lost) > self._maxerrs:
            raise problem
        if not self._handler(problem):
            raise Ended
        return True

    def missing(self, problem: InputError) -> None:
        """There is no good sample in this place. Raises what the handler raises, and Ended when it says so."""
        if isinstance(problem, SampleBroken):
            self.strained += 1
            self._counts.note(problem)
            if self.strained > self._maxerrs:
                raise problem
            if not self._handler(problem):
                raise Ended
        elif problem.url not in self._known:  # or else it is one more sample of the same shard
            self._known.add(problem.url)
            self._counts.add(shards_skipped=1)
            self._counts.note(problem)
            self.lost(problem)
        self._counts.add(samples_skipped=1)


def repaired(items: Iterable[Any], policy: Policy, counts: Counts) -> Iterator[Any]:
    """As many items, all of them good. ShardUnreadable when there is not a single good one."""
    last: Any = None
    owed = 0  # broken ones at the beginning
    problem: InputError | None = None
    for item in items:
        if isinstance(item, InputError):
            problem = item
            policy.missing(item)
            if last is None:
                owed += 1
            else:
                counts.add(samples_replaced=1)
                yield _copy(last)
            continue
        last = item
        if policy.strained or owed:
            policy.good()
            for _ in range(owed):
                counts.add(samples_replaced=1)
                yield _copy(item)
            owed = 0
        yield item
    if owed and problem is not None:
        raise ShardUnreadable(f"no sample can be read: {problem}", url=problem.url) from problem


def _copy(item: Any) -> Any:
    return dict(item) if isinstance(item, dict) else item
