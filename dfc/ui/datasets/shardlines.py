"""The shards of a dataset as lines of a table, with those that are missing or far from the others. No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from dfc.datasets import DatasetShards
from dfc.pages import rfc3339
from dfc.ui.addresses import shard_url
from dfc.ui.datasets.histograms import Usual

LINES_MAX: Final = 100  # shards on a page
ODD_SHOWN_MAX: Final = 10


class ShardLine(NamedTuple):
    """A shard; or, with `missing`, numbers that are not there: their number. `marks`: what is far from other shards."""

    name: str
    url: str
    samples: int
    size: int
    modified: str
    marks: str
    missing: int = 0


class ShardLines:
    """Makes lines of the shards of a dataset in a bucket."""

    def __init__(self, bucket: str, shards: DatasetShards) -> None:
        self._bucket = bucket
        self._columns = shards
        self.samples, self.sizes = Usual.of(shards.samples), Usual.of(shards.sizes)

    def page(self, start: int) -> list[ShardLine]:
        """Return the lines of LINES_MAX shards from a place on, each after those that are missing before it."""
        shards, found = self._columns, list[ShardLine]()
        for at in range(start, min(start + LINES_MAX, len(shards))):
            gap = shards.numbers[at] - shards.numbers[at - 1] - 1 if at and shards.missing else 0
            if gap and shards.names is not None:
                first, last = shards.names.digits(shards.numbers[at - 1] + 1), shards.names.digits(shards.numbers[at] - 1)
                found.append(ShardLine(first if gap == 1 else f"{first} to {last}", "", 0, 0, "", "", gap))
            found.append(self._line(at))
        return found

    def odd(self) -> tuple[list[ShardLine], int]:
        """Return the first shards that are far from the others, and how many there are."""
        places = [at for at in range(len(self._columns)) if self._marks(at)]
        return [self._line(at) for at in places[:ODD_SHOWN_MAX]], len(places)

    def _line(self, at: int) -> ShardLine:
        shards, name = self._columns, self._columns.name(at)
        modified = rfc3339(shards.modified_us[at])
        url = shard_url(self._bucket, name)
        return ShardLine(name, url, shards.samples[at], shards.sizes[at], modified, self._marks(at))

    def _marks(self, at: int) -> str:
        found = (
            self.samples.mark(self._columns.samples[at], "few samples", "many samples"),
            self.sizes.mark(self._columns.sizes[at], "small", "large"),
        )
        return ", ".join(mark for mark in found if mark)
