"""The base class of upload destinations: each stores a complete *spool* (a temporary file), whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import BinaryIO, Final, cast

from dfc.errors import DfcError
from dfc.http.calls.problems import is_worth_retrying, retry_after_s
from dfc.http.calls.retry import Cancellation, current_cancellation
from dfc.inputs.base import LOG
from dfc.inputs.sources.cluster import is_in_vain
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.sources.urls import shown
from dfc.inputs.sources.websource import said

_TRIES_SILENT: Final = 3  # failed tries before a warning, since the URL may be mistyped
_NEVER: Final = Cancellation()


class Destination(ABC):
    """The destination of one upload, at `url`."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        self.url = url
        self.options = options

    def open_spool(self, directory: str | None) -> BinaryIO:
        """Open an empty, unnamed file to fill, in the directory (None: TMPDIR).

        It is unbuffered, because a forked child would write the buffered bytes a second time when it exits.
        """
        return cast(BinaryIO, tempfile.TemporaryFile(buffering=0, dir=directory, prefix="dfc-"))

    @abstractmethod
    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        """Store all bytes of the spool. `exclusive`: FileExistsError if the destination exists. DfcError, OSError."""

    def discard(self, spool: BinaryIO) -> None:
        """Free the spool, stored or not. Idempotent."""
        with contextlib.suppress(OSError):  # buffered bytes may not fit on the disk, but are no longer needed
            spool.close()

    def exists(self) -> bool:
        """Whether something is stored there, as far as the destination can tell."""
        return False


def persistently(attempt: Callable[[], None], destination: Destination) -> None:
    """Call `attempt` until it succeeds, retrying after network errors and when servers are busy."""
    url, options = destination.url, destination.options
    cancellation = current_cancellation(_NEVER)
    for number in count():
        cancellation.check()
        try:
            attempt()
            return
        except (DfcError, ConnectionError, TimeoutError) as problem:
            cancellation.check()
            if number >= options.retries:
                raise
            delay_s = options.policy.delay_s(number, None)
            if isinstance(problem, DfcError):
                if not is_worth_retrying(problem) or is_in_vain(problem, url, options):
                    raise
                delay_s = options.policy.delay_s(number, retry_after_s(problem))
            if number + 1 == _TRIES_SILENT:
                LOG.warning("%s: still retrying: %s", shown(url), said(problem))
        cancellation.wait(delay_s)


def taken(url: str, text: str = "") -> FileExistsError:
    return FileExistsError(errno.EEXIST, text or os.strerror(errno.EEXIST), shown(url))
