"""The hybrid logical clock, which makes object versions that are ordered across the whole cluster.

A version is 18 lower-case hexadecimal digits: 14 for the microseconds since 1970, then 4 for the node's number in the registry.
Versions compare as strings. The microseconds follow the wall clock but never repeat or go back; versions seen from other nodes
push the clock forward.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

VERSION_CHARS: Final = 18
VERSION_AHEAD_US_MAX: Final = 3_600_000_000  # a clock that is further ahead would drag all others along
_VERSION: Final = re.compile(rf"[0-9a-f]{{{VERSION_CHARS}}}")
NODE_NUMBER_MAX: Final = 0xFFFF


def _wall_us() -> int:
    return time.time_ns() // 1000


class HybridClock:
    """Thread-safe source of versions for one node; `wall_us` gives µs since 1970 and is replaced in tests."""

    def __init__(self, node_number: int, wall_us: Callable[[], int] = _wall_us) -> None:
        if not 0 <= node_number <= NODE_NUMBER_MAX:
            raise ValueError(f"a node number must be between 0 and {NODE_NUMBER_MAX}, not {node_number}")
        self._suffix = f"{node_number:04x}"
        self._wall_us = wall_us
        self._last_us = 0
        self._lock = threading.Lock()

    def next_version(self) -> str:
        """Return a version later than all returned or observed before."""
        with self._lock:
            self._last_us = max(self._last_us + 1, self._wall_us())
            return f"{self._last_us:014x}{self._suffix}"

    def observe(self, version: str) -> None:
        """Make all later versions greater than this one, whichever node made it."""
        with self._lock:
            self._last_us = max(self._last_us, version_us(version))

    def observe_foreign(self, version: str) -> None:
        """`observe` a version from outside; ValueError when it is malformed or too far in the future."""
        if not _VERSION.fullmatch(version):
            raise ValueError(f"not a version: {version[:80]!r}")
        if version_us(version) > self._wall_us() + VERSION_AHEAD_US_MAX:
            raise ValueError(f"version {version} is more than an hour ahead of this node's clock")
        self.observe(version)


def version_us(version: str) -> int:
    """Return the microseconds since 1970 in a version; ValueError when it is not a version."""
    if len(version) != VERSION_CHARS:
        raise ValueError(f"not a version: {version!r}")
    return int(version[:14], 16)
