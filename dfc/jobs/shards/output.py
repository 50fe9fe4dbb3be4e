"""What tasks write: plain objects, and shards with canonical headers, compression by name, and the record for the digest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import xxhash

from dfc.checksum import Buffer
from dfc.formats.sample import DataMember
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard, OutputRecord
from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.parts import Part, part_bytes
from dfc.tar.compressor import Compressor, open_compressor
from dfc.tar.headerbatch import PlainFiles
from dfc.tar.index.builder import IndexBuilder
from dfc.tar.index.format import index_kind
from dfc.tar.writer import TarWriter


class PlainOutput:
    """An object of any content. `write` what belongs in it, then `commit`; left by an error it is aborted."""

    def __init__(self, store: Store, name: str, size: int | None = None, *, temporary: bool = False) -> None:
        self.name = name
        self._output = (store.create_temporary if temporary else store.create)(name, size)

    @property
    def sends(self) -> bool:
        """Whether `send` is any better than `write`."""
        return self._output.sends

    def write(self, data: Buffer, files: PlainFiles | None = None) -> int:
        """The next bytes; all are taken. `files`: see `Output.write`."""
        self._output.write(data, files)
        return len(data)

    def send(self, parts: Sequence[Part]) -> int:
        """The next bytes, some of them from files; how many."""
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
    """A shard, compressed when its name says so. Use as a context: without a commit nothing is left of it.

    Either samples are added and `commit` ends the archive, or the caller has the bytes of the uncompressed archive, its end
    included, and tells `commit` how many samples they are. They are compressed in pieces of one size, however they come: what
    is stored depends on the archive alone. `content_size`: of the archive, where it is known; the output is then announced.
    `temporary`: for later tasks, which find an index beside it; `commit_temporary` ends it.
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
        self._waiting = memoryview(bytearray(0 if self._compressor is None else DECOMPRESS_CHUNK_BYTES))  # for the compressor
        self._filled = 0  # of that
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
        """Whether `send` is any better than `write`."""
        return self._compressor is None and self._index is None and self._output.sends

    def add(self, members: Iterable[DataMember]) -> None:
        """One sample, under the names that its members have."""
        for member in members:
            self._tar.add(member.name, member.data)
        self.samples += 1

    def write(self, data: Buffer, files: PlainFiles | None = None) -> int:
        """The next bytes of the archive; all are taken. `files`: see `Output.write`."""
        if self._index is not None:
            self._index.builder.feed(data)
        if self._compressor is None:
            self._output.write(data, files)
        else:
            self._compress(self._compressor, memoryview(data).cast("B"))
        self.content_size += len(data)
        return len(data)

    def send(self, parts: Sequence[Part]) -> int:
        """The next bytes, some of them from files; how many. Only where `sends`."""
        self._output.send(parts)
        size = part_bytes(parts)
        self.content_size += size
        return size

    def commit(self, samples: int | None = None) -> OutputRecord:
        """Complete. `samples`: how many there are where they were not added."""
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
        """Complete, of samples that were added: a temporary shard as later stages read it, whose name ends in .tar."""
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
    """What the index of a temporary shard is called."""
    return f"{name}.index"


class _Small:
    """Headers and small members on their way from the tar writer, until a call for them pays."""

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
    """The index of a temporary shard while it is built."""

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
