"""Search for samples by their keys in many shards: what is asked, what a target answers, how answers are merged. No I/O."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec

from dfc.errors import BadRequest
from dfc.limits import (
    INDEX_MEMBERS_MAX,
    OBJECT_NAME_BYTES_MAX,
    SEARCH_ANSWER_BYTES_MAX,
    SEARCH_KEY_BYTES_MAX,
    SEARCH_LINES_MAX,
    SEARCH_LOOKUP_S,
    SEARCH_TOKEN_CHARS_MAX,
)
from dfc.wire.objects import UnsearchedShard

How = Literal["exact", "prefix", "contains"]
Stop = Literal["limit", "time"]
BY_PARAMETER: Final[Mapping[str, How]] = {"key": "exact", "key_prefix": "prefix", "key_contains": "contains"}
PARAMETERS: Final[Mapping[How, str]] = {how: name for name, how in BY_PARAMETER.items()}
ELSEWHERE: Final = "elsewhere"  # the code of a shard that a target does not hold, or no longer
# Where a search is, or goes on: at an ordinal of a shard. Places are in the order in which shards are searched.
SamplePlace = tuple[str, Annotated[int, msgspec.Meta(ge=0, le=INDEX_MEMBERS_MAX)]]
_TOKEN: Final = re.compile(f"[A-Za-z0-9_-]{{1,{SEARCH_TOKEN_CHARS_MAX}}}")
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
    def place(self) -> SamplePlace:
        """By which hits are ordered."""
        return self.shard, self.number

    @property
    def after(self) -> SamplePlace:
        """Where a search goes on behind it."""
        return self.shard, self.number + 1

    @property
    def line_bytes(self) -> int:
        """About how long a line for it is."""
        texts = len(self.shard) + len(self.key) + sum(map(len, self.members))
        return texts + _LINE_BYTES * (1 + len(self.members))


class SearchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a target is asked: the shards, in order, at most `limit` hits, and how long it may search. `start`: a shard, and the
    ordinal in it before which samples are left out."""

    bucket: str
    query: KeyQuery
    shards: list[str]
    limit: Annotated[int, msgspec.Meta(ge=1, le=SEARCH_LINES_MAX + 1)]
    budget_s: Annotated[float, msgspec.Meta(ge=0, le=SEARCH_LOOKUP_S)]
    start: SamplePlace | None = None

    def begin(self, shard: str) -> SamplePlace:
        """Where the search of a shard begins."""
        return begin_of(shard, self.start)


class SearchPart(msgspec.Struct, frozen=True):
    """What was found in some of the shards, which were searched in order. `searched`: how many of them to their end. `reached`:
    if it stopped, all samples of these shards before that place were looked at. `missing`: those that are no shards of the
    bucket for certain; `failed`: others may be able to search them."""

    hits: list[SampleHit] = []
    searched: int = 0
    stopped: Stop | None = None
    missing: list[UnsearchedShard] = []
    failed: list[UnsearchedShard] = []
    reached: SamplePlace | None = None


class FoundSamples(msgspec.Struct, frozen=True):
    """The hits in order of shards and ordinals. `shards`: how many there are; `searched` of them were, or are before the place
    where this search began. If it stopped, the hits are all that there are before the place that was `reached`, and `searched`
    counts the shards until there, with the one of the last hit if the limit was the reason. `unsearched`: those until there
    that could not be searched."""

    hits: list[SampleHit]
    shards: int
    searched: int
    stopped: Stop | None
    unsearched: list[UnsearchedShard]
    reached: SamplePlace | None = None

    @property
    def next_token(self) -> str | None:
        """With what the search goes on; None if all is found."""
        return None if self.reached is None else token_of(self.reached)


def key_query(parameters: Mapping[str, str]) -> KeyQuery | None:
    """Return what a query asks for; None if it names no key. BadRequest if it names several."""
    given = [(how, parameters[name]) for name, how in BY_PARAMETER.items() if name in parameters]
    if len(given) > 1:
        raise BadRequest(f"give only one of {', '.join(BY_PARAMETER)}")
    return KeyQuery(*given[0]) if given else None


def token_of(place: SamplePlace) -> str:
    """Return the text that stands for a place where a search goes on."""
    shard, number = place
    # Shards may be named that cannot exist. There are none between such a name and its beginning, if that is too long as well.
    packed = msgspec.msgpack.encode((shard[: OBJECT_NAME_BYTES_MAX + 1], number))
    return urlsafe_b64encode(packed).rstrip(b"=").decode()


def place_of(token: str) -> SamplePlace:
    """Return the place that a text stands for. BadRequest for what is not one of `token_of`."""
    try:
        if _TOKEN.fullmatch(token):
            packed = urlsafe_b64decode(token + "=" * (-len(token) % 4))
            place: SamplePlace = msgspec.msgpack.decode(packed, type=SamplePlace)
            if place[0] and token_of(place) == token:
                return place
    except (ValueError, RecursionError):  # no base64, no UTF-8, no msgpack
        pass
    raise BadRequest("token must be the next_token of a search")


def begin_of(shard: str, start: SamplePlace | None) -> SamplePlace:
    """Where a shard is searched from, if the whole search goes on at `start`."""
    return start if start is not None and start[0] == shard else (shard, 0)


def joined(parts: Sequence[SearchPart], limit: int) -> SearchPart:
    """Join parts into one with at most `limit` hits, in order. A part that was stopped says nothing of what comes after the
    place that it reached, so nothing after that is shown of any: who goes on there misses nothing and sees nothing twice."""
    stops = ((part.reached, part.stopped) for part in parts if part.reached is not None)
    reached, stopped = min(stops, key=lambda stop: stop[0], default=(None, None))
    hits = sorted((hit for part in parts for hit in part.hits), key=lambda hit: hit.place)
    if reached is not None:
        hits = hits[: bisect_left(hits, reached, key=lambda hit: hit.place)]
    shown = hits[: _fitting(hits, limit)]
    if len(shown) < len(hits):
        reached, stopped = shown[-1].after, "limit"
    return SearchPart(
        shown,
        sum(part.searched for part in parts),
        stopped,
        [each for part in parts for each in part.missing],
        [each for part in parts for each in part.failed],
        reached,
    )


def found_samples(
    parts: Sequence[SearchPart], names: Sequence[str], limit: int, unsearched: Sequence[UnsearchedShard], before: int = 0
) -> FoundSamples:
    """Return what was found of these names, which are sorted, some of which no target could search, and which come after
    `before` others."""
    whole = joined(parts, limit)
    ordered = sorted([*whole.missing, *unsearched], key=lambda each: each.shard)
    searched = whole.searched
    if whole.reached is not None:
        ordered = [each for each in ordered if each.shard < whole.reached[0]]
        passed = bisect_left(names, whole.reached[0]) + (whole.stopped == "limit")
        searched = passed - len(ordered)
    return FoundSamples(whole.hits, before + len(names), before + searched, whole.stopped, ordered, whole.reached)


def _fitting(hits: Sequence[SampleHit], limit: int) -> int:
    """How many of the hits fit into an answer; at least one."""
    left = SEARCH_ANSWER_BYTES_MAX
    for at, hit in enumerate(hits[:limit]):
        left -= hit.line_bytes
        if left < 0:
            return max(1, at)
    return min(limit, len(hits))
