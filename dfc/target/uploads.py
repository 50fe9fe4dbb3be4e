"""Uploads to this target's disks, from the first byte to the commit: objects and outputs of jobs.

An upload that is cancelled before the commit leaves nothing behind; from there on only the commit decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from dfc.checksum import ExpectedChecksums
from dfc.errors import CopiesMissing, DfcError, TooLarge, Unavailable
from dfc.http.transfer import BodySink
from dfc.limits import DECOMPRESSED_PUT_WAIT_S, DECOMPRESSIONS_MAX, SMALL_BODY_BYTES
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.changes import StagedName
from dfc.storage.rows import Durability, ObjectRow, Precondition, PutResult
from dfc.tar.index.format import index_kind
from dfc.target.local import OwnPlace, TargetState
from dfc.target.threads import DiskThreads

LARGE_WINDOW_KINDS: Final = frozenset(("xz", "zst"))  # the others take a few MiB


class Slots:
    """Limit the decompressors with large windows that run at a time, for reads and uploads of xz and zstd shards. Each keeps a
    window of up to DECOMPRESS_MEMORY_MAX in memory for as long as its client takes, which may be very long.

    There are DECOMPRESSIONS_MAX slots; a caller waits up to `wait_s` for a free one."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._free = asyncio.Semaphore(DECOMPRESSIONS_MAX)

    async def take(self, kind: str | None) -> bool:
        """Take a slot if this kind of shard needs one; whether it does, to be given back. Unavailable when none is free."""
        if kind not in LARGE_WINDOW_KINDS:
            return False
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._free.acquire()
        except TimeoutError:
            raise Unavailable(f"too busy: {DECOMPRESSIONS_MAX} xz or zstd shards are being decompressed already") from None

    def give(self) -> None:
        self._free.release()


class UploadBody(Protocol):
    """A body being sent. `pause_s`: how long a trusted sender may pause; None: it must keep the minimum rate."""

    pause_s: float | None

    @property
    def declared_length(self) -> int | None:
        """The length of the body; None if it is unknown until the end."""

    async def read_small(self, limit_bytes: int) -> bytes:
        """Read all of it. TooLarge, BodyTimeout, LengthMismatch."""

    async def receive(self, sink: BodySink, threads: ThreadPoolExecutor) -> None:
        """Feed it to `sink` in one of `threads`; the thread is done when this returns or raises."""


class Uploaded(NamedTuple):
    """What was stored, on how many disks, and on how many it is to be; `replaced`: it replaced something."""

    bucket: str
    row: ObjectRow
    replaced: bool
    warnings: tuple[str, ...]
    copies: int = 1
    copies_wanted: int = 1


Commit = Callable[[Precondition], Awaitable[PutResult]]
"""Commits a finished upload under a condition."""


class Follower(Protocol):
    """What else takes the body of an upload."""

    @property
    def sink(self) -> BodySink:
        """Where the body is to be fed in, instead of into its blob."""

    def received(self) -> None:
        """The whole body is in the blob."""

    async def finished(self) -> None:
        """The blob is finished: wait until all who are to have the body have it, as long as it moves to them."""

    def give_up(self) -> None:
        """The upload has failed, or does not count."""


class Storing(Protocol):
    """How an upload becomes an object."""

    def follow(self, writer: BlobWriter, size: int | None) -> Follower | None:
        """Follow a body that is about to be received, of `size` bytes if that is known; None: nothing else takes it."""

    async def store(self, precondition: Precondition, commit: Commit, content: bytes | None) -> tuple[PutResult, int]:
        """Call `commit`; return its result when enough disks have the object, and how many have it. `content` is the object, if
        it is small."""


class StoreHere:
    """One copy, which is here."""

    def follow(self, _writer: BlobWriter, _size: int | None) -> None:
        """Nothing else takes it."""

    async def store(self, precondition: Precondition, commit: Commit, _content: bytes | None) -> tuple[PutResult, int]:
        """Commit it."""
        return await commit(precondition), 1


HERE: Final = StoreHere()


class OwnUploads:
    """Stores bodies on the disks of this target. `slots` limit uploads that decompress a shard to index it."""

    def __init__(self, local: TargetState, object_size_max_bytes: int) -> None:
        self._local = local
        self._size_max = object_size_max_bytes
        self.slots = Slots(DECOMPRESSED_PUT_WAIT_S)

    def check_size(self, size: int | None) -> None:
        """Raise TooLarge if the size is over the limit for objects."""
        if size is not None and size > self._size_max:
            raise TooLarge(f"the object is larger than the limit of {self._size_max} bytes")

    async def store(
        self,
        place: OwnPlace,
        name: str,
        body: UploadBody,
        *,
        expected: ExpectedChecksums,
        durability: Durability,
        precondition: Precondition,
        staged: StagedName | None = None,
        storing: Storing = HERE,
    ) -> Uploaded:
        """Store a body as an object, or as a staged output of a job. Raises what `BlobWriter`, `UploadBody` and `storing`
        raise."""
        (bucket, disk), length = place, body.declared_length
        if staged is None and length is not None and length <= SMALL_BODY_BYTES:
            put_small = partial(disk.put_small, bucket.id, name, expected=expected, durability=durability)

            async def put() -> tuple[PutResult, int]:
                content = await body.read_small(SMALL_BODY_BYTES)

                async def commit(condition: Precondition) -> PutResult:
                    return await self._local.threads(disk).write(put_small, content, precondition=condition)

                return await storing.store(precondition, commit, content)

            return await self._with_slot(place, name, put)
        begin = partial(disk.begin_put, bucket.id, name, size=length, expected=expected, durability=durability, staged=staged)
        return await self._with_slot(place, name, lambda: self._receive(place, body, begin, precondition, storing))

    async def adopt(
        self,
        place: OwnPlace,
        name: str,
        body: UploadBody,
        deposit: str,
        *,
        size: int | None,
        durability: Durability,
        precondition: Precondition,
        staged: StagedName,
    ) -> Uploaded:
        """Adopt a file that a worker on this machine writes and the body describes (`dfc.storage.blobs.deposit`)."""
        (bucket, disk) = place
        begin = partial(disk.adopt, bucket.id, name, deposit, size=size, durability=durability, staged=staged)
        return await self._with_slot(place, name, lambda: self._receive(place, body, begin, precondition, HERE))

    async def _with_slot(self, place: OwnPlace, name: str, put: Callable[[], Awaitable[tuple[PutResult, int]]]) -> Uploaded:
        has_slot = await self.slots.take(index_kind(name))
        try:
            result, copies = await put()
        finally:
            if has_slot:
                self.slots.give()
        self._local.check_leased()  # the lease may have ended while the commit was synced: then nothing is acknowledged
        bucket = self._local.map.bucket_of(place.bucket.id) or place.bucket  # of now: it may have been changed meanwhile
        return Uploaded(bucket.name, result.row, result.replaced, result.warnings, copies, bucket.goal)

    async def _receive(
        self, place: OwnPlace, body: UploadBody, begin: Callable[[], BlobWriter], precondition: Precondition, storing: Storing
    ) -> tuple[PutResult, int]:
        """Receive the body into what `begin` opens on the disk, and commit it."""
        threads = self._local.threads(place.disk)
        received = await receive_blob(threads, begin, body, storing)
        try:
            # If the client disconnects once the commit has begun, its object may still be stored.
            stored = await storing.store(precondition, lambda condition: threads.go_on(received.writer.commit, condition), None)
        except CopiesMissing:
            raise  # it is still on its way
        except BaseException as error:
            if isinstance(error, DfcError):
                received.give_up()
            with suppress(asyncio.CancelledError):
                await threads.go_on(received.writer.abort)  # nothing happens once the commit has begun
            raise
        if not stored[0].committed:  # something newer was there: no row follows the body
            received.give_up()
        return stored


class ReceivedBlob(NamedTuple):
    """A finished blob that nothing refers to yet."""

    writer: BlobWriter
    row: ObjectRow
    follower: Follower | None

    def give_up(self) -> None:
        """It is not going to be an object."""
        if self.follower is not None:
            self.follower.give_up()


async def receive_blob(
    threads: DiskThreads, begin: Callable[[], BlobWriter], body: UploadBody, storing: Storing = HERE
) -> ReceivedBlob:
    """Receive a body into what `begin` opens on the disk with these threads. Raises what they raise; then nothing is left."""
    writer = await threads.begin(begin, release=BlobWriter.abort)
    follower = None
    try:
        follower = storing.follow(writer, body.declared_length)
        await body.receive(writer if follower is None else follower.sink, threads.receiving)
        if follower is not None:
            follower.received()
        row = await threads.go_on(writer.finish)
        if follower is not None:
            await follower.finished()
        return ReceivedBlob(writer, row, follower)
    except BaseException:
        if follower is not None:
            follower.give_up()
        with suppress(asyncio.CancelledError):
            await threads.go_on(writer.abort)
        raise
