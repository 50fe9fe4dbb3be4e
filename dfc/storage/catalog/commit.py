"""Group commit: one thread per disk commits all waiting operations in one transaction of the catalog.

Threads submit an operation and block until its transaction is committed and the row cache is updated. The more threads wait,
the more operations share one fsync. If a COMMIT fails for any reason but a full disk, its outcome is unknown until the disk is
opened again, so the disk refuses writes from then on.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from dfc.errors import StorageFailed
from dfc.filesystem import FileSystem, is_full
from dfc.storage.catalog.cache import Key, RowCache
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.changes import Change
from dfc.storage.catalog.schema import EPOCH, RELAXED_BOOT
from dfc.storage.catalog.transaction import Transaction
from dfc.storage.health import DiskHealth, DiskStats

_log = logging.getLogger(__name__)
T = TypeVar("T")
_BATCH_MAX: Final = 512  # operations: limits how long the first of a batch waits for the last
_CHECKPOINT_PAGES: Final = 2000  # checkpoint after about 8 MiB of log


class OutcomeUnknown(StorageFailed):
    """The COMMIT failed half-way: whether it took effect is known only when the disk is opened again. Touch no blob."""


class _NoteBoot(Exception):
    """Rows with copies are to be committed that a power loss may cost, and nothing durable says so yet."""


class _Ticket(Generic[T]):
    """An operation waiting for the committer."""

    __slots__ = ("done", "error", "operation", "result")

    def __init__(self, operation: Change[T]) -> None:
        self.operation = operation
        self.result: T | None = None
        self.error: Exception | None = None
        self.done = threading.Lock()
        self.done.acquire()


class GroupCommitter:
    """Commits operations; owns the catalog's writer connection. `on_full` frees space when the catalog itself runs out."""

    def __init__(
        self,
        catalog: Catalog,
        filesystem: FileSystem,
        cache: RowCache,
        health: DiskHealth,
        stats: DiskStats,
        *,
        boot: str,
        on_full: Callable[[], object],
    ) -> None:
        self._catalog = catalog
        self._filesystem = filesystem
        self._cache = cache
        self._health = health
        self._stats = stats
        self._boot = boot
        self._on_full = on_full
        self._queue: queue.SimpleQueue[_Ticket[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._synchronous = True
        self._told_epoch = -1  # the last one that was reported
        self._log_pages = 0
        self._thread = threading.Thread(target=self._run, name=f"dfc-commit-{catalog.disk_id[:8]}", daemon=True)
        self._thread.start()

    def submit(self, operation: Change[T]) -> T:
        """Commit the operation and return its outcome, or raise what it raised. Blocks; any thread but the committer's.

        Raises StorageFailed when the disk has failed or is closed, OutcomeUnknown when the COMMIT itself failed, NoSpace.
        """
        (outcome,) = self.submit_all((operation,))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def submit_all(self, operations: Sequence[Change[T]]) -> list[T | Exception]:
        """The same for several, which wait together: for each, its outcome or what would be raised."""
        tickets = [_Ticket(operation) for operation in operations]
        with self._lock:
            if self._closed:
                return [StorageFailed("the disk is closed") for _ in tickets]
            for ticket in tickets:
                self._queue.put(ticket)
        for ticket in tickets:
            ticket.done.acquire()
        return [ticket.result if ticket.error is None else ticket.error for ticket in tickets]  # type: ignore[misc]

    def tell_epoch(self) -> int:
        """The epoch of the disk, to be reported to others: what is committed from now on has a later one."""
        told = self._told_epoch = self._catalog.epoch
        return told

    def close(self) -> None:
        """Commit what is waiting, then stop the thread. Later operations are refused."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            batch = [first]
            ending = False
            while len(batch) < _BATCH_MAX and not ending:
                try:
                    ticket = self._queue.get_nowait()
                except queue.Empty:
                    break
                if ticket is None:
                    ending = True
                else:
                    batch.append(ticket)
            self._commit(batch)
            for ticket in batch:
                ticket.done.release()
            if ending:
                return
            if self._log_pages > _CHECKPOINT_PAGES:
                self._checkpoint()

    def _commit(self, batch: list[_Ticket[Any]]) -> None:
        """Commit a batch and give every ticket a result or an error."""
        started = time.perf_counter()
        try:
            self._health.require_writable()
            self._transact_with_room(batch)
        except sqlite3.Error as error:
            self._fail(batch, self._health.translate_catalog(error, "changing it"))
        except Exception as error:
            self._fail(batch, error)
        self._stats.commits += 1
        self._stats.committed_operations += len(batch)
        self._stats.commit_seconds += time.perf_counter() - started

    def _transact_with_room(self, batch: list[_Ticket[Any]]) -> None:
        """Commit; on a full disk make room and retry, finally with only the operations that free space themselves."""
        try:
            self._transact(batch)
            return
        except sqlite3.Error as error:
            if not is_full(error):
                raise
        self._make_room()
        try:
            self._transact(batch)
            return
        except sqlite3.Error as error:
            freeing = [ticket for ticket in batch if ticket.operation.frees_space]
            if not is_full(error) or not freeing or len(freeing) == len(batch):
                raise
            full = error
        self._transact(freeing)
        self._fail([ticket for ticket in batch if ticket not in freeing], self._health.translate_catalog(full, "changing it"))

    def _make_room(self) -> None:
        try:
            self._on_full()
        except OSError as error:
            self._health.count(error, "giving up the ballast")
        # After a checkpoint the log is overwritten from its beginning, and needs no new blocks.
        self._checkpoint()

    def _fail(self, batch: list[_Ticket[Any]], error: Exception) -> None:
        for ticket in batch:
            if ticket.error is None:
                ticket.error = error

    def _transact(self, batch: list[_Ticket[Any]]) -> None:
        try:
            self._transact_noted(batch)
        except _NoteBoot:
            # In a transaction of its own: this one was not meant to be synced, and whether it needs the note shows only inside.
            self._note_boot()
            self._transact_noted(batch)

    def _note_boot(self) -> None:
        """Note durably the boot of the machine in which a power loss may cost rows. Once, until all of them are synced."""
        connection = self._catalog.writer
        self._set_synchronous(True)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (RELAXED_BOOT, self._boot))
            self._end(connection)
        except BaseException:
            self._roll_back(connection)
            raise
        self._log_pages += 1
        self._catalog.relaxed_boot = self._boot

    def _transact_noted(self, batch: list[_Ticket[Any]]) -> None:
        connection = self._catalog.writer
        self._set_synchronous(any(ticket.operation.durable for ticket in batch))
        marks = self._catalog.marks
        transaction = Transaction(self._catalog, self._boot)
        expected: list[Key] = []
        connection.execute("BEGIN IMMEDIATE")
        try:
            transaction.load(key for ticket in batch for key in ticket.operation.keys)
            for ticket in batch:
                ticket.error = None
                try:
                    ticket.result = ticket.operation.apply(transaction)
                except sqlite3.Error:
                    raise
                except Exception as error:
                    # Refused before the operation changed anything.
                    ticket.error = error
            if transaction.leaves_doubt and self._catalog.relaxed_boot != self._boot:
                raise _NoteBoot
            transaction.finish()
            epoch = self._epoch_after(transaction)
            self._cache.forget(transaction.rows)
            expected = marks.expect(transaction.marks)
            self._end(connection)
        except OutcomeUnknown:
            self._roll_back(connection)
            raise  # what may be committed stays marked
        except BaseException:
            self._roll_back(connection)
            marks.withdraw(expected)
            raise
        self._log_pages += 3 + transaction.changes
        self._catalog.learn_buckets(transaction.buckets)
        marks.accept(transaction.marks)
        self._catalog.epoch = epoch
        if transaction.doubted is not None:
            self._catalog.incarnation = transaction.doubted[0]
        if transaction.rolled_back is not None:
            self._catalog.rolled_back = transaction.rolled_back
            self._catalog.has_torn_log = self._catalog.has_torn_log and transaction.rolled_back > 0
        if transaction.has_ended_doubt:
            self._catalog.relaxed_boot = None
        self._cache.store(transaction.rows)

    def _epoch_after(self, transaction: Transaction) -> int:
        """The epoch after this transaction: the next one if the one of now was reported. Only if it is synced: what was
        reported must never be lost."""
        if transaction.doubted is not None:
            return transaction.doubted[1]
        epoch = self._catalog.epoch
        if self._synchronous and self._told_epoch >= epoch:
            epoch += 1
            transaction.set_meta(EPOCH, epoch)
        return epoch

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _end(self, connection: sqlite3.Connection) -> None:
        try:
            self._filesystem.commit(connection)
        except sqlite3.Error as error:
            if is_full(error):
                raise
            self._health.count(error, "committing to the catalog")
            self._health.fail(f"a COMMIT of its catalog failed: {error}")
            raise OutcomeUnknown("the catalog's COMMIT failed; reopening the disk will show whether it took effect") from error

    def _set_synchronous(self, wanted: bool) -> None:
        if wanted != self._synchronous:
            # NORMAL skips the fsync of the log; the next FULL commit covers everything before it.
            self._catalog.writer.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._synchronous = wanted

    def _checkpoint(self) -> None:
        try:
            self._catalog.writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            if not is_full(error):
                self._health.translate_catalog(error, "merging its log")
        self._log_pages = 0
