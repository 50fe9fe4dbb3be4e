"""Which members make a sample. The one place for the rule, shared by the index, the reader and the tools that cut shards.

The key is the path up to the first dot of the base name, the extension the rest in lower case. Hidden base names, names of
the form `__meta__` and names without an extension belong to no sample; they do not separate the members around them.
"""

from __future__ import annotations

import re
from typing import Final

from dfc.limits import SAMPLE_RECORDS_MAX

_META_NAME: Final = re.compile(r"__[^/]*__(?:$|/)")


def split_key(name: str) -> tuple[str, str] | None:
    """`dir/a.b.JPG` → (`dir/a`, `b.jpg`), or None for a name that belongs to no sample.

    Same as `^((?:.*/|)[^.]+)[.]([^/]*)$` on names whose base name does not begin with a dot.
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot <= base or (name.startswith("__") and _META_NAME.match(name)):
        return None
    return name[:dot], name[dot + 1 :].lower()


class SampleGrouper:
    """Cuts a sequence of members into samples: neighbours with one key are one sample.

    An extension that is there already begins a new sample with the same key (WebDataset raises there): no member is lost,
    and the index counts the key as repeated. So does a sample that would span more than SAMPLE_RECORDS_MAX members.
    """

    __slots__ = ("_extensions", "_key", "_records")

    def __init__(self) -> None:
        self._key: str | None = None
        self._extensions: set[str] = set()
        self._records = 0

    def add(self, key: str, extension: str) -> bool:
        """Take the next member of a sample; True when it is the first of a new one."""
        self._records += 1
        if key == self._key and extension not in self._extensions and self._records <= SAMPLE_RECORDS_MAX:
            self._extensions.add(extension)
            return False
        self._key = key
        self._extensions = {extension}
        self._records = 1
        return True

    def skip(self) -> None:
        """Pass a member that belongs to no sample; it counts towards what one sample may span."""
        self._records += 1
