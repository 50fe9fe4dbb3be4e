"""What a search asks for, and how the parts that were found become one answer."""

from __future__ import annotations

import random
import re
from base64 import urlsafe_b64encode
from itertools import pairwise

import msgspec
import pytest

from dfc.errors import BadRequest
from dfc.listing import search
from dfc.listing.search import (
    KeyQuery,
    SampleHit,
    SearchPart,
    SearchRequest,
    begin_of,
    found_samples,
    joined,
    key_query,
    place_of,
    token_of,
)
from dfc.wire.objects import UnsearchedShard


def hit(shard: str, number: int) -> SampleHit:
    return SampleHit(shard, number, f"k{number}", {"jpg": (512, 1)})


def places(part: SearchPart | search.FoundSamples) -> list[tuple[str, int]]:
    return [each.place for each in part.hits]


def test_a_query_names_one_key() -> None:
    assert key_query({"key": "a"}) == KeyQuery("exact", "a")
    assert key_query({"key_prefix": "a b", "shards": "x"}) == KeyQuery("prefix", "a b")
    assert key_query({"key_contains": "../\n\0ü"}) == KeyQuery("contains", "../\n\0ü")
    assert key_query({"shards": "x", "fields": "key"}) is None
    with pytest.raises(BadRequest, match="only one of key, key_prefix, key_contains"):
        key_query({"key": "a", "key_contains": "a"})


@pytest.mark.parametrize("name", ["key", "key_prefix", "key_contains"])
def test_keys_are_bounded(name: str) -> None:
    assert key_query({name: "ü" * 2048}) is not None
    with pytest.raises(BadRequest, match=f"{name} is too long"):
        key_query({name: "ü" * 2049})
    with pytest.raises(BadRequest, match=f"{name} must not be empty"):
        key_query({name: ""})


@pytest.mark.parametrize(
    "change",
    [{"limit": 0}, {"limit": 10_002}, {"budget_s": -1.0}, {"budget_s": 31.0}, {"more": 1}, {"shards": "x"}, {"query": {}}],
)
def test_what_a_target_is_asked_is_checked(change: dict[str, object]) -> None:
    fine = {"bucket": "b", "query": {"how": "exact", "key": "k"}, "shards": ["x.tar"], "limit": 10, "budget_s": 1.0}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fine), type=SearchRequest).query == KeyQuery("exact", "k")
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({**fine, **change}), type=SearchRequest)


def test_an_empty_key_is_refused_there_too() -> None:
    asked = {"bucket": "b", "query": {"how": "prefix", "key": ""}, "shards": [], "limit": 1, "budget_s": 1.0}
    with pytest.raises(BadRequest, match="must not be empty"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=SearchRequest)


def test_parts_are_joined_in_order() -> None:
    parts = [SearchPart([hit("b", 2), hit("d", 0)], 2), SearchPart([hit("a", 7), hit("b", 1), hit("c", 0)], 3)]
    assert places(joined(parts, 9)) == [("a", 7), ("b", 1), ("b", 2), ("c", 0), ("d", 0)]
    assert (joined(parts, 9).stopped, joined(parts, 9).searched) == (None, 5)
    assert places(joined(parts, 2)) == [("a", 7), ("b", 1)]
    assert joined(parts, 2).stopped == "limit"
    assert joined([], 2) == SearchPart()


def test_nothing_is_shown_after_the_place_where_a_part_was_stopped() -> None:
    first = SearchPart([hit("b", 1), hit("b", 5)], 0, "limit", reached=("b", 6))
    parts = [first, SearchPart([hit("a", 1), hit("b", 9), hit("c", 3)], 3)]
    assert places(joined(parts, 100)) == [("a", 1), ("b", 1), ("b", 5)]
    assert (joined(parts, 100).stopped, joined(parts, 100).reached) == ("limit", ("b", 6))


def test_the_first_place_that_was_reached_says_why_it_stopped() -> None:
    limited = SearchPart([hit("b", 1)], 0, "limit", reached=("b", 2))
    late = SearchPart([hit("a", 3), hit("c", 3)], 1, "time", reached=("c", 7))
    whole = found_samples([limited, late], ["a", "b", "c", "d"], 100, [])
    assert (places(whole), whole.stopped, whole.searched, whole.shards) == ([("a", 3), ("b", 1)], "limit", 2, 4)
    late = msgspec.structs.replace(late, reached=("b", 0))
    whole = found_samples([limited, late], ["a", "b", "c", "d"], 100, [], before=3)
    assert (places(whole), whole.stopped, whole.searched, whole.shards) == ([("a", 3)], "time", 4, 7)
    assert whole.next_token == token_of(("b", 0))
    assert found_samples([SearchPart(searched=4)], ["a", "b", "c", "d"], 100, []).next_token is None


def test_shards_after_the_place_that_was_reached_are_not_said_to_be_unsearched() -> None:
    failed = [UnsearchedShard(name, "unavailable", "down") for name in "abc"]
    whole = found_samples([SearchPart(reached=("b", 4), stopped="time")], ["a", "b", "c", "d"], 5, failed)
    assert (whole.unsearched, whole.searched) == (failed[:1], 0)


def test_the_first_hits_are_found_however_the_shards_are_shared_out() -> None:
    chance = random.Random(14)
    for _ in range(200):
        names = [f"s{number:02d}" for number in range(chance.randrange(1, 30))]
        there = [hit(name, number) for name in names for number in range(chance.choice((0, 0, 1, 3)))]
        limit = chance.randrange(1, 12)
        parts = []
        shares = [names[first::3] for first in range(3)]
        for share in shares:
            hits = [each for each in there if each.shard in share]
            stops = len(hits) > limit
            reached = hits[limit].after if stops else None
            parts.append(SearchPart(hits[: limit + 1], len(share), "limit" if stops else None, reached=reached))
        nested = [joined(parts[:2], limit + 1), parts[2]]
        for given in (parts, nested):
            whole = found_samples(given, names, limit, [])
            assert whole.hits == there[:limit]
            assert (whole.stopped == "limit") == (len(there) > limit)
            last = there[:limit][-1].shard if len(there) > limit else names[-1]
            assert whole.searched == names.index(last) + 1
        assert all(first.place < second.place for first, second in pairwise(whole.hits))


def test_an_answer_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    hits = [hit("a", number) for number in range(10)]
    monkeypatch.setattr(search, "SEARCH_ANSWER_BYTES_MAX", 3 * hits[0].line_bytes)
    whole = joined([SearchPart(hits, 1)], 100)
    assert (places(whole), whole.stopped) == ([("a", 0), ("a", 1), ("a", 2)], "limit")
    monkeypatch.setattr(search, "SEARCH_ANSWER_BYTES_MAX", 1)
    assert places(joined([SearchPart(hits, 1)], 100)) == [("a", 0)]


def test_what_could_not_be_searched_is_said_in_order() -> None:
    missing = UnsearchedShard("c", "object_not_found", "no")
    down = UnsearchedShard("a", "unavailable", "down")
    whole = found_samples([SearchPart(searched=1, missing=[missing])], ["a", "b", "c"], 5, [down])
    assert (whole.unsearched, whole.searched, whole.stopped) == ([down, missing], 1, None)


@pytest.mark.parametrize(
    "place",
    [("a.tar", 0), ("a/b c.tar", 1 << 23), ("日本/\U0001f600.tar", 3), ("x" * 1024, 7), ("\U0001f600" * 1025, 1), ("\0", 1)],
)
def test_a_token_is_text_that_stands_for_a_place(place: tuple[str, int]) -> None:
    token = token_of(place)
    assert re.fullmatch("[A-Za-z0-9_-]{4,8192}", token)
    assert place_of(token) == place


def test_names_too_long_to_exist_are_cut_and_not_passed_by() -> None:
    name = "x" * 9000
    shard, number = place_of(token_of((name, 5)))
    assert shard == "x" * 1025 < name
    assert begin_of(name, (shard, number)) == (name, 0)
    assert begin_of("a", ("a", 5)) == ("a", 5)
    assert begin_of("a", None) == ("a", 0)


def packed(value: object) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(value)).decode().rstrip("=")


@pytest.mark.parametrize(
    "token",
    [
        "", "a", "AA", "=", "%00", "../../etc/passwd", "ä", "A" * 8192, "A" * 8193, "k" * 100_000, "_" * 4096,
        packed(None), packed([]), packed(["a"]), packed(["a", -1]), packed(["a", (1 << 23) + 1]), packed(["a", 1 << 63]),
        packed(["a", 1.0]), packed(["a", "1"]), packed([7, 7]), packed(["", 7]), packed(["a", 7, 7]), packed({"a": 7}),
        packed([b"a", 7]), packed(["x" * 1026, 7]), packed([["a"], 7]), packed([[]] * 3000),
        packed(["a", 7]) + "=", packed(["a", 7]) + "A", " " + packed(["a", 7]), packed(["a", 7]) + "\n",
        "ksFh" + "zQAH", "kqJh_wc", urlsafe_b64encode(b"\x91" * 4000).decode().rstrip("="),
        urlsafe_b64encode(b"\x92\xdd\xff\xff\xff\xff").decode(), urlsafe_b64encode(b"\x92\xdb\xff\xff\xff\xff").decode(),
    ],
)  # fmt: skip
def test_any_other_token_is_refused(token: str) -> None:
    with pytest.raises(BadRequest, match="token must be the next_token of a search"):
        place_of(token)


def test_random_tokens_are_refused_or_stand_for_a_place() -> None:
    chance = random.Random(2)
    for _ in range(3000):
        token = "".join(
            chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", k=chance.randrange(1, 30))
        )
        try:
            place = place_of(token)
        except BadRequest:
            continue
        assert token_of(place) == token
