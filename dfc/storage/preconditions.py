"""Conditions of writes, such as `If-Match`, which are checked inside the catalog's transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dfc.errors import PreconditionFailed, Unavailable
from dfc.storage.rows import ALONE, Standing


class OtherCondition(Unavailable):
    """What a guard raises if the write may be made under another condition: a finished upload can be committed again."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """A condition that must hold inside the transaction. Tags are a checksum in hex, or "*" for any object.

    `guard` also runs inside the transaction; anything it raises refuses the operation and is raised to the caller. It says how
    the row is recorded; None: as one without copies. It must not touch the disk.
    """

    if_match: str | None = None
    if_none_match: str | None = None
    guard: Callable[[], Standing | None] | None = None

    @property
    def names_an_object(self) -> bool:
        return self.if_match is not None or self.if_none_match is not None

    def check_guard(self) -> Standing:
        """Run the guard, and return how the row is to be recorded. Raises what the guard raises."""
        return (self.guard() if self.guard is not None else None) or ALONE

    def check(self, checksum: str | None) -> Standing:
        """Check against the current object (None: there is none), and return how the new row is to be recorded.

        Raises PreconditionFailed, or what the guard raises.
        """
        standing = ALONE if self.guard is None else self.check_guard()
        if self.if_match is not None and (checksum is None or self.if_match not in ("*", checksum)):
            raise PreconditionFailed("If-Match: the object has changed" if checksum else "If-Match: the object does not exist")
        if self.if_none_match is not None and checksum is not None and self.if_none_match in ("*", checksum):
            raise PreconditionFailed("If-None-Match: the object already exists")
        return standing


ALWAYS: Final = Precondition()
