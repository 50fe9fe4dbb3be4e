"""What all destinations of uploads share: each stores a complete *spool* (a temporary file) as one thing, or not at all."""

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

_TRIES_SILENT: Final = 3  # in vain; then somebody is told who may have mistyped a URL
_NEVER: Final = Cancellation()


class Destination(ABC):
    """One thing to be stored at `url`."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        self.url = url
        self.options = options

    def open_spool(self, directory: str | None) -> BinaryIO:
        """An empty file without a name to fill, in the directory (None: TMPDIR).

        Without a buffer: a forked child would write what is in it a second time when it ends.
        """
        return cast(BinaryIO, tempfile.TemporaryFile(buffering=0, dir=directory, prefix="dfc-"))

    @abstractmethod
    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        """Store all bytes of the spool; `exclusive`: FileExistsError when something is there. DfcError, OSError."""

    def discard(self, spool: BinaryIO) -> None:
        """Free the spool, stored or not. Idempotent."""
        with contextlib.suppress(OSError):  # what is still buffered may not fit on the disk, and is not wanted
            spool.close()

    def exists(self) -> bool:
        """Whether something is stored there, as far as that can be asked."""
        return False


def persistently(attempt: Callable[[], None], destination: Destination) -> None:
    """Try until it works; errors of networks and busy servers are worth another try."""
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
                LOG.warning("%s: still trying: %s", shown(url), said(problem))
        cancellation.wait(delay_s)


def taken(url: str, text: str = "") -> FileExistsError:
    return FileExistsError(errno.EEXIST, text or os.strerror(errno.EEXIST), shown(url))
