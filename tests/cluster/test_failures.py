"""The short form of `make test-cluster`: nodes are killed at random under writers, and nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

from failures import kills

PLAN = kills.Plan(seconds=20, pause_s=(1.5, 3.0), away_s=(0.5, 8.0), writers=6, sizes=(1_000, 300_000), down_after_s=3.0)


def test_nothing_is_lost_when_nodes_are_killed(tmp_path: Path) -> None:
    found = kills.run(tmp_path, PLAN, seed=1)
    assert found.problems == [], str(found)
    assert found.counts["kills of targets"] >= 3, str(found)
    assert found.counts["put"] >= 200, str(found)
    assert found.counts["copies 2"] >= found.counts["copies 1"], str(found)
