"""The README's commands do what they say: every `sh` and `python` block is run, in order, against one cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Cluster

from dfc.client import Client

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://localhost:8080"


def _blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def fresh(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(targets=4)


@pytest.mark.timeout(900)
def test_commands_of_the_readme(fresh: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DFC_URL": fresh.url,
        "no_proxy": "*",
    }
    printed = []
    for language, text in _blocks():
        script = text.replace(ADDRESS, fresh.url)
        command = ["bash", "-euo", "pipefail", "-c", script] if language == "sh" else [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, f"{script}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        printed.append(done.stdout)
    upload, folder, training, inside, jobs = printed
    assert '"samples":90' in upload.replace(" ", "")
    assert "10.png" in upload.splitlines()
    assert [f"train-{number:06d}.tar" in folder for number in range(6)] == [True] * 5 + [False]
    assert len(training.splitlines()) == 90
    assert len(inside.splitlines()) == 90 + 20
    assert (tmp_path / "ten.png").read_bytes().startswith(b"\x89PNG")
    split = json.loads(jobs[jobs.index("{") :])
    with Client(fresh.url) as client:
        client.jobs.wait(split["id"], timeout_s=60)
        found = {bucket: [info.samples for info in client.list(bucket)] for bucket in ("shuffled", "parts")}
        assert found == {"shuffled": [30, 30, 30], "parts": [50, *found["parts"][1:]]}
        assert sum(found["parts"]) == 90
        assert [info.name for info in client.list("parquet")] == [f"train-{number:06d}.parquet" for number in range(3)]
