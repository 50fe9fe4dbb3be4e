"""Open batch reads at a target: read its own items from files, and ask other targets for theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, cast

from dfc.batch.gathering import GatheredBatch, ItemError, Part, free_soon, gather_batch
from dfc.batch.items import LONG, BatchItem, BatchRequest, OnMissing
from dfc.batch.merge import ByteSource
from dfc.batch.parts import PeerParts, Pinned, may_serve_elsewhere
from dfc.batch.preamble import encode_preamble
from dfc.errors import BucketNotFound, DfcError, NotSeekable, StorageFailed, Unavailable
from dfc.http.budget import BudgetPlace
from dfc.http.calls.peer import PeerPool
from dfc.http.transfer import to_its_end
from dfc.limits import BATCH_DECODED_BYTES_MAX
from dfc.placement.readers import reader_ids
from dfc.storage.disk import Disk
from dfc.tar.header import TarError
from dfc.tar.reader import read_member_range
from dfc.target.copies.storing import CopiedObjects
from dfc.target.local import Local
from dfc.target.members import BlobBody
from dfc.target.threads import shielded
from dfc.target.uploads import Slots

if TYPE_CHECKING:
    from dfc.target.batch.resolving import Decoding, Resolved
    from dfc.target.batch.spans import PieceSource


_BUCKET_OF: Final = attrgetter("bucket")  # of 100,000 items on the event loop


class OwnBatches:
    """Opens the parts of batches. `slots` limit the reads that decompress. `asked` limits the batches that this target
    assembles, `own` the parts that it gives to others."""

    def __init__(
        self,
        local: Local,
        pool: PeerPool,
        token: str,
        slots: Slots,
        copied: CopiedObjects,
        *,
        refuses_stale: bool = False,
    ) -> None:
        self._local = local
        self._copied = copied
        self.refuses_stale = refuses_stale
        self._slots = slots
        self._peers = PeerParts(pool, token, lambda node: self._local.map.url_of(node), self._readers_of)
        self._refusals = pool.refusals

    async def gather(self, request: BatchRequest, place: BudgetPlace, *, with_lengths: bool) -> GatheredBatch:
        """Find items anywhere in the cluster and return the batch, ready to be sent. Any error of an item; Unavailable."""
        await self._learn_buckets(request.items)
        threads = self._local.batches
        return await gather_batch(request, self._owner_of, self._open, place, threads, with_lengths=with_lengths)

    async def gather_own(self, request: BatchRequest) -> GatheredBatch:
        """Return items of this target, preceded by the length of each (`dfc.batch.preamble`). Raises the same as `gather`."""
        threads = self._local.batches
        try:
            await self._learn_buckets(request.items)
            part = await self.open_own(request.items, request.on_missing)
        except ItemError as error:
            free_soon(request.items, threads)
            raise error.answer() from None
        try:
            free_soon(request.items, threads)  # a reader may take its time
            if len(part.lengths) > LONG:
                total, begin = await asyncio.get_running_loop().run_in_executor(threads, _beginning, part)
            else:
                total, begin = _beginning(part)
        except BaseException:
            await part.close(whole=False)
            raise
        return GatheredBatch([part], [(0, total)], total, threads, begin)

    async def _learn_buckets(self, items: Sequence[BatchItem]) -> None:
        """Ask the registry once for buckets that this target's map lacks; after that they count as missing."""
        for name in set(map(_BUCKET_OF, items)):
            if self._local.map.bucket(name) is None:
                try:
                    await self._local.bucket(name)
                except BucketNotFound:
                    pass

    def _owner_of(self, bucket: str, name: str) -> str:
        entry = self._local.map.bucket(bucket)
        if entry is None:
            return self._local.node_id  # where the item is found to be missing
        readers = self._readers_of(bucket, name)
        if readers:
            return readers[0]
        owner = self._local.map.owner(entry, name)
        if owner is None:
            raise Unavailable("this target has no cluster map yet")
        if self._local.map.is_copied(entry.id):
            raise Unavailable("all targets that hold items of the batch are down or incomplete", retry_after_s=2)
        return owner.node.id

    def _readers_of(self, bucket: str, name: str) -> list[str]:
        return reader_ids(self._local.map, bucket, name, self._refusals)

    async def _open(self, owner: str, items: list[BatchItem], on_missing: OnMissing) -> Part:
        if owner == self._local.node_id:
            return await self._open_own_first(items, on_missing)
        node = self._local.map.node(owner)
        if node is not None and node.state == "down":
            raise Unavailable(f"target {owner}, which holds items of the batch, is down", retry_after_s=2)
        return await self._peers.open(owner, items, on_missing)

    async def _open_own_first(self, items: list[BatchItem], on_missing: OnMissing) -> Part:
        """Open the items of this target here or, if it cannot serve them, at others that have copies."""
        own_id = self._local.node_id
        try:
            part = await self.open_own(items, on_missing)
        except (DfcError, ItemError) as error:
            if not may_serve_elsewhere(error) or not self._peers.have_others(items, {own_id}):
                raise
            return await self._peers.open(own_id, items, on_missing, passed={own_id})
        if not self._peers.have_others(items[:1], {own_id}):
            return part

        async def go_on(taken: int) -> Part:
            found = Pinned(part.resolved.lengths, part.checksums)
            return await self._peers.go_on(own_id, items, on_missing, found, taken)

        return ContinuedPart(part, go_on)

    # --- the part of this target

    async def open_own(self, items: list[BatchItem], on_missing: OnMissing) -> OwnPart:
        """Open the items of this target. ItemError; NoLease if they may be stale and `refuses_stale`."""
        is_leased = self._local.is_leased  # what is found from now on is at least as new as this
        if not is_leased and self.refuses_stale:
            self._local.check_leased()
        from dfc.target.batch.resolving import resolve  # so that a node that serves no batches does not load numpy

        checks = self._local.check_leased, self._copied.check_served
        resolving = self._local.batches.submit(resolve, items, on_missing, self._find, *checks)
        try:
            resolved = await shielded(resolving)
        except asyncio.CancelledError:
            resolving.add_done_callback(_let_go)
            raise
        try:
            left = BATCH_DECODED_BYTES_MAX
            for decoding in resolved.decodings:
                left -= decoding.size
                if left < 0:
                    what = f"{decoding.row.name!r} and others are compressed: one request may decompress at most"
                    raise ItemError(decoding.first_item, NotSeekable(f"{what} {BATCH_DECODED_BYTES_MAX} bytes; ask for less"))
                await self._decode(resolved, decoding)
        except BaseException:
            resolved.files.close()
            raise
        return OwnPart(resolved, possibly_stale=not is_leased)

    async def _decode(self, resolved: Resolved, decoding: Decoding) -> None:
        has_slot = await self._slots.take(decoding.kind)
        try:
            run = asyncio.get_running_loop().run_in_executor
            await to_its_end(run(self._local.batches, _decode, resolved, decoding))
        finally:
            if has_slot:
                self._slots.give()

    def _find(self, bucket: str, name: str) -> tuple[str, Disk]:
        found = self._local.map.bucket(bucket)
        if found is None:
            raise BucketNotFound(f"bucket {bucket!r} does not exist")
        return found.id, self._local.reader_disk(found, name)


def _beginning(part: OwnPart) -> tuple[int, bytes]:
    """The bytes of all items, and what is sent before them."""
    return sum(part.lengths), encode_preamble(part.resolved.lengths.tobytes(), part.checksums)


def _let_go(resolving: Future[Resolved]) -> None:
    """Close the files of a result that is no longer wanted."""
    if not resolving.cancelled() and resolving.exception() is None:
        resolving.result().files.close()


def _decode(resolved: Resolved, decoding: Decoding) -> None:
    """Replace a compressed shard by its decompressed archive, as far as that is needed."""
    resolved.files.replace(decoding.number, _decoded(resolved, decoding))


def _decoded(resolved: Resolved, decoding: Decoding) -> IO[Any]:
    """Decompress the needed part of a shard into an unnamed file on the shard's disk."""
    disk = decoding.disk
    body = cast(BinaryIO, BlobBody(disk, decoding.row, resolved.files.descriptor(decoding.number)))
    file = disk.scratch_file(decoding.size)
    try:
        for piece in read_member_range(body, decoding.kind, 0, decoding.size):
            file.write(piece)
        file.flush()
        return file
    except TarError as error:
        failure: DfcError = StorageFailed(f"{decoding.row.name!r} can no longer be decompressed: {error}")
    except OSError as error:
        failure = disk.scratch_failed(error, "decompressing a shard")
    file.close()
    raise failure


class OwnPart:
    """This target's part of a batch, see `dfc.batch.answer.Part`."""

    def __init__(self, resolved: Resolved, *, possibly_stale: bool) -> None:
        assert resolved.source is not None
        self.resolved = resolved
        self.possibly_stale = possibly_stale
        self.lengths: Sequence[int] = resolved.lengths
        self.checksums = resolved.checksums
        self.source = resolved.source

    async def close(self, *, whole: bool) -> None:
        self.resolved.files.close()

    async def reopen(self) -> None:
        raise StorageFailed("a disk of this target did not return the expected bytes")


class ContinuedPart:
    """This target's part of a batch, with which other targets that have copies go on if a disk fails in the middle."""

    def __init__(self, own: OwnPart, go_on: Callable[[int], Awaitable[Part]]) -> None:
        self._own = own
        self._go_on = go_on
        self._other: Part | None = None
        self.lengths = own.lengths
        self.source: ByteSource = BreakableSource(own.source)

    @property
    def possibly_stale(self) -> bool:
        return self._own.possibly_stale

    async def close(self, *, whole: bool) -> None:
        await self._own.close(whole=whole)
        if self._other is not None:
            await self._other.close(whole=whole)

    async def reopen(self) -> None:
        if self._other is None:
            self._other = await self._go_on(sum(self.lengths) - self._own.source.left)
        else:
            await self._other.reopen()
        self.source = self._other.source


class BreakableSource:
    """Pieces of files whose errors end the source like a lost connection, so that another one can go on."""

    def __init__(self, pieces: PieceSource) -> None:
        self._pieces = pieces
        self.event = pieces.event

    def fill(self, view: memoryview) -> int:
        try:
            return self._pieces.fill(view)
        except DfcError as error:
            raise ConnectionError(error.message) from error
