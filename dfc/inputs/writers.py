"""Write samples into shards, and upload each shard while the next one is filled.

    with ShardWriter("http://nvdata/train-%06d.tar", maxsize=1e9) as writer:
        for key, image, label in examples:
            writer.write({"__key__": key, "jpg": image, "cls": label})

The bytes of a shard depend on its samples alone: members are sorted by extension, owners and times are 0. A shard is stored
whole or not at all; docs/inputs.md describes the possible destinations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, cast

from dfc.inputs.base import LOG
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions
from dfc.inputs.sources.urls import shown
from dfc.inputs.storing.archive import Compress, Encode, SampleArchive, kind_for, pack
from dfc.inputs.storing.destinations import destination_of
from dfc.inputs.storing.uploads import UploadFile, Uploads
from dfc.shards import ShardPattern

MAXCOUNT: Final = 100_000
MAXSIZE: Final = 1_000_000_000
UPLOADS: Final = 2  # one shard is uploaded while the next is filled; more uploads take more space


class WrittenShard(NamedTuple):
    """A stored shard. `size` is its stored size in bytes."""

    url: str
    samples: int
    size: int


def open_upload(
    url: str | os.PathLike[str],
    *,
    exclusive: bool = False,
    directory: str | None = None,
    options: StreamOptions = DEFAULT_OPTIONS,
) -> UploadFile:
    """Open a URL as a binary file for writing. It is stored whole when closed, or not at all if its `with` block raises.

    `url`: `http(s)://…` of a DFC node or any server that accepts PUT, `dfc:bucket/object`, a path, `file:`, `pipe:command`,
    `-`, or any URL that fsspec supports (`s3://`, `gs://`). `exclusive`: FileExistsError if the destination exists. `directory`
    is where the temporary file goes (None: TMPDIR). BadRequest, BadName, ValueError.
    """
    return UploadFile(destination_of(url, options), directory, exclusive=exclusive)


class TarWriter:
    """Writes samples into one shard: a URL or path as for `open_upload`, or a binary file, which stays open.

    `encode`: True encodes values by their extension (`dfc.inputs.encoding`), False takes bytes and str as they are, a function
    returns a sample of bytes. `compress`: "gz", "zst", "lz4", "bz2", "xz", False for none; None decides by the file name.
    `samples` counts the samples written, `size` the bytes of the archive so far, before compression.
    """

    def __init__(
        self,
        destination: str | os.PathLike[str] | BinaryIO,
        encode: Encode = True,
        *,
        compress: Compress = None,
        directory: str | None = None,
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._upload: UploadFile | None = None
        name = ""
        if isinstance(destination, str | os.PathLike):
            name = os.fspath(destination)
            self._upload = open_upload(name, directory=directory, options=options)
        self._encode = encode
        file = destination if self._upload is None else self._upload
        self._archive = SampleArchive(cast(BinaryIO, file), kind_for(name, compress))
        self._last_key: str | None = None
        self._closed = False

    @property
    def samples(self) -> int:
        return self._archive.samples

    @property
    def size(self) -> int:
        return self._archive.size

    def write(self, sample: Mapping[str, Any]) -> int:
        """Add a sample, and return the bytes of its values.

        SampleBroken for a sample that could not be read back unchanged: none of it is written, and you can continue.
        """
        if self._closed:
            raise ValueError("the writer is closed")
        record = pack(sample, self._encode, self._last_key)
        self._archive.add(record)
        self._last_key = record.key
        return record.payload

    def close(self) -> None:
        """Finish the archive and store it. Idempotent. DfcError, OSError."""
        if self._closed:
            return
        self._closed = True
        try:
            self._archive.finish()
        except BaseException:
            self.abort()
            raise
        if self._upload is not None:
            self._upload.commit()  # even inside an `except` block: the caller closed the writer on purpose

    def abort(self) -> None:
        """Store nothing. A file passed by the caller gets no end of archive, so that it does not look complete."""
        self._closed = True
        if self._upload is not None:
            self._upload.discard()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()


class ShardWriter:
    """Writes samples into numbered shards, and uploads each shard while the next one is filled.

    `pattern` contains a number (`train-%06d.tar`), which starts at `start_shard`. A shard is closed before a sample that would
    make it larger than `maxsize` bytes (before compression) or bring it above `maxcount` samples; a larger sample gets a shard
    of its own. At most `uploads` shards take space in `directory` (None: TMPDIR) at a time. `post` is called with each
    WrittenShard, in a thread; `shards` lists them. If the `with` block raises, the unfinished shard is not stored, but complete
    ones are. Use a writer from one thread only; forked processes must make their own. `encode`, `compress`: see TarWriter.
    """

    def __init__(
        self,
        pattern: str,
        maxcount: int = MAXCOUNT,
        maxsize: float = MAXSIZE,
        *,
        start_shard: int = 0,
        encode: Encode = True,
        compress: Compress = None,
        uploads: int = UPLOADS,
        post: Callable[[WrittenShard], None] | None = None,
        directory: str | None = None,
        options: StreamOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._pattern = ShardPattern(pattern)
        if maxcount < 1 or maxsize < 1:
            raise ValueError(f"maxcount and maxsize must be at least 1, not {maxcount} and {maxsize}")
        self._maxcount = maxcount
        self._maxsize = maxsize
        self._encode = encode
        self._kind = kind_for(pattern, compress)
        self._post = post
        self._directory = directory
        self._options = options
        self._number = start_shard
        self._file: UploadFile | None = None
        self._archive: SampleArchive | None = None
        self._last_key: str | None = None
        self._stored: dict[int, WrittenShard] = {}
        self._closed = False
        destination_of(self._pattern.text(start_shard), options)  # raises at once for a URL that cannot work
        self._uploads = Uploads(uploads, "dfc-shards")

    @property
    def shards(self) -> list[WrittenShard]:
        """The shards stored so far, in order."""
        return [shard for _, shard in sorted(self._stored.items())]

    def write(self, sample: Mapping[str, Any]) -> int:
        """Add a sample, and return the bytes of its values.

        SampleBroken for a sample that could not be read back unchanged: none of it is written, and you can continue. DfcError
        or OSError if a shard could not be stored.
        """
        if self._closed:
            raise ValueError("the writer is closed")
        record = pack(sample, self._encode, self._last_key)
        self._uploads.check()
        archive = self._archive
        if archive is not None and (archive.samples >= self._maxcount or archive.size_with(record) > self._maxsize):
            self._cut()
            archive = None
        if archive is None:
            archive = self._begin()
        archive.add(record)
        self._last_key = record.key
        return record.payload

    def close(self) -> None:
        """Store the last shard and wait for all uploads. Idempotent. DfcError, OSError."""
        if self._closed:
            return
        try:
            if self._archive is not None:
                self._cut()
            self._uploads.finish()
        except BaseException as problem:
            self._give_up(at_once=not isinstance(problem, Exception))
            raise
        self._closed = True
        self._warn_of_earlier()

    def abort(self) -> None:
        """Drop the unfinished shard, and wait for the uploads of complete ones."""
        if not self._closed:
            self._give_up(at_once=False)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            # After Ctrl-C, do not wait for a gigabyte to be uploaded.
            self._give_up(at_once=not isinstance(error, Exception))

    def _begin(self) -> SampleArchive:
        self._file = open_upload(self._pattern.text(self._number), directory=self._directory, options=self._options)
        self._archive = SampleArchive(cast(BinaryIO, self._file), self._kind)
        return self._archive

    def _cut(self) -> None:
        """Store the shard, and advance to the next number."""
        file, archive, number = self._file, self._archive, self._number
        assert file is not None
        assert archive is not None
        archive.finish()
        written = WrittenShard(file.name, archive.samples, file.tell())
        self._file = self._archive = None
        self._number += 1
        self._uploads.add(lambda: self._store(file, number, written), file.discard)

    def _store(self, file: UploadFile, number: int, written: WrittenShard) -> None:
        file.close()
        self._stored[number] = written
        if self._post is not None:
            self._post(written)

    def _give_up(self, *, at_once: bool) -> None:
        self._closed = True
        if self._file is not None:
            self._file.discard()
        for problem in self._uploads.stop(at_once=at_once):
            LOG.warning("%s: %s %s", type(problem).__name__, problem, "; ".join(getattr(problem, "__notes__", ())))

    def _warn_of_earlier(self) -> None:
        url = self._pattern.text(self._number)
        try:
            remains = destination_of(url, self._options).exists()
        except Exception:
            return  # the check failed, but all shards are stored
        if remains:
            LOG.warning("%s, and perhaps more shards, exist from an earlier run; delete them if they are stale", shown(url))
