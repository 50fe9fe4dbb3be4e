#!/usr/bin/env python
"""Train a ResNet with NVIDIA DALI as the decoder: DFC reads and shuffles, DALI decodes, crops and normalises,
on the GPU if there is one.

    pip install nvidia-dali-cuda120
    torchrun --nproc-per-node 8 dali_imagenet.py --train 'http://localhost:8080/imagenet/train-*.tar'

The loader gives undecoded samples, in the order and evenly divided between ranks as in pytorch_imagenet.py.
`fn.external_source` takes them a batch at a time. Without a GPU everything runs on CPUs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

import numpy as np
import pictures
import resnet
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dfc.inputs.numpy import Loader

try:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
except ImportError:
    raise SystemExit("this program needs NVIDIA DALI, which works without a GPU too: pip install nvidia-dali-cuda120") from None

PICTURES = ("jpg", "jpeg", "png")


class Batches:
    """The input of `external_source`: for each batch, a list of encoded pictures and a list of classes."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        for batch in self.loader:  # the next epoch, each time
            encoded = next(batch[name] for name in PICTURES if name in batch)
            classes = [np.array([int(text)], np.int64) for text in batch["cls"]]
            yield [np.frombuffer(data, np.uint8) for data in encoded], classes


@pipeline_def
def training(batches: Batches, size: int, device: str):
    """Encoded pictures → float32 of shape (batch, 3, size, size), a random part of each, flipped or not; and the classes."""
    encoded, classes = fn.external_source(batches, num_outputs=2, cycle="raise", dtype=[types.UINT8, types.INT64], ndim=[1, 1])
    images = fn.decoders.image_random_crop(
        encoded, device="mixed" if device == "gpu" else "cpu", output_type=types.RGB, random_area=[0.08, 1.0]
    )
    images = fn.resize(images, size=[size, size], interp_type=types.INTERP_TRIANGULAR)
    values = fn.crop_mirror_normalize(
        images, output_layout="CHW", mean=pictures.MEAN, std=pictures.DEVIATION, mirror=fn.random.coin_flip()
    )
    return values, classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="the shards: http://HOST/BUCKET/train-*.tar")
    parser.add_argument("--model", choices=sorted(resnet.MODELS), default="resnet50", help="(default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="side of the pictures in pixels (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=90, help="number of epochs (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples per rank (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=4, help="decoding threads per rank (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="for 256 samples per step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order and the crops (default: %(default)s)")
    arguments = parser.parse_args()

    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")):
        os.environ.setdefault(name, alone)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    loader = Loader(arguments.train, arguments.batch_size, seed=arguments.seed, decode=False, rank=rank, ranks=ranks)
    pipeline = training(
        Batches(loader),
        arguments.size,
        "gpu" if cuda else "cpu",
        batch_size=arguments.batch_size,
        num_threads=arguments.threads,
        device_id=local if cuda else None,
        seed=arguments.seed + rank,
    )
    batches = DALIGenericIterator([pipeline], ["picture", "class"], auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL)

    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(resnet.MODELS[arguments.model](arguments.classes).to(device))
    rate = arguments.learning_rate * arguments.batch_size * ranks / 256
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-5)
    for epoch in range(arguments.epochs):
        total = seen = 0.0
        for (batch,) in batches:
            values, labels = batch["picture"].to(device), batch["class"].to(device).flatten()
            loss = nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total, seen = total + loss.item() * len(labels), seen + len(labels)
        if rank == 0:
            print(f"epoch {epoch}: {int(seen)} samples a rank, loss {total / seen:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
