"""What one thread makes ready for another, a bounded amount ahead: the rooms for it go round between the two."""

from __future__ import annotations

from collections.abc import Iterable
from queue import SimpleQueue
from typing import Generic, TypeVar

R = TypeVar("R")
T = TypeVar("T")


class HandOver(Generic[R, T]):
    """A maker waits for a free room (a buffer, as a rule), puts something into it and gives it; a taker gives the room back
    when it is done with it. So no more is ready or in use than there are rooms.

    Nobody holds a lock while waiting, so that a thread may be stopped anywhere, by the end of the interpreter for one. Neither
    side knows the other: a maker whose taker was forgotten ends with `close`.
    """

    def __init__(self, rooms: Iterable[R]) -> None:
        self._free: SimpleQueue[R | None] = SimpleQueue()
        self._ready: SimpleQueue[T | None] = SimpleQueue()
        for room in rooms:
            self._free.put(room)

    def room(self) -> R | None:
        """For the maker: wait for a free room. After `close`, None once those that are free are used up, again and again."""
        room = self._free.get()
        if room is None:
            self._free.put(None)
        return room

    def give(self, item: T) -> None:
        """For the maker: something is ready. Waits for nothing."""
        self._ready.put(item)

    def take(self) -> T | None:
        """For the taker: wait for the next. None after `end`, once."""
        return self._ready.get()

    def take_ready(self) -> T | None:
        """The same without waiting; raises queue.Empty."""
        return self._ready.get_nowait()

    def give_back(self, room: R) -> None:
        """The room is free again; from either side."""
        self._free.put(room)

    @property
    def is_empty(self) -> bool:
        """Whether all that was given has been taken."""
        return self._ready.empty()

    def close(self) -> None:
        """Let the maker end, wherever it waits; from any thread."""
        self._free.put(None)

    def end(self) -> None:
        """Nothing more comes: let the taker end, wherever it waits; from any thread."""
        self._ready.put(None)
