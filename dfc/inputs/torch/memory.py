"""Tensors: made of pictures, and sent from workers through shared memory (`dfc.inputs.epochs.memory`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dfc.inputs.epochs.memory import Use, Writer, address, empty, stack

_PLACED = frozenset((torch.Tensor,))  # without subclasses, which hold more than their memory


class Sending:
    """A `collate_fn` for torch's DataLoader: calls another one, then replaces tensors by references to slots."""

    def __init__(self, collate: Callable[[Any], Any], writer: Writer) -> None:
        self.collate, self.writer = collate, writer

    def __call__(self, batch: Any) -> Any:
        batch = self.collate(batch)
        try:
            return packed(batch, self.writer)
        finally:
            self.writer.done()


class Reference:
    """A reference to a tensor in a slot. Unpickling it gives that tensor."""

    def __init__(self, use: Use, begin: int, like: Any) -> None:
        self._use = use
        self._arguments = (begin - use.start, like.dtype, tuple(like.shape), tuple(like.stride()))
        use.sent()

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensor, (self._use, *self._arguments)


def packed(value: Any, writer: Writer) -> Any:
    """Replace tensors in dicts, lists and tuples by References, as far as there is room in the slot."""
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
    """A Reference to a tensor, copied into the slot of the batch if it is not there yet; the tensor itself if impossible."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad or not tensor.numel():
        return tensor
    tensor = tensor.resolve_conj().resolve_neg()  # torch would send the unconjugated values
    begin, use, extent = tensor.data_ptr(), writer.use, _extent(tensor.shape, tensor.stride())
    if use is not None and use.has(begin, extent * tensor.itemsize):
        return Reference(use, begin, tensor)
    if extent > tensor.numel():  # a view of a larger tensor, which torch knows how to send
        return tensor
    room = writer.place((extent * tensor.itemsize,), np.dtype(np.uint8))
    if room is None or writer.use is None:
        return tensor
    torch.from_numpy(room).copy_(tensor.as_strided((extent,), (1,)).view(torch.uint8))
    return Reference(writer.use, address(room), tensor)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The number of elements from the first to the last one in memory."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def _tensor(root: Any, offset: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    # The storage keeps the root alive, and is no larger than the tensor: torch.save writes the whole storage.
    flat = torch.frombuffer(root, dtype=dtype, count=_extent(shape, strides), offset=offset)
    return flat.as_strided(shape, strides)


def stack_tensors(tensors: Sequence[Any]) -> Any:
    """`torch.stack` into the slot of the batch, for tensors whose type NumPy has."""
    try:
        arrays = [tensor.numpy() for tensor in tensors]
    except (TypeError, RuntimeError):  # bfloat16; tensors with a gradient, conjugated, or on another device
        return torch.stack(list(tensors))
    if any(array.dtype != arrays[0].dtype for array in arrays):  # torch has its own promotion rules
        return torch.stack(list(tensors))
    return torch.from_numpy(stack(arrays))


# --- Pictures as torch tensors.


def to_tensor(pixels: NDArray[Any]) -> Any:
    """Move the channels first: (height, width, channels) becomes (channels, height, width)."""
    turned = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
    found = empty(turned.shape, pixels.dtype)
    found[...] = turned
    return torch.from_numpy(found)
