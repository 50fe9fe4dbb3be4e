"""The outputs of tasks: plain objects, and shards with canonical headers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np
import xxhash

from dfc.checksum import Buffer
from dfc.formats.base import DataMember
from dfc.handover import Part, part_bytes
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, OutputRecord
from dfc.limits import DECOMPRESS_CHUNK_BYTES, TAR_HEADER_BYTES
from dfc.tar.compression import Compressor, open_compressor
from dfc.tar.index.builder import IndexBuilder
from dfc.tar.index.columns import Bytes, Integers, SampleArrays
from dfc.tar.index.format import index_kind
from dfc.tar.samples import TarWriter, member_header
from dfc.tar.scanner import PlainFiles


class PlainOutput:
    """An object with any content: `write` it, then `commit`. A context manager that aborts without `commit`."""

    def __init__(self, store: Store, name: str, size: int | None = None, *, temporary: bool = False) -> None:
        self.name = name
        self._output = (store.create_temporary if temporary else store.create)(name, size)

    @property
    def sends(self) -> bool:
        """Whether `send` is cheaper than `write`."""
        return self._output.sends

    def write(self, data: Buffer, files: PlainFiles | None = None) -> int:
        """Write all of the next bytes. `files`: see `Output.write`."""
        self._output.write(data, files)
        return len(data)

    def send(self, parts: Sequence[Part]) -> int:
        """Write the next bytes, partly from files; return their number."""
        self._output.send(parts)
        return part_bytes(parts)

    def commit(self, samples: int = 0) -> OutputRecord:
        written = self._output.commit()
        return OutputRecord(self.name, written.size, written.checksum, written.size, written.checksum, samples)

    def abort(self) -> None:
        self._output.abort()

    def __enter__(self) -> PlainOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()


class ShardOutput:
    """A shard, compressed if its name says so. A context manager that discards the shard without a commit.

    Either add samples and let `commit` end the archive, or write the bytes of the uncompressed archive, including its end, and
    pass the number of samples to `commit`. Compression uses pieces of one size, so that the stored bytes depend only on the
    archive. `content_size`: the size of the archive, if known; it is then announced. `temporary`: a shard for later tasks, with
    an index beside it; end it with `commit_temporary`.
    """

    def __init__(
        self, store: Store, name: str, content_size: int | None = None, *, level: int | None = None, temporary: bool = False
    ) -> None:
        self.name = name
        self.samples = 0
        self.content_size = 0
        """Bytes of the uncompressed archive so far."""
        kind = index_kind(name) or "tar"
        self._store = store
        self._compressor = None if kind == "tar" else open_compressor(kind, level)
        self._hash = xxhash.xxh3_128()
        self._waiting = memoryview(bytearray(0 if self._compressor is None else DECOMPRESS_CHUNK_BYTES))  # to compress
        self._filled = 0  # bytes in it
        self._small = _Small(self)
        self._tar = TarWriter(self._small)  # type: ignore[arg-type]  # `write` is all it asks for
        with ExitStack() as stack:
            self._index = stack.enter_context(_TemporaryIndex(store)) if temporary else None
            create = store.create_temporary if temporary else store.create
            self._output = create(name, content_size if kind == "tar" else None)
            stack.callback(self._output.abort)
            self._stack = stack.pop_all()

    @property
    def temporary(self) -> bool:
        return self._index is not None

    @property
    def sends(self) -> bool:
        """Whether `send` is cheaper than `write`."""
        return self._compressor is None and self._index is None and self._output.sends

    def add(self, members: Iterable[DataMember]) -> None:
        """Add one sample, with the names of its members."""
        for member in members:
            self._tar.add(member.name, member.data)
        self.samples += 1

    def write(self, data: Buffer, files: PlainFiles | None = None) -> int:
        """Write all of the next bytes of the archive. `files`: see `Output.write`."""
        if self._index is not None:
            self._index.builder.feed(data)
        if self._compressor is None:
            self._output.write(data, files)
        else:
            self._compress(self._compressor, memoryview(data).cast("B"))
        self.content_size += len(data)
        return len(data)

    def send(self, parts: Sequence[Part]) -> int:
        """Write the next bytes, partly from files; return their number. Only if `sends`."""
        self._output.send(parts)
        size = part_bytes(parts)
        self.content_size += size
        return size

    def commit(self, samples: int | None = None) -> OutputRecord:
        """Complete the shard. `samples`: their number, if they were not added with `add`."""
        if samples is None:
            samples = self.samples
            self._tar.close()
            self._small.flush()
        if self._compressor is not None:
            self._output.write(self._compressor.compress(self._waiting[: self._filled]))
            self._output.write(self._compressor.flush())
        written = self._output.commit()
        content = written.checksum if self._compressor is None else self._hash.hexdigest()
        return OutputRecord(self.name, written.size, written.checksum, self.content_size, content, samples)

    def commit_temporary(self, version: str, node: str) -> InputShard:
        """Complete a temporary shard (.tar) of added samples, and return it as later stages read it."""
        assert self._index is not None
        made = self.commit()
        summary = self._index.builder.finish(version, made.size, made.checksum)
        self._index.file.seek(0)
        with PlainOutput(self._store, index_beside(self.name), temporary=True) as index:
            while data := self._index.file.read(DECOMPRESS_CHUNK_BYTES):
                index.write(data)
            index.commit()
        return InputShard(
            "", self.name, version, made.checksum, made.size, made.size, summary.samples, summary.members, 0, 0, "tar", node
        )

    def _compress(self, compressor: Compressor, data: memoryview) -> None:
        self._hash.update(data)
        at = 0
        if self._filled:
            at = min(len(data), DECOMPRESS_CHUNK_BYTES - self._filled)
            self._keep(data[:at])
            if self._filled < DECOMPRESS_CHUNK_BYTES:
                return
            self._output.write(compressor.compress(self._waiting))
            self._filled = 0
        while len(data) - at >= DECOMPRESS_CHUNK_BYTES:
            self._output.write(compressor.compress(data[at : at + DECOMPRESS_CHUNK_BYTES]))
            at += DECOMPRESS_CHUNK_BYTES
        self._keep(data[at:])

    def _keep(self, data: memoryview) -> None:
        end = self._filled + len(data)
        self._waiting[self._filled : end] = data
        self._filled = end

    def abort(self) -> None:
        self._stack.close()

    def __enter__(self) -> ShardOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def index_beside(name: str) -> str:
    """The name of the index of a temporary shard."""
    return f"{name}.index"


class _Small:
    """Collects headers and small members from the tar writer, to write them in larger pieces."""

    def __init__(self, output: ShardOutput) -> None:
        self._output = output
        self._waiting = bytearray()

    def write(self, data: Buffer) -> None:
        if len(data) < DECOMPRESS_CHUNK_BYTES:
            self._waiting += data
        else:
            self.flush()
            self._output.write(data)
        if len(self._waiting) >= DECOMPRESS_CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._output.write(bytes(self._waiting))
            self._waiting.clear()


class _TemporaryIndex:
    """The index of a temporary shard while it is being built."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> _TemporaryIndex:
        with ExitStack() as stack:
            directory = stack.enter_context(self._store.scratch())
            self.file = stack.enter_context(open(os.path.join(directory, "index"), "w+b"))
            self.builder = IndexBuilder(self.file, directory)
            stack.callback(self.builder.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


# --- Makes the headers of canonical archives (dfc.tar.samples), many at once, from the names and sizes in an index.
#
# Nothing is copied from the headers of the source, so equal names and contents always give equal bytes.

_OCTAL_DIGITS: Final = 11
_OCTAL_SIZE_MAX: Final = 8**_OCTAL_DIGITS - 1
_SIZE_AT: Final = 124
_CHECKSUM_AT: Final = 148
_CHECKSUM_DIGITS: Final = 6  # of which the first is 0: 512 bytes add up to less than 8^6
_SHIFTS: Final = np.arange(3 * (_OCTAL_DIGITS - 1), -1, -3, dtype=np.int64)


def _blank() -> Bytes:
    """A header of the writer with zeros for name, size and checksum."""
    header = np.frombuffer(member_header("x", 0), dtype=np.uint8).copy()
    header[0] = 0
    header[_SIZE_AT : _SIZE_AT + _OCTAL_DIGITS] = 0
    header[_CHECKSUM_AT : _CHECKSUM_AT + _CHECKSUM_DIGITS] = 0
    return header


_BLANK: Final = _blank()
# The checksum counts its own eight bytes as spaces; the last one is a space in the header, too.
_BLANK_SUM: Final = int(_BLANK.sum()) + 7 * ord(" ")


def header_blocks(names: Bytes, sizes: Integers) -> Bytes:
    """Make headers (m, 512) for names (m, w) of at most 100 bytes, padded with zeros, and sizes below 8 GiB."""
    blocks = np.empty((len(names), TAR_HEADER_BYTES), dtype=np.uint8)
    blocks[:] = _BLANK
    digits = ((sizes[:, None] >> _SHIFTS) & 7).astype(np.uint8) + np.uint8(ord("0"))
    blocks[:, : names.shape[1]] = names
    blocks[:, _SIZE_AT : _SIZE_AT + _OCTAL_DIGITS] = digits
    sums = _BLANK_SUM + names.sum(axis=1, dtype=np.int64) + digits.sum(axis=1, dtype=np.int64)
    octal = ((sums[:, None] >> _SHIFTS[-_CHECKSUM_DIGITS:]) & 7).astype(np.uint8) + np.uint8(ord("0"))
    blocks[:, _CHECKSUM_AT : _CHECKSUM_AT + _CHECKSUM_DIGITS] = octal
    return blocks


def special_headers(samples: SampleArrays) -> dict[int, bytes]:
    """Make the headers that `header_blocks` cannot make, for long names and very large members, by member row."""
    special = {row: member_header(name.decode(), int(samples.sizes[row])) for row, name in samples.long_names.items()}
    for row in np.flatnonzero(samples.sizes > _OCTAL_SIZE_MAX).tolist():
        if row not in special:
            special[row] = member_header(samples.names[row].tobytes().rstrip(b"\0").decode(), int(samples.sizes[row]))
    return special


def padded(sizes: Integers) -> Integers:
    """Round sizes up to whole blocks."""
    return (sizes + (TAR_HEADER_BYTES - 1)) & -TAR_HEADER_BYTES


def head_sizes(samples: SampleArrays, special: dict[int, bytes]) -> Integers:
    """The size of the canonical header of each member in bytes."""
    sizes = np.full(len(samples.sizes), TAR_HEADER_BYTES, dtype=np.int64)
    for row, header in special.items():
        sizes[row] = len(header)
    return sizes


def sample_sizes(samples: SampleArrays) -> Integers:
    """The size of each sample in an output in bytes."""
    if not len(samples):
        return np.zeros(0, dtype=np.int64)
    return np.add.reduceat(head_sizes(samples, special_headers(samples)) + padded(samples.sizes), samples.first[:-1])


# Row r keeps r bytes.
_MASKS: Final = (np.arange(TAR_HEADER_BYTES) < np.arange(TAR_HEADER_BYTES)[:, None]).astype(np.uint8) * np.uint8(0xFF)


def clear_padding(blocks: Bytes, last: Integers, sizes: Integers) -> None:
    """Zero the padding in the `last` blocks (rows of `blocks`) of data of these sizes, none of which may fill its block."""
    rows = blocks[last]
    rows &= _MASKS[sizes % TAR_HEADER_BYTES]
    blocks[last] = rows
