"""A clock that is moved by hand."""

from __future__ import annotations


class Clock:
    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds
