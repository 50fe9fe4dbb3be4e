"""Calls that a test changes: they fail, or something happens before or after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def raising(error: BaseException) -> Callable[..., Any]:
    """A call that fails."""

    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


def before(owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Let a method of an object that ends with the test begin with another call, which gets the same arguments."""
    real = getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        act(*given, **more)
        return real(*given, **more)

    setattr(owner, name, call)


def after(owner: Any, name: str, act: Callable[..., Any]) -> None:
    """The same at its end."""
    real = getattr(owner, name)

    def call(*given: Any, **more: Any) -> Any:
        found = real(*given, **more)
        act(*given, **more)
        return found

    setattr(owner, name, call)
