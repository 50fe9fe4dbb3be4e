"""Search for samples by their keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dfc.client.control import Control
from dfc.errors import BadRequest, Unreachable
from dfc.keysearch import PARAMETERS, How, KeyQuery
from dfc.names import check_bucket_name
from dfc.shards import list_specs


class SampleMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that was found: its shard, its ordinal there, its key, and the size of each member by extension."""

    shard: str
    number: int
    key: str
    members: dict[str, int]


class UnsearchedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that could not be searched, with the code and message of the error."""

    shard: str
    code: str
    message: str


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found, in order of shards and ordinals.

    There were `shards` to search, and `searched` of them were. `stopped`: "limit" if there are more samples than were wanted,
    which are in the shards after the first `searched` ones or in the last of these; "time" if the time was over before; else
    None. `unsearched` has the first shards that could not be searched, of `unsearched_count`.
    """

    samples: tuple[SampleMatch, ...] = ()
    shards: int = 0
    searched: int = 0
    stopped: str | None = None
    unsearched: tuple[UnsearchedShard, ...] = ()
    unsearched_count: int = 0


class _Line(msgspec.Struct):
    shard: str = ""
    number: int = 0
    key: str = ""
    members: dict[str, int] = {}
    end: SearchResult | None = None


def query_of(key: str | None, prefix: str | None, contains: str | None) -> KeyQuery:
    """Return the query for one of three. ValueError unless it is one; BadRequest for what no key can be."""
    texts: tuple[tuple[How, str | None], ...] = (("exact", key), ("prefix", prefix), ("contains", contains))
    given = [(how, text) for how, text in texts if text is not None]
    if len(given) != 1:
        raise ValueError("give one of key, prefix and contains")
    how, text = given[0]
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest("a key that is not valid Unicode is in no shard") from None
    return KeyQuery(how, text)


def search(
    control: Control, bucket: str, query: KeyQuery, shards: str | Sequence[str] | None, limit: int | None
) -> SearchResult:
    """Search the shards of a spec, of a list, or all of a bucket: see `Client.find_samples`."""
    path = f"/v1/buckets/{check_bucket_name(bucket)}/samples"
    specs: Iterable[str | None] = [shards] if shards is None or isinstance(shards, str) else list_specs(sorted(set(shards)))
    whole = SearchResult()
    for spec in specs:
        if whole.stopped is not None or limit == len(whole.samples):
            found = SearchResult(shards=len(msgspec.json.decode(spec or "[]")), stopped=whole.stopped or "limit")
        else:
            parameters: dict[str, str | int] = {PARAMETERS[query.how]: query.key}
            if spec is not None:
                parameters["shards"] = spec
            if limit is not None:
                parameters["limit"] = limit - len(whole.samples)
            found = _read(control.call("GET", path, params=parameters))
        whole = _added(whole, found)
    return whole


def _read(content: bytes) -> SearchResult:
    try:
        lines = msgspec.json.Decoder(_Line).decode_lines(content)
    except msgspec.MsgspecError as problem:
        raise Unreachable(f"cannot decode the answer to a search: {problem}") from None
    if not lines or lines[-1].end is None:
        raise Unreachable("the answer to a search ends too early")
    samples = [SampleMatch(shard=each.shard, number=each.number, key=each.key, members=each.members) for each in lines[:-1]]
    return msgspec.structs.replace(lines[-1].end, samples=tuple(samples))


def _added(first: SearchResult, second: SearchResult) -> SearchResult:
    """The result of two searches, of which the second went through later shards."""
    fields: dict[str, Any] = {
        name: getattr(first, name) + getattr(second, name)
        for name in ("samples", "shards", "searched", "unsearched", "unsearched_count")
    }
    return SearchResult(**fields, stopped=first.stopped or second.stopped)
