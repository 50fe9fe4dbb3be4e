"""What all loaders share: the type of a sample, the errors, the error handlers and the counters.

InputError                any error about data; `url` names the shard
 ├─ ShardUnreadable       the shard cannot be opened, or reading failed after all retries
 │   └─ ShardShort        the shard ends before the requested part begins
 ├─ ShardBroken           the shard is truncated, not a tar, or its compression is corrupt
 ├─ ShardChanged          the shard was replaced since it was looked up or opened
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
# `__key__` and `__source__` (the URL of the shard), then a value for each extension: the bytes, or the decoded value.
Sample = dict[str, Any]


class InputError(DfcError):
    """The base class of errors about data. `url` names the shard and `key` the sample; empty if unknown."""

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
    """The extensions to read. `others` collects some that were found but not wanted, for error messages."""

    def __init__(self, _names: Iterable[str] = ()) -> None:
        self.others: set[str] = set()

    def leave_out(self, extension: str) -> None:
        """Note an extension that was found but is not wanted."""
        if len(self.others) < INPUT_EXTENSIONS_SHOWN:
            self.others.add(extension)

    def lacking(self, names: Iterable[str], sample: Sample) -> str:
        """The error text for a sample that has none of these fields."""
        found = ", ".join(repr(name) for name in sample if not name.startswith("_"))
        others = ", ".join(map(repr, sorted(self.others)))
        lacking = f"has no field {' or '.join(map(repr, names))}"
        return lacking + (f", only {found}" if found else "") + (f"; present but not requested: {others}" if others else "")


def telling_of_others(fields: Collection[str] | None) -> Callable[[str], None] | None:
    """The callback for extensions that a parser finds but was not asked for; None if `fields` does not collect them."""
    return fields.leave_out if isinstance(fields, Wanted) else None


class ShardRef(NamedTuple):
    """The location of a shard: a URL, and the URLs of replicas with the same bytes."""

    url: str
    replicas: tuple[str, ...] = ()


@dataclass
class Counts:
    """Counters of what a loader has read and skipped. May be read at any time from any thread. Sizes are in bytes."""

    shards: int = 0  # read to their end
    shards_cached: int = 0  # found in the local cache
    samples: int = 0  # handed out
    size: int = 0  # bytes received
    shards_skipped: int = 0  # not read, or not to their end
    shards_unended: int = 0  # read to their end, but without the blocks that mark the end of a tar
    samples_skipped: int = 0
    samples_replaced: int = 0  # handed out a second time in place of a broken one
    samples_padded: int = 0  # handed out a second time so that all ranks have the same number of batches
    keys_repeated: int = 0  # a repeated extension began a new sample with the same key
    retries: int = 0  # connections that broke or were refused, and were retried
    errors: list[str] = field(default_factory=list)  # the first ERRORS_KEPT of them

    def add(self, **amounts: int) -> None:
        """Add to counters by name."""
        with _LOCK:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def note(self, problem: BaseException) -> None:
        """Keep the text of an error, up to ERRORS_KEPT of them."""
        with _LOCK:
            if len(self.errors) < ERRORS_KEPT:
                self.errors.append(f"{type(problem).__name__}: {problem}")

    def as_dict(self) -> dict[str, Any]:
        """All counters by name, for logging."""
        return {**vars(self), "errors": list(self.errors)}


ERRORS_KEPT: Final = 100
# One lock for all counts, so that a forked child can replace it: a thread of the parent may hold it during the fork.
_LOCK = threading.Lock()


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
# Returns True to skip what failed, False to stop quietly, or raises. The same interface as WebDataset's handlers.
HandlerFunction = Callable[[Exception], bool]
Handler = Literal["raise", "warn", "skip"] | HandlerFunction


def resolve_handler(handler: Handler) -> HandlerFunction:
    """The function for a handler's name. ValueError for an unknown name."""
    if callable(handler):
        return handler
    if handler not in _HANDLERS:
        raise ValueError(f"handler must be 'raise', 'warn', 'skip' or a function, not {handler!r}")
    return _HANDLERS[handler]


def _raise(problem: Exception) -> bool:
    raise problem


def _warn(problem: Exception) -> bool:
    LOG.warning("%s: %s", type(problem).__name__, problem)
    return True


def _skip(_problem: Exception) -> bool:
    return True


_HANDLERS: Final[dict[str, HandlerFunction]] = {"raise": _raise, "warn": _warn, "skip": _skip}
