"""Writing a shard as an output of a job: canonical headers, compression by its name, and the record for the digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from dfc.checksum import Buffer
from dfc.formats.sample import DataMember
from dfc.jobs.store import Store
from dfc.jobs.tasks import OutputRecord
from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.parts import Part, part_bytes
from dfc.tar.compressor import Compressor, open_compressor
from dfc.tar.index import PlainFiles, index_kind
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
    """A shard, compressed when its name says so. Use as a context: without `commit` nothing is left of it."""

    def __init__(self, store: Store, name: str, *, level: int | None = None, temporary: bool = False) -> None:
        self.name = name
        self.samples = 0
        kind = index_kind(name) or "tar"
        self._output = (store.create_temporary if temporary else store.create)(name)
        self._compressor = None if kind == "tar" else open_compressor(kind, level)
        self._hash = xxhash.xxh3_128()
        self._waiting = bytearray()  # headers and small members, until a call for them pays
        self._tar = TarWriter(self)  # type: ignore[arg-type]  # `write` is all it asks for

    @property
    def content_size(self) -> int:
        """Bytes of the uncompressed archive so far."""
        return self._tar.size

    def write(self, data: Buffer) -> int:
        """The next bytes of the archive, as the tar writer makes them."""
        if len(data) < DECOMPRESS_CHUNK_BYTES:
            self._waiting += data
        else:
            self._flush()
            self._pass_on(data)
        if len(self._waiting) >= DECOMPRESS_CHUNK_BYTES:
            self._flush()
        return len(data)

    def add(self, members: Iterable[DataMember]) -> None:
        """One sample, under the names that its members have."""
        for member in members:
            self._tar.add(member.name, member.data)
        self.samples += 1

    def commit(self) -> OutputRecord:
        self._tar.close()
        self._flush()
        if self._compressor is not None:
            self._output.write(self._compressor.flush())
        written = self._output.commit()
        content = written.checksum if self._compressor is None else self._hash.hexdigest()
        return OutputRecord(self.name, written.size, written.checksum, self._tar.size, content, self.samples)

    def _flush(self) -> None:
        if self._waiting:
            self._pass_on(bytes(self._waiting))
            self._waiting.clear()

    def _pass_on(self, data: Buffer) -> None:
        if self._compressor is None:
            self._output.write(data)
        else:
            self._hash.update(data)
            self._output.write(self._compressor.compress(data))

    def abort(self) -> None:
        self._output.abort()

    def __enter__(self) -> ShardOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()


class ArchiveOutput:
    """A shard of which the caller has the uncompressed archive's bytes, its end included; compressed when its name says so.

    `content_size`: of the whole archive, where it is known; the output is then announced. However the bytes come, they are
    compressed in pieces of one size: what is stored depends on the archive alone. Use as a context.
    """

    def __init__(self, store: Store, name: str, content_size: int | None = None, *, level: int | None = None) -> None:
        self.name = name
        self.content_size = 0
        kind = index_kind(name) or "tar"
        self._compressor = None if kind == "tar" else open_compressor(kind, level)
        self._output = store.create(name, content_size if kind == "tar" else None)
        self._hash = xxhash.xxh3_128()
        self._waiting = bytearray()

    @property
    def sends(self) -> bool:
        """Whether `send` is any better than `write`."""
        return self._compressor is None and self._output.sends

    def write(self, data: Buffer, files: PlainFiles | None = None) -> int:
        """The next bytes of the archive; all are taken. `files`: see `Output.write`."""
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

    def commit(self, samples: int) -> OutputRecord:
        if self._compressor is not None:
            self._output.write(self._compressor.compress(self._waiting))
            self._output.write(self._compressor.flush())
        written = self._output.commit()
        content = written.checksum if self._compressor is None else self._hash.hexdigest()
        return OutputRecord(self.name, written.size, written.checksum, self.content_size, content, samples)

    def _compress(self, compressor: Compressor, data: memoryview) -> None:
        self._hash.update(data)
        at = 0
        if self._waiting:
            at = min(len(data), DECOMPRESS_CHUNK_BYTES - len(self._waiting))
            self._waiting += data[:at]
            if len(self._waiting) < DECOMPRESS_CHUNK_BYTES:
                return
            self._output.write(compressor.compress(self._waiting))
            self._waiting = bytearray()
        while len(data) - at >= DECOMPRESS_CHUNK_BYTES:
            self._output.write(compressor.compress(data[at : at + DECOMPRESS_CHUNK_BYTES]))
            at += DECOMPRESS_CHUNK_BYTES
        self._waiting += data[at:]

    def __enter__(self) -> ArchiveOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()
