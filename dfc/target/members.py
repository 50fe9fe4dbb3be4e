"""Members and samples of a shard: by its index where it is a plain tar, by streaming decompression where it is compressed."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from dfc.errors import BadRequest, MemberNotFound, NotAShard, SampleNotFound
from dfc.http.answers import Answer, FileAnswer, Headers, StreamAnswer, header_lines
from dfc.http.common import SAFETY_HEADERS, content_type
from dfc.http.conditions import http_date, is_not_modified, is_plain, requested_range
from dfc.http.exchange import Exchange
from dfc.limits import DECOMPRESSED_READ_WAIT_S, SMALL_READ_BYTES, TRANSFER_BUFFER_BYTES
from dfc.storage.blobs.nowait import read_range
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow
from dfc.tar.index import IndexCorrupt, Member, Sample, ShardIndex
from dfc.tar.index.file import NotAtHand
from dfc.tar.index.listing import list_members, list_offsets, list_samples
from dfc.tar.reader import read_member_range
from dfc.tar.writer import END_OF_ARCHIVE
from dfc.target.decoders import Slots
from dfc.target.local import Local
from dfc.wire import NDJSON, OCTETS, TAR

_SAFETY_LINES: Final = header_lines(SAFETY_HEADERS)
_QUERIES: Final = ("member", "archpath", "sample", "list")


@dataclass(frozen=True, slots=True)
class StoredShard:
    """An object with a tar index, and where its blob lies."""

    disk: Disk
    row: ObjectRow
    path: str
    index: ShardIndex


class MemberRoutes:
    """Answers `?member=`, `?archpath=`, `?sample=` (with `&ext=`) and `?list=` on one object."""

    def __init__(self, local: Local) -> None:
        self._local = local
        self.slots = Slots(DECOMPRESSED_READ_WAIT_S)

    async def answer(self, exchange: Exchange, disk: Disk, row: ObjectRow, query: Mapping[str, str]) -> Answer:
        kind = _asked_for(query)
        if row.samples is None:
            raise NotAShard(f"{row.name!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
        path = disk.blob_path(row)
        index = disk.cached_index(path)
        if index is None:
            index = await self._local.threads(disk).read(disk.open_index, row)
        try:
            return await self._by_index(exchange, StoredShard(disk, row, path, index), kind, query)
        except IndexCorrupt:
            # Large indexes are checked as they are read. A new one is made from the shard; then it is asked once more.
            index = await self._local.threads(disk).read(disk.rebuild_index, row, index)
            return await self._by_index(exchange, StoredShard(disk, row, path, index), kind, query)

    def at_once(self, exchange: Exchange, disk: Disk, row: ObjectRow) -> Answer | None:
        """A small member of a plain tar whose index and bytes are in memory; None for everything else."""
        query = exchange.query_parameters(None)
        path = disk.blob_path(row)
        index = disk.cached_index(path)
        if index is None or index.compressed or row.samples is None or query.keys() != {"member"}:
            return None
        try:
            member = index.find_member_at_hand(query["member"])
        except (NotAtHand, IndexCorrupt):
            return None
        if member is None or member.type != "file" or member.size > SMALL_READ_BYTES:
            return None
        body = read_range(path, member.offset, member.size)
        if body is None or len(body) != member.size:
            return None
        return Answer(200, body, _lines(content_type(member.name), _etag(row, member), row, "Accept-Ranges: bytes\r\n"))

    async def _by_index(self, exchange: Exchange, shard: StoredShard, kind: str, query: Mapping[str, str]) -> Answer:
        value = query[kind]
        if kind == "list":
            return self._list(shard, value)
        if kind == "sample":
            return await self._sample(exchange, shard, value, query.get("ext"))
        try:
            member = shard.index.find_member_at_hand(value)
        except NotAtHand:
            member = await self._local.threads(shard.disk).read(shard.index.find_member, value)
        if member is None:
            raise MemberNotFound(f"{shard.row.name!r} has no member {value[:200]!r}")
        return await self._member(exchange, shard, member)

    def _list(self, shard: StoredShard, what: str) -> Answer:
        disk, row, index = shard.disk, shard.row, shard.index
        if what == "offsets":
            headers = (("Content-Type", OCTETS), ("ETag", f'"{row.checksum}"'), *SAFETY_HEADERS)
            pieces = self._local.threads(disk).iterate(_or_rebuild(disk, row, index, list_offsets(index)))
            return StreamAnswer(200, pieces, headers, content_length=8 * (index.sample_count + 1))
        if what not in ("members", "samples"):
            raise BadRequest("list is 'members', 'samples' or 'offsets'")
        lines = _or_rebuild(disk, row, index, list_members(index) if what == "members" else list_samples(index))
        return StreamAnswer(200, self._local.threads(disk).iterate(lines), [("Content-Type", NDJSON), *SAFETY_HEADERS])

    async def _sample(self, exchange: Exchange, shard: StoredShard, key: str, extension: str | None) -> Answer:
        try:
            sample = shard.index.find_sample_at_hand(key)
        except NotAtHand:
            sample = await self._local.threads(shard.disk).read(shard.index.find_sample, key)
        if sample is None:
            raise SampleNotFound(f"{shard.row.name!r} has no sample {key[:200]!r}")
        if extension is not None:
            for member in sample.members:
                if member.ext == extension.lower():
                    return await self._member(exchange, shard, member)
            raise MemberNotFound(f"sample {key[:200]!r} has no {extension[:80]!r}")
        return await self._whole_sample(exchange, shard, sample)

    async def _whole_sample(self, exchange: Exchange, shard: StoredShard, sample: Sample) -> Answer:
        """A tar of what a batch gives of this sample: its members with the headers that they have in the shard."""
        disk, row, index = shard.disk, shard.row, shard.index
        size = sum(end - start for start, end in sample.pieces)
        etag = f"{row.checksum}-{sample.start:x}-{size:x}-tar"
        plain = is_plain(exchange.headers)
        if not plain and is_not_modified(exchange.headers, etag, row.modified_us):
            return Answer(304, b"", _lines(TAR, etag, row))
        if not index.compressed and len(sample.pieces) == 1:
            return await self._ranged(exchange, shard, etag, TAR, plain, sample.start, size, END_OF_ARCHIVE)
        total, lines = size + len(END_OF_ARCHIVE), _lines(TAR, etag, row)
        if exchange.method == "HEAD":
            return Answer(200, b"", lines, content_length=total)
        file, close = await self._open(disk, row, index.kind)
        pieces = self._local.threads(disk).iterate(_sample_tar(BlobBody(disk, row, file), index.kind, sample))
        return StreamAnswer(200, pieces, lines, content_length=total, on_close=close)

    async def _member(self, exchange: Exchange, shard: StoredShard, member: Member) -> Answer:
        if member.type != "file":
            raise MemberNotFound(f"{member.name[:200]!r} is a {member.type}, not a file with bytes in the archive")
        row = shard.row
        etag, kind = _etag(row, member), content_type(member.name)
        plain = is_plain(exchange.headers)
        if not plain and is_not_modified(exchange.headers, etag, row.modified_us):
            return Answer(304, b"", _lines(kind, etag, row))
        if shard.index.compressed:
            return await self._decompressed(exchange, shard, member, _lines(kind, etag, row))
        return await self._ranged(exchange, shard, etag, kind, plain, member.offset, member.size)

    async def _ranged(
        self,
        exchange: Exchange,
        shard: StoredShard,
        etag: str,
        kind: str,
        plain: bool,
        offset: int,
        size: int,
        tail: bytes = b"",
    ) -> Answer:
        """`size` bytes of the blob from `offset` on and `tail` behind them; or, unless `plain`, the range of that which is
        asked for."""
        disk, row = shard.disk, shard.row
        lines = _lines(kind, etag, row, "Accept-Ranges: bytes\r\n")
        count, status = size, 200
        part = None if plain else requested_range(exchange.headers, size + len(tail), etag, row.modified_us)
        if part is not None:
            start, stop = part
            lines += f"Content-Range: bytes {start}-{stop - 1}/{size + len(tail)}\r\n"
            offset, count, status = offset + start, max(0, min(stop, size) - start), 206
            tail = tail[max(0, start - size) : max(0, stop - size)]
        if exchange.method == "HEAD":
            return Answer(status, b"", lines, content_length=count + len(tail))
        if count <= SMALL_READ_BYTES:
            body = read_range(shard.path, offset, count)
            if body is None or len(body) != count:
                body = await self._local.threads(disk).read(_read_range, disk, row, offset, count)
            return Answer(status, body + tail if tail else body, lines)
        return await blob_answer(self._local, disk, row, status, offset, count, lines, tail)

    async def _decompressed(self, exchange: Exchange, shard: StoredShard, member: Member, lines: str) -> Answer:
        disk, row, index = shard.disk, shard.row, shard.index
        if exchange.method == "HEAD":
            return Answer(200, b"", lines, content_length=member.size)
        file, close = await self._open(disk, row, index.kind)
        pieces: AsyncIterator[bytes] = self._local.threads(disk).iterate(
            _decompress(BlobBody(disk, row, file), index.kind, member.offset, member.size)
        )
        return StreamAnswer(200, pieces, lines, content_length=member.size, on_close=close)

    async def _open(self, disk: Disk, row: ObjectRow, kind: str) -> tuple[int, Callable[[], None]]:
        """The blob to read a shard from and what ends that. Unavailable while too many shards of large windows are read."""
        has_slot = await self.slots.take(kind)
        try:
            file = await self._local.threads(disk).open(disk.open_blob, row, release=os.close)
        except BaseException:
            if has_slot:
                self.slots.give()
            raise

        def close() -> None:
            os.close(file)
            if has_slot:
                self.slots.give()

        return file, close


def _asked_for(query: Mapping[str, str]) -> str:
    """Which one of `_QUERIES`; BadRequest for none and for several."""
    given = [name for name in _QUERIES if name in query]
    if len(given) != 1 or ("ext" in query and given != ["sample"]):
        raise BadRequest("one of member, sample and list is asked for at a time; ext goes with sample")
    return given[0]


def _etag(row: ObjectRow, member: Member) -> str:
    return f"{row.checksum}-{member.offset:x}-{member.size:x}"


def _lines(kind: str, etag: str, row: ObjectRow, more: str = "") -> str:
    date = http_date(row.modified_us)
    return f'Content-Type: {kind}\r\nETag: "{etag}"\r\nLast-Modified: {date}\r\n{_SAFETY_LINES}{more}'


def _or_rebuild(disk: Disk, row: ObjectRow, index: ShardIndex, lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines; when the index turns out damaged half-way this answer breaks off, and the next one has a new index."""
    try:
        yield from lines
    except IndexCorrupt:
        disk.rebuild_index(row, index)
        raise


async def blob_answer(
    local: Local, disk: Disk, row: ObjectRow, status: int, offset: int, count: int, headers: Headers, tail: bytes = b""
) -> FileAnswer:
    """So many bytes of a blob, by sendfile in the threads of its disk, and `tail` behind them."""
    threads = local.threads(disk)
    file = await threads.open(disk.open_blob, row, release=os.close)

    def failed(error: OSError, at: int) -> None:
        disk.read_failed(row, at, error)

    return FileAnswer(status, file, offset, count, headers, threads.sending, failed, tail)


def _read_range(disk: Disk, row: ObjectRow, offset: int, count: int) -> bytes:
    file = disk.open_blob(row)
    try:
        return BlobBody(disk, row, file).pread(count, offset)
    finally:
        os.close(file)


class BlobBody:
    """The object's bytes of a blob, without its footer, as the readers of archives want them. Bytes that cannot be read, or
    are not there, are raised as the disk's errors."""

    def __init__(self, disk: Disk, row: ObjectRow, file: int) -> None:
        self._disk, self._row, self._file = disk, row, file
        self._position = 0

    def read(self, count: int = -1) -> bytes:
        left = self._row.size - self._position
        data = self.pread(left if count < 0 else min(count, left), self._position)
        self._position += len(data)
        return data

    def pread(self, count: int, offset: int) -> bytes:
        """Exactly `count` bytes."""
        try:
            data = os.pread(self._file, count, offset)
            if len(data) != count:
                raise OSError(errno.ENODATA, f"the blob ends at byte {offset + len(data)}")
            return data
        except OSError as error:
            raise self._disk.read_failed(self._row, offset, error) from error


def _decompress(body: BlobBody, kind: str, offset: int, count: int) -> Iterator[bytes]:
    return read_member_range(cast(BinaryIO, body), kind, offset, count)


def _sample_tar(body: BlobBody, kind: str, sample: Sample) -> Iterator[bytes]:
    """The members of a sample as they stand in the archive, and the end of one; a compressed shard is decoded once."""
    if kind == "tar":
        for start, end in sample.pieces:
            yield from _ranges(body, start, end - start)
    else:
        position, pieces = sample.start, list(reversed(sample.pieces))
        for data in _decompress(body, kind, sample.start, sample.end - sample.start):
            after = position + len(data)
            while pieces and pieces[-1][0] < after:
                start, end = pieces[-1]
                yield data[max(0, start - position) : end - position]
                if end > after:
                    break
                pieces.pop()
            position = after
    yield END_OF_ARCHIVE


def _ranges(body: BlobBody, offset: int, size: int) -> Iterator[bytes]:
    end = offset + size
    while offset < end:
        piece = body.pread(min(TRANSFER_BUFFER_BYTES, end - offset), offset)
        offset += len(piece)
        yield piece
