"""Pictures as tensors of torch. Apart, so that nothing else imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import torch
except ImportError:
    raise ImportError("this form of pictures needs torch: pip install 'dfc[torch]'") from None


def to_tensor(pixels: NDArray[Any]) -> Any:
    """The same numbers with the channels first: (height, width, channels) becomes (channels, height, width)."""
    return torch.from_numpy(
        np.ascontiguousarray(pixels.transpose(2, 0, 1)) if pixels.ndim == 3 else np.ascontiguousarray(pixels)
    )
