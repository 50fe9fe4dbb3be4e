"""How fast objects are moved, and how long it may take, from how many are left at times."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

WINDOW_S: Final = 60.0  # the speed is that of the last minute
LEAST_S: Final = 4.0  # after which there is a speed


class _Sample(NamedTuple):
    at_s: float
    owed: int


class MoveProgress:
    """What is left of one move, as it was told."""

    def __init__(self) -> None:
        self._to: int | None = None
        self._samples = deque[_Sample]()

    def note(self, now_s: float, to: int | None, owed: int | None) -> None:
        """Take what is left of the move to a layout; None if there is no move, or it is not known."""
        if to is None or owed is None or to != self._to:
            self._samples.clear()
            self._to = to
        if owed is not None and to is not None:
            self._samples.append(_Sample(now_s, owed))
        while len(self._samples) > 2 and self._samples[1].at_s <= now_s - WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float | None:
        """How many fewer objects and deletes are left each second; None while that is not known. New ones are noted while
        targets look for what has to be copied, and by uploads."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        if last.at_s - first.at_s < LEAST_S:
            return None
        return max(0.0, (first.owed - last.owed) / (last.at_s - first.at_s))

    @property
    def eta_s(self) -> float | None:
        """In how many seconds all may be copied, if it goes on like this."""
        per_s = self.per_s
        return self._samples[-1].owed / per_s if per_s else None
