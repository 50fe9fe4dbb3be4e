"""Names of numbered shards: `train-%06d.tar`. Pure; no I/O."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"%(?:0(\d{1,2}))?d")  # not %20d: in a URL that is a space and a d


def has_number(text: str) -> bool:
    """Whether a name holds a number at all."""
    return _NUMBER.search(text) is not None


class ShardPattern:
    """A URL or path with one number in it: `%06d`, `%d`. ValueError for none or more."""

    def __init__(self, text: str) -> None:
        parts = _NUMBER.split(text)
        if len(parts) != 3:
            raise ValueError(f"the name of shards holds one number, like train-%06d.tar, not {text!r}")
        self._head, self._width, self._tail = parts[0], int(parts[1] or 1), parts[2]

    def text(self, number: int) -> str:
        """The name of one shard."""
        return f"{self._head}{number:0{self._width}d}{self._tail}"
