"""What all loaders share: what a sample is, what can go wrong with one, who decides about it, and the counts that tell.

InputError                what a loader raises about data; `url` names the shard
 ├─ ShardUnreadable       it cannot be opened, or broke off for good after all retries
 │   └─ ShardShort        it ends before the part that is to be read begins
 ├─ ShardBroken           it ends early, is no tar, or its compression is broken
 ├─ ShardChanged          it is another object than the one that was planned or begun
 └─ SampleBroken          a field is missing or cannot be decoded; `key` names the sample
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from dfc.errors import DfcError
from dfc.limits import INPUT_EXTENSIONS_SHOWN

LOG: Final = logging.getLogger("dfc.inputs")
# `__key__` and `__source__` (the URL of the shard), then a value for each extension: bytes, or what they were decoded to.
Sample = dict[str, Any]


class InputError(DfcError):
    """The root of what is wrong with data. `url` names the shard, `key` the sample; empty when not known."""

    code = "input_error"

    def __init__(self, message: str, *, url: str = "", key: str = "") -> None:
        super().__init__(message)
        self.url = url
        self.key = key


class ShardUnreadable(InputError):
    code = "shard_unreadable"


class ShardShort(ShardUnreadable):
    code = "shard_short"


class ShardBroken(InputError):
    code = "shard_broken"


class ShardChanged(InputError):
    code = "shard_changed"


class SampleBroken(InputError):
    code = "sample_broken"


class Wanted(frozenset[str]):
    """The extensions that are to be read of samples. `others`: some that were met beside them, for messages."""

    def __init__(self, _names: Iterable[str] = ()) -> None:
        self.others: set[str] = set()

    def leave_out(self, extension: str) -> None:
        """It was met, and is not wanted."""
        if len(self.others) < INPUT_EXTENSIONS_SHOWN:
            self.others.add(extension)

    def lacking(self, names: Iterable[str], sample: Sample) -> str:
        """What to say of a sample that has none of these fields."""
        found = ", ".join(repr(name) for name in sample if not name.startswith("_"))
        others = ", ".join(map(repr, sorted(self.others)))
        lacking = f"has no field {' or '.join(map(repr, names))}"
        return lacking + (f", only {found}" if found else "") + (f"; not asked for, but there: {others}" if others else "")


def telling_of_others(fields: Collection[str] | None) -> Callable[[str], None] | None:
    """What a parser calls with each extension that it meets beside the wanted ones, where somebody wants to know."""
    return fields.leave_out if isinstance(fields, Wanted) else None


class ShardRef(NamedTuple):
    """Where a shard can be had: a URL, and others that give the same bytes."""

    url: str
    replicas: tuple[str, ...] = ()


@dataclass
class Counts:
    """What a loader has read and what it has left out, readable at any time from any thread. Sizes are bytes."""

    shards: int = 0  # read to their end
    shards_cached: int = 0  # found in the local cache
    samples: int = 0  # handed out
    size: int = 0  # bytes received
    shards_skipped: int = 0  # not, or not to their end
    shards_unended: int = 0  # read to their end, without the blocks that mark the end of a tar
    samples_skipped: int = 0
    samples_replaced: int = 0  # handed out a second time in the place of a broken one
    samples_padded: int = 0  # handed out a second time so that all ranks have equally many batches
    keys_repeated: int = 0  # a repeated extension began a new sample with the same key
    retries: int = 0  # connections that broke, or were refused, and were tried again
    errors: list[str] = field(default_factory=list)  # the first ERRORS_KEPT of them

    def add(self, **amounts: int) -> None:
        """Add to counters by name."""
        with _LOCK:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def note(self, problem: BaseException) -> None:
        """Keep the text of an error, unless there are many already."""
        with _LOCK:
            if len(self.errors) < ERRORS_KEPT:
                self.errors.append(f"{type(problem).__name__}: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """All counters by name, for logs."""
        return {**vars(self), "errors": list(self.errors)}


ERRORS_KEPT: Final = 100
# One for all counts, so that a child can have a new one: a thread of the parent may have held it in the moment of the fork.
_LOCK = threading.Lock()


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
# True: go on without what failed; False: end quietly; or it raises. The form of WebDataset's handlers.
HandlerFunction = Callable[[Exception], bool]
Handler = Literal["raise", "warn", "skip"] | HandlerFunction


def resolve_handler(handler: Handler) -> HandlerFunction:
    """The function for a handler's name. ValueError for an unknown one."""
    if callable(handler):
        return handler
    if handler not in _HANDLERS:
        raise ValueError(f"a handler is 'raise', 'warn', 'skip' or a function, not {handler!r}")
    return _HANDLERS[handler]


def _raise(problem: Exception) -> bool:
    raise problem


def _warn(problem: Exception) -> bool:
    LOG.warning("%s: %s", type(problem).__name__, problem)
    return True


def _skip(_problem: Exception) -> bool:
    return True


_HANDLERS: Final[dict[str, HandlerFunction]] = {"raise": _raise, "warn": _warn, "skip": _skip}
