"""Files that are uploaded when closed, whole or not at all, and uploads in background threads."""

from __future__ import annotations

import contextvars
import errno
import io
import os
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from dfc.http.calls.retry import Cancellation, cancelled_by
from dfc.inputs.base import LOG
from dfc.inputs.sources.urls import shown
from dfc.inputs.storing.destination import Destination

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class UploadFile(io.BufferedIOBase):
    """A writable, seekable binary file. `close` stores its contents; if a `with` block raises, nothing is stored.

    The same holds under other layers: a file that is closed while an exception raised after its opening propagates is not
    stored. Neither is a file that is garbage collected unclosed, or one in which a write has failed. Then whatever was stored
    at the destination before stays. With `autocommit=False`, only `commit` stores it, and `discard` drops it. `exclusive`:
    FileExistsError if the destination exists. `directory` is where the temporary file goes (None: TMPDIR).
    """

    mode = "wb"

    def __init__(
        self, destination: Destination, directory: str | None = None, *, exclusive: bool = False, autocommit: bool = True
    ) -> None:
        super().__init__()
        self._spool: BinaryIO | None = None
        self.name = destination.url
        self._destination = destination
        self._directory = directory
        self._exclusive = exclusive
        self._autocommit = autocommit
        self._failed: BaseException | None = None
        self._forgotten = False
        self._handled = sys.exc_info()[1]  # what was being handled when it was opened
        self._process = os.getpid()
        self._spool = destination.open_spool(directory)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        spool = self._open_spool()
        view = memoryview(data).cast("B")
        try:
            at = 0
            while at < len(view):  # a full disk takes a part before it refuses the rest
                at += spool.write(view[at:])
            return at
        except OSError as problem:
            self._failed = problem
            path = getattr(self._spool, "name", None)
            raise _named(problem, os.path.dirname(path) if isinstance(path, str) else self._directory) from None

    def tell(self) -> int:
        return self._open_spool().tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        spool = self._open_spool()
        spool.seek(offset, whence)
        return spool.tell()

    def close(self) -> None:
        """Store the contents. DfcError, OSError; the file is closed in any case. Idempotent."""
        if self.closed:
            return
        problem = sys.exc_info()[1]
        if self._forgotten:
            self.__del__()
        elif problem is not None and problem is not self._handled:
            # A text layer, a compressor or fsspec's OpenFile closes the file like this when its `with` block fails.
            LOG.warning("%s was not stored: it was closed because of %r", shown(self.name), problem)
            self.discard()
        elif self._autocommit:
            self.commit()
        else:
            super().close()

    def commit(self) -> None:
        """Store the contents and close the file. DfcError, OSError."""
        spool = self._spool
        if spool is None:
            return
        try:
            check_process(self._process)
            if self._failed is not None:
                raise OSError(errno.EIO, "not stored, because a write failed", shown(self.name))
            try:
                self._destination.store(spool, exclusive=self._exclusive)
            except Exception as problem:
                problem.add_note(f"while storing {shown(self.name)}")
                raise
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop the contents. Idempotent."""
        spool, self._spool = self._spool, None
        if spool is not None and self._process == os.getpid():
            self._destination.discard(spool)
        super().close()

    abort = discard

    def __enter__(self) -> UploadFile:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error_type is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if self._spool is not None:
            if self._process == os.getpid():
                LOG.warning("%s was not stored, because it was never closed", shown(self.name))
            self.discard()

    def _dealloc_warn(self, _source: object) -> None:
        """Called by text layers and buffers that are garbage collected, before they close the file below (CPython only)."""
        self._forgotten = True

    def _open_spool(self) -> BinaryIO:
        if self._spool is None or self.closed:
            raise ValueError("I/O operation on closed file")
        check_process(self._process)
        return self._spool


class Uploads:
    """Runs uploads in threads. Including the spool that the caller fills, at most `parallel` spools take space at a time.

    The next call raises the first failure. Use it from one thread only.
    """

    def __init__(self, parallel: int, name: str = "dfc-upload") -> None:
        if parallel < 1:
            raise ValueError(f"the number of parallel uploads must be at least 1, not {parallel}")
        self._parallel = parallel
        self._executor = ThreadPoolExecutor(parallel, thread_name_prefix=name)
        self._running: dict[Future[None], Callable[[], object]] = {}  # each with what drops its contents
        self._cancellation = Cancellation()
        self._process = os.getpid()

    def add(self, upload: Callable[[], None], drop: Callable[[], object] = lambda: None) -> None:
        """Start an upload; wait while as many as allowed are running. `drop` is called if it is aborted before it has begun."""
        check_process(self._process)
        context = contextvars.copy_context()
        self._running[self._executor.submit(context.run, self._run, upload)] = drop
        while len(self._running) >= self._parallel:
            self._collect()

    def check(self) -> None:
        """Raise the error of an upload that has failed."""
        if any(future.done() for future in self._running):
            self._collect()

    def finish(self) -> None:
        """Wait for all uploads."""
        check_process(self._process)
        while self._running:
            self._collect()
        self._executor.shutdown()

    def stop(self, *, at_once: bool = False) -> list[BaseException]:
        """Wait for all uploads, also those that no thread has begun, or abort them if `at_once`. Returns errors that were not
        raised yet."""
        if self._process != os.getpid():
            return []
        if at_once:
            self._cancellation.cancel()
        self._executor.shutdown(wait=True, cancel_futures=at_once)
        running, self._running = self._running, {}
        problems = [future.exception() for future in running if not future.cancelled()]
        for future, drop in running.items():
            if future.cancelled():
                try:
                    drop()
                except Exception as error:  # the others are dropped all the same
                    problems.append(error)
        return [problem for problem in problems if problem is not None]

    def _run(self, upload: Callable[[], None]) -> None:
        with cancelled_by(self._cancellation):
            upload()

    def _collect(self) -> None:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            del self._running[future]
        for future in done:
            future.result()


def check_process(number: int) -> None:
    """ValueError in a forked child, since the threads and files belong to the parent."""
    if number != os.getpid():
        raise ValueError("opened by another process before a fork; open it in the process that uses it")


def _named(problem: OSError, directory: str | None) -> OSError:
    """The same error with the name of the directory that is out of space, so that the user can act on it."""
    if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or problem.filename is not None:
        return problem
    import tempfile

    return OSError(problem.errno, os.strerror(problem.errno), directory or tempfile.gettempdir())
