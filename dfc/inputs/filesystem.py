"""The fsspec filesystem `dfc://bucket/object`, for pandas, pyarrow, Hugging Face datasets, DuckDB, Ray and others.

    pandas.read_parquet("dfc://tables/train.parquet")

The cluster is that of DFC_URL, or of the storage option `url`. Buckets are the top folders, other folders are prefixes of
names; members of a shard are read as `dfc://bucket/shard.tar//member`. Only blocks of open files are cached.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final, cast

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression

from dfc.client.client import Client
from dfc.errors import PreconditionFailed
from dfc.inputs.fsreads import MEMBERS, DfcFile, DfcReads, FilePlace, as_os_errors, place_of
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.uploads import ClusterDestination, UploadFile
from dfc.limits import MIB

BLOCK_BYTES: Final = 4 * MIB
_COPY_BYTES: Final = 1 * MIB
_MADE_MAX: Final = 10_000  # empty folders that are remembered


class DfcFileSystem(DfcReads):
    """An fsspec filesystem on a DFC cluster. `url` (or `target`): any node of it; `token`: its bearer token (DFC_TOKEN).

    Errors are OSErrors: FileNotFoundError, NotADirectoryError for members of an object that is not a shard, ESTALE if an object
    is replaced while it is read. It can be used from any thread, and in forked and spawned processes.
    """

    protocol = "dfc"

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Like fsspec's `open`, but closing a compressed file also stores it."""
        kind = get_compression(path, compression) if compression is not None else None
        if kind is None or "b" not in mode or "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        stored = super().open(path, mode, block_size, cache_options, None, **options)
        compressing = compr[kind](stored, mode=mode[0])
        close = compressing.close

        def close_both() -> None:
            close()
            stored.close()

        compressing.close = close_both  # fsspec leaves the underlying file to the garbage collector
        return compressing

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        if mode == "rb":
            return DfcFile(self, path, mode, block_size or BLOCK_BYTES, cache_options=cache_options, **options)
        if mode not in ("wb", "xb", "ab"):
            raise NotImplementedError(f"mode must be rb, wb, xb or ab, not {mode}")
        with as_os_errors(path):
            place = _writable(path)
            if mode == "xb" and self.exists(path):
                raise _exists(path)
            return self._upload(place, path, mode, autocommit)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Store bytes. With `mode="create"`, FileExistsError if the path exists."""
        self._store(self._strip_protocol(path), value, mode)

    def put_file(self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **_: Any) -> None:
        """Upload a local file, whole or not at all."""
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        callback.set_size(os.path.getsize(lpath))
        self._store(rpath, lpath, mode, callback.relative_update)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object or a member through this process."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        info = self.info(path1)
        if info["type"] == "directory":
            self.makedirs(path2, exist_ok=True)
            return
        with as_os_errors(path2):
            place = _writable(path2)
            if MEMBERS in path1:
                with self._upload(place, path2, "wb", True) as target, self.open(path1) as source:
                    while data := source.read(_COPY_BYTES):
                        target.write(data)
                return
            origin = place_of(path1)
            with self.client.open(origin.bucket, origin.name) as reader:
                self.client.put(place.bucket, place.name, cast(BinaryIO, reader), checksum=reader.checksum)

    def rm_file(self, path: str) -> None:
        """Delete one object."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            place = _writable(path)
            self.client.delete(place.bucket, place.name)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files; with `recursive`, also folders with their contents, and whole buckets."""
        for each in self.expand_path(path):
            if self.info(each)["type"] == "file":
                self.rm_file(each)
                continue
            if not recursive:
                raise IsADirectoryError(errno.EISDIR, "is a folder; pass recursive=True to delete it", each)
            self._map(self._rm_if_there, [(name,) for name in self.find(each, maxdepth=maxdepth)], raising=True)
            if maxdepth is None:
                self._made = {made: None for made in list(self._made) if not f"{made}/".startswith(f"{each}/")}
                self.rmdir(each)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Create a bucket (FileExistsError if it exists). Other empty folders exist only in this filesystem object."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            place = _writable(path, folder=True)
            if place.name:
                if len(self._made) >= _MADE_MAX:
                    self._made.clear()
                self._made[path] = None
            elif self.exists(path):
                raise _exists(path)
            else:
                self.client.create_bucket(place.bucket)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str) -> None:
        """Delete an empty bucket. Other folders vanish with their contents."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            self._made.pop(path, None)
            place = _writable(path, folder=True)
            if not place.name:
                self.client.delete_bucket(place.bucket)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Create an empty file. The time of an existing file cannot be changed."""
        if not truncate and self.exists(path):
            raise NotImplementedError("the time of an object cannot be changed without its contents")
        self.pipe_file(path, b"")

    def _store(self, path: str, body: Any, mode: str, progress: Callable[[int], None] | None = None) -> None:
        with as_os_errors(path):
            place = _writable(path)
            exclusive = "*" if mode == "create" else None
            try:
                self.client.put(place.bucket, place.name, body, if_none_match=exclusive, progress=progress)
            except PreconditionFailed:
                raise _exists(path) from None

    def _upload(self, place: FilePlace, path: str, mode: str, autocommit: bool) -> UploadFile:
        etag = None
        if mode == "ab" and self.exists(path):
            etag = self.info(path)["ETag"]
        destination = _Object(self.client, place, path, self._options, etag)
        # Appending to a missing file must not replace one that another writer creates meanwhile.
        exclusive = mode == "xb" or (mode == "ab" and etag is None)
        upload = UploadFile(destination, exclusive=exclusive, autocommit=autocommit)
        if etag is not None:
            with self.open(path) as before:
                while data := before.read(_COPY_BYTES):
                    upload.write(data)
        return upload

    def _rm_if_there(self, path: str) -> None:
        with suppress(FileNotFoundError):  # deleted by someone else meanwhile
            self.rm_file(path)


class _Object(ClusterDestination):
    """The destination of a file of the filesystem. With an etag, it replaces only that version."""

    def __init__(self, client: Client, place: FilePlace, path: str, options: StreamOptions, etag: str | None) -> None:
        super().__init__(client, place.bucket, place.name, path, options)
        self._etag = etag

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        with as_os_errors(self.url):
            if self._etag is None:
                super().store(spool, exclusive=exclusive)
                return
            spool.seek(0)
            self._client.put(self._bucket, self._name, spool, if_match=self._etag)


def _writable(path: str, *, folder: bool = False) -> FilePlace:
    """What a path names. OSError if it cannot be written."""
    place = place_of(path)
    if place.member is not None:
        raise OSError(errno.EROFS, "members of a shard are read only (a path with `//` names a member)", path)
    if not place.bucket or not (place.name or folder):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return place


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
