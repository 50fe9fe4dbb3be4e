"""Copies for tests of disks: adopt them as a member of a bucket with copies would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfc.checksum import ExpectedChecksums
from dfc.storage.catalog.copies import AdoptOutcome, AdoptVerdict
from dfc.storage.copies import SmallCopy
from dfc.storage.rows import ALONE, Standing, Supplied

V1, V2, V3 = (f"0600000000000{number}00ff" for number in (1, 2, 3))  # all of 2023: older than every opening of a disk
PENDING = Standing(pending=True)


def newer(version: str, standing: Standing = ALONE) -> Callable[[str | None], AdoptVerdict]:
    """What a member says to its primary: the newer version counts."""

    def decide(present: str | None) -> AdoptVerdict:
        if present is not None and present > version:
            return AdoptVerdict(taken=False)
        return AdoptVerdict(taken=True, commits=present != version, standing=standing)

    return decide


def adopt(
    disk: Any,
    name: str,
    version: str,
    data: bytes | None,
    standing: Standing = ALONE,
    *,
    durability: str = "fsync",
    small: bool = True,
    attributes: bytes = b"",
) -> Any:
    """Adopt an object, or (`data` None) a tombstone."""
    decide = newer(version, standing)
    if data is None:
        return disk.copies.adopt_tombstone("b", name, version, decide)
    supplied = Supplied(version, attributes)
    if small:
        return adopt_one(disk, SmallCopy("b", name, data, ExpectedChecksums(), supplied, decide), durability)
    writer = disk.begin_put("b", name, size=len(data), durability=durability, supplied=supplied)
    writer.write(data)
    writer.finish()
    return disk.copies.adopt(writer, decide)


def adopt_one(disk: Any, copy: SmallCopy, durability: str = "fsync") -> AdoptOutcome:
    """Adopt a small object. Raises what went wrong with it."""
    (found,) = disk.copies.adopt_small([copy], durability)
    if isinstance(found, Exception):
        raise found
    return found


def written(disk: Any, name: str, data: bytes, version: str) -> Any:
    """An upload that is ready to end."""
    writer = disk.begin_put("b", name, size=len(data), supplied=Supplied(version))
    writer.write(data)
    writer.finish()
    return writer


def body(disk: Any, name: str) -> bytes:
    found: bytes = disk.read_small(disk.lookup("b", name))
    return found


def version_of(disk: Any, name: str) -> str | None:
    state = disk.copies.state("b", name)
    return None if state is None else state.version
