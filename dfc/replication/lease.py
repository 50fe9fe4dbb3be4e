"""A target's lease: the right to commit, and to say that something does not exist, for a short time after each heartbeat.

The target counts from the sending of the heartbeat, the coordinator from its receipt, both on a clock that nobody can set and
that goes on while the machine sleeps. So a target knows that its lease is over before anybody else acts on it.
"""

from __future__ import annotations

from typing import Final

LEASE_SHARE: Final = 0.8  # of `down_after_s`: the rest is for clocks that run at different speeds


def lease_s(down_after_s: float) -> float:
    """How long a lease lasts."""
    return down_after_s * LEASE_SHARE


class TargetLease:
    """The lease in the hands of a target. All times are in seconds of its own boot clock."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def extend(self, sent_s: float, length_s: float) -> None:
        """A heartbeat that was sent at `sent_s` was answered with a lease. An answer that comes late extends nothing."""
        self._until_s = max(self._until_s, sent_s + length_s)

    def end(self) -> None:
        """Give it up at once, before leaving."""
        self._until_s = 0.0

    def is_held(self, now_s: float) -> bool:
        """Whether the target may act now."""
        return now_s < self._until_s

    def left_s(self, now_s: float) -> float:
        """Seconds until it ends."""
        return max(0.0, self._until_s - now_s)
