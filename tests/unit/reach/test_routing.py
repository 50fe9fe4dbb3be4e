"""Which URL a client asks: the owner by its map, the relay where the map does not help."""

from __future__ import annotations

import msgspec
import pytest
from clocks import Clock
from placements import node_entry

from dfc.addresses import addresses_of
from dfc.errors import BucketNotFound, NotFound, Unreachable
from dfc.placement.map import BucketEntry, ClusterMap
from dfc.reach.objects import KeptMap, Locator

TARGET = node_entry("t1", "d1", advertise_url="http://t1.example:1")
EMPTY = ClusterMap(cluster_id="c", version=1, nodes=(TARGET,))
KNOWN = msgspec.structs.replace(EMPTY, version=2, buckets=(BucketEntry(id="b1", name="b"),))
DOWN = msgspec.structs.replace(KNOWN, version=3, nodes=(msgspec.structs.replace(TARGET, state="down"),))


def test_an_object_of_a_bucket_that_the_map_lacks_goes_through_the_relay_until_a_newer_map_has_it() -> None:
    answers, clock = [EMPTY, EMPTY, KNOWN], Clock()
    router = Locator("http://proxy:1", lambda _: answers.pop(0).encode(), clock)
    relayed = router.route("b", "x", ())
    assert (relayed.url, relayed.direct) == ("http://proxy:1/v1/objects/b/x?relay=1", False)
    assert router.route("b", "x", ()) == relayed
    assert len(answers) == 2  # many that ask at once ask for one new map
    clock.seconds += 1
    assert router.route("b", "x", ()) == relayed
    clock.seconds += 1
    found = router.route("b", "x", ())
    assert (found.url, found.direct) == ("http://t1.example:1/v1/objects/b/x", True)
    assert answers == []
    assert router.route("b", "x", ()) == found


def kept(clock: Clock, *answers: ClusterMap | Exception) -> tuple[KeptMap, list[ClusterMap | Exception]]:
    left = list(answers)

    def fetch(_patient: bool) -> bytes:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer.encode()

    return KeptMap(addresses_of("http://proxy:1"), fetch, clock), left


def test_a_bucket_that_is_younger_than_the_map_is_looked_for_in_a_new_one() -> None:
    clock = Clock()
    maps, left = kept(clock, EMPTY, KNOWN, DOWN)
    assert maps.map() == EMPTY
    with pytest.raises(BucketNotFound):  # the map is new
        maps.readers("b", "x")
    clock.seconds += 1
    assert [node.id for node in maps.readers("b", "x")] == ["t1"]
    assert left == [DOWN]
    maps.refresh()
    clock.seconds += 1
    assert maps.readers("b", "x") == []


def test_a_map_that_cannot_be_had_leaves_the_old_one() -> None:
    clock = Clock()
    maps, left = kept(clock, Unreachable("away"), KNOWN, Unreachable("away"), DOWN)
    with pytest.raises(Unreachable):
        maps.map()
    assert maps.map() == KNOWN
    maps.refresh()
    assert (maps.map(), len(left)) == (KNOWN, 2)  # it was fetched a moment ago
    clock.seconds += 1
    assert (maps.map(), len(left)) == (KNOWN, 1)
    clock.seconds += 1
    assert (maps.map(), left) == (DOWN, [])


@pytest.mark.parametrize(
    "answer",
    [b"<html>", b'{"cluster_id":"\xff"}', b'{"x":' + 100_000 * b"[" + 100_000 * b"]" + b"}"],
    ids=["page", "text", "deep"],
)
def test_whatever_else_answers_for_the_map_is_no_node(answer: bytes) -> None:
    with pytest.raises(NotFound, match="does not answer like a DFC node"):
        KeptMap(addresses_of("http://proxy:1"), lambda _: answer).map()
