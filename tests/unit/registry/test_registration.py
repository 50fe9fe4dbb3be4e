"""What nodes of different versions of the program understand of each other's registrations."""

from __future__ import annotations

import msgspec
import pytest

from dfc.placement.map import ClusterMap
from dfc.registry.messages import MapTaken, Registered, Registration

OLDEST = {
    "node_id": "t1", "role": "target", "url": "http://t1:1", "advertise_url": "http://t1:1", "cluster_id": "c",
    "disks": [{"id": "d1", "weight": 1.0}],
}  # fmt: skip


def test_a_proxy_understands_targets_of_before():
    """So proxies are updated first."""
    said = msgspec.json.decode(msgspec.json.encode(OLDEST), type=Registration)
    assert (said.step, said.leaving, [disk.id for disk in said.disks]) == (0, False, ["d1"])


def test_what_a_newer_target_says_is_refused_and_not_overlooked():
    """It may be the one thing that matters, as `leaving` is."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `hibernates`"):
        msgspec.json.decode(msgspec.json.encode({**OLDEST, "hibernates": True}), type=Registration)


def test_targets_pass_over_what_a_newer_proxy_answers():
    for kind, least in (
        (Registered, {"node_number": 7}),
        (ClusterMap, {"cluster_id": "c", "version": 1}),
        (MapTaken, {"version": 1}),
    ):
        assert msgspec.json.decode(msgspec.json.encode({**least, "of_tomorrow": [1]}), type=kind)
