"""Convert NumPy arrays to tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def as_tensors(value: Any) -> Any:
    """Convert arrays of numbers, also in dicts, lists and tuples, to tensors that share their memory."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return value
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    if isinstance(value, Mapping):
        return {name: as_tensors(field) for name, field in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(as_tensors(field) for field in value)
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [as_tensors(field) for field in value]
    return value
