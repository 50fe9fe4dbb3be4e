"""The short form of the row `clients` of `make test-cluster`: stock clients and jobs in a cluster that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from failures import clients


@pytest.mark.timeout(600)
@pytest.mark.parametrize("changes", [("joins", "killed"), ("lost", "wiped")])
def test_stock_clients_notice_nothing(tmp_path: Path, changes: tuple[str, ...]) -> None:
    plan = clients.Plan(rounds=1, changes=changes, shards=4, samples=24, size=10_000, targets=3)
    found = clients.run(tmp_path, plan, seed=1)
    assert found.problems == [], str(found)
    for what in ("torch: epochs", "curl: reads", "WebDataset: passes by gopen", "WebDataset: passes by pipe:curl"):
        assert found.counts[what] >= 2, str(found)
    assert found.counts["dfc ls: listings"] >= 1, str(found)
    assert found.counts["jobs: succeeded"] == 1 + 2 * len(changes), str(found)
