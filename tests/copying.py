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
    if small:
        copy = SmallCopy("b", name, data, ExpectedChecksums(), Supplied(version, attributes), decide)
        return adopt_one(disk, copy, durability)
    return disk.copies.adopt(written(disk, name, data, version, attributes, durability=durability), decide)


def adopt_one(disk: Any, copy: SmallCopy, durability: str = "fsync") -> AdoptOutcome:
    """Adopt a small object. Raises what went wrong with it."""
    (found,) = disk.copies.adopt_small([copy], durability)
    if isinstance(found, Exception):
        raise found
    return found


def written(disk: Any, name: str, data: bytes, version: str | None = None, attributes: bytes = b"", **given: Any) -> Any:
    """An upload that is ready to end."""
    writer = disk.begin_put("b", name, size=len(data), supplied=Supplied(version, attributes), **given)
    writer.write(data)
    writer.finish()
    return writer


def end_run(disk: Any) -> None:
    """As if the process had been killed."""
    disk._relaxed.sync = lambda: 0
    disk.close()


def body(disk: Any, name: str) -> bytes:
    found: bytes = disk.read_small(disk.lookup("b", name))
    return found


def version_of(disk: Any, name: str) -> str | None:
    state = disk.copies.state("b", name)
    return None if state is None else state.version


def pages(ask: Callable[..., Any], size: int) -> list[list[Any]]:
    """All pages of so many rows."""
    found, after = list[list[Any]](), (-1, b"")
    while after is not None:
        page, after = ask(after, size)
        found.append(page)
    return found
