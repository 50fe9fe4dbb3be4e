"""Cut shards: the input of `tarshards`, and where one shard ends and the next one begins.

Shards are written to unnamed temporary files, and never cut within a *unit*, which must stay together: a sample with
the members without a key that follow it, or a single file without a key. Members are kept byte for byte and in order.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from dfc.cli.session import UsageMistake
from dfc.errors import ClientMistake
from dfc.limits import MIB, PIPE_BYTES, SAMPLE_RECORDS_MAX
from dfc.tar.compression import MAGIC_BYTES, CompressionError, DecompressedFile, kind_of_bytes, open_decompressed
from dfc.tar.header import FILE, TarError, padded
from dfc.tar.samples import END_OF_ARCHIVE, SampleGrouper, member_header, padding, split_key
from dfc.tar.scanner import Scanner

RECENT_KEYS: Final = 65_536  # 8 MiB; in an unsorted folder, most keys occur again within this distance
_FLUSH_BYTES: Final = 1 * MIB
_FLUSH_PIECES: Final = 1000  # below IOV_MAX
_COPY_BYTES: Final = 8 * MIB


@dataclass(slots=True)
class CutShard:
    """A shard in an unnamed file, complete when it is emitted. `size` is in bytes."""

    number: int
    file: BinaryIO
    size: int = 0
    samples: int = 0
    members: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a shard: it ends before the unit that would exceed `size` bytes or `samples`."""

    size: int | None = None
    samples: int | None = None


@dataclass(slots=True)
class _Unit:
    """What is not cut. `start` is its offset in the shard; `filled` is set once it has more than directories and links."""

    start: int
    size: int = 0
    samples: int = 0
    members: int = 0
    filled: bool = False


class ShardCutter:
    """Cuts members into shards: call `begin` and `write` for each member, then `finish`; `emit` gets each complete shard."""

    def __init__(self, limits: Limits, directory: str | None, emit: Callable[[CutShard], None]) -> None:
        self._limits = limits
        self._directory = directory
        self._emit = emit
        self._grouper = SampleGrouper()
        self._key: str | None = None
        self._keyless = 0  # members without a key since the last one with a key
        self._recent: dict[int, None] = {}  # hashes of the last keys, oldest first
        self.came_back = 0  # samples whose key occurred not long before: the input is not sorted
        self._pieces: list[bytes | memoryview] = []
        self._pending = 0  # bytes of the pieces
        self._finished = False
        self._shard = self._open(0)
        self._unit = _Unit(0)

    def begin(self, name: str, kind: int, size: int) -> None:
        """Start a member of a type of `dfc.tar.header.TYPES`; the next `size` bytes are its headers, data and padding."""
        new_sample = bool(self._grouper.cut((name,), (kind,))[1])
        key = split_key(name) if kind == FILE else None
        if key is None:
            new_unit = fills = self._stands_alone(kind)
        else:
            # A repeated extension starts a new sample with the same key; the two samples stay together.
            new_unit = new_sample and key[0] != self._key
            fills = True
            if new_unit:
                self._remember(key[0])
            self._key = key[0]
            self._keyless = 0
        if new_unit and self._unit.filled:
            self._settle()
            if self._limits.samples is not None and self._shard.samples >= self._limits.samples:
                self._cut()
        unit = self._unit
        unit.filled = unit.filled or fills
        unit.size += size
        unit.samples += new_sample
        unit.members += 1
        end = unit.start + unit.size + len(END_OF_ARCHIVE)
        if unit.start and self._limits.size is not None and end > self._limits.size:
            self._cut()

    def write(self, data: bytes | memoryview) -> None:
        """Add the next bytes of the current member. The buffer must not change before `flush`."""
        self._pieces.append(data)
        self._pending += len(data)
        if self._pending >= _FLUSH_BYTES or len(self._pieces) >= _FLUSH_PIECES:
            self.flush()

    def flush(self) -> None:
        """Write the pending bytes to the file."""
        pieces, self._pieces = self._pieces, []
        left, self._pending = self._pending, 0
        self._shard.size += left
        while left:
            count = os.writev(self._shard.file.fileno(), pieces)
            left -= count
            if left:
                pieces = _after(pieces, count)

    def finish(self) -> None:
        """Emit the last shard, unless it is empty."""
        self._settle()
        self.flush()
        self._finished = True
        if self._shard.members:
            self._close(self._shard)
        else:
            self._shard.file.close()

    def abandon(self) -> None:
        """Discard the unfinished shard. Shards that were emitted are not affected."""
        if not self._finished:
            self._shard.file.close()

    def _stands_alone(self, kind: int) -> bool:
        """Whether a member without a key is its own unit: a file is, if no sample can continue after it."""
        self._keyless += 1
        if kind != FILE or (self._key is not None and self._keyless <= SAMPLE_RECORDS_MAX):
            return False
        self._key = None
        return True

    def _remember(self, key: str) -> None:
        mark = hash(key)
        if self._recent.pop(mark, self) is None:
            self.came_back += 1
        self._recent[mark] = None
        if len(self._recent) > RECENT_KEYS:
            del self._recent[next(iter(self._recent))]

    def _settle(self) -> None:
        """Add the unit to the shard and start the next unit."""
        self._shard.samples += self._unit.samples
        self._shard.members += self._unit.members
        self._unit = _Unit(self._shard.size + self._pending)

    def _cut(self) -> None:
        """Close the shard where the current unit starts, and move the unit to a new shard."""
        self.flush()
        shard, start = self._shard, self._unit.start
        following = self._open(shard.number + 1)
        following.size = shard.size - start
        _copy(shard.file.fileno(), start, following.file.fileno(), following.size)
        os.ftruncate(shard.file.fileno(), start)
        shard.size = start
        self._shard = following
        self._unit.start = 0
        self._close(shard)

    def _open(self, number: int) -> CutShard:
        return CutShard(number, tempfile.TemporaryFile(dir=self._directory, buffering=0, prefix="tarshards-"))

    def _close(self, shard: CutShard) -> None:
        shard.size += os.pwrite(shard.file.fileno(), END_OF_ARCHIVE, shard.size)
        shard.file.seek(0)
        self._emit(shard)


def _after(pieces: list[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """The pieces without their first `count` bytes."""
    for at, piece in enumerate(pieces):
        if count < len(piece):
            return [memoryview(piece)[count:], *pieces[at + 1 :]]
        count -= len(piece)
    return []


def _copy(source: int, start: int, target: int, size: int) -> None:
    while size:
        data = os.pread(source, min(size, _COPY_BYTES), start)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        start += len(data)
        size -= len(data)


# --- Reads the input of `tarshards`: an archive on standard input, whose members are copied unchanged, or a list of files.

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
