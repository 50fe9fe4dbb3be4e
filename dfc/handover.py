"""Hand-overs between threads, and bodies that are sent in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from queue import SimpleQueue
from typing import Generic, TypeVar

from dfc.checksum import Buffer

R = TypeVar("R")
T = TypeVar("T")


class HandOver(Generic[R, T]):
    """A bounded queue between a producer and a consumer (maker and taker), which pass a fixed set of rooms (buffers) around.

    The maker waits for a free room, fills it and gives the item; the taker gives the room back when it is done. So no more
    items are ready or in use than there are rooms.

    Neither side holds a lock while it waits, so a thread may be stopped anywhere, for example when the interpreter exits.
    Neither side knows the other: `close` ends a maker whose taker is gone.
    """

    def __init__(self, rooms: Iterable[R]) -> None:
        self._free: SimpleQueue[R | None] = SimpleQueue()
        self._ready: SimpleQueue[T | None] = SimpleQueue()
        for room in rooms:
            self._free.put(room)

    def room(self) -> R | None:
        """For the maker: wait for a free room. After `close`, always None once the free ones are used up."""
        room = self._free.get()
        if room is None:
            self._free.put(None)
        return room

    def give(self, item: T) -> None:
        """For the maker: hand over an item. Never waits."""
        self._ready.put(item)

    def take(self) -> T | None:
        """For the taker: wait for the next item. None after `end`, once."""
        return self._ready.get()

    def take_ready(self) -> T | None:
        """`take` without waiting; raises queue.Empty."""
        return self._ready.get_nowait()

    def give_back(self, room: R) -> None:
        """Free a room for reuse; from either side."""
        self._free.put(room)

    @property
    def is_empty(self) -> bool:
        """Whether all items that were given have been taken."""
        return self._ready.empty()

    def close(self) -> None:
        """Tell the maker to stop, even if it is waiting; from any thread."""
        self._free.put(None)

    def end(self) -> None:
        """Tell the taker that nothing more comes, even if it is waiting; from any thread."""
        self._ready.put(None)


# --- A body to be sent that alternates between bytes from memory and ranges of files.

Part = tuple[Buffer, int, int, int]
"""Bytes from memory, then a range of a file: its descriptor, offset and count."""


def part_bytes(parts: Iterable[Part]) -> int:
    """Return the total number of bytes."""
    return sum(len(data) + count for data, _, _, count in parts)
