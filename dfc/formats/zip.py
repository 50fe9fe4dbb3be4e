"""Zip files: members in the order of samples, with a fixed date; read without ever touching a disk.

What strangers pack is bounded: size of the central directory, of one member, growth of all; only stored and deflated members
are read, since the other methods cannot be decompressed in steps. Encrypted members and names that lead elsewhere are errors.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, Final, cast

from dfc.checksum import Buffer
from dfc.errors import Conflict
from dfc.formats.base import (
    READ_BYTES,
    DataMember,
    FileFormat,
    FormatError,
    OnSplit,
    Readable,
    SampleData,
    SeekableFile,
    Sink,
    check_member_name,
    group_files,
)
from dfc.limits import DECOMPRESS_FREE_BYTES, DECOMPRESS_RATIO_MAX, JOB_MEMBER_BYTES_MAX, ZIP_DIRECTORY_BYTES_MAX

DEFAULT_LEVEL: Final = 1
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold
_UNIX: Final = 3
_MODE: Final = (stat.S_IFREG | 0o644) << 16
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000  # of members, strongly, and of the directory
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN: Final = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError, RuntimeError)


class ZipWriter:
    """One file a member. `level` 0 stores, 1 to 9 deflate; the same samples and level give the same bytes."""

    def __init__(self, sink: Sink, level: int | None = None) -> None:
        self._sink = sink
        self._window = _Window()
        self._level = DEFAULT_LEVEL if level is None else level
        self._zip = zipfile.ZipFile(cast(Any, self._window), "w")

    def add(self, sample: SampleData) -> None:
        """Conflict for a duplicate name: extracting the zip would lose one of the two."""
        for member in sample.members:
            if member.name in self._zip.NameToInfo:
                raise Conflict(f"a zip file cannot have two members {member.name[:80]!r}")
            info = zipfile.ZipInfo(member.name, _EPOCH)
            info.create_system, info.external_attr = _UNIX, _MODE
            info.compress_type = zipfile.ZIP_DEFLATED if self._level else zipfile.ZIP_STORED
            self._zip.writestr(info, member.data, compresslevel=self._level or None)
            self._window.move(self._sink)

    def finish(self) -> None:
        self._zip.close()
        self._window.move(self._sink)


class _Window:
    """The last bytes of a file on its way to a sink: the library seeks back within a member to complete its header."""

    def __init__(self) -> None:
        self._base = 0
        self._data = bytearray()
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence or not self._base <= offset <= self._base + len(self._data):
            raise OSError("seek to a place that is already written")
        self._at = offset
        return offset

    def write(self, data: Buffer) -> int:
        start = self._at - self._base
        self._data[start : start + len(data)] = data
        self._at += len(data)
        return len(data)

    def flush(self) -> None:
        pass

    def move(self, sink: Sink) -> None:
        """Send everything so far; it will not change any more."""
        sink.write(bytes(self._data))
        self._base += len(self._data)
        self._data.clear()


def read_zip(source: Readable, file: str, on_split: OnSplit, warnings: list[str]) -> Iterator[SampleData]:
    """The samples of a zip in the order of its directory. FormatError for a broken or too large file; SplitSample."""
    try:
        archive = zipfile.ZipFile(cast(Any, SeekableFile(source, file, ZIP_DIRECTORY_BYTES_MAX)))
    except _BROKEN as error:
        raise FormatError(file, f"not a zip file, or a damaged one ({str(error)[:100]})") from None
    infos = [info for info in archive.infolist() if _is_file(info)]
    for info in infos:
        _check(file, info)
    growth = max(DECOMPRESS_FREE_BYTES, DECOMPRESS_RATIO_MAX * source.size)
    if sum(info.file_size for info in infos) > growth:
        raise FormatError(file, f"the zip file expands to more than {DECOMPRESS_RATIO_MAX} times its size")
    grouped = group_files(file, ((info.filename, info) for info in infos), on_split)
    if grouped.dropped:
        warnings.append(f"{file}: {grouped.dropped} members belong to no sample and were left out")
    for number, group in enumerate(grouped.samples):
        if sum(info.file_size for _, info in group.files) > JOB_MEMBER_BYTES_MAX:
            raise FormatError(file, f"the sample {group.key[:80]!r} is too large to be changed in memory")
        members = [DataMember(group.ext(name), name, _read(archive, file, info)) for name, info in group.files]
        yield SampleData(group.key, number, members)


def _is_file(info: zipfile.ZipInfo) -> bool:
    """Whether an entry is a regular file: no directory and no link, which Unix zips mark in the high half of the attributes."""
    mode = info.external_attr >> 16
    return not info.is_dir() and (info.create_system != _UNIX or stat.S_IFMT(mode) in (0, stat.S_IFREG))


def _check(file: str, info: zipfile.ZipInfo) -> None:
    check_member_name(file, info.filename, info.header_offset)
    if info.flag_bits & _ENCRYPTED:
        raise FormatError(file, f"the member {info.filename[:80]!r} is encrypted", info.header_offset)
    if info.compress_type not in _METHODS:
        method = zipfile.compressor_names.get(info.compress_type, str(info.compress_type))  # type: ignore[attr-defined]
        problem = f"{info.filename[:80]!r} is compressed with {method}, not stored or deflated"
        raise FormatError(file, problem, info.header_offset)
    if info.file_size > JOB_MEMBER_BYTES_MAX:
        raise FormatError(file, f"the member {info.filename[:80]!r} is too large to be changed in memory", info.header_offset)


def _read(archive: zipfile.ZipFile, file: str, info: zipfile.ZipInfo) -> bytes:
    """Read in steps: the size in the directory is not trusted until that many bytes have come."""
    data = bytearray()
    try:
        with archive.open(info) as member:
            while chunk := member.read(READ_BYTES):
                data += chunk
    except _BROKEN as error:
        problem = f"the member {info.filename[:80]!r} is broken ({str(error)[:100]})"
        raise FormatError(file, problem, info.header_offset) from None
    if len(data) != info.file_size:
        raise FormatError(file, f"the member {info.filename[:80]!r} is shorter than it says", info.header_offset)
    return bytes(data)


FORMAT: Final = FileFormat(
    endings=(".zip",),
    writer=lambda sink, options: ZipWriter(sink, options.level),
    read=read_zip,  # knows all names before it reads
    joins_samples=True,
    levels=range(10),
)
