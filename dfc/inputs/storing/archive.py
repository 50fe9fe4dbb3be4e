"""Write samples as a tar. A sample that could not be read back unchanged is refused before any byte of it is written."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Final, Literal, NamedTuple, cast

from dfc.checksum import Buffer
from dfc.inputs.base import Sample, SampleBroken
from dfc.limits import KIB, SAMPLE_RECORDS_MAX
from dfc.tar.compressor import open_compressor
from dfc.tar.index.format import index_kind
from dfc.tar.samples import split_key
from dfc.tar.writer import END_OF_ARCHIVE, member_header, padding

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
            from dfc.inputs.encoding import encode as encode_by_extension

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
