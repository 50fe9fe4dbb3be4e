"""One rank of a training run on CPUs: a real process of torch.distributed over gloo, whose steps wait for all ranks.

    python ddp_rank.py SPEC FOLDER EPOCHS WORKERS      with RANK and WORLD_SIZE in the environment

Each step appends `epoch label label …` to FOLDER/steps.RANK; then rank 0 saves the loader's state. A state that is there is
gone on with.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from dfc.inputs.torch import DataLoader, ShardDataset


def main() -> None:
    spec, folder, epochs, workers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = folder / f"store-{os.environ['RUN']}"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    dataset = ShardDataset(spec, 4, seed=7, shuffle=20)
    loader = DataLoader(dataset, num_workers=workers)
    state = folder / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    dist.barrier()
    with open(folder / f"steps.{rank}", "a") as steps:
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                # Hangs for good if the ranks have not equally many batches.
                present = torch.ones(1)
                dist.all_reduce(present)
                assert present.item() == ranks
                print(epoch, *batch["cls"].tolist(), file=steps, flush=True)
                if rank == 0:
                    part = folder / "state.part"
                    part.write_text(json.dumps(loader.state_dict()))
                    part.replace(state)
    counts = dataset.counts
    print(json.dumps({"samples": counts.samples, "padded": counts.samples_padded, "padding": dataset.source.padding(ranks)}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
