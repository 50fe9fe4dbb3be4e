"""One rank of a training run that reads whole epochs until it is told to stop: a process of torch.distributed over gloo.

    python -m failures.trainrank SPEC FOLDER RANK RANKS

Each sample is a line `epoch key digest` in FOLDER/samples.RANK. When FOLDER/stop is there, all ranks end after their epoch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from dfc.inputs.torch import DataLoader, ShardDataset
from failures.digests import digest_of

BATCH: Final = 4
STEP_S: Final = 0.02  # what a model would compute


def described(sample: Mapping[str, Any]) -> tuple[str, str]:
    return str(sample["__key__"]), digest_of(sample)


def main() -> None:
    spec, folder, rank, ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    place = {"rank": rank, "world_size": ranks, "timeout": timedelta(minutes=5)}
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", **place)
    dataset = ShardDataset(spec, BATCH, seed=7, shuffle=50, decode=False, transform=described, collate=list)
    loader = DataLoader(dataset, num_workers=1)
    epoch, steps = 0, 0
    with open(folder / f"samples.{rank}", "w") as samples:
        while True:
            loader.set_epoch(epoch)
            for batch in loader:
                present = torch.ones(1)
                dist.all_reduce(present)  # hangs for good if the ranks have not equally many batches
                assert present.item() == ranks
                for key, digest in batch:
                    print(epoch, key, digest, file=samples)
                samples.flush()
                steps += 1
                time.sleep(STEP_S)
            epoch += 1
            over = torch.tensor([float((folder / "stop").exists())])
            dist.all_reduce(over)  # whoever sees it first ends all
            if over.item():
                break
    counts = dataset.counts
    said = {"epochs": epoch, "steps": steps, "retries": counts.retries, "errors": counts.errors[:5]}
    print(json.dumps({**said, "padding": dataset.source.padding(ranks)}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
