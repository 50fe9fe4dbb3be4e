#!/usr/bin/env python
"""Train a ResNet with WebDataset as the reader: the training processes use only URLs of DFC.

    torchrun --nproc-per-node 8 webdataset_imagenet.py --server http://localhost:8080 --bucket imagenet --prefix train-

For programs that already use WebDataset. Unlike pytorch_imagenet.py, it cannot resume in the middle of an
epoch, give every sample exactly once, or resume a shard after a broken connection. So it draws shards at
random, endlessly, and an epoch is as many batches as the samples would fill. The server's index tells the
number of samples.
"""

from __future__ import annotations

import argparse
import os
import random
from typing import Any

import numpy as np
import pictures
import resnet
import torch
import torch.distributed as dist
import webdataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dfc.client import Client


def shards_of(server: str, bucket: str, prefix: str) -> tuple[list[str], int]:
    """The URLs of the shards, and their total number of samples."""
    with Client(server) as client:
        found = list(client.list(bucket, prefix=prefix))
    if not found:
        raise SystemExit(f"{server}/{bucket}/{prefix}*: no shards found")
    return [f"{server}/{bucket}/{each.name}" for each in found], sum(each.samples or 0 for each in found)


def view_of(size: int) -> Any:
    """Make a function that turns an undecoded sample into a picture and its class."""

    def view(sample: dict[str, Any]) -> tuple[np.ndarray, int]:
        data = next(sample[name] for name in ("jpg", "jpeg", "png") if name in sample)
        return pictures.train_view(data, size, random.Random()), int(sample["cls"])

    return view


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://localhost:8080", help="any node of the cluster (default: %(default)s)")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--prefix", default="train-", help="prefix of the names of the shards (default: %(default)s)")
    parser.add_argument("--model", choices=sorted(resnet.MODELS), default="resnet50", help="(default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the pictures in pixels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=90, help="number of epochs (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per rank (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="reading and decoding processes per rank (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="for 256 samples per step (default: %(default)s)")
    arguments = parser.parse_args()

    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")):
        os.environ.setdefault(name, alone)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    urls, count = shards_of(arguments.server, arguments.bucket, arguments.prefix)
    steps = count // (dist.get_world_size() * arguments.batch_size)
    if steps == 0:
        raise SystemExit(f"{count} samples are fewer than one batch for each of {dist.get_world_size()} ranks")

    # Every worker of every rank draws its own shards, with replacement, so no rank runs out before the others.
    dataset = (
        webdataset.WebDataset(urls, resampled=True, shardshuffle=False, nodesplitter=None)
        .shuffle(2000)
        .map(view_of(arguments.size))
        .batched(arguments.batch_size, partial=False)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=arguments.workers).with_epoch(steps)

    model = DistributedDataParallel(resnet.MODELS[arguments.model](arguments.classes).to(device))
    rate = arguments.learning_rate * arguments.batch_size * dist.get_world_size() / 256
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-5)
    mean = torch.tensor(pictures.MEAN, device=device).reshape(1, 3, 1, 1)
    deviation = torch.tensor(pictures.DEVIATION, device=device).reshape(1, 3, 1, 1)
    for epoch in range(arguments.epochs):
        total = seen = 0.0
        for pixels, labels in loader:
            values = (pixels.to(device, non_blocking=True).float() - mean) / deviation
            loss = nn.functional.cross_entropy(model(values), labels.to(device, non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total, seen = total + loss.item() * len(labels), seen + len(labels)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {int(seen)} samples a rank, loss {total / seen:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
