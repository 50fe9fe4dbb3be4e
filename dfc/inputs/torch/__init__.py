"""PyTorch: an `IterableDataset` of shards whose workers make whole batches, and a resumable `DataLoader`.

dataset = ShardDataset("http://nvdata/imagenet-@000147.tar", 256, decode="torchrgb8", fields=["jpg;png", "cls"])
for batch in DataLoader(dataset, num_workers=4): train(batch["jpg"], batch["cls"])
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as problem:
    raise ImportError("dfc.inputs.torch needs PyTorch: pip install torch") from problem

from dfc.inputs.torch.dataloader import DataLoader
from dfc.inputs.torch.dataset import ShardDataset, as_tensors

__all__ = ["DataLoader", "ShardDataset", "as_tensors"]
