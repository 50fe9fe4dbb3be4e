"""Tensors in slots of `batchmemory`: packed by a worker, and made again of the same memory where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dfc.inputs.epochs.batchmemory import Use, Writer, address, stack

_PLACED = frozenset((torch.Tensor,))  # not of subclasses, which hold more than their memory


class Sending:
    """A `collate_fn` for torch's DataLoader: another one, and then tensors are replaced by references to slots."""

    def __init__(self, collate: Callable[[Any], Any], writer: Writer) -> None:
        self.collate, self.writer = collate, writer

    def __call__(self, batch: Any) -> Any:
        batch = self.collate(batch)
        try:
            return packed(batch, self.writer)
        finally:
            self.writer.done()


class Reference:
    """A tensor in a slot. Pickled, it becomes that tensor."""

    def __init__(self, use: Use, begin: int, like: Any) -> None:
        self._use = use
        self._arguments = (begin - use.start, like.dtype, tuple(like.shape), tuple(like.stride()))
        use.sent()

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor, (self._use, *self._arguments)


def packed(value: Any, writer: Writer) -> Any:
    """The same with a Reference for each tensor in dicts, lists and tuples, as far as there is room for them."""
    kind = type(value)
    if kind in _PLACED:
        return _placed(value, writer)
    if kind is dict:
        return {name: packed(field, writer) for name, field in value.items()}
    if kind is list:
        return [packed(field, writer) for field in value]
    if isinstance(value, tuple):
        fields = [packed(field, writer) for field in value]
        if kind is tuple:
            return tuple(fields)
        return kind(*fields) if hasattr(value, "_fields") else value
    return value


def _placed(tensor: Any, writer: Writer) -> Any:
    """Where it is, if that is the slot of the batch already; else it is copied there. Itself when that cannot be."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad or not tensor.numel():
        return tensor
    tensor = tensor.resolve_conj().resolve_neg()  # torch would send conjugated ones as what they were before
    begin, use, extent = tensor.data_ptr(), writer.use, _extent(tensor.shape, tensor.stride())
    if use is not None and use.has(begin, extent * tensor.itemsize):
        return Reference(use, begin, tensor)
    if extent > tensor.numel():  # a part of something larger, which torch knows how to send
        return tensor
    room = writer.place((extent * tensor.itemsize,), np.dtype(np.uint8))
    if room is None or writer.use is None:
        return tensor
    torch.from_numpy(room).copy_(tensor.as_strided((extent,), (1,)).view(torch.uint8))
    return Reference(writer.use, address(room), tensor)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from its first to its last one."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def _tensor(root: Any, offset: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    # Its storage holds the root, and is no larger than it is: torch.save writes the whole of a storage.
    flat = torch.frombuffer(root, dtype=dtype, count=_extent(shape, strides), offset=offset)
    return flat.as_strided(shape, strides)


def stack_tensors(tensors: Sequence[Any]) -> Any:
    """`torch.stack` in the slot of the batch, for those that NumPy has a type for."""
    try:
        arrays = [tensor.numpy() for tensor in tensors]
    except (TypeError, RuntimeError):  # bfloat16; those that have a gradient, are conjugated, are elsewhere
        return torch.stack(list(tensors))
    if any(array.dtype != arrays[0].dtype for array in arrays):  # torch has rules of its own for that
        return torch.stack(list(tensors))
    return torch.from_numpy(stack(arrays))
