"""The program for PyTorch of a dataset's page: copied from there and run, it finds what was uploaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Cluster
from snippetpages import PATTERN, SHARD, TOKEN, stock

MORE = """
for batch in loader:
    for picture, label in zip(batch["png"], batch["cls"]):
        found.append((int(label), hashlib.md5(picture.permute(1, 2, 0).contiguous().numpy().tobytes()).hexdigest()))
"""


@pytest.mark.parametrize("token", ["", TOKEN], ids=["open", "guarded"])
def test_a_program_for_pytorch_finds_every_sample(start_cluster: Callable[..., Cluster], tmp_path: Path, token: str) -> None:
    assert torch.get_num_threads() >= 1
    environment = {"DFC_TOKEN": token, "DFC_TOKEN_FOR_READS": "1"} if token else {}
    stocked = stock(start_cluster(targets=2, disks=1, environment=environment), token)
    program = stocked.programs("/ui/dataset", shards=PATTERN)["PyTorch"]
    assert stocked.python(program, MORE, tmp_path) == stocked.content(*stocked.shards)
    program = stocked.programs("/ui/shard", object=SHARD)["PyTorch"]
    assert stocked.python(program, MORE, tmp_path) == stocked.content(SHARD)
