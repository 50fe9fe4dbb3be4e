"""Batch reads: return a list of items from anywhere in the cluster as one tar, in the order of the list.

The node that gets the request splits the list by owner (the first node that an object can be read from) and asks each owner
for its part (`POST /v1/node/batch`). An owner finds all its items before it answers: its answer begins with the length of each.
So missing items and the total length are known before the first byte goes out, and merging only copies runs of bytes. If an
owner closes the connection, the rest of its part is requested again, in the same versions, of other nodes with copies or of the
same; if that fails for good, the client's connection is cut.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from dfc.batch.items import LONG, BatchItem, BatchRequest, OnMissing, free
from dfc.batch.merge import ByteSource, Run
from dfc.batch.preamble import little_endian
from dfc.errors import DfcError
from dfc.http.budget import BudgetPlace
from dfc.tar.writer import END_OF_ARCHIVE
from dfc.wire import ITEM_HEADER


class ItemError(Exception):
    """An error in one item of the list."""

    def __init__(self, number: int, error: DfcError) -> None:
        super().__init__(error.message)
        self.number = number
        self.error = error

    def answer(self) -> DfcError:
        """The error for the client, naming the item."""
        error = self.error
        error.message = f"item {self.number}: {error.message}"
        error.headers[ITEM_HEADER] = str(self.number)
        return error


class Part(Protocol):
    """The items of one owner, found and ready to read: `lengths` in bytes, in order. `possibly_stale`: the owner had no lease
    when it found them."""

    @property
    def lengths(self) -> Sequence[int]: ...
    @property
    def possibly_stale(self) -> bool: ...
    @property
    def source(self) -> ByteSource: ...

    async def close(self, *, whole: bool) -> None:
        """Release the part; `whole` says that it was read to its end."""

    async def reopen(self) -> None:
        """Continue after a lost connection, where the source stopped. Raises when that is impossible."""


# Opens the part of an owner, given its id and its items. Raises ItemError, DfcError.
Opener = Callable[[str, list[BatchItem], OnMissing], Any]


@dataclass(frozen=True)
class GatheredBatch:
    """Open parts, and how their bytes are merged: `total` bytes in runs of one part each, after `begin` and before `tail`.
    `threads` read and merge. The holder owns the parts, and the `items` that they may have to ask for again."""

    parts: list[Part]
    runs: list[Run]
    total: int
    threads: ThreadPoolExecutor
    begin: bytes = b""
    tail: bytes = b""
    items: list[BatchItem] = field(default_factory=list)

    async def close(self, *, whole: bool) -> None:
        """Release the parts; `whole` says that they were read to their end."""
        try:
            await _close(self.parts, whole=whole)
        finally:
            self.parts.clear()
            free_soon(self.items, self.threads)
            free_soon(self.runs, self.threads)


def free_soon(items: list[Any], threads: ThreadPoolExecutor) -> None:
    """Empty a long list that nobody uses any more, in one of `threads`; a short one goes with its last reference."""
    if len(items) > LONG:
        with suppress(RuntimeError):  # no thread is started any more
            threads.submit(free, items)


async def gather_batch(
    request: BatchRequest,
    owner_of: Callable[[str, str], str],
    open_part: Opener,
    place: BudgetPlace,
    threads: ThreadPoolExecutor,
    *,
    with_lengths: bool = False,
) -> GatheredBatch:
    """Open the parts of all items, to be merged into one tar. `owner_of` names the owner of an object, `open_part` is awaited
    for each owner's part; `threads` read and merge.

    With `with_lengths`, the length of each item comes first, and no end-of-archive blocks follow.
    """
    found: dict[str, Part] = {}

    async def open_for(owner: str, items: list[BatchItem]) -> None:
        found[owner] = await open_part(owner, items, request.on_missing)

    try:
        loop = asyncio.get_running_loop()
        async with place.working():
            owners, by_owner, places = await loop.run_in_executor(threads, _split, request.items, owner_of)
        # If cancelled, it raises only when all of them have ended; by then it is known what they opened.
        ended = await asyncio.gather(*(open_for(owner, items) for owner, items in by_owner.items()), return_exceptions=True)
        _raise_first(ended, list(places.values()))
        for each in places.values():
            free_soon(each, threads)
        parts = [found[owner] for owner in by_owner]
        lengths = [part.lengths for part in parts]
        async with place.working():
            runs, total = await loop.run_in_executor(threads, runs_of, owners, lengths)
            begin = await loop.run_in_executor(threads, _lengths, owners, lengths) if with_lengths else b""
    except BaseException:
        await _close(found.values(), whole=False)
        raise
    return GatheredBatch(parts, runs, total, threads, begin, b"" if with_lengths else END_OF_ARCHIVE, request.items)


def _split(
    items: list[BatchItem], owner_of: Callable[[str, str], str]
) -> tuple[array[int], dict[str, list[BatchItem]], dict[str, list[int]]]:
    """Split the list: the number of each item's owner, and for each owner its items and their places in the list."""
    known: dict[tuple[str, str], int] = {}
    numbers: dict[str, int] = {}
    for item in items:
        key = (item.bucket, item.object)
        if key not in known:
            known[key] = numbers.setdefault(owner_of(*key), len(numbers))
    if len(numbers) == 1:
        owner = next(iter(numbers))
        return array("i", bytes(4 * len(items))), {owner: items}, {owner: list(range(len(items)))}
    owners = array("i", [known[item.bucket, item.object] for item in items])
    parts: list[list[BatchItem]] = [[] for _ in numbers]
    places: list[list[int]] = [[] for _ in numbers]
    for place, (owner_number, item) in enumerate(zip(owners, items, strict=True)):
        parts[owner_number].append(item)
        places[owner_number].append(place)
    return owners, dict(zip(numbers, parts, strict=True)), dict(zip(numbers, places, strict=True))


def runs_of(owners: array[int], lengths: list[Sequence[int]]) -> tuple[list[Run], int]:
    """How many bytes to take from which part, in order, and the total. `owners`: the number of each item's part; `lengths`: of
    the items, by part."""
    if len(lengths) == 1:
        total = sum(lengths[0])
        return [(0, total)], total
    following = [iter(part) for part in lengths]
    runs = [(owner, sum(next(following[owner]) for _ in same)) for owner, same in groupby(owners)]
    return runs, sum(size for _, size in runs)


def _lengths(owners: array[int], lengths: list[Sequence[int]]) -> bytes:
    """The length of each item, in the order of the list."""
    following = [iter(part) for part in lengths]
    whole = array("Q", lengths[0] if len(lengths) == 1 else [next(following[owner]) for owner in owners])
    return little_endian(whole).tobytes()


def _raise_first(ended: Iterable[object], places: list[list[int]]) -> None:
    """Raise the error of the first item that has one; the error of a whole part takes precedence."""
    errors: list[ItemError] = []
    for result, where in zip(ended, places, strict=True):
        if isinstance(result, ItemError):
            errors.append(ItemError(where[result.number], result.error))
        elif isinstance(result, BaseException):
            raise result
    if errors:
        raise min(errors, key=lambda error: error.number).answer()


async def _close(parts: Iterable[Part], *, whole: bool) -> None:
    for part in parts:
        await part.close(whole=whole)
