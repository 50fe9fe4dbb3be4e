"""Search for samples by their keys in many shards: what is asked, what a target answers, how answers are merged. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from dfc.errors import BadRequest
from dfc.limits import SEARCH_ANSWER_BYTES_MAX, SEARCH_KEY_BYTES_MAX, SEARCH_LINES_MAX, SEARCH_LOOKUP_S

How = Literal["exact", "prefix", "contains"]
Stop = Literal["limit", "time"]
BY_PARAMETER: Final[Mapping[str, How]] = {"key": "exact", "key_prefix": "prefix", "key_contains": "contains"}
PARAMETERS: Final[Mapping[How, str]] = {how: name for name, how in BY_PARAMETER.items()}
ELSEWHERE: Final = "elsewhere"  # the code of a shard that a target does not hold, or no longer
_LINE_BYTES: Final = 64  # of a line, besides names; and of each member


class KeyQuery(msgspec.Struct, frozen=True):
    """Which keys: this one, those that begin with it, or those that contain it; case counts. BadRequest for an empty key, and
    for one that is too long."""

    how: How
    key: str

    def __post_init__(self) -> None:
        if not self.key:
            raise BadRequest(f"{PARAMETERS[self.how]} must not be empty")
        if len(self.key.encode("utf-8", "surrogatepass")) > SEARCH_KEY_BYTES_MAX:
            raise BadRequest(f"{PARAMETERS[self.how]} is too long: keys have at most {SEARCH_KEY_BYTES_MAX} bytes")

    @property
    def is_exact(self) -> bool:
        return self.how == "exact"


class SampleHit(msgspec.Struct, frozen=True):
    """A sample that was found: its shard, its ordinal in it, its key, and by extension the offset of each member in the
    uncompressed archive, and its size."""

    shard: str
    number: int
    key: str
    members: dict[str, tuple[int, int]]

    @property
    def place(self) -> tuple[str, int]:
        """By which hits are ordered."""
        return self.shard, self.number

    @property
    def line_bytes(self) -> int:
        """About how long a line for it is."""
        texts = len(self.shard) + len(self.key) + sum(map(len, self.members))
        return texts + _LINE_BYTES * (1 + len(self.members))


class Unsearched(msgspec.Struct, frozen=True):
    """A shard that could not be searched, and why: the code and message of an error."""

    shard: str
    code: str
    message: str


class SearchAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a target is asked: the shards, in order, at most `limit` hits, and how long it may search."""

    bucket: str
    query: KeyQuery
    shards: list[str]
    limit: Annotated[int, msgspec.Meta(ge=1, le=SEARCH_LINES_MAX + 1)]
    budget_s: Annotated[float, msgspec.Meta(ge=0, le=SEARCH_LOOKUP_S)]


class SearchPart(msgspec.Struct, frozen=True):
    """What was found in some of the shards, which were searched in order. `searched`: how many of them to their end. `missing`:
    those that are no shards of the bucket for certain; `failed`: others may be able to search them."""

    hits: list[SampleHit] = []
    searched: int = 0
    stopped: Stop | None = None
    missing: list[Unsearched] = []
    failed: list[Unsearched] = []


class FoundSamples(msgspec.Struct, frozen=True):
    """The hits in order of shards and ordinals. `shards`: how many there were to search; `searched` of them were. If it stopped
    because of the limit, the hits are the first ones, in the first `searched` shards. `unsearched`: those that could not be."""

    hits: list[SampleHit]
    shards: int
    searched: int
    stopped: Stop | None
    unsearched: list[Unsearched]


def key_query(parameters: Mapping[str, str]) -> KeyQuery | None:
    """Return what a query asks for; None if it names no key. BadRequest if it names several."""
    given = [(how, parameters[name]) for name, how in BY_PARAMETER.items() if name in parameters]
    if len(given) > 1:
        raise BadRequest(f"give only one of {', '.join(BY_PARAMETER)}")
    return KeyQuery(*given[0]) if given else None


def joined(parts: Sequence[SearchPart], limit: int) -> SearchPart:
    """Join parts into one with at most `limit` hits, in order. A part that was stopped by the limit says nothing of what comes
    after its last hit, so nothing after that is shown of any, unless the time was over for some: then any hits are shown."""
    is_late = any(part.stopped == "time" for part in parts)
    ends = [part.hits[-1].place for part in parts if part.stopped == "limit" and part.hits]
    hits = sorted((hit for part in parts for hit in part.hits), key=lambda hit: hit.place)
    if ends and not is_late:
        hits = hits[: bisect_right(hits, min(ends), key=lambda hit: hit.place)]
    shown = hits[: _fitting(hits, limit)]
    is_cut = bool(ends) or len(shown) < len(hits)
    return SearchPart(
        shown,
        sum(part.searched for part in parts),
        "time" if is_late else "limit" if is_cut else None,
        [each for part in parts for each in part.missing],
        [each for part in parts for each in part.failed],
    )


def found_samples(
    parts: Sequence[SearchPart], names: Sequence[str], limit: int, unsearched: Sequence[Unsearched]
) -> FoundSamples:
    """Return what was found of these names, which are sorted, some of which no target could search."""
    whole = joined(parts, limit)
    searched = bisect_right(names, whole.hits[-1].shard) if whole.stopped == "limit" else whole.searched
    ordered = sorted([*whole.missing, *unsearched], key=lambda each: each.shard)
    return FoundSamples(whole.hits, len(names), searched, whole.stopped, ordered)


def _fitting(hits: Sequence[SampleHit], limit: int) -> int:
    """How many of the hits fit into an answer; at least one."""
    left = SEARCH_ANSWER_BYTES_MAX
    for at, hit in enumerate(hits[:limit]):
        left -= hit.line_bytes
        if left < 0:
            return max(1, at)
    return min(limit, len(hits))
