"""Write samples as tars, and upload each shard while the next one is filled.

    with ShardWriter("http://nvdata/train-%06d.tar", maxsize=1e9) as writer:
        for key, image, label in examples:
            writer.write({"__key__": key, "jpg": image, "cls": label})

The bytes of a shard depend on its samples alone: members are sorted by extension, owners and times are 0. A shard is stored
whole or not at all; docs/inputs.md describes the possible destinations.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal, NamedTuple, cast

from dfc.checksum import Buffer
from dfc.inputs.base import LOG, Sample, SampleBroken
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions, shown
from dfc.inputs.uploads import UploadFile, Uploads, destination_of
from dfc.limits import KIB, SAMPLE_RECORDS_MAX
from dfc.listing.specs import ShardPattern
from dfc.tar.compression import open_compressor
from dfc.tar.index.format import index_kind
from dfc.tar.samples import END_OF_ARCHIVE, member_header, padding, split_key

# --- Write samples as a tar. A sample that could not be read back unchanged is refused before any byte of it is written.

Encode = bool | Callable[[Sample], Sample]
Kind = Literal["gz", "zst", "lz4", "bz2", "xz"]
Compress = Kind | Literal[False] | None
_JOINED_BYTES_MAX: Final = 64 * KIB  # up to here, copying costs less than several calls to write


class Record(NamedTuple):
    """A sample as it goes into an archive. `size` is its bytes in the archive, `payload` the bytes of its values."""

    key: str
    pieces: list[Buffer]
    size: int
    payload: int


def kind_for(name: str, compress: Compress) -> Kind | None:
    """The compression of an archive: as `compress` says, else by its name."""
    if compress is None:
        kind = index_kind(name.partition("?")[0])
        return None if kind == "tar" else cast("Kind | None", kind)
    return compress or None


def pack(sample: Mapping[str, Any], encode: Encode, last_key: str | None) -> Record:
    """Turn a sample into members, sorted by extension. Fields whose name begins with `_` are left out.

    SampleBroken unless readers get the same key and fields back, and can tell the sample from the previous one.
    """
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise SampleBroken(f"the `__key__` of a sample must be a string, not {key!r}")
    if key == last_key:
        raise SampleBroken(f"the previous sample also has the key {key!r}: readers would merge the two", key=key)
    fields = _encoded(sample, key, encode)
    pieces: list[Buffer] = []
    seen: set[str] = set()
    payload = 0
    for extension in sorted(fields):
        if extension.startswith("_"):
            continue
        name, lower = f"{key}.{extension}", extension.lower()
        if split_key(name) != (key, lower):
            raise SampleBroken(f"field {extension!r} of sample {key!r} could not be read back{_hint(key)}", key=key)
        if lower in seen:
            raise SampleBroken(f"sample {key!r} has the field {lower!r} twice: extensions are case-insensitive", key=key)
        seen.add(lower)
        data = _bytes_of(fields[extension], extension, key)
        payload += len(data)
        try:
            pieces += (member_header(name, len(data)), data, padding(len(data)))
        except ValueError as problem:
            raise SampleBroken(f"sample {key!r}: {problem}", key=key) from None
    if not seen:
        raise SampleBroken(f"sample {key!r} has no fields", key=key)
    if len(seen) > SAMPLE_RECORDS_MAX:
        raise SampleBroken(f"sample {key!r} has {len(seen)} fields; at most {SAMPLE_RECORDS_MAX} are supported", key=key)
    return Record(key, pieces, sum(map(len, pieces)), payload)


def _hint(key: str) -> str:
    base = key.rpartition("/")[2]
    return ": keys must not contain dots, since the extension begins at the first dot" if "." in base else ""


class SampleArchive:
    """A tar being written, compressed or not. `samples` counts its samples, `size` its bytes before compression."""

    def __init__(self, file: BinaryIO, kind: Kind | None) -> None:
        self.samples = 0
        self.size = 0
        self._file = file
        self._compressor = None if kind is None else open_compressor(kind)

    def size_with(self, record: Record) -> int:
        """The size of the whole archive if it ended after this sample."""
        return self.size + record.size + len(END_OF_ARCHIVE)

    def add(self, record: Record) -> None:
        self.samples += 1
        self.size += record.size
        if record.size <= _JOINED_BYTES_MAX:
            self._write(b"".join(record.pieces))
        else:
            for piece in record.pieces:
                self._write(piece)

    def finish(self) -> None:
        """Finish the archive; the file stays open."""
        self.size += len(END_OF_ARCHIVE)
        self._write(END_OF_ARCHIVE)
        if self._compressor is not None:
            self._put(self._compressor.flush())

    def _write(self, data: Buffer) -> None:
        self._put(data if self._compressor is None else self._compressor.compress(data))

    def _put(self, data: Buffer) -> None:
        rest = memoryview(data)
        while len(rest):
            count = self._file.write(rest)
            if count is None:
                raise BlockingIOError(errno.EAGAIN, "the file is in non-blocking mode and would block; use blocking mode")
            rest = rest[count:]  # raw files may write less than requested


def _encoded(sample: Mapping[str, Any], key: str, encode: Encode) -> Mapping[str, Any]:
    if not encode:
        return sample
    try:
        if not callable(encode):
            from dfc.inputs.decoding import encode as encode_by_extension

            return encode_by_extension(dict(sample))
        return encode(dict(sample))
    except (SampleBroken, ImportError):
        raise
    except Exception as problem:
        raise SampleBroken(f"sample {key!r} cannot be encoded: {problem}", key=key) from problem


def _bytes_of(value: Any, extension: str, key: str) -> Buffer:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, memoryview):
        return value.cast("B") if value.c_contiguous else bytes(value)
    if not isinstance(value, bytes | bytearray):
        raise SampleBroken(f"field {extension!r} of sample {key!r} must be bytes or str, not {type(value).__name__}", key=key)
    return value


# --- Write samples into shards, and upload each shard while the next one is filled.

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

    `encode`: True encodes values by their extension (`dfc.inputs.decoding`), False takes bytes and str as they are, a function
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
