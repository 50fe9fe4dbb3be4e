"""One large upload from its first byte to its commit, whoever it is for: an object, or an output of a job.

Cancelled anywhere before the commit, nothing is left of it; from there on the commit alone decides.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dfc.checksum import ExpectedChecksums
from dfc.http.exchange import Exchange
from dfc.storage.rows import Durability, Precondition, PutResult
from dfc.storage.staged import StagedName
from dfc.storage.writer import BlobWriter
from dfc.target.local import Local, Place


async def store(
    local: Local,
    exchange: Exchange,
    place: Place,
    name: str,
    expected: ExpectedChecksums,
    precondition: Precondition,
    *,
    durability: Durability,
    staged: StagedName | None = None,
) -> PutResult:
    """Receive the body and commit it. Raises what `BlobWriter` and `Exchange.receive` raise."""
    threads = local.threads(place.disk)
    writer = await threads.begin(
        place.disk.begin_put,
        place.bucket.id,
        name,
        size=exchange.declared_length,
        expected=expected,
        durability=durability,
        staged=staged,
        release=BlobWriter.abort,
    )
    try:
        await exchange.receive(writer, threads.receiving)
        await threads.go_on(writer.finish)
    except BaseException:
        with suppress(asyncio.CancelledError):
            await threads.go_on(writer.abort)
        raise
    # A client that goes away now may find its object stored.
    return await threads.go_on(writer.commit, precondition)
