"""Transfers many files at once: with a limited number of threads, progress bars on terminals, and a result per file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from io import RawIOBase
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from dfc.cli.session import Exit, Session, describe, exit_for_all
from dfc.limits import MIB, format_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
_WAITING_PER_JOB: Final = 4  # items queued per thread; a folder may have millions of files
_BAR_BYTES: Final = 16 * MIB
_PRINT_BYTES: Final = 1 * MIB
_END_S: Final = 3.0  # after Ctrl-C, threads that take longer to end are abandoned
Status = Literal["stored", "fetched", "skipped", "deleted", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one item. `size` is in bytes; `facts` go into the JSON line."""

    status: Status
    subject: str
    size: int = 0
    facts: dict[str, Any] | None = None
    error: BaseException | None = None

    def as_json(self) -> dict[str, Any]:
        line: dict[str, Any] = {"status": self.status, "name": self.subject, "size": self.size, **(self.facts or {})}
        if self.error is not None:
            code, message = describe(self.error)
            line["error"] = {"code": code, "message": message}
        return line


class Meter:
    """Shows progress; can be called from any thread. This one shows nothing, for when standard error is not a terminal.

    `wants_sizes`: ask the node for a size that is not known.
    """

    wants_sizes = False

    def begin(self, name: str, size: int | None) -> Callable[[int], None]:
        return lambda count: None

    def end(self, name: str) -> None:
        pass


class BarMeter(Meter):
    """A progress bar for all files, and one for each large file; bars of small files would only flicker."""

    wants_sizes = True

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._whole = progress.add_task(what, total=None)
        self._tasks: dict[str, TaskID] = {}

    def begin(self, name: str, size: int | None) -> Callable[[int], None]:
        if size is not None and size < _BAR_BYTES:
            return lambda count: self._progress.advance(self._whole, count)
        task = self._tasks[name] = self._progress.add_task(name, total=size)

        def advance(count: int) -> None:
            self._progress.advance(task, count)
            self._progress.advance(self._whole, count)

        return advance

    def end(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)


@contextmanager
def open_meter(session: Session, what: str) -> Iterator[Meter]:
    """Provide progress bars on a terminal, nothing otherwise."""
    if session.as_json or not sys.stderr.isatty():
        yield Meter()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        yield BarMeter(progress, what)


def print_bytes(reader: RawIOBase) -> None:
    """Write all that a reader gives to standard output, without Python's buffers. BrokenPipeError if that was closed."""
    buffer = memoryview(bytearray(_PRINT_BYTES))
    descriptor = sys.stdout.fileno()
    while count := reader.readinto(buffer):
        data = buffer[:count]
        while data:
            data = data[os.write(descriptor, data) :]


class Tally:
    """Prints results as they arrive, and counts them for the exit code and the closing line."""

    def __init__(self, session: Session, verb: str, *, sizes: bool = True) -> None:
        self._session = session
        self._verb = verb
        self._sizes = sizes
        self.errors: list[BaseException] = []
        self.done = self.skipped = self.size = 0

    def add(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.errors.append(outcome.error)
            if not self._session.as_json:
                self._session.print_error(outcome.error, outcome.subject)
        elif outcome.status == "skipped":
            self.skipped += 1
        else:
            self.done += 1
            self.size += outcome.size
        if self._session.as_json:
            self._session.print_json(outcome.as_json())

    def add_missing(self, name: str, error: BaseException) -> None:
        """Add a failure for a glob or folder without objects."""
        self.add(Outcome("failed", name, error=error))

    def close(self) -> Exit:
        """Print the closing line and return the exit code."""
        parts = [f"{self._verb} {self.done} ({format_size(self.size)})" if self._sizes else f"{self._verb} {self.done}"]
        if self.skipped:
            parts.append(f"{self.skipped} unchanged")
        if self.errors:
            parts.append(f"{len(self.errors)} FAILED")
        if self.done + self.skipped + len(self.errors) > 1 or not self.errors:
            self._session.note(", ".join(parts))
        return self.exit()

    def exit(self) -> Exit:
        return exit_for_all(self.errors)


class Workers(Generic[T]):
    """Runs `work` on items in `jobs` threads. On Ctrl-C, all transfers are aborted first."""

    def __init__(self, session: Session, jobs: int) -> None:
        self._session = session
        self._limit = jobs * _WAITING_PER_JOB
        self._executor = ThreadPoolExecutor(jobs, thread_name_prefix="dfc")
        self._running: set[Future[T]] = set()

    def run(self, work: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
        """Yield results as they are completed."""
        for item in items:
            while len(self._running) >= self._limit:
                yield from self._finished()
            self._running.add(self._executor.submit(work, item))
        while self._running:
            yield from self._finished()

    def _finished(self) -> Iterator[T]:
        done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()

    def __enter__(self) -> Workers[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self._executor.shutdown()
            return
        self._session.abort()
        self._executor.shutdown(wait=False, cancel_futures=True)
        late = wait(self._running, timeout=_END_S).not_done
        if late and kind is KeyboardInterrupt:
            # A thread that hashes a large file, or waits for a connection, would delay the exit.
            self._session.note(f"{self._session.program}: interrupted")
            os._exit(Exit.INTERRUPTED)
