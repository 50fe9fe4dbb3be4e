"""Makes an index while the archive arrives, in bounded memory, whatever the archive says.

`feed` never raises for what is in the archive: it remembers the first problem and ignores the rest, nearly for free.
An OSError of the index file or of a temporary file does come out, of `feed` and of `finish`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

import xxhash

from dfc.checksum import Buffer
from dfc.limits import INDEX_BLOCK_BYTES, INDEX_FLUSH_BYTES, INDEX_MEMBERS_MAX, MIB
from dfc.tar.header import DIRECTORY, FILE, TarError
from dfc.tar.index_format import HEADER_BYTES, NO_KEY, RECORD, SAMPLE, IndexHeader, encode_header
from dfc.tar.samples import SampleGrouper, split_key
from dfc.tar.scanner import Entry, Scanner
from dfc.tar.spill import HashTable, Spill, write_all

_FEED_BYTES_MAX: Final = MIB  # entries of one piece are in memory at once: at most 2,048 of them


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Counts of a finished index. `dropped`: members other than directories that belong to no sample.

    `repeated_keys`: samples whose key an earlier sample of the shard has, counted by 64-bit hashes.
    `warnings`: sentences for whoever uploaded it.
    """

    members: int
    samples: int
    repeated_keys: int
    dropped: int
    warnings: tuple[str, ...]


class Builder(Protocol):
    """What every index builder can do; see IndexBuilder."""

    @property
    def problem(self) -> TarError | None: ...
    def feed(self, data: Buffer) -> None: ...
    def finish(self, version: str, size: int, checksum: str) -> IndexSummary: ...
    def close(self) -> None: ...


class IndexBuilder:
    """Index of an uncompressed archive. `file` is fresh, seekable and open for reading and writing; it stays the caller's.

    Use: `feed` every byte of the shard in order, then `finish`; or `close` when the upload is given up.
    """

    def __init__(self, file: BinaryIO, temporary_directory: str) -> None:
        self.problem: TarError | None = None
        self._scanner = Scanner()
        self._records = _Records(file)
        self._grouper = SampleGrouper()
        self._members = HashTable(temporary_directory)
        self._keys = HashTable(temporary_directory)
        self._samples = Spill(temporary_directory)
        self._sample_head = self._sample_position = self._sample_number = 0
        self._sample_members = self._sample_last = 0
        self._member_count = self._sample_count = self._dropped = self._not_utf8 = 0

    @property
    def archive_size(self) -> int:
        """Bytes of archive fed so far."""
        return self._scanner.fed

    def feed(self, data: Buffer) -> None:
        """The next bytes of the archive, in pieces of any size. Bodies of members cost nothing."""
        if self.problem is not None:
            return
        try:
            if len(data) <= _FEED_BYTES_MAX:
                self._add(self._scanner.feed(data))
                return
            view = memoryview(data).cast("B")
            for start in range(0, len(view), _FEED_BYTES_MAX):
                self._add(self._scanner.feed(view[start : start + _FEED_BYTES_MAX]))
        except TarError as error:
            self.fail(error)

    def fail(self, problem: TarError) -> None:
        """Remember the first problem and let go of everything else."""
        if self.problem is None:
            self.problem = problem
            self.close()

    def close(self) -> None:
        """Give up temporary files and memory. Idempotent."""
        self._members.close()
        self._keys.close()
        self._samples.close()
        self._records.close()

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary:
        """Write the tables and the header, which names version, size and checksum of the blob.

        Raises TarError when the archive is broken or incomplete; the file is then of no use.
        """
        if self.problem is None and size != self.archive_size:
            raise ValueError(f"{self.archive_size} bytes were fed, not {size}")
        return self.finish_as("tar", version, size, checksum)

    def finish_as(self, kind: str, version: str, size: int, checksum: str) -> IndexSummary:
        """Like `finish`, for an archive of `archive_size` that is stored in `size` bytes compressed as `kind`."""
        try:
            if self.problem is not None:
                raise self.problem
            self._scanner.finish()
            self._close_sample()
            self._records.finish()
            tables = xxhash.xxh3_64()

            def sink(data: Buffer) -> None:
                tables.update(data)
                write_all(self._records.file, data)

            sink(self._records.checksums.tobytes())
            self._members.write(sink)
            self._keys.write(sink)
            self._samples.copy_to(sink)
            header = IndexHeader(
                kind,
                size,
                self.archive_size,
                self._member_count,
                self._sample_count,
                self._keys.repeated,
                self._dropped,
                self._records.end,
                tables.intdigest(),
                version,
                checksum,
            )
            self._records.file.seek(0)
            write_all(self._records.file, encode_header(header))
            self._records.file.flush()
            return IndexSummary(header.members, header.samples, header.repeated_keys, header.dropped, self._warnings())
        finally:
            self.close()

    def _add(self, entries: list[Entry]) -> None:
        """The hot loop over members."""
        if not entries:
            return
        self._member_count += len(entries)
        if self._member_count > INDEX_MEMBERS_MAX:
            raise TarError(f"the archive has more than {INDEX_MEMBERS_MAX} members", entries[-1][2])
        number = self._member_count - len(entries)
        position = self._records.end
        add_hash, add_value = self._members.hashes.append, self._members.values.append
        add_record, pack, name_hash = self._records.buffer.extend, RECORD.pack, xxhash.xxh3_64_intdigest
        starts_sample, skip = self._grouper.add, self._grouper.skip
        for name, member_type, head, offset, size in entries:
            try:
                text = name.decode()
            except UnicodeDecodeError:
                text = name.decode(errors="replace")
                name = text.encode()
                self._not_utf8 += 1
            parts = split_key(text) if member_type == FILE else None
            if parts is None:
                key_chars = NO_KEY
                skip()
                if member_type != DIRECTORY:
                    self._dropped += 1
            else:
                key = parts[0]
                key_chars = len(key)
                if starts_sample(key, parts[1]):
                    self._close_sample()
                    self._open_sample(key, head, position, number)
                self._sample_members += 1
                self._sample_last = number
            add_hash(name_hash(name))
            add_value(position)
            add_record(pack(offset, size, offset - head, len(name), key_chars, member_type) + name)
            position += RECORD.size + len(name)
            number += 1
        self._records.flush_if_full()
        self._members.spill_if_full()
        self._keys.spill_if_full()

    def _open_sample(self, key: str, head: int, position: int, number: int) -> None:
        self._keys.hashes.append(xxhash.xxh3_64_intdigest(key.encode()))
        self._keys.values.append(self._sample_count)
        self._sample_count += 1
        self._sample_head = head
        self._sample_position = position
        self._sample_number = number

    def _close_sample(self) -> None:
        if self._sample_members:
            records = self._sample_last - self._sample_number + 1
            self._samples.append(SAMPLE.pack(self._sample_head, self._sample_position, self._sample_members, records))
            self._sample_members = 0

    def _warnings(self) -> tuple[str, ...]:
        warnings = []
        if self._dropped:
            warnings.append(f"{self._dropped} members belong to no sample")
        if self._keys.first_repeated is not None:
            key = self._key_of_sample(self._keys.first_repeated)
            warnings.append(f"{self._keys.repeated} samples have a key that came before in the shard, first {key[:200]!r}")
        if self._not_utf8:
            warnings.append(f"{self._not_utf8} member names are not UTF-8 and are listed with replacement characters")
        return tuple(warnings)

    def _key_of_sample(self, number: int) -> str:
        """Read a key back from the file that was just written."""
        file = self._records.file
        end = file.seek(0, 2)
        file.seek(end - SAMPLE.size * (self._sample_count - number))
        _, position, _, _ = SAMPLE.unpack(file.read(SAMPLE.size))
        file.seek(position)
        _, _, _, name_bytes, key_chars, _ = RECORD.unpack(file.read(RECORD.size))
        return file.read(name_bytes).decode()[:key_chars]


class _Records:
    """The records region: written as it grows, checksummed in blocks."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.buffer = bytearray()
        self.checksums = array("Q")
        self._flushed = HEADER_BYTES
        file.seek(HEADER_BYTES)

    @property
    def end(self) -> int:
        return self._flushed + len(self.buffer)

    def flush_if_full(self) -> None:
        if len(self.buffer) >= INDEX_FLUSH_BYTES:
            self._flush(len(self.buffer) // INDEX_BLOCK_BYTES * INDEX_BLOCK_BYTES)

    def finish(self) -> None:
        """Flush the rest and pad the file up to where the tables begin."""
        self._flush(len(self.buffer))
        write_all(self.file, bytes(-self._flushed % 8))

    def close(self) -> None:
        self.buffer = bytearray()
        self.checksums = array("Q")

    def _flush(self, size: int) -> None:
        with memoryview(self.buffer) as view:
            for start in range(0, size, INDEX_BLOCK_BYTES):
                self.checksums.append(xxhash.xxh3_64_intdigest(view[start : min(start + INDEX_BLOCK_BYTES, size)]))
            write_all(self.file, view[:size])
        del self.buffer[:size]
        self._flushed += size
