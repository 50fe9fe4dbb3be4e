"""Writing a shard as an output of a job: canonical headers, compression by its name, and the record for the digest."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from dfc.checksum import Buffer
from dfc.jobs.samples import DataMember
from dfc.jobs.store import Store
from dfc.jobs.tasks import OutputRecord
from dfc.tar.compressor import open_compressor
from dfc.tar.index import index_kind
from dfc.tar.writer import TarWriter


class PlainOutput:
    """An object of any content. `write` what belongs in it, then `commit`; left by an error it is aborted."""

    def __init__(self, store: Store, name: str, size: int | None = None, *, temporary: bool = False) -> None:
        self.name = name
        self._output = (store.create_temporary if temporary else store.create)(name, size)

    def write(self, data: Buffer) -> int:
        """The next bytes; all are taken."""
        self._output.write(data)
        return len(data)

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
        self._tar = TarWriter(self)  # type: ignore[arg-type]  # `write` is all it asks for

    @property
    def content_size(self) -> int:
        """Bytes of the uncompressed archive so far."""
        return self._tar.size

    def write(self, data: Buffer) -> int:
        """The next bytes of the archive, as the tar writer makes them."""
        if self._compressor is None:
            self._output.write(data)
        else:
            self._hash.update(data)
            self._output.write(self._compressor.compress(data))
        return len(data)

    def add(self, members: Iterable[DataMember]) -> None:
        """One sample, under the names that its members have."""
        for member in members:
            self._tar.add(member.name, member.data)
        self.samples += 1

    def commit(self) -> OutputRecord:
        self._tar.close()
        if self._compressor is not None:
            self._output.write(self._compressor.flush())
        written = self._output.commit()
        content = written.checksum if self._compressor is None else self._hash.hexdigest()
        return OutputRecord(self.name, written.size, written.checksum, self._tar.size, content, self.samples)

    def abort(self) -> None:
        self._output.abort()

    def __enter__(self) -> ShardOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.abort()
