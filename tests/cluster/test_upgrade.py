"""A cluster is restarted node by node under load, gets a second proxy, and goes back to one."""

from __future__ import annotations

from pathlib import Path

from failures import upgrade


def test_a_rolling_restart(tmp_path: Path) -> None:
    plan = upgrade.Plan(objects=60, writers=3, sizes=(1_000, 30_000))
    found = upgrade.run(tmp_path, plan, seed=13)
    assert found.problems == []
    assert found.counts["nodes restarted"] == plan.targets + 1
