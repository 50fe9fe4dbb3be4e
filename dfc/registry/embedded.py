"""The embedded registry, for a cluster with one proxy, and the SQLite file that it keeps."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Final, TypeVar

import msgspec

from dfc.errors import DiskRefused, NoRegistry, NoSpace, OperatorError, Unavailable
from dfc.filesystem import FileSystem, Fill, check_format, connect, is_full, make_directories, open_database, refusal
from dfc.http.shutdown import end_threads, in_time
from dfc.placement.map import BucketEntry, ClusterMap, LayoutEntry, NodeEntry, RebalanceEntry, SliceRun
from dfc.registry.base import CLOSED, Grant, Lease, LeaseLost, LeaseTable, Registry, check_record
from dfc.registry.changes import Change, RegistryState, check_step, end_checks
from dfc.registry.messages import new_node_id, node_file

# --- The SQLite file of the embedded registry: nodes, disks, buckets and the map's version, on the proxy's disk. Blocking.
#
# Every change is one transaction that raises the version. The directory is locked while the file is open, because two
# processes, each with its own map in memory, would both change it.

FILE_NAME: Final = "registry.sqlite"
MOVING_NAME: Final = f"{FILE_NAME}.moving"  # it is on its way into etcd
MOVED_NAME: Final = f"{FILE_NAME}.moved"  # it is in etcd: this is an old copy
LOCK_NAME: Final = "registry.lock"
SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE nodes (id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, entry BLOB NOT NULL) STRICT;
CREATE TABLE buckets (name TEXT PRIMARY KEY, entry BLOB NOT NULL) STRICT;
"""
_RECORDS: Final = "records/"  # what keys of records begin with; their values are hexadecimal
_LAST_NUMBER: Final = "last_node_number"
_REBALANCE: Final = "rebalance"
_REMOVED_DISKS: Final = "removed_disks"
_WAY_OUT: Final = "Restore a copy of it, or what the targets know of it (`dfc registry recover`; docs/operations.md)"
_LOCK_BYTES_MAX: Final = 400  # what the holder of the lock says of itself
_encode: Final = msgspec.json.encode


class RegistryFile:
    """The open registry file. `state` and `records` are safe to read from any thread: they are replaced as a whole."""

    def __init__(
        self,
        directory: str,
        *,
        filesystem: FileSystem | None = None,
        may_create: bool = True,
        is_locked: bool = False,
        begin: Fill | None = None,
    ) -> None:
        """Open the file, or create it if `may_create`, with what `begin` writes into it. `is_locked`: the caller has locked the
        directory. OperatorError, naming the process, when another one has it open;
        DiskRefused when it is missing, damaged or of another format."""
        self._lock = threading.Lock()
        self._filesystem = filesystem or FileSystem()
        directory = os.path.abspath(directory)
        path = f"{directory}/{FILE_NAME}"
        if not may_create and not os.path.exists(path):
            way_out = f"{_WAY_OUT}, or remove {node_file(directory)} to begin a new, empty cluster"
            raise DiskRefused(f"{path} is missing. {way_out}")
        check_format(path, "a registry", SCHEMA_VERSION, way_out=_WAY_OUT)  # before the lock, which leaves a file
        self._directory_lock = -1 if is_locked else lock_directory(directory, self._filesystem)
        try:
            fill = begin or _begin_cluster
            self._database = open_database(
                path, "a registry", _SCHEMA, SCHEMA_VERSION, self._filesystem, way_out=_WAY_OUT, fill=fill
            )
            try:
                self.state, self.node_id = _load(self._database)
                found = self._database.execute("SELECT key, value FROM meta WHERE key LIKE ?", (f"{_RECORDS}%",))
                self.records: Mapping[str, bytes] = {key.removeprefix(_RECORDS): bytes.fromhex(value) for key, value in found}
                self.apply(end_checks)
            except (sqlite3.DatabaseError, msgspec.DecodeError, KeyError, ValueError) as error:
                self._database.close()
                raise refusal(path, "a registry", error, _WAY_OUT) from None
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            if self._directory_lock >= 0:
                os.close(self._directory_lock)
            raise

    @staticmethod
    def read(path: str) -> tuple[RegistryState, str]:
        """Read the state from a file of this format, which a proxy may be using, and the id of that proxy. DiskRefused."""
        check_format(path, "a registry", SCHEMA_VERSION, way_out=_WAY_OUT)
        try:
            with closing(connect(path)) as database:
                database.execute("BEGIN")  # all of it as it is at one moment
                return _load(database)
        except (sqlite3.DatabaseError, msgspec.DecodeError, KeyError, ValueError) as error:
            raise refusal(path, "a registry", error, _WAY_OUT) from None

    def keep_node_id(self, node_id: str) -> None:
        """Remember which proxy this registry belongs to."""
        with self._lock:
            with self._transaction():
                self._database.execute("INSERT OR REPLACE INTO meta VALUES ('node_id', ?)", (node_id,))
            self.node_id = node_id

    def keep(self, name: str, value: bytes | None) -> None:
        """Write a record, or delete it; durable when this returns."""
        with self._lock:
            with self._transaction():
                if value is None:
                    self._database.execute("DELETE FROM meta WHERE key = ?", (_RECORDS + name,))
                else:
                    self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_RECORDS + name, value.hex()))
            self.records = {each: kept for each, kept in {**self.records, name: value}.items() if kept is not None}

    def close(self) -> None:
        """Close the file and release the lock. Idempotent."""
        with self._lock:
            self._database.close()
            if self._directory_lock >= 0:
                os.close(self._directory_lock)
                self._directory_lock = -1

    def apply(self, change: Change) -> RegistryState:
        """Make a change, durable when this returns. If the function raises, nothing is changed."""
        with self._lock:
            old = self.state
            new = change(old)
            if new is not old:
                check_step(old, new)
                self._store(old, new)
                self.state = new
            return new

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and durable when it ends."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._filesystem.commit(self._database)
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise

    def _store(self, old: RegistryState, new: RegistryState) -> None:
        with self._transaction():
            for key, value in (("version", new.map.version), ("step", new.map.step)):
                self._database.execute("UPDATE meta SET value = ? WHERE key = ?", (str(value), key))
            if (new.map.layouts, new.map.slices) != (old.map.layouts, old.map.slices):
                for key, entries in (("layouts", new.map.layouts), ("slices", new.map.slices)):
                    self._database.execute("UPDATE meta SET value = ? WHERE key = ?", (_encode(entries).decode(), key))
            for key, after, before in (
                (_REBALANCE, new.map.rebalance, old.map.rebalance),
                (_REMOVED_DISKS, new.map.removed_disks, old.map.removed_disks),
                (_LAST_NUMBER, new.last_number, old.last_number),
            ):
                if after != before:
                    self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _encode(after).decode()))
            self._store_nodes(old.map, new.map)
            self._store_buckets(old.map, new.map)

    def _store_nodes(self, old: ClusterMap, new: ClusterMap) -> None:
        before = {node.id: node for node in old.nodes}
        for node in new.nodes:
            if before.pop(node.id, None) is not node:
                self._database.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?)", (node.id, node.number, _encode(node)))
        self._database.executemany("DELETE FROM nodes WHERE id = ?", ((gone,) for gone in before))

    def _store_buckets(self, old: ClusterMap, new: ClusterMap) -> None:
        before = {bucket.name: bucket for bucket in old.buckets}
        for bucket in new.buckets:
            if before.pop(bucket.name, None) is not bucket:
                self._database.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?)", (bucket.name, _encode(bucket)))
        self._database.executemany("DELETE FROM buckets WHERE name = ?", ((gone,) for gone in before))


def _load(database: sqlite3.Connection) -> tuple[RegistryState, str]:
    """Read the state, and the id of the proxy that it belongs to."""
    (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(state)
    meta = dict(database.execute("SELECT key, value FROM meta"))
    nodes = [msgspec.json.decode(entry, type=NodeEntry) for (entry,) in database.execute("SELECT entry FROM nodes ORDER BY id")]
    rows = database.execute("SELECT entry FROM buckets ORDER BY name")
    buckets = [msgspec.json.decode(entry, type=BucketEntry) for (entry,) in rows]
    cluster_map = ClusterMap(
        cluster_id=meta["cluster_id"],
        version=int(meta["version"]),
        step=int(meta["step"]),
        nodes=tuple(nodes),
        buckets=tuple(buckets),
        layouts=msgspec.json.decode(meta["layouts"], type=tuple[LayoutEntry, ...]),
        slices=msgspec.json.decode(meta["slices"], type=tuple[SliceRun, ...]),
        rebalance=msgspec.json.decode(meta.get(_REBALANCE, "{}"), type=RebalanceEntry),
        removed_disks=msgspec.json.decode(meta.get(_REMOVED_DISKS, "[]"), type=tuple[str, ...]),
    )
    last_number = max([int(meta.get(_LAST_NUMBER, "0")), *(node.number for node in nodes)])
    return RegistryState(map=cluster_map, last_number=last_number), str(meta.get("node_id", ""))


def filled_with(state: RegistryState, node_id: str) -> Fill:
    """What makes a new file one with this state, of this proxy."""

    def fill(database: sqlite3.Connection) -> None:
        found = state.map
        values = {
            "cluster_id": found.cluster_id,
            "version": str(found.version),
            "step": str(found.step),
            "node_id": node_id,
            "layouts": _encode(found.layouts).decode(),
            "slices": _encode(found.slices).decode(),
            _REBALANCE: _encode(found.rebalance).decode(),
            _REMOVED_DISKS: _encode(found.removed_disks).decode(),
            _LAST_NUMBER: str(state.last_number),
        }
        database.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
        nodes = ((node.id, node.number, _encode(node)) for node in found.nodes)
        database.executemany("INSERT INTO nodes VALUES (?, ?, ?)", nodes)
        database.executemany("INSERT INTO buckets VALUES (?, ?)", ((each.name, _encode(each)) for each in found.buckets))

    return fill


def _begin_cluster(database: sqlite3.Connection) -> None:
    values = {"cluster_id": secrets.token_hex(8), "version": "1", "step": "1", "node_id": new_node_id("proxy")}
    database.executemany("INSERT INTO meta VALUES (?, ?)", {**values, "layouts": "[]", "slices": "[]"}.items())


def lock_directory(directory: str, filesystem: FileSystem) -> int:
    """Lock the registry for this process; return a descriptor that holds the lock until it is closed. OperatorError.

    The file's content is only for the error message of the next process; the lock is the kernel's and ends with this process.
    """
    make_directories(directory, filesystem)
    path = f"{directory}/{LOCK_NAME}"
    with suppress(FileExistsError):
        filesystem.close(filesystem.create(path, 0o600))
    lock = filesystem.open(path, write=True)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = f"process {os.getpid()} on {socket.gethostname()}".encode(errors="replace")[:_LOCK_BYTES_MAX]
        with suppress(OSError):  # a full disk; the lock is held all the same
            filesystem.pwrite(lock, said.ljust(_LOCK_BYTES_MAX), 0)
    except BlockingIOError:
        holder = filesystem.pread(lock, _LOCK_BYTES_MAX, 0).decode(errors="replace").strip("\0 ") or "another process"
        os.close(lock)
        raise OperatorError(
            f"the registry in {directory} is in use by another proxy: {holder}. A cluster has one proxy: stop that one first,"
            " or give this one a directory of its own (--dir), where it starts another cluster"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


# --- The embedded registry, for a cluster with one proxy, in a file on the proxy's disk.
#
# Blocking calls go through one thread, which puts all changes in one order. Leases live in this process, since no other can
# have the file open.

T = TypeVar("T")


class EmbeddedRegistry(Registry):
    """A registry in an open registry file, which it owns and closes."""

    def __init__(self, file: RegistryFile) -> None:
        super().__init__()
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._leases = LeaseTable()

    @property
    def map(self) -> ClusterMap:
        return self._file.state.map

    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        def fenced(state: RegistryState) -> RegistryState:
            self._check_fence(fence)
            return change(state)

        return await self._write(lambda: self._file.apply(fenced))

    def _check_fence(self, fence: Lease | None) -> None:
        """LeaseLost. Changes by later leaders come after the one that is made now: they are behind it in the thread's queue."""
        if fence is not None and not (fence.is_held and self._leases.is_valid(fence.grant)):
            raise LeaseLost(f"the lease {fence.grant.name} of {fence.grant.holder} has expired")

    async def _write(self, write: Callable[[], T]) -> T:
        """Change the file, in its thread."""
        self._check_open()
        loop = asyncio.get_running_loop()

        def apply() -> T:
            before = self._file.state
            try:
                return write()
            except sqlite3.OperationalError as error:
                why = f"the registry's file cannot be written: {error}"
                self._note_written(why)
                raise (NoSpace if is_full(error) else NoRegistry)(why) from error
            finally:
                if self._file.state is not before:
                    self._note_written()
                    # Notify from here: the caller may have been cancelled although the change was made.
                    with suppress(RuntimeError):  # the loop is closed already
                        loop.call_soon_threadsafe(self._tell)

        waiting = loop.run_in_executor(self._thread, apply)
        try:
            await asyncio.wait((waiting,))
        except asyncio.CancelledError:
            waiting.cancel()
            raise
        if waiting.cancelled():  # dropped by `close` before its turn came
            raise Unavailable(CLOSED)
        return waiting.result()

    async def close(self) -> None:
        self._closed = True
        self._tell()
        self._leases.clear()
        if await end_threads(self._thread, "the registry"):
            await in_time(self._file.close, "the registry")

    # --- records

    def records(self, prefix: str) -> dict[str, bytes]:
        return {name: value for name, value in self._file.records.items() if name.startswith(prefix)}

    async def keep(self, name: str, value: bytes | None, fence: Lease) -> None:
        check_record(name, value)

        def write() -> None:
            self._check_fence(fence)
            self._file.keep(name, value)

        await self._write(write)

    # --- leases

    def held(self, name: str) -> Grant | None:
        return self._leases.held(name)

    def holders(self, prefix: str) -> list[Grant]:
        return self._leases.holders(prefix)

    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        self._check_open()
        return self._leases.grant(name, holder, ttl_s, url)

    async def renew_lease(self, grant: Grant) -> bool:
        self._check_open()
        return self._leases.renew(grant)

    async def revoke_lease(self, grant: Grant) -> None:
        self._leases.revoke(grant)

    async def lease_vacancy(self, name: str) -> None:
        self._check_open()
        await self._leases.vacancy(name)
