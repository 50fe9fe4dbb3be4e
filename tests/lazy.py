"""Modules that take seconds and hundreds of megabytes: imported by the first test that uses one, not by all who collect it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module: `tf = Lazy("tensorflow")`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks everything in a module whether it is a test
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
