"""Handle shards and samples that cannot be read: the handler decides, and the number of batches stays the same.

An error takes the place of a broken sample. If the handler lets the loader continue, a recent good sample is handed out again
instead, so that all ranks still have the same number of batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dfc.inputs.base import Counts, Handler, InputError, Sample, SampleBroken, ShardUnreadable, resolve_handler

# A sample, or the error in its place.
Slot = Sample | InputError


class Ended(Exception):
    """The handler asked to stop quietly."""


class Policy:
    """Asks the handler about errors, and counts them.

    More than `maxerrs` lost shards raise whatever the handler says. So do more than `maxerrs` broken samples, where each good
    sample offsets one.
    """

    def __init__(self, handler: Handler, maxerrs: int, counts: Counts) -> None:
        self._handler = resolve_handler(handler)
        self._maxerrs = maxerrs
        self._counts = counts
        self.strained = 0  # broken samples not yet offset by good ones
        self._known: set[str] = set()  # shards of missing samples
        self._lost: set[str] = set()  # lost shards, counted once each

    def good(self) -> None:
        """Count a good sample."""
        if self.strained:
            self.strained -= 1

    def lost(self, problem: Exception) -> bool:
        """Handle a shard that cannot be read to its end. Works like a handler, but raises Ended. Does not change `counts`."""
        self._lost.add(getattr(problem, "url", ""))
        if len(self._lost) > self._maxerrs:
            raise problem
        if not self._handler(problem):
            raise Ended
        return True

    def missing(self, problem: InputError) -> None:
        """Handle a position without a good sample. Raises what the handler raises, or Ended if it asks to stop."""
        if isinstance(problem, SampleBroken):
            self.strained += 1
            self._counts.note(problem)
            if self.strained > self._maxerrs:
                raise problem
            if not self._handler(problem):
                raise Ended
        elif problem.url not in self._known:  # otherwise it is another sample of the same shard
            self._known.add(problem.url)
            self._counts.add(shards_skipped=1)
            self._counts.note(problem)
            self.lost(problem)
        self._counts.add(samples_skipped=1)


def repaired(items: Iterable[Any], policy: Policy, counts: Counts) -> Iterator[Any]:
    """Replace errors by good items. ShardUnreadable if there is not a single good one."""
    last: Any = None
    owed = 0  # broken items at the beginning
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
        raise ShardUnreadable(f"not a single sample can be read: {problem}", url=problem.url) from problem


def _copy(item: Any) -> Any:
    return dict(item) if isinstance(item, dict) else item
