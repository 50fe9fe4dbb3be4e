"""Two-level placement: choose a node by score, then a disk of that node by score.

The key of an object is its bucket's id, "\\0" and its name, in UTF-8; a node is scored for b"node\\0" + key with the sum of its
disks' weights, a disk for b"disk\\0" + key with its own. With a thousand disks on 32 nodes that is 64 hashes, where one level
takes a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from dfc.limits import PLACEMENT_NAMES_MAX
from dfc.placement.rendezvous import Candidate, Rendezvous


class LayoutDisk(NamedTuple):
    """A disk that may hold objects.

    `weight` is relative and > 0. `group` is the first level: the node with which the disk joined. `domain` is what fails as
    one: two copies of an object never share it.
    """

    id: str
    weight: float
    group: str
    domain: str


class Layout:
    """The placement of all objects over a fixed set of disks. Thread-safe.

    `best(bucket_id, name)` is the id of the disk that holds the object, None when there are no disks; recent names are cached.
    `ranking` puts all disks in order, and `best` is its first.
    """

    def __init__(self, disks: tuple[LayoutDisk, ...]) -> None:
        groups: dict[str, list[LayoutDisk]] = {}
        for disk in sorted(disks):
            groups.setdefault(disk.group, []).append(disk)
        self._domains = {disk.id: disk.domain for disk in disks}
        self._groups = Rendezvous(
            tuple(Candidate(group, math.fsum(disk.weight for disk in found)) for group, found in groups.items())
        )
        self._disks = {
            group: Rendezvous(tuple(Candidate(disk.id, disk.weight) for disk in found)) for group, found in groups.items()
        }
        self.best = lru_cache(maxsize=PLACEMENT_NAMES_MAX)(self.only)

    def only(self, bucket_id: str, name: str) -> str | None:
        """`best`, not cached."""
        return self.only_by(object_key(bucket_id, name))

    def only_by(self, key: bytes) -> str | None:
        """The same by the key of an object."""
        group = self._groups.best(b"node\0" + key)
        return None if group is None else self._disks[group].best(b"disk\0" + key)

    def ranking(self, bucket_id: str, name: str) -> Iterator[str]:
        """Yield all disks, best first. Removing a disk does not change the order of the others, so only its own names move."""
        key = object_key(bucket_id, name)
        for group in self._groups.ranking(b"node\0" + key):
            yield from self._disks[group].ranking(b"disk\0" + key)

    def owners(self, bucket_id: str, name: str, count: int, without: Collection[str] = ()) -> list[str]:
        """Return the first `count` disks of the ranking in different failure domains, skipping those in `without`; fewer if
        there are fewer domains. Nothing is cached."""
        found: list[str] = []
        taken: set[str] = set()
        for disk in self.ranking(bucket_id, name):
            if len(found) == count:
                break
            if disk not in without and self._domains[disk] not in taken:
                found.append(disk)
                taken.add(self._domains[disk])
        return found


def object_key(bucket_id: str, name: str) -> bytes:
    """What is hashed for an object."""
    return f"{bucket_id}\0{name}".encode()
