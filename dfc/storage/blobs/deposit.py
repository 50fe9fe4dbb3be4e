"""The worker's half of a local output: it writes the file itself, on the disk where the object will be stored.

A worker on the machine of a target need not send its output through a socket. It creates an empty file in the disk's
directory for temporary files and names it in its request. The target immediately makes that file the new blob
(`dfc.storage.blobs.staging`), so that the outcome of the request decides the fate of the file, while the worker fills, hashes
and indexes it. The body of the request is line feeds now and then, as a sign of progress, and then `Deposited`: what the
target would have found out itself.
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from typing import Annotated, Final

import msgspec
import xxhash

from dfc.checksum import Buffer
from dfc.errors import DiskRefused, NoSpace
from dfc.filesystem import FileSystem, remove_if_there, write_all
from dfc.storage import layout
from dfc.storage.blobs.writer import Writeback
from dfc.storage.identity import read_identity
from dfc.storage.parts import IndexWriter
from dfc.tar.header import TarError
from dfc.tar.scanner import PlainFiles

DEPOSIT_NAME: Final = re.compile(r"deposit-[0-9a-f]{32}")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class DepositSite(msgspec.Struct, frozen=True):
    """Where a target lets workers on its machine write: the disk's root and id, the machine's boot id, how the disk syncs."""

    root: str
    disk: str
    boot: str
    durable: bool
    writeback_bytes: int
    reserve_bytes: int


class Indexed(msgspec.Struct, frozen=True):
    """Counts of the index beside a deposit, as in `dfc.tar.index.builder.IndexSummary`."""

    members: Count
    samples: Count
    repeated_keys: Count
    dropped: Count
    warnings: tuple[str, ...]


class Deposited(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a complete file: its size and xxh3-128, and its index summary or why it has no index. `errno`: the
    file could not be written; then nothing else counts."""

    size: Count = 0
    checksum: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""
    index: Indexed | None = None
    problem: tuple[str, Count] | None = None
    errno: Annotated[int, msgspec.Meta(ge=0, le=4095)] = 0


def is_here(site: DepositSite, boot: str) -> bool:
    """Whether this process sees the same disk: under the same path, in the same boot of the machine, as the same user."""
    if not boot or site.boot != boot:
        return False
    try:
        found = read_identity(site.root)
        return found is not None and found.disk_id == site.disk and os.stat(site.root).st_uid == os.geteuid()
    except (DiskRefused, OSError):
        return False


class DepositFile:
    """One output file: `write`* → `finish`, or `abort`, in one thread. All may raise OSError; report it to the target."""

    def __init__(self, site: DepositSite, kind: str | None, filesystem: FileSystem | None = None) -> None:
        """Create an empty file. `kind`: "tar" for an archive that needs an index."""
        self.name = f"deposit-{uuid.uuid4().hex}"
        self.size = 0
        self._site = site
        self._filesystem = filesystem or FileSystem()
        self._hash = xxhash.xxh3_128()
        self._writeback = Writeback(self._filesystem, site.writeback_bytes, site.durable)
        self._index: IndexWriter | None = None
        directory = f"{site.root}/{layout.TEMPORARY}"
        self._path = f"{directory}/{self.name}"
        self._fd = self._filesystem.create(self._path)
        try:
            if kind is not None:
                self._index = IndexWriter(self._filesystem, self._path + layout.INDEX_SUFFIX, kind, directory)
        except BaseException:
            self.abort()
            raise

    def write(self, data: Buffer, files: PlainFiles | None = None) -> bool:
        """Write the next bytes (`files`: as for `IndexBuilder.feed`). Returns True when it is time to report progress. Raises
        NoSpace."""
        self._hash.update(data)
        if self._index is not None:
            self._index.feed(data, files)
        write_all(self._filesystem, self._fd, data)
        self.size += len(data)
        if not self._writeback.is_due(self.size):
            return False
        self._writeback.start(self._fd, self.size)
        if self._filesystem.space(self._site.root).free < self._site.reserve_bytes:
            raise NoSpace("the disk is full: only its reserve is left")
        return True

    def finish(self) -> Deposited:
        """Close the file and return its description."""
        checksum, found = self._hash.hexdigest(), None
        if self._index is not None:
            found = self._index.finish("", self.size, checksum)
        fd, self._fd = self._fd, -1
        self._filesystem.close(fd)
        if isinstance(found, TarError):
            return Deposited(self.size, checksum, problem=(found.message, found.offset))
        counts = None
        if found is not None:
            counts = Indexed(found.members, found.samples, found.repeated_keys, found.dropped, found.warnings)
        return Deposited(self.size, checksum, counts)

    def abort(self) -> None:
        """Close the file and remove it if it still has its original name. Idempotent."""
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            if fd >= 0:
                self._filesystem.close(fd)
        with suppress(OSError):
            if self._index is not None:
                self._index.abort()
            remove_if_there(self._filesystem, (self._path,))


def is_deposit(name: str) -> bool:
    return DEPOSIT_NAME.fullmatch(name) is not None
