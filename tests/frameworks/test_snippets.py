"""The programs of a dataset's page, and of a shard's: copied from there and run, they find what was uploaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Cluster
from snippetpages import PATTERN, SHARD, TOKEN, Stocked, stock

WEBDATASET = """
for picture, label in dataset:
    found.append((label, hashlib.md5(picture.convert("RGB").tobytes()).hexdigest()))
"""
TENSORFLOW = """
for picture, label in dataset:
    found.append((int(label), hashlib.md5(picture.numpy().tobytes()).hexdigest()))
"""


@pytest.fixture(scope="module", params=["open", "guarded"])
def stocked(request: pytest.FixtureRequest, start_cluster: Callable[..., Cluster]) -> Stocked:
    """With a token that also reads need, or without one."""
    token = TOKEN if request.param == "guarded" else ""
    environment = {"DFC_TOKEN": token, "DFC_TOKEN_FOR_READS": "1"} if token else {}
    return stock(start_cluster(targets=2, disks=1, environment=environment), token)


@pytest.mark.parametrize(("title", "more"), [("WebDataset", WEBDATASET), ("TensorFlow", TENSORFLOW)])
def test_a_program_in_python_finds_every_sample(stocked: Stocked, tmp_path: Path, title: str, more: str) -> None:
    program = stocked.programs("/ui/dataset", shards=PATTERN)[title]
    assert stocked.python(program, more, tmp_path) == stocked.content(*stocked.shards)
    assert TOKEN not in program


def test_a_shard_has_programs_of_its_own(stocked: Stocked, tmp_path: Path) -> None:
    programs = stocked.programs("/ui/shard", object=SHARD)
    assert stocked.python(programs["WebDataset"], WEBDATASET, tmp_path) == stocked.content(SHARD)
    stocked.run(["sh", "-e", "-c", programs["curl"]], tmp_path)
    assert (tmp_path / "d-009.tar").read_bytes() == stocked.shards[SHARD]
    assert stocked.programs("/ui/dataset", shards=SHARD).keys() == programs.keys()


@pytest.mark.parametrize("title", ["curl", "dfc get"])
def test_a_command_fetches_every_shard(stocked: Stocked, tmp_path: Path, title: str) -> None:
    program = stocked.programs("/ui/dataset", shards=PATTERN)[title]
    stocked.run(["sh", "-e", "-c", program], tmp_path)
    fetched = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert fetched == {name.rpartition("/")[2]: content for name, content in stocked.shards.items()}
