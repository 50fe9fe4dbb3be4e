"""Reads the input of `tarshards`: an archive on standard input, whose members are copied unchanged, or a list of files."""

from __future__ import annotations

import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO, Final, cast

from dfc.cli.cutting import ShardCutter
from dfc.cli.exits import UsageMistake
from dfc.errors import ClientMistake
from dfc.limits import MIB, PIPE_BYTES
from dfc.tar.compression import MAGIC_BYTES, CompressionError, DecompressedFile, kind_of_bytes, open_decompressed
from dfc.tar.header import FILE, TarError, padded
from dfc.tar.scanner import Scanner
from dfc.tar.writer import member_header, padding

_READ_BYTES: Final = 1 * MIB
_LIST_NAME_BYTES_MAX: Final = 64 * 1024


class BrokenInput(ClientMistake):
    """The input cannot be read to its end; the unfinished shard is not stored."""

    code = "broken_input"


def cut_archive(descriptor: int, cutter: ShardCutter, warn: Callable[[str], None]) -> int:
    """Cut the archive, compressed or not, read from a descriptor; return the number of its members. BrokenInput.

    `warn` gets a message for each oddity of an archive that can be read nevertheless.
    """
    with suppress(OSError):
        # Works only for pipes. A larger pipe saves most context switches between tar and this process.
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with io.BufferedReader(io.FileIO(descriptor, closefd=False), _READ_BYTES) as source:
        kind = kind_of_bytes(source.peek(MAGIC_BYTES))
        stream = source if kind is None else open_decompressed(source, kind)
        feeder = _Feeder(cutter)
        try:
            while block := stream.read1(_READ_BYTES):
                feeder.feed(block)
            if not feeder.size:
                raise BrokenInput("standard input is empty")  # the program that should have written to it failed
            members = feeder.finish(warn)
            if kind is not None and (offset := cast(DecompressedFile, stream.raw).ignored_from) is not None:
                warn(f"standard input, at byte {offset}: ignored the bytes after the {kind} stream")
            return members
        except TarError as problem:
            raise BrokenInput(f"standard input, at byte {problem.offset}: {problem.message}") from None
        except CompressionError as problem:
            raise BrokenInput(f"standard input: {problem}") from None


class _Feeder:
    """Assigns the bytes of an archive, which arrive in blocks, to their members."""

    def __init__(self, cutter: ShardCutter) -> None:
        self._cutter = cutter
        self._scanner = Scanner()
        self._rest = b""  # bytes after the last member, whose member is not known yet
        self._at = 0  # offset in the archive of the first byte that is not routed yet
        self._end = 0  # offset of the end of the current member, padding included
        self._members = 0

    @property
    def size(self) -> int:
        """Bytes of archive fed so far."""
        return self._scanner.fed

    def feed(self, block: bytes) -> None:
        entries = self._scanner.feed(block)
        data = self._rest + block if self._rest else block
        base = self._at
        view = memoryview(data)
        for name, kind, head, offset, size in entries:
            self._route(view, base, self._end)
            self._at = head  # a global pax header before it belongs to no member
            self._end = offset + padded(size)
            self._cutter.begin(name.decode("utf-8", "replace"), kind, self._end - head)
        self._members += len(entries)
        self._route(view, base, min(self._end, base + len(data)))
        self._cutter.flush()
        if self._at >= self._end:
            # After the end there are only zeros, or bytes that are ignored.
            self._rest = b"" if self._scanner.ended else data[self._at - base :]
            self._at = base + len(data) - len(self._rest)
        else:
            self._rest = b""

    def finish(self, warn: Callable[[str], None]) -> int:
        self._scanner.finish()
        for text, offset in self._scanner.oddities:
            warn(f"standard input, at byte {offset}: {text}")
        return self._members

    def _route(self, view: memoryview, base: int, end: int) -> None:
        if end > self._at:
            self._cutter.write(view[self._at - base : end - base])
            self._at = end


def cut_files(names: Iterator[str], directory: str, cutter: ShardCutter) -> int:
    """Cut the files of a list, in its order; return their number. BrokenInput for a file that cannot be stored.

    Member names are the names in the list without a leading `/` or `./`. Folders in the list are skipped.
    """
    members = 0
    for name in names:
        path = os.path.join(directory, name)
        try:
            with open(path, "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise BrokenInput(f"{path} is not a regular file")
                _cut_file(file, path, _member_name(name), cutter)
        except IsADirectoryError:
            continue
        except OSError as problem:
            raise BrokenInput(f"{path}: {problem.strerror}") from None
        members += 1
    return members


def _cut_file(file: BinaryIO, path: str, name: str, cutter: ShardCutter) -> None:
    size = os.fstat(file.fileno()).st_size
    try:
        header = member_header(name, size)
    except ValueError as problem:
        raise BrokenInput(f"{path}: {problem}") from None
    cutter.begin(name, FILE, len(header) + padded(size))
    cutter.write(header)
    left = size
    while left:
        data = os.read(file.fileno(), min(left, _READ_BYTES))
        if not data:
            raise BrokenInput(f"{path} was truncated while it was being read")
        cutter.write(data)
        left -= len(data)
    cutter.write(padding(size))


def _member_name(name: str) -> str:
    while name.startswith(("/", "./")):
        name = name.lstrip("/") if name.startswith("/") else name[2:]
    if ".." in name.split("/"):
        raise BrokenInput(f"the name of a member cannot contain '..': {name}")
    return name


def read_names(source: BinaryIO, *, null: bool) -> Iterator[str]:
    """Yield the names of a list: one per line, or ended by NUL as from `find -print0`. Empty lines are skipped."""
    separator = b"\0" if null else b"\n"
    rest = b""
    while block := source.read1(_READ_BYTES) if hasattr(source, "read1") else source.read(_READ_BYTES):
        *names, rest = (rest + block).split(separator)
        yield from (os.fsdecode(name) for name in names if name)
        if len(rest) > _LIST_NAME_BYTES_MAX:
            raise UsageMistake("a line of the list is too long for a file name; if the names end with NUL, use -0")
    if rest:
        yield os.fsdecode(rest)
