"""A sample and its members, in memory: what formats write and what jobs pass on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dfc.errors import Conflict

OnSplit = Literal["fail", "join", "keep"]
"""For a key that occurs again later in its shard: fail and name it, join its samples into the first, or keep them."""
ON_SPLIT_REMEDY: Final = "set on_split to join or keep, or write repaired shards first: dfc validate --repair"


class SplitSample(Conflict):
    """A key occurs again later in its shard, and the job does not say what to do about it."""

    code = "split_sample"


@dataclass(slots=True)
class DataMember:
    """One member of a sample with its bytes. `name` is that in the archive, `ext` in lower case."""

    ext: str
    name: str
    data: bytes


@dataclass(slots=True)
class SampleData:
    """One sample, in memory. `number` is its ordinal in its shard."""

    key: str
    number: int
    members: list[DataMember]

    def get(self, ext: str) -> bytes | None:
        """The bytes of a field; None when it is absent, which differs from empty."""
        return next((member.data for member in self.members if member.ext == ext), None)
