"""The SQLite file of the journal of jobs: its schema, opening it, transactions. WAL, synchronous=FULL."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dfc.database import open_database
from dfc.filesystem import FileSystem

FILE_NAME: Final = "jobs.sqlite"
SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, operation TEXT NOT NULL,
    spec BLOB NOT NULL, label TEXT NOT NULL, bucket TEXT NOT NULL, bucket_id TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
    program TEXT NOT NULL, created_us INTEGER NOT NULL, started_us INTEGER, finished_us INTEGER, error BLOB,
    warnings BLOB NOT NULL, output BLOB, progress BLOB NOT NULL, inputs INTEGER NOT NULL, discard INTEGER NOT NULL DEFAULT 0,
    details INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE TABLE inputs (
    job INTEGER NOT NULL, input INTEGER NOT NULL, number INTEGER NOT NULL, shard BLOB NOT NULL,
    PRIMARY KEY (job, input, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE tasks (
    job INTEGER NOT NULL, stage INTEGER NOT NULL, number INTEGER NOT NULL, result BLOB NOT NULL, samples INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL, PRIMARY KEY (job, stage, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE outputs (
    job INTEGER NOT NULL, name TEXT NOT NULL, stage INTEGER NOT NULL, task INTEGER NOT NULL, record BLOB NOT NULL,
    samples INTEGER NOT NULL, PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;
"""


class JournalFile:
    """The file, with one connection that threads share under a lock."""

    def __init__(
        self,
        directory: str,
        wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        *,
        filesystem: FileSystem | None = None,
    ) -> None:
        """Open or create the file. DiskRefused if it is not a journal in this format."""
        self.wall_us = wall_us
        self._lock = threading.RLock()
        self._filesystem = filesystem or FileSystem()
        path = f"{os.path.abspath(directory)}/{FILE_NAME}"
        # Labels and specs may be confidential, so only the owner can read the file.
        self._database = open_database(
            path, "a journal of jobs", _SCHEMA, SCHEMA_VERSION, self._filesystem, way_out="Move it away to begin a new one"
        )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction: all or nothing, and durable when it ends."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._filesystem.commit(self._database)
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def rows(self, query: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        with self._lock:
            return self._database.execute(query, values).fetchall()
