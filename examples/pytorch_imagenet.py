#!/usr/bin/env python
"""Train a ResNet on pictures and their classes, on any number of processes, with PyTorch's
DistributedDataParallel.

    torchrun --nproc-per-node 8 pytorch_imagenet.py --train 'http://localhost:8080/imagenet/train-*.tar' \\
        --val 'http://localhost:8080/imagenet/val-*.tar' --checkpoint run.pt

Each process is a rank with one GPU, or with none (gloo on CPUs). Without torchrun, a single process runs.
Samples have a picture (`jpg`, `jpeg` or `png`) and its class as a number (`cls`), as upload_folder.py makes them.

The order of the samples depends only on --seed and the epoch. A checkpoint contains the number of batches
trained on. Started again with the same command, the run resumes at the very next batch, with the same result
as an uninterrupted run.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from pathlib import Path
from typing import Any

import pictures
import resnet
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dfc.inputs.mapstyle import MapDataset
from dfc.inputs.torch import DataLoader, ShardDataset

PICTURES = ("jpg", "jpeg", "png")
WARMUP_EPOCHS = 5
Batch = dict[str, Any]


class View:
    """Turn an undecoded sample into an item of a batch. Runs in the workers."""

    def __init__(self, size: int, seed: int, *, train: bool) -> None:
        self.size = size
        self.seed = seed
        self.train = train
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # so that persistent workers see it change

    def __call__(self, sample: Batch) -> Batch:
        data = next(sample[name] for name in PICTURES if name in sample)
        if self.train:
            # Derive random numbers from the sample, not from the worker, so that a resumed run makes the same crops.
            chance = random.Random(f"{self.seed} {int(self.epoch)} {sample['__key__']}")
            pixels = pictures.train_view(data, self.size, chance)
        else:
            pixels = pictures.test_view(data, self.size)
        return {"__key__": sample["__key__"], "pixels": pixels, "class": int(sample["cls"])}


class Trainer:
    """Model, optimizer and loaders of one rank, and the position: step `step` of epoch `epoch` is next."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.options = options
        self.device = device
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(options.seed)
        self.model = resnet.MODELS[options.model](options.classes).to(device)
        self.parallel = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.parallel.parameters(), 0.0, momentum=0.9, weight_decay=5e-5, nesterov=True)
        self.view = View(options.size, options.seed, train=True)
        # Rank and ranks come from torch.distributed. All ranks get the same number of full batches.
        self.dataset = ShardDataset(options.train, options.batch_size, seed=options.seed, decode=False, transform=self.view)
        self.loader = DataLoader(
            self.dataset, options.workers, persistent_workers=options.workers > 0, pin_memory=device.type == "cuda"
        )
        self.epoch = self.step = 0
        self.mean = torch.tensor(pictures.MEAN, device=device).reshape(1, 3, 1, 1)
        self.deviation = torch.tensor(pictures.DEVIATION, device=device).reshape(1, 3, 1, 1)

    def run(self) -> None:
        if self.options.checkpoint and self.options.checkpoint.exists():
            self.load(self.options.checkpoint)
        while self.epoch < self.options.epochs:
            self.train_epoch()
            if self.options.val:
                self.validate()

    def train_epoch(self) -> None:
        """Train from the current position to the end of the epoch."""
        self.view.epoch.fill_(self.epoch)
        self.loader.set_epoch(self.epoch)
        self.parallel.train()
        began, seen = time.monotonic(), 0
        for batch in self.loader:
            loss = self.train_step(batch)
            self.write_keys(batch)
            seen += len(batch["__key__"])
            self.step += 1
            if (self.step % self.options.print_every == 0 or self.step == len(self.loader)) and self.rank == 0:
                speed = seen * self.ranks / (time.monotonic() - began)
                at = f"epoch {self.epoch} step {self.step}/{len(self.loader)}"
                print(f"{at} loss {loss:.3f} {speed:.0f} pictures/s", flush=True)
            if self.step % self.options.checkpoint_every == 0 and self.step < len(self.loader):
                self.save(self.loader.state_dict())
        self.epoch, self.step = self.epoch + 1, 0
        self.save(None)

    def train_step(self, batch: Batch) -> float:
        """Train one step on all ranks together. Returns the loss of this rank's batch."""
        rate = learning_rate(self.options, self.ranks, self.epoch + self.step / len(self.loader))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        labels = batch["class"].to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = nn.functional.cross_entropy(self.parallel(self.values(batch)), labels, label_smoothing=0.1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def values(self, batch: Batch) -> Tensor:
        """Convert to normalised float32 of shape (batch, 3, size, size), on the device."""
        return (batch["pixels"].to(self.device, non_blocking=True).float() - self.mean) / self.deviation

    @torch.no_grad()
    def validate(self) -> None:
        """The share of the validation set that is classified correctly, with every sample counted once.

        So each rank reads a part of it by number. Its last batch may be smaller: only the sum waits for the other ranks.
        """
        for buffer in self.model.buffers():
            dist.broadcast(buffer, 0)  # batch normalisation: each rank has its own buffers, and those of rank 0 are saved
        options = self.options
        samples = MapDataset(options.val, decode=False, transform=View(options.size, options.seed, train=False))
        mine = range(len(samples) * self.rank // self.ranks, len(samples) * (self.rank + 1) // self.ranks)
        self.model.eval()
        right = torch.zeros((), device=self.device)
        batches = torch.utils.data.DataLoader(samples, options.batch_size, sampler=mine, num_workers=options.workers)
        for batch in batches:
            right += (self.model(self.values(batch)).argmax(1) == batch["class"].to(self.device)).sum()
        dist.all_reduce(right)
        if self.rank == 0:
            print(f"epoch {self.epoch - 1}: {right.item() / len(samples):.2%} of {len(samples)} samples right", flush=True)

    def save(self, loader: dict[str, Any] | None) -> None:
        """Save a checkpoint on rank 0, since all ranks have the same weights and position. `loader` is None between epochs."""
        path: Path | None = self.options.checkpoint
        if path is None or self.rank != 0:
            return
        state = {"epoch": self.epoch, "step": self.step, "loader": loader}
        part = path.with_name(f"{path.name}.part")
        torch.save({**state, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, part)
        os.replace(part, path)  # if killed before this, the previous checkpoint is intact

    def load(self, path: Path) -> None:
        saved = torch.load(path, map_location=self.device, weights_only=True)
        self.epoch, self.step = saved["epoch"], saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if saved["loader"] is not None:
            self.loader.load_state_dict(saved["loader"])
        if self.rank == 0:
            print(f"{path}: going on at epoch {self.epoch} step {self.step}", flush=True)

    def write_keys(self, batch: Batch) -> None:
        if self.options.write_keys:
            with open(f"{self.options.write_keys}.{self.rank}", "a") as file:
                print(self.epoch, self.step, *batch["__key__"], file=file)


def learning_rate(options: argparse.Namespace, ranks: int, epoch: float) -> float:
    """Proportional to the batch (Goyal et al., 2017, arXiv:1706.02677), with a warm-up, then falling as a cosine."""
    highest = options.learning_rate * options.batch_size * ranks / 256
    warmup = min(WARMUP_EPOCHS, options.epochs / 10)
    if epoch < warmup:
        return float(highest * epoch / warmup)
    return float(highest * (1 + math.cos(math.pi * (epoch - warmup) / (options.epochs - warmup))) / 2)


def start_process_group() -> torch.device:
    """The device of this rank. torchrun sets the variables; without it, this is rank 0 of 1."""
    cuda = torch.cuda.is_available()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if cuda else "gloo")
    else:
        dist.init_process_group("nccl" if cuda else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    if not cuda:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="the shards: http://HOST/BUCKET/train-*.tar, or any other spec")
    parser.add_argument("--val", help="the shards of the validation set; if omitted, no validation")
    parser.add_argument("--checkpoint", type=Path, help="file to save to, and to resume from if it exists")
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=500,
        help="steps between saves; it also saves after each epoch (default: %(default)s)",
    )
    parser.add_argument("--model", choices=sorted(resnet.MODELS), default="resnet50", help="(default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the pictures in pixels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=90, help="number of epochs (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per rank (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="reading and decoding processes per rank (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="for 256 samples per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and crops (default: %(default)s)")
    parser.add_argument("--print-every", type=int, default=20, help="print after this many steps (default: %(default)s)")
    parser.add_argument("--write-keys", help="write epoch, step and keys of every batch to PATH.RANK")
    return parser.parse_args()


def main() -> None:
    options = parse()
    device = start_process_group()
    try:
        Trainer(options, device).run()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
