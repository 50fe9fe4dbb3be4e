"""Create and open the SQLite files that a node keeps beside its disks: the registry and the journal of jobs.

A new file is filled under another name and renamed once it is durable, so a file under its own name is never half-made. One
that is empty or not ours has been damaged: it is refused, with a message that says how to recover. All files use WAL with
synchronous=FULL.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote

from dfc.errors import DiskRefused
from dfc.filesystem import FileSystem, remove_if_there, sync_file
from dfc.smallfile import NEW_SUFFIX, make_directories
from dfc.walcheck import torn_log

APPLICATION_ID: Final = 0x44464301  # "DFC" and 1: files of other applications are refused
APPLICATION_ID_BEFORE: Final = 0x44464331  # "DFC1": of catalogs of DFC before 0.1.0
_ENDINGS: Final = ("", "-journal", "-wal", "-shm")
# The header of the file: https://www.sqlite.org/fileformat.html
_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = struct.Struct(">60xI4xI28x")  # user version, application id
Fill = Callable[[sqlite3.Connection], object]
Upgrades = Mapping[int, Callable[[sqlite3.Connection], object]]
"""By the version of a file: what makes it one version newer, within a transaction."""
# Codes for trouble with the disk or the system. A short read is not one of them: there the file itself is damaged.
_TROUBLES: Final = frozenset(
    (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM)
)


def is_full(error: sqlite3.Error) -> bool:
    """Whether SQLite ran out of space: the statement changed nothing and may be retried."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def open_database(
    path: str,
    what: str,
    schema: str,
    version: int,
    filesystem: FileSystem,
    *,
    way_out: str,
    fill: Fill | None = None,
    upgrades: Upgrades = MappingProxyType({}),
) -> sqlite3.Connection:
    """Open a database; if it is missing, create it with `schema` and the rows that `fill` inserts.

    Only its owner can read the file. Returns one connection in autocommit mode, which threads may share by turns. Raises
    DiskRefused, whose message names `what` and the `way_out`, when the file is empty or damaged, of another program, or of
    another `version` that is not in `upgrades`; then nothing in the directory was changed. OSError.
    """
    directory = os.path.dirname(path)
    check_format(path, what, version, upgrades, way_out=way_out)
    make_directories(directory, filesystem)
    if not os.path.exists(path):
        _make(path + NEW_SUFFIX, schema, version, filesystem, fill)
        # The log left over from a database that was moved away would be replayed into this one.
        remove_if_there(filesystem, (path + ending for ending in _ENDINGS[1:]))
        filesystem.sync_directory(directory)
        filesystem.rename(path + NEW_SUFFIX, path)
    filesystem.sync_directory(directory)
    torn = torn_log(path)
    # Each commit is synced before the next one begins, so that a power loss can tear the last one only.
    if torn is not None and torn.commits > 1:
        raise DiskRefused(
            f"{path} is not {what}: frame {torn.frame} of {torn.frames} in its log is damaged, and {torn.commits - 1} commits"
            f" or more behind that would be lost. {way_out}"
        )
    try:
        database = connect(path)
    except sqlite3.DatabaseError as error:
        raise refusal(path, what, error, way_out) from None
    try:
        if os.path.getsize(path) == 0:
            raise DiskRefused(f"{path} is not {what}: it is empty. {way_out}")
        (found,) = database.execute("PRAGMA user_version").fetchone()
        if found != version and found not in upgrades:
            # A newer version has changed it, and was killed before its header said so: the log does.
            raise DiskRefused(f"{path} is {what} {other_format(found, version)}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        _upgrade(database, found, version, filesystem, upgrades)
        with suppress(sqlite3.OperationalError):  # what earlier processes left in the log is not to be taken for a part of it
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        os.chmod(path, 0o600)
    except sqlite3.DatabaseError as error:
        database.close()
        raise refusal(path, what, error, way_out) from None
    except BaseException:
        database.close()
        raise
    return database


def _upgrade(database: sqlite3.Connection, found: int, version: int, filesystem: FileSystem, upgrades: Upgrades) -> None:
    """Bring a file to this version, in one transaction."""
    if found == version:
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        for each in range(found, version):
            upgrades[each](database)
        database.execute(f"PRAGMA user_version = {version}")
        filesystem.commit(database)
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def refusal(path: str, what: str, error: Exception, way_out: str) -> DiskRefused:
    """Explain why a database cannot be opened. Only a damaged file is a reason to replace it."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in _TROUBLES and code != sqlite3.SQLITE_IOERR_SHORT_READ:
        return DiskRefused(
            f"cannot open {path}, {what}: {error}. The disk is full, read-only or failing. The file itself may be intact, so do"
            " not remove it: free some space or repair the disk, then start again"
        )
    return DiskRefused(f"{path} is not {what}: {error}. {way_out}")


class Header(NamedTuple):
    """The header fields of a database file that say what it is."""

    user_version: int
    application_id: int


def read_header(path: str) -> Header | None:
    """Read the header without SQLite, which would replay the log into the file. None if it is missing or not a database."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
    except FileNotFoundError:
        return None
    return Header(*_HEADER.unpack(head)) if head.startswith(_MAGIC) and len(head) == _HEADER.size else None


_OTHER_FILE: Final = (
    "it is of another program, or of DFC before 0.1.0. Nothing was changed. Run the version of DFC that wrote it, or start in"
    " another directory. If it is damaged instead"
)


def other_format(found: int, known: int) -> str:
    """Return the end of an error message about files that another version of DFC wrote."""
    return (
        f"in format {found}, and this version of DFC reads format {known}. Nothing was changed. Run the version of DFC that"
        " wrote it, or start in another directory"
    )


def check_format(path: str, what: str, version: int, upgrades: Upgrades = MappingProxyType({}), *, way_out: str) -> None:
    """Raise DiskRefused for a database that is not of DFC, or of a version that is neither this nor one of `upgrades`. Reads
    only its first bytes; a missing file is fine."""
    header = read_header(path)
    if header is None:
        return
    if header.application_id != APPLICATION_ID:
        raise DiskRefused(f"{path} is not {what}: {_OTHER_FILE}: {way_out}")
    if header.user_version not in (version, *upgrades):
        raise DiskRefused(f"{path} is {what} {other_format(header.user_version, version)}")


def _make(path: str, schema: str, version: int, filesystem: FileSystem, fill: Fill | None) -> None:
    remove_if_there(filesystem, (path + ending for ending in _ENDINGS))
    filesystem.close(filesystem.create(path, 0o600))
    with closing(connect(path)) as database:
        # It is synced as a whole once it is complete; nothing uses it before.
        database.execute("PRAGMA journal_mode = MEMORY")
        database.execute("PRAGMA synchronous = OFF")
        marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
        database.executescript(f"BEGIN; {schema} {marks}")
        if fill is not None:
            fill(database)
        database.execute("COMMIT")
        database.execute("PRAGMA journal_mode = WAL")
    sync_file(filesystem, path)


def connect(path: str, *, timeout_s: float = 5.0, cached_statements: int = 128) -> sqlite3.Connection:
    """Connect to an existing file, in autocommit, for threads that take turns. A missing file is an error, not created.
    sqlite3.DatabaseError if the schema has bytes that none of ours has: not all of them are an error for SQLite, and those that
    are it quotes, which Python cannot decode."""
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rw",
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=cached_statements,
        uri=True,
    )
    is_text = True
    try:
        texts = connection.execute("SELECT CAST(name || tbl_name || coalesce(sql, '') AS BLOB) FROM sqlite_master")
        is_text = all(text.isascii() for (text,) in texts)
    except UnicodeDecodeError:
        is_text = False
    except sqlite3.Error:
        pass  # whoever uses it hears that, and knows what to say of it
    if not is_text:
        connection.close()
        raise sqlite3.DatabaseError("malformed database schema")
    return connection
