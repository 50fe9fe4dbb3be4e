"""Writers of shards: samples in, whole shards stored while the next is filled.

    with ShardWriter("http://nvdata/train-%06d.tar", maxsize=1e9) as writer:
        for key, image, label in examples:
            writer.write({"__key__": key, "jpg": image, "cls": label})

The bytes of a shard depend on its samples alone: members in the order of their extensions, owner and times 0. A shard is stored
when it is whole, or not at all; docs/inputs.md tells what goes where.
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
UPLOADS: Final = 2  # one shard goes out while the next is filled; more take more space


class WrittenShard(NamedTuple):
    """A shard that is stored. `size` is what was stored, in bytes."""

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
    """A binary file to write, stored when it is closed: whole, or after an exception in its `with` block not at all.

    `url`: `http(s)://…` of a DFC node or any server that takes PUT, `dfc:bucket/object`, a path, `file:`, `pipe:command`, `-`,
    and what fsspec has a filesystem for (`s3://`, `gs://`). `exclusive`: FileExistsError if something is there. `directory` is
    where it is kept meanwhile (None: TMPDIR). BadRequest, BadName, ValueError.
    """
    return UploadFile(destination_of(url, options), directory, exclusive=exclusive)


class TarWriter:
    """Writes samples into one shard: `TarWriter("train.tar")`, a URL as for `open_upload`, or a binary file, which stays open.

    `encode`: True encodes values by their extension (`dfc.inputs.encoding`), False takes bytes and str as they are, a function
    makes a sample of bytes. `compress`: "gz", "zst", "lz4", "bz2", "xz", False for none; None goes by the ending of the name.
    `samples` counts what was written, `size` the bytes of the archive so far, before compression.
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
        """Add a sample; the bytes of its values.

        SampleBroken for one that could not be read back as it is: nothing of it is written, and one may go on.
        """
        if self._closed:
            raise ValueError("the writer is closed")
        record = pack(sample, self._encode, self._last_key)
        self._archive.add(record)
        self._last_key = record.key
        return record.payload

    def close(self) -> None:
        """End the archive and store it. Idempotent. DfcError, OSError."""
        if self._closed:
            return
        self._closed = True
        try:
            self._archive.finish()
        except BaseException:
            self.abort()
            raise
        if self._upload is not None:
            self._upload.commit()  # whatever is being handled: who closes a writer in an `except` block wants what it has

    def abort(self) -> None:
        """Store nothing. A file that was given is left without an end of archive, so that it does not look complete."""
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
    """Writes samples into numbered shards, and stores each while the next is filled.

    `pattern` holds a number (`train-%06d.tar`), `start_shard` is the first. A shard is closed before the sample that would make
    it larger than `maxsize` bytes (before compression) or give it more than `maxcount`; a larger sample stands alone. `uploads`
    shards take space in `directory` (None: TMPDIR) at a time. `post` gets each WrittenShard, in a thread; `shards` lists them.
    Leaving the `with` block by an exception, the unfinished shard is not stored; whole ones are. Use it from one thread; forked
    processes make their own. `encode` and `compress` are those of TarWriter.
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
            raise ValueError(f"a shard holds at least one sample and one byte, not {maxcount} and {maxsize}")
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
        destination_of(self._pattern.text(start_shard), options)  # a URL that cannot work is told at once
        self._uploads = Uploads(uploads, "dfc-shards")

    @property
    def shards(self) -> list[WrittenShard]:
        """What is stored by now, in order."""
        return [shard for _, shard in sorted(self._stored.items())]

    def write(self, sample: Mapping[str, Any]) -> int:
        """Add a sample; the bytes of its values.

        SampleBroken for one that could not be read back as it is: nothing of it is written, and one may go on. DfcError or
        OSError when a shard could not be stored.
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
        """Store the last shard and wait for all. Idempotent. DfcError, OSError."""
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
        """Store nothing more; wait for the whole shards that are under way."""
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
            # Somebody who presses Ctrl-C does not want to wait for a gigabyte.
            self._give_up(at_once=not isinstance(error, Exception))

    def _begin(self) -> SampleArchive:
        self._file = open_upload(self._pattern.text(self._number), directory=self._directory, options=self._options)
        self._archive = SampleArchive(cast(BinaryIO, self._file), self._kind)
        return self._archive

    def _cut(self) -> None:
        """Store the shard, and go on to the next number."""
        file, archive, number = self._file, self._archive, self._number
        assert file is not None
        assert archive is not None
        archive.finish()
        written = WrittenShard(file.name, archive.samples, file.tell())
        self._file = self._archive = None
        self._number += 1
        self._uploads.add(lambda: self._store(file, number, written))

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
            return  # it could not be looked up, which is no failure: all shards are stored
        if remains:
            LOG.warning("%s and maybe more are there from an earlier run", shown(url))
