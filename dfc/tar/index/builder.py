"""Build an index while the archive arrives, in bounded memory whatever it contains."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import sub
from typing import BinaryIO, Final, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from dfc.checksum import Buffer
from dfc.limits import INDEX_BLOCK_BYTES, INDEX_FLUSH_BYTES, INDEX_MEMBERS_MAX, MIB, SAMPLE_RECORDS_MAX, TAR_HEADER_BYTES
from dfc.tar.compression import MAGIC_BYTES, CompressionError, Decompressor, kind_of_bytes
from dfc.tar.header import DIRECTORY, FILE, TarError
from dfc.tar.index.columns import RECORDS, Bytes, Integers
from dfc.tar.index.format import HEADER_BYTES, KINDS, RECORD, SAMPLE, IndexHeader, encode_header
from dfc.tar.index.spill import HashTable, Spill, write_all
from dfc.tar.samples import NO_KEY, SampleGrouper
from dfc.tar.scanner import Entry, PlainFiles, Scanner

# --- The rule of `dfc.tar.samples`, applied to many names at a time if they are plain, as names nearly always are.

_RUN_MAX: Final = min(16, SAMPLE_RECORDS_MAX)  # members of a sample that are compared with each other, at one pass each
_DOT, _SLASH, _LINE = ord("."), ord("/"), ord("_")


def cut_files(grouper: SampleGrouper, files: PlainFiles) -> tuple[Integers, Integers]:
    """Like `SampleGrouper.cut`, for the names of these files, all of them ASCII."""
    text = files.text
    found = _key_lengths(text)
    if found is None:
        return _cut_one_by_one(grouper, files, 0)
    column, dot = _columns(text), found.astype(np.uint8)[:, None]
    keys = _rows(text * (column < dot))
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    first = 0
    early: tuple[Integers, Integers] | None = None
    if grouper.key == files.names[0][: int(found[0])].decode():  # its sample may continue
        first = int(begins[1]) if len(begins) > 1 else len(files)
        early = _cut_one_by_one(grouper, files, 0, first)
        begins = begins[1:]
        if not len(begins):
            return early
    longest = int(np.diff(begins, append=len(files)).max())
    capital = (text >= ord("A")) & (text <= ord("Z")) & (column > dot)
    wholes = _rows(text + (capital.view(np.uint8) << 5))[first:]
    if longest > _RUN_MAX or any(bool((wholes[step:] == wholes[:-step]).any()) for step in range(1, longest)):
        late = _cut_one_by_one(grouper, files, first)
    else:
        late = found[first:], begins
        last = int(begins[-1])
        key_chars = int(found[last])
        extensions = {name[key_chars + 1 :].decode().lower() for name in files.names[last:]}
        grouper.go_on(files.names[last][:key_chars].decode(), extensions, len(files) - last)
    if early is None:
        return late
    return np.concatenate([early[0], late[0]]), np.concatenate([early[1], late[1]])


def _key_lengths(text: Bytes) -> Integers | None:
    """The position of the first dot in each name; None unless it ends the key in all of them."""
    if text.shape[1] < 2:
        return None
    dots = text == _DOT
    found = dots.argmax(axis=1)
    rows = np.arange(len(text))
    plain = dots[rows, found] & (found > 0) & (text[rows, found - 1] != _SLASH)
    plain &= (text[:, 0] != _LINE) | (text[:, 1] != _LINE)
    if not plain.all():
        return None
    slashes = text == _SLASH
    slashes &= _columns(text) > found.astype(np.uint8)[:, None]
    return None if slashes.any() else found


def _columns(text: Bytes) -> Bytes:
    """The number of each column. It wraps around after 255, where names that fit into a header have only zeros."""
    return np.arange(text.shape[1], dtype=np.uint8)


def _rows(table: Bytes) -> NDArray[np.void]:
    """Each row as one comparable value."""
    table = np.ascontiguousarray(table)
    return table.view(np.dtype((np.void, table.shape[1]))).ravel()


def _cut_one_by_one(
    grouper: SampleGrouper, files: PlainFiles, first: int, stop: int | None = None
) -> tuple[Integers, Integers]:
    names = [name.decode() for name in files.names[first:stop]]
    chars, starts = grouper.cut(names, [FILE] * len(names))
    return np.array(chars, dtype=np.int64), np.array(starts, dtype=np.int64) + first


# --- `feed` never raises for the contents of the archive: it records the first problem and ignores the rest, at almost no cost.
# An OSError of the index file or a temporary file is raised, by `feed` and by `finish`.

_FEED_BYTES_MAX: Final = MIB  # entries of one piece are in memory at once: at most 2,048
_COLUMNS_MIN: Final = 128  # fewer files are faster one by one
_ASCII_MAX: Final = 127
_BATCH_ENTRIES: Final = 512  # members with large bodies are few in a piece; batching them halves the cost


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """The summary of a finished index. `dropped`: members other than directories that belong to no sample.

    `repeated_keys`: samples that repeat the key of an earlier sample of the shard, counted by 64-bit hashes.
    `warnings`: sentences for the uploader.
    """

    members: int
    samples: int
    repeated_keys: int
    dropped: int
    warnings: tuple[str, ...]


class Builder(Protocol):
    """The interface of index builders; see IndexBuilder."""

    @property
    def problem(self) -> TarError | None: ...
    def feed(self, data: Buffer, files: PlainFiles | None = None) -> None: ...
    def finish(self, version: str, size: int, checksum: str) -> IndexSummary: ...
    def close(self) -> None: ...


class IndexBuilder:
    """Builds the index of an uncompressed archive. `file` is new, seekable, open for reading and writing; the caller closes it.

    Use: `feed` every byte of the shard in order, then `finish`; or `close` when the upload is aborted.
    """

    def __init__(self, file: BinaryIO, temporary_directory: str) -> None:
        self.problem: TarError | None = None
        self._scanner = Scanner(take_files=self._add_files)
        self._records = _Records(file)
        self._grouper = SampleGrouper()
        self._members = HashTable(temporary_directory)
        self._keys = HashTable(temporary_directory)
        self._samples = Spill(temporary_directory)
        self._entries: list[Entry] = []  # members found but not yet in the tables
        self._member_count = self._sample_count = self._dropped = self._not_utf8 = 0

    @property
    def archive_size(self) -> int:
        """Bytes of archive fed so far."""
        return self._scanner.fed

    def feed(self, data: Buffer, files: PlainFiles | None = None) -> None:
        """Take the next bytes of the archive, in pieces of any size. Bodies of members cost nothing.

        `files`: the members in these bytes, if they are whole members with one header each and the caller already knows them;
        heads count from the first byte. Parsing them again would take as long as everything else.
        """
        if self.problem is not None:
            return
        try:
            if files is not None and files.fill(len(data)) and self._scanner.pass_over(len(data), files):
                return
            if len(data) <= _FEED_BYTES_MAX:
                self._feed(data)
                return
            view = memoryview(data).cast("B")
            for start in range(0, len(view), _FEED_BYTES_MAX):
                self._feed(view[start : start + _FEED_BYTES_MAX])
        except TarError as error:
            self.fail(error)

    def fail(self, problem: TarError) -> None:
        """Record the first problem and free everything else."""
        if self.problem is None:
            self.problem = problem
            self.close()

    def close(self) -> None:
        """Free temporary files and memory. Idempotent."""
        self._entries = []
        self._members.close()
        self._keys.close()
        self._samples.close()
        self._records.close()

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary:
        """Write the tables and the header, which has the version, size and checksum of the blob.

        Raises TarError when the archive is broken or incomplete; the file is then useless.
        """
        if self.problem is None and size != self.archive_size:
            raise ValueError(f"{self.archive_size} bytes were fed, not {size}")
        return self.finish_as("tar", version, size, checksum)

    def finish_as(self, kind: str, version: str, size: int, checksum: str, warnings: tuple[str, ...] = ()) -> IndexSummary:
        """Like `finish`, for an archive of `archive_size` that is stored in `size` bytes compressed as `kind`, and with
        `warnings` before its own."""
        try:
            if self.problem is not None:
                raise self.problem
            rest = self._scanner.finish()  # first: it passes on what it found before
            self._entries += rest
            self._add_entries()
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
            warnings += self._warnings()
            return IndexSummary(header.members, header.samples, header.repeated_keys, header.dropped, warnings)
        finally:
            self.close()

    def _feed(self, data: Buffer) -> None:
        found = self._scanner.feed(data)  # first: it passes on files that come before these entries
        self._entries += found
        if len(self._entries) >= _BATCH_ENTRIES:
            self._add_entries()

    def _count(self, members: int, last_head: int) -> None:
        self._member_count += members
        if self._member_count > INDEX_MEMBERS_MAX:
            raise TarError(f"the archive has more than {INDEX_MEMBERS_MAX} members", last_head)

    def _add_files(self, before: list[Entry], files: PlainFiles) -> None:
        """Like `_add_entries`, for all of these files at once."""
        self._entries += before
        if len(files) < _COLUMNS_MIN or not files.text.size or int(files.text.max()) > _ASCII_MAX:
            self._entries += files.entries()
            self._add_entries()
            return
        self._add_entries()
        self._count(len(files), int(files.heads[-1]))
        key_chars, starts = cut_files(self._grouper, files)
        if bool((key_chars == NO_KEY).any()):
            self._dropped += int((key_chars == NO_KEY).sum())
        lengths = (files.text != 0).sum(axis=1)
        ends = self._records.end + np.cumsum(lengths + RECORD.size)
        positions = ends - lengths - RECORD.size
        self._members.append(map(xxhash.xxh3_64_intdigest, files.names), _numbers(positions))
        records = np.empty(len(files), dtype=RECORDS)
        records["offset"], records["size"], records["head"] = files.heads + TAR_HEADER_BYTES, files.sizes, TAR_HEADER_BYTES
        records["name"], records["key"], records["type"] = lengths, key_chars, FILE
        rows = np.concatenate([records.view(np.uint8).reshape(len(files), -1), files.text], axis=1)
        used = np.arange(rows.shape[1], dtype=np.int16) < (lengths + RECORD.size).astype(np.int16)[:, None]
        self._records.append(rows[used].tobytes())
        if len(starts):
            keys = [files.names[i][:end] for i, end in zip(starts.tolist(), key_chars[starts].tolist(), strict=True)]
            numbers = np.arange(self._sample_count, self._sample_count + len(keys))
            self._keys.append(map(xxhash.xxh3_64_intdigest, keys), _numbers(numbers))
            self._samples.append(np.stack([files.heads[starts], positions[starts]], axis=1).astype(np.uint64).tobytes())
            self._sample_count += len(keys)

    def _add_entries(self) -> None:
        """Add records and table rows of the last members. A column at a time, at half the cost of a loop over members."""
        entries, self._entries = self._entries, []
        if not entries:
            return
        self._count(len(entries), entries[-1][2])
        names, types, heads, offsets, sizes = zip(*entries, strict=True)
        try:
            texts = b"\0".join(names).decode().split("\0")  # no name has a NUL
        except UnicodeDecodeError:
            names, texts = self._replace_undecodable(names)
        key_chars, starts = self._grouper.cut(texts, types)
        if NO_KEY in key_chars:
            self._dropped += sum(chars == NO_KEY and kind != DIRECTORY for chars, kind in zip(key_chars, types, strict=True))
        lengths = list(map(len, names))
        positions = list(accumulate([RECORD.size + length for length in lengths], initial=self._records.end))
        positions.pop()
        self._members.append(map(xxhash.xxh3_64_intdigest, names), positions)
        packed = map(RECORD.pack, offsets, sizes, map(sub, offsets, heads), lengths, key_chars, types)
        self._records.append(b"".join(chain.from_iterable(zip(packed, names, strict=True))))
        if starts:
            keys = [texts[i][: key_chars[i]].encode() for i in starts]
            numbers = range(self._sample_count, self._sample_count + len(starts))
            self._keys.append(map(xxhash.xxh3_64_intdigest, keys), numbers)
            self._samples.append(b"".join([SAMPLE.pack(heads[i], positions[i]) for i in starts]))
            self._sample_count += len(starts)

    def _replace_undecodable(self, names: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], list[str]]:
        texts = [name.decode(errors="replace") for name in names]
        encoded = tuple(text.encode() for text in texts)
        self._not_utf8 += sum(before != after for before, after in zip(names, encoded, strict=True))
        return encoded, texts

    def _warnings(self) -> tuple[str, ...]:
        warnings = [f"{text}, at offset {offset}" for text, offset in self._scanner.oddities]
        if self._dropped:
            warnings.append(f"{self._dropped} members belong to no sample")
        if self._keys.first_repeated is not None:
            key = self._key_of_sample(self._keys.first_repeated)
            warnings.append(f"{self._keys.repeated} samples repeat the key of an earlier sample, first {key[:200]!r}")
        if self._not_utf8:
            warnings.append(f"{self._not_utf8} member names are not UTF-8 and are listed with replacement characters")
        return tuple(warnings)

    def _key_of_sample(self, number: int) -> str:
        """Read a key back from the file just written."""
        file = self._records.file
        end = file.seek(0, 2)
        file.seek(end - SAMPLE.size * (self._sample_count - number))
        _, position = SAMPLE.unpack(file.read(SAMPLE.size))
        file.seek(position)
        _, _, _, name_bytes, key_chars, _ = RECORD.unpack(file.read(RECORD.size))
        return file.read(name_bytes).decode()[:key_chars]


def _numbers(column: Integers) -> array[int]:
    """Convert to an array, since an array extends by another in one go, but by a numpy array number by number."""
    return array("Q", column.tobytes())


class _Records:
    """Writes the records region as it grows, with a checksum per block."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.buffer = bytearray()
        self.checksums = array("Q")
        self._flushed = HEADER_BYTES
        file.seek(HEADER_BYTES)

    @property
    def end(self) -> int:
        return self._flushed + len(self.buffer)

    def append(self, records: bytes) -> None:
        self.buffer += records
        if len(self.buffer) >= INDEX_FLUSH_BYTES:
            self._flush(len(self.buffer) // INDEX_BLOCK_BYTES * INDEX_BLOCK_BYTES)

    def finish(self) -> None:
        """Flush the rest and pad the file to where the tables begin."""
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


def open_builder(kind: str, file: BinaryIO, temporary_directory: str) -> Builder:
    """Open the builder for a shard. Its first bytes overrule `kind`: a plain tar named .tgz is indexed like any other."""
    return _SniffingBuilder(kind, file, temporary_directory)


class CompressedIndexBuilder:
    """Decompresses what it is fed and indexes that; used like IndexBuilder. Limits stop decompression bombs."""

    def __init__(self, kind: str, file: BinaryIO, temporary_directory: str) -> None:
        self._kind = kind
        self._builder = IndexBuilder(file, temporary_directory)
        self._decompressor: Decompressor | None = Decompressor(kind)
        self._fed = 0

    @property
    def problem(self) -> TarError | None:
        return self._builder.problem

    def feed(self, data: Buffer, files: PlainFiles | None = None) -> None:
        """Take the next bytes of the compressed shard. Never raises for their contents."""
        self._fed += len(data)
        if self._decompressor is None:
            return
        try:
            for chunk in self._decompressor.feed(data):
                self._builder.feed(chunk)
                if self._builder.problem is not None:
                    self._decompressor = None
                    return
        except CompressionError as error:
            self._fail(error)

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary:
        """Like IndexBuilder.finish; `size` is that of the compressed shard."""
        if self._decompressor is not None:
            if size != self._fed:
                raise ValueError(f"{self._fed} bytes were fed, not {size}")
            try:
                self._decompressor.finish()
            except CompressionError as error:
                self._fail(error)
        ignored = None if self._decompressor is None else self._decompressor.ignored_from
        warnings = (
            () if ignored is None else (f"data after the {self._kind} stream is ignored, at offset {ignored} of the file",)
        )
        self._decompressor = None
        return self._builder.finish_as(self._kind, version, size, checksum, warnings)

    def close(self) -> None:
        self._decompressor = None
        self._builder.close()

    def _fail(self, error: CompressionError) -> None:
        self._decompressor = None
        self._builder.fail(TarError(str(error), self._builder.archive_size, truncated=error.truncated))


class _SniffingBuilder:
    """Chooses the builder by the first bytes, then forwards everything to it."""

    def __init__(self, kind: str, file: BinaryIO, temporary_directory: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown kind of shard: {kind!r}")
        self._kind = kind
        self._file = file
        self._temporary_directory = temporary_directory
        self._start = bytearray()
        self._builder: Builder | None = None

    @property
    def problem(self) -> TarError | None:
        return None if self._builder is None else self._builder.problem

    def feed(self, data: Buffer, files: PlainFiles | None = None) -> None:
        if self._builder is not None:
            self._builder.feed(data, files)
            return
        missing = MAGIC_BYTES - len(self._start)
        self._start += data[:missing]
        if len(self._start) == MAGIC_BYTES:
            self._choose().feed(data[missing:])

    def finish(self, version: str, size: int, checksum: str) -> IndexSummary:
        return self._choose().finish(version, size, checksum)

    def close(self) -> None:
        if self._builder is not None:
            self._builder.close()

    def _choose(self) -> Builder:
        if self._builder is None:
            start = bytes(self._start)
            kind = kind_of_bytes(start, f".{self._kind}") or ("tar" if _maybe_tar(start) else self._kind)
            if kind == "tar":
                self._builder = IndexBuilder(self._file, self._temporary_directory)
            else:
                self._builder = CompressedIndexBuilder(kind, self._file, self._temporary_directory)
            self._builder.feed(start)
            self._start = bytearray()
        return self._builder


def _maybe_tar(start: bytes) -> bool:
    """Whether these bytes could begin a member's name, or are zeros or missing: an empty archive."""
    text = start.partition(b"\0")[0]
    return len(start) in (0, MAGIC_BYTES) and all(byte >= 32 for byte in text)
