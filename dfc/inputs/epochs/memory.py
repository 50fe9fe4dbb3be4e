"""Reusable shared memory, into which workers write batches and from which the training process reads them.

New memory costs a page fault for every 4 kB, which takes longer than copying it. So a worker has a few slots, memory files that
both processes map. It decodes and stacks into a free slot (`Writer`) and sends a reference instead of the arrays, and the
receiver makes arrays on the same memory (`Reader`). A slot is free again when no array on it is alive in either process: all
arrays are views of one root array, whose finalizer sets a byte in the slot. If no slot is free, nobody waits: `empty` returns
ordinary memory, whose arrays are sent as usual.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count, pairwise
from math import prod
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dfc.limits import LOADER_SLOT_BYTES, LOADER_SLOT_BYTES_MAX

P = ParamSpec("P")
R = TypeVar("R")
Bytes = NDArray[np.uint8]
AVAILABLE: Final = hasattr(os, "memfd_create")  # on Linux
_HEADER_BYTES: Final = 64
# Bytes of the header: whether any process has arrays on the slot; whether the receiver has; and whether the receiver was forked
# while it had. The child may then use them as long as it lives, so the slot is never written again.
_BUSY, _RECEIVED, _RETIRED = range(3)
_ALIGN: Final = 64  # bytes: a cache line, and the largest alignment that any instruction needs


class _Slot:
    """An unnamed file in memory. It vanishes with the last process that maps it, however that ends."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.fd = number, size, -1
        self.fd = os.memfd_create("dfc-batch", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.memory = mmap.mmap(self.fd, size)
        self.root: weakref.ref[Bytes] | None = None  # the root array in this process, while it is alive

    @property
    def free(self) -> bool:
        return not self.memory[_BUSY] and (self.root is None or self.root() is None)

    @property
    def retired(self) -> bool:
        return bool(self.memory[_RETIRED])

    def close_file(self) -> None:
        """Close the file descriptor; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close_file()


class Use:
    """One batch in a slot. Unpickling it gives the root array of the receiving process."""

    def __init__(self, slot: _Slot, token: int) -> None:
        slot.memory[_BUSY] = 1
        self._slot, self._token = slot, token
        self.root = np.frombuffer(slot.memory, np.uint8)
        slot.root = weakref.ref(self.root)
        self._finalizer = weakref.finalize(self.root, _set_free, slot.memory, os.getpid())
        self._finalizer.atexit = False
        self.start = address(self.root)
        self.end = self.start + slot.size
        self._at = _HEADER_BYTES
        self._last: tuple[Any, ...] = ()

    def place(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Allocate an array, directly after the last one if that has the same shape and type. None if there is no room."""
        kind = (tuple(shape), dtype)
        at = self._at if kind == self._last else self._at + -self._at % _ALIGN
        end = at + prod(shape) * dtype.itemsize
        if end > self._slot.size:
            return None
        self._at, self._last = end, kind
        return np.ndarray(shape, dtype, self.root, at)

    def view(self, begin: int, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array on the memory at an address."""
        return np.ndarray(shape, dtype, self.root, begin - self.start)

    def has(self, begin: int, size: int) -> bool:
        return self.start + _HEADER_BYTES <= begin and begin + size <= self.end

    def sent(self) -> None:
        """Let the receiver, from now on, decide when the slot is free."""
        self._finalizer.detach()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        slot = self._slot
        handle = DupFd(slot.fd) if slot.fd >= 0 else None  # only sent once, since the receiver then has it mapped
        slot.close_file()
        return _receive, (self._token, os.getpid(), slot.number, slot.size, handle)


class Writer:
    """The slots of one worker, at most `slots_max`. Made in the receiving process, but used only in the worker."""

    def __init__(self, slots_max: int) -> None:
        self.slots_max = slots_max
        self.token = 0  # of the Reader
        self._slots: list[_Slot] = []
        self._size = LOADER_SLOT_BYTES
        self._wanted = 0
        self.use: Use | None = None
        self._open = False  # whether a batch is being made or packed, and may get a slot

    def __getstate__(self) -> dict[str, Any]:
        return {"slots_max": self.slots_max, "token": self.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["slots_max"])  # type: ignore[misc]
        self.token = state["token"]

    @contextmanager
    def making(self) -> Iterator[None]:
        """A context in which a batch is made: `empty` allocates in a slot, if one is free."""
        self.use, self._open, self._wanted = None, True, 0
        token = _writing.set(self)
        try:
            yield
        finally:
            _writing.reset(token)

    def done(self) -> None:
        """Finish a packed batch. Its slot now belongs to its arrays alone."""
        self.use, self._open = None, False

    def place(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Allocate an array for the current batch. None if there is no room."""
        size = prod(shape) * dtype.itemsize
        self._wanted += size + _ALIGN
        if self.use is None and self._open:
            self.use = self._claim()
            self._open = self.use is not None
        if self.use is None or dtype.hasobject:
            return None
        found = self.use.place(shape, dtype)
        if found is None:  # make the next slots twice as large: unwritten pages take no memory
            self._size = max(self._size, min(2 * self._wanted, LOADER_SLOT_BYTES_MAX))
        return found

    def _claim(self) -> Use | None:
        """Claim the first free slot, so that no more slots than needed take memory."""
        number = next((number for number, slot in enumerate(self._slots) if slot.free), len(self._slots))
        if number == self.slots_max:
            return None
        try:
            if number == len(self._slots):
                self._slots.append(_Slot(number, self._size))
            elif self._slots[number].retired or self._slots[number].size < self._size:
                self._slots[number] = _Slot(number, self._size)
        except OSError:  # too many open files: do without a slot
            return None
        return Use(self._slots[number], self.token)


_writing: ContextVar[Writer | None] = ContextVar("dfc-batch-memory", default=None)


def writing() -> Writer | None:
    """The writer of the batch being made in this context, if any."""
    return _writing.get()


def empty(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Allocate an array for a part of a batch, in its slot if there is one."""
    writer = _writing.get()
    found = None if writer is None else writer.place(shape, np.dtype(dtype))
    return np.empty(shape, dtype) if found is None else found


def outside(function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    """Call a function with `empty` in ordinary memory, for arrays that do not become part of the batch."""
    token = _writing.set(None)
    try:
        return function(*arguments, **options)
    finally:
        _writing.reset(token)


def stack(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """`np.stack` into the slot of the batch. Arrays that are already adjacent there are not copied."""
    writer = _writing.get()
    if writer is None:
        return np.stack(arrays)
    first = arrays[0]
    shape = (len(arrays), *first.shape)
    use = writer.use
    if use is not None and use.has(begin := address(first), first.nbytes):
        addresses = [begin, *map(address, arrays[1:])]
        if all(after - before == first.nbytes for before, after in pairwise(addresses)) and all(
            array.flags.c_contiguous and array.dtype == first.dtype for array in arrays
        ):
            return use.view(begin, shape, first.dtype)
    return np.stack(arrays, out=empty(shape, np.result_type(*arrays)))


def address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


# The receiving process.


class Reader:
    """The slots of all workers of one iteration, in the receiving process. Arrays keep their slots alive without it."""

    def __init__(self) -> None:
        self.token = next(_tokens)
        self.memories: dict[tuple[int, int], mmap.mmap] = {}  # by process and number of the slot
        _readers[self.token] = self


_tokens: Final = count(1)
_readers: Final[weakref.WeakValueDictionary[int, Reader]] = weakref.WeakValueDictionary()


def _receive(token: int, pid: int, number: int, size: int, handle: Any) -> Bytes:
    """The root array of a batch; see `Use.__reduce__`."""
    reader, key = _readers.get(token), (pid, number)
    if handle is not None:
        fd = handle.detach()
        try:
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        if reader is not None:
            reader.memories[key] = memory
    elif reader is not None:
        memory = reader.memories[key]
    else:
        raise RuntimeError("a batch arrived after its iteration had ended")
    memory[_RECEIVED] = 1
    root = np.frombuffer(memory, np.uint8)
    weakref.finalize(root, _set_free, memory, os.getpid()).atexit = False
    return root


def _set_free(memory: mmap.mmap, pid: int) -> None:
    if os.getpid() == pid:  # otherwise this is a copy in a forked process
        memory[_RECEIVED] = 0
        memory[_BUSY] = 0


def _before_fork() -> None:
    for reader in list(_readers.values()):
        for memory in list(reader.memories.values()):
            if memory[_RECEIVED]:
                memory[_RETIRED] = 1


os.register_at_fork(before=_before_fork)
