"""Which URL a client asks: the owner by its map, the relay where the map does not help."""

from __future__ import annotations

import msgspec

from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.reach.routing import Locator

TARGET = NodeEntry(
    id="t1", number=1, role="target", url="http://t1:1", advertise_url="http://t1.example:1", state="up",
    disks=(DiskEntry(id="d1", weight=1.0),),
)  # fmt: skip
EMPTY = ClusterMap(cluster_id="c", version=1, nodes=(TARGET,))
KNOWN = msgspec.structs.replace(EMPTY, version=2, buckets=(BucketEntry(id="b1", name="b"),))


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


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
