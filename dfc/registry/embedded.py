"""The embedded registry: nodes, disks, buckets and the map's version in one SQLite file of the proxy.

Every change is one transaction that raises the version. Heartbeats that change nothing stay in memory. Blocking; calls go
through one thread (`dfc.proxy.node` sees to that), so that there is one order of changes.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import msgspec

from dfc.clock import NODE_NUMBER_MAX
from dfc.database import open_database
from dfc.errors import BucketConflict, BucketDeleting, BucketNotFound, Conflict, DiskRefused
from dfc.filesystem import FileSystem
from dfc.logs import timestamp
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, Durability, Id, Labels, NodeEntry, Role, Url
from dfc.registry.identity import new_node_id, node_file

FILE_NAME: Final = "registry.sqlite"
SCHEMA_VERSION: Final = 2
NODE_DISKS_MAX: Final = 1000  # placing hashes once a disk of a node
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE nodes (id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, entry BLOB NOT NULL) STRICT;
CREATE TABLE buckets (name TEXT PRIMARY KEY, entry BLOB NOT NULL) STRICT;
"""
_LAST_NUMBER: Final = "last_node_number"
_WAY_OUT: Final = "Put a copy of it back (docs/operations.md)"
_SAID: Final = ("url", "advertise_url", "role", "labels")  # what the map has from the node's own words
_encode: Final = msgspec.json.encode


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node says of itself, first and with every heartbeat. `map_version` is the map that it has."""

    node_id: Id
    role: Role
    url: Url
    advertise_url: Url
    cluster_id: str
    map_version: int = 0
    disks: Annotated[tuple[DiskEntry, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    labels: Labels = Labels()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's answer; `map` only when the node's is older."""

    node_number: int
    map: ClusterMap | None = None


class EmbeddedRegistry:
    """Owns the registry's file. Reading `map` is safe from any thread: it is replaced as a whole."""

    def __init__(
        self,
        directory: str,
        wall_s: Callable[[], float] = time.time,
        *,
        filesystem: FileSystem | None = None,
        may_create: bool = True,
    ) -> None:
        """Open or (`may_create`) create; DiskRefused when the file is no sound registry of this format, or is missing."""
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._filesystem = filesystem or FileSystem()
        path = f"{os.path.abspath(directory)}/{FILE_NAME}"
        if not may_create and not os.path.exists(path):
            mark = node_file(os.path.dirname(path))
            raise DiskRefused(f"{path} is missing. {_WAY_OUT}, or remove {mark} to begin a new, empty cluster")
        self._database = open_database(
            path, "a registry", _SCHEMA, SCHEMA_VERSION, self._filesystem, way_out=_WAY_OUT, fill=_begin_cluster
        )
        try:
            self.node_id = self._load()
            self._end_checks()
        except (sqlite3.DatabaseError, msgspec.DecodeError, KeyError, ValueError) as error:
            self._database.close()
            raise DiskRefused(f"{path} is not a registry: it is damaged ({error}). {_WAY_OUT}") from None
        self._beats: dict[str, float] = {node.id: time.monotonic() for node in self.map.nodes}

    def _load(self) -> str:
        """Take over what is in the file; the id of the proxy that it belongs to."""
        database = self._database
        (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        meta = dict(database.execute("SELECT key, value FROM meta"))
        nodes = [
            msgspec.json.decode(entry, type=NodeEntry) for (entry,) in database.execute("SELECT entry FROM nodes ORDER BY id")
        ]
        rows = database.execute("SELECT entry FROM buckets ORDER BY name")
        buckets = [msgspec.json.decode(entry, type=BucketEntry) for (entry,) in rows]
        self.map = ClusterMap(
            cluster_id=meta["cluster_id"], version=int(meta["version"]), nodes=tuple(nodes), buckets=tuple(buckets)
        )
        # Of all nodes that there have ever been: versions of objects end in these numbers, and must not be equal.
        self._last_number = max([int(meta.get(_LAST_NUMBER, "0")), *(node.number for node in nodes)])
        return str(meta.get("node_id", ""))

    def keep_node_id(self, node_id: str) -> None:
        """Remember which proxy this registry belongs to."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('node_id', ?)", (node_id,))
            self._filesystem.commit(self._database)
            self.node_id = node_id

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _end_checks(self) -> None:
        """Whoever was finding out whether a bucket may go is no more: the bucket stays."""
        with self._change() as draft:
            for name, bucket in list(draft.buckets.items()):
                if bucket.state == "checking":
                    draft.put_bucket(name, msgspec.structs.replace(bucket, state="active"))

    @contextmanager
    def _change(self) -> Iterator[_Draft]:
        """A transaction on a draft of the map; on success the version is one higher and `map` the new one."""
        with self._lock:
            draft = _Draft(self.map, self._last_number)
            yield draft
            if not draft.changed:
                return
            new = draft.finish()
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(new.version),))
                if draft.last_number != self._last_number:
                    self._database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_LAST_NUMBER, str(draft.last_number)))
                for node in draft.changed_nodes:
                    self._database.execute(
                        "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?)", (node.id, node.number, _encode(node))
                    )
                for name, bucket in draft.changed_buckets.items():
                    if bucket is None:
                        self._database.execute("DELETE FROM buckets WHERE name = ?", (name,))
                    else:
                        self._database.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?)", (name, _encode(bucket)))
                self._filesystem.commit(self._database)
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
            self.map = new
            self._last_number = draft.last_number

    # --- nodes

    def register(self, said: Registration) -> Registered:
        """Take a registration or heartbeat. Conflict when the node's disks belong to another cluster, or there is no number
        left for another node."""
        if said.cluster_id != self.map.cluster_id:
            raise Conflict(f"these disks belong to cluster {said.cluster_id or '(none)'}, this is {self.map.cluster_id}")
        self._beats[said.node_id] = time.monotonic()
        known = self.map.node(said.node_id)
        if known is None or not _same(known, said):
            with self._change() as draft:
                known = draft.join(said)
        self._refresh_use(said)
        return Registered(node_number=known.number, map=self.map if said.map_version != self.map.version else None)

    def _refresh_use(self, said: Registration) -> None:
        """Keep the disks' fill level in the map in memory; it is no change of the map."""
        use = {disk.id: disk for disk in said.disks}
        with self._lock:
            node = self.map.node(said.node_id)
            if node is None:
                return
            disks = tuple(_with_use(disk, use.get(disk.id)) for disk in node.disks)
            self.map = self.map.with_use(msgspec.structs.replace(node, disks=disks, last_heartbeat=timestamp(self._wall_s())))

    def mark_silent_nodes(self, down_after_s: float) -> list[str]:
        """Mark nodes down that have sent no heartbeat for so long; their ids."""
        limit = time.monotonic() - down_after_s
        silent = [n for n in self.map.nodes if n.state == "up" and n.role == "target" and self._beats.get(n.id, 0.0) < limit]
        if silent:
            with self._change() as draft:
                for node in silent:
                    draft.put_node(msgspec.structs.replace(node, state="down"))
        return [node.id for node in silent]

    # --- buckets

    def create_bucket(self, name: str, copies: int = 1, durability: Durability = "fsync") -> tuple[BucketEntry, bool]:
        """The bucket and whether it is new; BucketConflict when it exists with other settings."""
        with self._change() as draft:
            found = draft.buckets.get(name)
            if found is not None:
                if found.state == "deleting":
                    raise BucketDeleting(f"the bucket {name!r} is being deleted")
                if (found.copies, found.durability) != (copies, durability):
                    raise BucketConflict(
                        f"the bucket {name!r} exists with copies={found.copies}, durability={found.durability}"
                    )
                return found, False
            bucket = BucketEntry(
                id=secrets.token_hex(8), name=name, copies=copies, durability=durability, created=timestamp(self._wall_s())
            )
            draft.put_bucket(name, bucket)
            return bucket, True

    def ensure_bucket(self, name: str) -> BucketEntry:
        """The bucket whatever its settings, made with defaults when absent."""
        found = self.map.bucket(name)
        return found if found is not None else self.create_bucket(name)[0]

    def change_bucket(self, name: str, **changes: object) -> BucketEntry:
        """Replace fields of a bucket; BucketNotFound."""
        with self._change() as draft:
            found = draft.buckets.get(name)
            if found is None:
                raise BucketNotFound(f"there is no bucket {name!r}")
            new = msgspec.structs.replace(found, **changes)
            if new != found:
                draft.put_bucket(name, new)
            return new

    def remove_bucket(self, name: str, bucket_id: str) -> None:
        """Forget a bucket whose objects are gone; nothing when it is another one by now."""
        with self._change() as draft:
            found = draft.buckets.get(name)
            if found is not None and found.id == bucket_id:
                draft.put_bucket(name, None)


class _Draft:
    """The next version of a map in the making."""

    def __init__(self, base: ClusterMap, last_number: int) -> None:
        self._base = base
        self.last_number = last_number
        self.nodes = {node.id: node for node in base.nodes}
        self.buckets = {bucket.name: bucket for bucket in base.buckets}
        self.changed_nodes: list[NodeEntry] = []
        self.changed_buckets: dict[str, BucketEntry | None] = {}

    @property
    def changed(self) -> bool:
        return bool(self.changed_nodes or self.changed_buckets)

    def put_node(self, node: NodeEntry) -> None:
        self.nodes[node.id] = node
        self.changed_nodes.append(node)

    def put_bucket(self, name: str, bucket: BucketEntry | None) -> None:
        if bucket is None:
            del self.buckets[name]
        else:
            self.buckets[name] = bucket
        self.changed_buckets[name] = bucket

    def finish(self) -> ClusterMap:
        return ClusterMap(
            cluster_id=self._base.cluster_id,
            version=self._base.version + 1,
            nodes=tuple(sorted(self.nodes.values(), key=lambda node: node.id)),
            buckets=tuple(sorted(self.buckets.values(), key=lambda bucket: bucket.name)),
        )

    def join(self, said: Registration) -> NodeEntry:
        """Enter or update a node. What is new while buckets exist is `joining`: taking it in would move objects."""
        known = self.nodes.get(said.node_id)
        placed = {d.id for node in self.nodes.values() if node.state != "joining" for d in node.disks if d.state != "joining"}
        old = {disk.id: disk for disk in known.disks} if known else {}
        before = old | self._take_from_others(said)
        reported = {disk.id: disk for disk in said.disks}
        may_enter = not self.buckets
        inside = said.role != "target" or may_enter or not placed.isdisjoint(old.keys() | reported.keys())
        entries = []
        for disk_id in dict.fromkeys((*old, *reported)):
            now, was = reported.get(disk_id), before.get(disk_id)
            if now is None:
                entry = msgspec.structs.replace(old[disk_id], state="failed")
            elif was is None:
                entry = msgspec.structs.replace(now, group=said.node_id)
            else:
                entry = msgspec.structs.replace(now, weight=was.weight, group=was.group)
            outside = inside and not may_enter and disk_id not in placed
            entries.append(msgspec.structs.replace(entry, state="joining") if outside else entry)
        node = NodeEntry(
            id=said.node_id,
            number=known.number if known else self._free_number(),
            role=said.role,
            url=said.url,
            advertise_url=said.advertise_url,
            state="up" if inside else "joining",
            disks=tuple(entries),
            labels=said.labels,
        )
        self.put_node(node)
        return node

    def _take_from_others(self, said: Registration) -> dict[str, DiskEntry]:
        """Disks that came with another node before: the lock on a disk says who has it now."""
        ids = {disk.id for disk in said.disks}
        taken: dict[str, DiskEntry] = {}
        for node in list(self.nodes.values()):
            moved = [disk for disk in node.disks if disk.id in ids]
            if node.id != said.node_id and moved:
                taken.update((disk.id, disk) for disk in moved)
                self.put_node(msgspec.structs.replace(node, disks=tuple(d for d in node.disks if d.id not in ids)))
        return taken

    def _free_number(self) -> int:
        """One that no node has ever had, also none that is gone: objects that it has stored keep its number."""
        if self.last_number >= NODE_NUMBER_MAX:
            raise Conflict(f"{NODE_NUMBER_MAX} nodes have joined this cluster, and there is no number for another one")
        self.last_number += 1
        return self.last_number


def _begin_cluster(database: sqlite3.Connection) -> None:
    values = (("cluster_id", secrets.token_hex(8)), ("version", "1"), ("node_id", new_node_id("proxy")))
    database.executemany("INSERT INTO meta VALUES (?, ?)", values)


def _same(known: NodeEntry, said: Registration) -> bool:
    """Whether a heartbeat changes nothing of the map but use."""
    if known.state == "down" or any(getattr(known, each) != getattr(said, each) for each in _SAID):
        return False
    reported = {disk.id: disk.state for disk in said.disks}
    kept = {disk.id: disk.state for disk in known.disks}
    if reported.keys() - kept.keys():
        return False
    return all(state == "joining" or reported.get(disk_id, "failed") == state for disk_id, state in kept.items())


def _with_use(disk: DiskEntry, use: DiskEntry | None) -> DiskEntry:
    if use is None:
        return disk
    return msgspec.structs.replace(disk, capacity=use.capacity, used=use.used, objects=use.objects)
