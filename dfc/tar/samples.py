"""The rule for which members form a sample, shared by the index, the readers and the tools that cut shards.

The key is the path up to the first dot of the base name, the extension is the rest in lower case. Hidden base names, names of
the form `__meta__` and names without an extension belong to no sample; they do not separate the members around them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dfc.limits import SAMPLE_RECORDS_MAX
from dfc.tar.header import FILE

NO_KEY: Final = 0xFFFF  # for a member of no sample; names are shorter
_META_NAME: Final = re.compile(r"__[^/]*__(?:$|/)")
_META_NAME_BYTES: Final = re.compile(_META_NAME.pattern.encode())


def split_key(name: str) -> tuple[str, str] | None:
    """`dir/a.b.JPG` → (`dir/a`, `b.jpg`), or None for a name that belongs to no sample.

    Same as `^((?:.*/|)[^.]+)[.]([^/]*)$` on names whose base name does not begin with a dot.
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base or (name[:2] == "__" and _META_NAME.match(name)):
        return None
    return name[:dot], name[dot + 1 :].lower()


def key_bytes(name: bytes | bytearray) -> int:
    """Like `split_key`, for a name as stored: the number of bytes of the key, which a dot follows; -1 if in no sample."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    return -1 if dot <= base or (name[:2] == b"__" and _META_NAME_BYTES.match(name)) else dot


class SampleGrouper:
    """Cuts a sequence of members into samples: adjacent members with the same key are one sample.

    A repeated extension begins a new sample with the same key (WebDataset raises there): no member is lost,
    and the index counts the key as repeated. So does a sample that would span more than SAMPLE_RECORDS_MAX members.
    """

    __slots__ = ("_extensions", "_key", "_records")

    def __init__(self) -> None:
        self._key: str | None = None
        self._extensions: set[str] = set()
        self._records = 0  # members since the first of the current sample, including it

    @property
    def key(self) -> str | None:
        """The key of the current sample."""
        return self._key

    def go_on(self, key: str, extensions: set[str], records: int) -> None:
        """Continue after members were grouped elsewhere: the last sample has these extensions, and `records` members so far."""
        self._key, self._extensions, self._records = key, extensions, records

    def starts_sample(self, name: str) -> bool:
        """Take the next file of an archive; True if it is the first of a new sample."""
        return bool(self.cut((name,), (FILE,))[1])

    def cut(self, names: Sequence[str], types: Sequence[int]) -> tuple[list[int], list[int]]:
        """Take the next members; returns how many characters of each name are its key (or NO_KEY), and which of them, from 0,
        begin a new sample."""
        chars: list[int] = []
        starts: list[int] = []
        key, extensions = self._key, self._extensions
        first = -self._records
        index = -1
        for index, name in enumerate(names):
            start, _, extension = name.partition(".")
            if "/" in extension or start[-1:] in ("", "/") or len(start) == len(name) or name[:2] == "__" or types[index]:
                # Not a file, or a name whose first dot may not end the key: the full rule, which takes twice the time.
                parts = None if types[index] else split_key(name)
                if parts is None:
                    chars.append(NO_KEY)
                    continue
                start, extension = parts
            chars.append(len(start))
            extension = extension.lower()
            if start == key and extension not in extensions and index - first < SAMPLE_RECORDS_MAX:
                extensions.add(extension)
            else:
                key = start
                extensions = {extension}
                first = index
                starts.append(index)
        self._key, self._extensions = key, extensions
        self._records = index + 1 - first
        return chars, starts
