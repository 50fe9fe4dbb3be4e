"""One large upload from its first byte to its commit, whoever it is for: an object, or an output of a job.

Cancelled anywhere before the commit, nothing is left of it; from there on the commit alone decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from dfc.http.exchange import Exchange
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.disk import Disk
from dfc.storage.rows import Precondition, PutResult
from dfc.target.local import Local


async def store(
    local: Local, exchange: Exchange, disk: Disk, begin: Callable[[], BlobWriter], precondition: Precondition
) -> PutResult:
    """Receive the body into what `begin` opens on the disk, and commit it. Raises what `BlobWriter` and `Exchange.receive`
    raise."""
    threads = local.threads(disk)
    writer = await threads.begin(begin, release=BlobWriter.abort)
    try:
        await exchange.receive(writer, threads.receiving)
        await threads.go_on(writer.finish)
    except BaseException:
        with suppress(asyncio.CancelledError):
            await threads.go_on(writer.abort)
        raise
    # A client that goes away now may find its object stored.
    return await threads.go_on(writer.commit, precondition)
