"""What a registry keeps in etcd, below one prefix, and how that becomes its state.

`meta`: which cluster this is. `version`: version and step of the map; every change compares and rewrites it. `map`: nodes,
layouts and the rest, in one piece, since one step may change all nodes and a transaction has at most 128 operations.
`buckets/NAME`: a bucket. `changes/PROXY`: a mark of the last change that a proxy has made. `leases/NAME`: who has a lease.
`records/NAME`: what holders of leases keep beside the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dfc.placement.map import BucketEntry, ClusterMap, LayoutEntry, NodeEntry, RebalanceEntry, SliceRun
from dfc.registry.changes import RegistryState
from dfc.registry.etcd.gateway import Fields, KeyValue, delete, put

FORMAT: Final = 1
META: Final = "meta"
VERSION: Final = "version"
MAP: Final = "map"
BUCKETS: Final = "buckets/"
CHANGES: Final = "changes/"
LEASES: Final = "leases/"
RECORDS: Final = "records/"
_encode: Final = msgspec.json.encode


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Which cluster this is. A `format` that is not known must not be written to. `moved_to`: which
    proxy's directory the registry was moved to; `coming`: it is being moved here. Then what is here must not be used."""

    cluster_id: str
    format: int = FORMAT
    moved_to: str = ""
    coming: bool = False


class MapNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the newest map."""

    version: int
    step: int = 0


class _Rest(msgspec.Struct, frozen=True, kw_only=True):
    """The state without its buckets."""

    nodes: tuple[NodeEntry, ...] = ()
    layouts: tuple[LayoutEntry, ...] = ()
    slices: tuple[SliceRun, ...] = ()
    rebalance: RebalanceEntry = RebalanceEntry()
    removed_disks: tuple[str, ...] = ()
    last_number: int = 0


def end_of(prefix: str) -> str:
    """The first key after all those that begin so."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def written(prefix: str, old: RegistryState | None, new: RegistryState) -> list[Fields]:
    """The operations that make the stored state the new one; `old` None: nothing is stored."""
    before = {} if old is None else {bucket.name: bucket for bucket in old.map.buckets}
    operations = [put(prefix + VERSION, _encode(MapNumbers(version=new.map.version, step=new.map.step)))]
    if old is None or _rest_of(old) != _rest_of(new):
        operations.append(put(prefix + MAP, _encode(_rest_of(new))))
    for bucket in new.map.buckets:
        if not _is_same(before.pop(bucket.name, None), bucket):
            operations.append(put(prefix + BUCKETS + bucket.name, _encode(_stored(bucket))))
    operations += [delete(prefix + BUCKETS + name) for name in before]
    return operations


def _rest_of(state: RegistryState) -> _Rest:
    found = state.map
    return _Rest(
        nodes=found.nodes,
        layouts=found.layouts,
        slices=found.slices,
        rebalance=found.rebalance,
        removed_disks=found.removed_disks,
        last_number=state.last_number,
    )


def _is_same(old: BucketEntry | None, new: BucketEntry) -> bool:
    return old is new or (old is not None and _stored(old) == _stored(new))


def _stored(bucket: BucketEntry) -> BucketEntry:
    """Without what follows from the slices, which changes for all buckets at once."""
    return msgspec.structs.replace(bucket, is_moving=False) if bucket.is_moving else bucket


def other_format(found: int) -> str:
    """What to say of a registry in another format."""
    return (
        f"the registry in etcd has format {found}, and this version of DFC knows format {FORMAT}: nothing was changed. Use the"
        " version of DFC that wrote it"
    )


class Mirror:
    """A copy of the keys, which is kept up to date by what etcd tells of. `prefix` ends with a slash."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._found: dict[str, KeyValue] = {}
        self._buckets: dict[str, tuple[int, BucketEntry]] = {}  # by key: the revision, and what was there
        self.revision = 0  # of the newest change that is known here

    def replace(self, found: Iterable[KeyValue], revision: int) -> None:
        """Take what is there at this revision for all there is, unless something newer is known already."""
        if revision < self.revision:
            return
        self._found = {each.key.removeprefix(self._prefix): each for each in found}
        self.revision = revision

    def take(self, changes: Sequence[KeyValue]) -> None:
        """Take changes, in the order of their revisions, all of one revision together; what was read before may come again."""
        for each in changes:
            if each.revision > self.revision:
                key = each.key.removeprefix(self._prefix)
                if each.value is None:
                    self._found.pop(key, None)
                else:
                    self._found[key] = each
        self.revision = max((self.revision, *(each.revision for each in changes)))

    def found(self, key: str) -> KeyValue | None:
        """A key; None: it is not there."""
        return self._found.get(key)

    def value(self, key: str) -> bytes | None:
        """What is under a key; None: nothing."""
        found = self._found.get(key)
        return None if found is None else found.value

    def values(self, prefix: str) -> dict[str, bytes]:
        """What is under all keys that begin so, by the rest of the key."""
        found = {key: each.value for key, each in self._found.items() if key.startswith(prefix)}
        return {key.removeprefix(prefix): value for key, value in found.items() if value is not None}

    def revision_of(self, key: str) -> int:
        """When a key was changed last; 0: it is not there."""
        found = self._found.get(key)
        return 0 if found is None else found.revision

    def meta(self) -> Meta | None:
        """Which cluster this is; None: none yet. ValueError for what no version of DFC has written."""
        found = self.value(META)
        return None if found is None else msgspec.json.decode(found, type=Meta)

    def state(self, cluster_id: str) -> RegistryState:
        """The state that is stored. ValueError."""
        numbers = msgspec.json.decode(self.value(VERSION) or b"", type=MapNumbers)
        rest = msgspec.json.decode(self.value(MAP) or b"", type=_Rest)
        is_moving = any(run.to is not None for run in rest.slices)
        keys = sorted(key for key in self._found if key.startswith(BUCKETS))
        self._buckets = {key: self._bucket(key) for key in keys}
        buckets = [entry for _, entry in self._buckets.values()]
        cluster_map = ClusterMap(
            cluster_id=cluster_id,
            version=numbers.version,
            step=numbers.step,
            nodes=rest.nodes,
            buckets=tuple(msgspec.structs.replace(each, is_moving=True) if is_moving else each for each in buckets),
            layouts=rest.layouts,
            slices=rest.slices,
            rebalance=rest.rebalance,
            removed_disks=rest.removed_disks,
        )
        return RegistryState(map=cluster_map, last_number=rest.last_number)

    def _bucket(self, key: str) -> tuple[int, BucketEntry]:
        found = self._found[key]
        known = self._buckets.get(key)
        if known is not None and known[0] == found.revision:
            return known
        return found.revision, msgspec.json.decode(found.value or b"", type=BucketEntry)
