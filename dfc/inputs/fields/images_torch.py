"""Convert pictures to torch tensors. A separate module, so that nothing else imports torch."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

try:
    import torch
except ImportError:
    raise ImportError("this form of pictures needs torch: pip install torch") from None

from dfc.inputs.epochs.batchmemory import empty


def to_tensor(pixels: NDArray[Any]) -> Any:
    """Move the channels first: (height, width, channels) becomes (channels, height, width)."""
    turned = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    found = empty(turned.shape, pixels.dtype)
    found[...] = turned
    return torch.from_numpy(found)
