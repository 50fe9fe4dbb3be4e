"""The loaders' parser: makes samples, which own their bytes, from an archive in large buffers or from single samples.

Each has a loop that handles headers of plain files, the former also pax headers with nothing but times; every other header
goes through `dfc.tar.scanner.Scanner`, so that all parsers see an archive in the same way, including errors. Samples are cut
like in `dfc.tar.samples.SampleGrouper`, so that their ordinals are those of a DFC node's index.

A sample is a dict: `__key__`, `__source__`, and the bytes of each member under its extension.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection
from typing import Any, Final
from zlib import adler32

from dfc.limits import INPUT_MEMBER_BYTES_MAX, INPUT_SAMPLE_BYTES_MAX, SAMPLE_RECORDS_MAX, TAR_HEADER_BYTES, TAR_META_BYTES_MAX
from dfc.tar.header import FILE, FILE_FLAG, PAX_FLAG, StoredSums, TarError, has_plain_records, is_plain_pax, padded, stored_sum
from dfc.tar.samples import key_bytes
from dfc.tar.scanner import Scanner

Sample = dict[str, Any]
LeaveOut = Callable[[str], object]

# Name, digits of the size, the byte after them, checksum, type, first byte of the prefix.
_HEADER: Final = struct.Struct("=100s24x11sB12x8sB188xB")
_BASE_256: Final = 0x80
_ADLER_MODULUS: Final = 65_521
_REMEMBERED_MAX: Final = 8192  # extensions; normally there are few
_FIXED_FIELDS: Final = ("__key__", "__source__")
_ROOM: Final = SAMPLE_RECORDS_MAX + len(_FIXED_FIELDS)


class SampleParser:
    """`feed` it everything from a header on, take `samples` after each `feed`, even one that raised, then `finish`.

    `source` becomes `__source__`; `start` is the offset in the archive of the first byte fed, the first header of a sample;
    `indexed` skips header checksums (a DFC node checked them when it stored the shard). With `fields`, only these extensions
    are copied out; the others still count for cutting samples, and `leave_out` is called for each of them.
    The first problem is raised as TarError; after it nothing more may be fed.
    """

    def __init__(
        self,
        source: str,
        *,
        start: int = 0,
        indexed: bool = False,
        fields: Collection[str] | None = None,
        leave_out: LeaveOut | None = None,
    ) -> None:
        self.samples: list[Sample] = []  # complete ones; the caller removes them
        self.sample_at = start  # offset of the first header of the incomplete sample
        self.keys_repeated = 0  # samples begun by a repeated extension
        self.offset = start  # of the next byte to be fed
        self.unended = False  # after `finish`: the archive did not end with two zero blocks
        self.oddities: list[tuple[str, int]] = []  # after `finish`: those of the scanner
        self._source = source
        self._indexed = indexed
        self._fields = None if fields is None else frozenset(fields)
        self._leave_out = leave_out
        self._scanner = Scanner()
        self._scanner.next = start
        self._scanning = False  # the scanner is inside a chain of headers, or at the end
        self._partial = bytearray()  # part of what the scanner wants
        self._skip = 0  # bytes up to the next header
        self._left = 0  # how many of these, at the beginning, belong to `_pieces`
        self._pieces: list[bytes] = []
        self._open_field = ""
        self._open_name = b""  # of the incomplete member
        self._sample: Sample | None = None
        self._key = ""
        self._prefix = b"\0"  # the key and a dot, as bytes; no name begins with NUL
        self._room = _ROOM  # a sample with this many fields is full
        self._unseen: set[str] = set()  # extensions of the sample that are left out
        self._extensions: dict[bytes, str] = {}  # those that are kept
        self._sums = StoredSums(_adler_of)

    def feed(self, data: bytes | bytearray | memoryview, start: int = 0, end: int | None = None) -> None:
        """Take all bytes from `start` to `end` of a buffer, which may be reused afterwards. Raises TarError."""
        end = len(data) if end is None else end
        view = memoryview(data)
        base = self.offset - start
        if self._sample is not None:
            self._weigh(self._sample, 0, self.offset)  # members wholly in one buffer are not counted yet: it is not much
        position = start
        while position < end:
            if self._skip:
                position = self._pass(view, position, end)
                continue
            if not self._scanning and not self._partial:
                if end - position >= TAR_HEADER_BYTES:
                    position = self._loop(view, position, end, base)
                    if self._skip or position >= end:
                        continue
                self._scanner.next = base + position
            position = self._hand_over(view, position, end)
        self.offset = base + end

    def finish(self, *, whole: bool = True) -> None:
        """End the archive or (not `whole`) the wanted part of it, before the first header of a sample.

        Raises TarError if it is truncated; the last sample, which may lack members, is then dropped. An archive that only
        lacks its end blocks counts as complete, as for tar, and sets `unended`.
        """
        scanner = self._scanner
        if not scanner.ended:
            scanner.fed = self.offset
            if not (self._scanning or self._partial):
                scanner.next = self.offset + self._skip
                scanner.last_name = self._open_name
            elif self._partial:
                scanner.take(bytes(self._partial))
        scanner.finish()
        if whole:
            self.unended = scanner.unended
            self.oddities = scanner.oddities
        self._complete(self.offset)

    @property
    def ended(self) -> bool:
        """Whether the end of the archive was reached: anything after it is ignored."""
        return self._scanner.ended

    def has_open_sample(self) -> bool:
        """Whether there is an incomplete sample, not yet in `samples`."""
        return self._sample is not None

    def _loop(self, view: memoryview, position: int, end: int, base: int) -> int:
        """Take plain members from `position` on, where a header begins. Returns where it stopped: at the end, with `_skip`
        bytes of the last member still to come, or before a header that the scanner must handle."""
        last = end - TAR_HEADER_BYTES
        head = -1  # position of a pax header just passed
        unpack = _HEADER.unpack_from
        sums = self._sums
        indexed = self._indexed
        extensions = self._extensions
        prefix = self._prefix
        sample = self._sample
        room = self._room
        while position <= last:
            name, digits, stop, field, flag, long = unpack(view, position)
            if not indexed and adler32(view[position : position + TAR_HEADER_BYTES]) & 0xFFFF != sums[field]:
                break
            if (stop != 0 and stop != 32) or not digits.isdigit():
                break
            try:
                size = int(digits, 8)
            except ValueError:
                break
            data = position + TAR_HEADER_BYTES
            after = data + ((size + 511) & -512)
            if flag != FILE_FLAG and flag != 0:
                if (
                    flag == PAX_FLAG
                    and head < 0
                    and size <= TAR_META_BYTES_MAX
                    and after <= end
                    and (has_plain_records(view, data, data + size) or is_plain_pax(view, data, data + size))
                ):
                    head = position
                    position = after
                    continue
                break
            name, _, rest = name.partition(b"\0")
            if long or (flag == 0 and name[-1:] == b"/") or (rest and not indexed and rest.strip(b"\0")):
                break
            tail = name.removeprefix(prefix)
            extension = extensions.get(tail) if tail is not name else None
            if extension is None or extension in sample or len(sample) >= room:  # type: ignore[operator, arg-type]
                # Usually another key.
                self._sample, self._room = sample, room
                extension = self._place(name, base + (position if head < 0 else head))
                prefix = self._prefix
                sample, room = self._sample, self._room
            head = -1
            if extension is not None:
                if data + size <= end:
                    sample[extension] = view[data : data + size].tobytes()  # type: ignore[index]
                else:
                    self._open(name, base + data, extension, view[data:end], size)
            position = after
        self._sample, self._room = sample, room
        if head >= 0:
            position = head  # the next header is not plain, or not here: the scanner must see both
        if position > end:
            self._open_name = name
            self._skip = position - end
            return end
        return position

    def _hand_over(self, view: memoryview, position: int, end: int) -> int:
        """Give the scanner what it wants, as far as it is here; returns where the rest begins."""
        scanner = self._scanner
        if scanner.ended:
            scanner.take(view[position:end].tobytes())
            return end
        stop = min(end, position + scanner.want - len(self._partial))
        self._partial += view[position:stop]
        if len(self._partial) == scanner.want:
            chunk = bytes(self._partial)
            self._partial.clear()
            self._scanning = True
            for name, kind, head, offset, size in scanner.take(chunk):
                self._scanning = False
                self._skip = padded(size)
                self._open_name = name
                extension = self._place(name, head) if kind == FILE else None
                if extension is not None:
                    self._open(name, offset, extension, view[:0], size)
                elif kind != FILE:
                    self._room -= 1
            if scanner.ended:
                self._complete(scanner.next)
        return stop

    def _complete(self, offset: int) -> None:
        """Complete the last sample: the archive ends before `offset`."""
        if self._sample is not None:
            self.samples.append(self._sample)
            self._sample = None
        self.sample_at = offset

    def _open(self, name: bytes, offset: int, extension: str, piece: memoryview, size: int) -> None:
        """Begin a member whose data is at `offset` and of which only the first bytes are here."""
        if size > INPUT_MEMBER_BYTES_MAX:
            text = name[:80].decode(errors="replace")
            raise TarError(f"member {text!r} has more than {INPUT_MEMBER_BYTES_MAX} bytes", offset)
        assert self._sample is not None
        self._weigh(self._sample, size, offset)
        self._sample[extension] = b""
        self._open_name, self._open_field = name, extension
        self._left = size - len(piece)
        self._pieces = [piece.tobytes()]

    def _weigh(self, sample: Sample, more: int, offset: int) -> None:
        """Raise TarError if the sample would take too much memory with `more` bytes."""
        if more + sum(map(len, sample.values())) > INPUT_SAMPLE_BYTES_MAX:
            raise TarError(f"sample {self._key[:80]!r} has more than {INPUT_SAMPLE_BYTES_MAX} bytes", offset)

    def _pass(self, view: memoryview, position: int, end: int) -> int:
        """Continue the body of a member that began in an earlier buffer."""
        count = min(self._skip, end - position)
        if self._left:
            body = min(self._left, count)
            self._pieces.append(view[position : position + body].tobytes())
            self._left -= body
            if not self._left:
                assert self._sample is not None
                self._sample[self._open_field] = b"".join(self._pieces)
                self._pieces = []
        self._skip -= count
        return position + count

    def _place(self, name: bytes, head: int) -> str | None:
        """Assign a member to its sample, and begin a new sample if it is the first; None if the member is left out. `head` is
        the offset of its first header."""
        dot = key_bytes(name)
        if dot < 0:
            self._room -= 1
            return None
        extension = self._extensions.get(name[dot + 1 :])
        if extension is None:
            extension = self._remember_extension(name[dot + 1 :])
        key = name[:dot].decode("utf-8", "replace")
        sample = self._sample
        fixed = extension in _FIXED_FIELDS
        kept = not fixed and (self._fields is None or extension in self._fields)
        if sample is None or key != self._key or len(sample) >= self._room:
            pass
        elif (kept and extension in sample) or extension in self._unseen:
            self.keys_repeated += 1
        else:
            if not kept:
                self._unseen.add(extension)
                self._room -= 1
            return extension if kept else None
        if sample is not None:
            self.samples.append(sample)
        self._sample = {"__key__": key, "__source__": self._source}
        self.sample_at = head
        self._key = key
        self._prefix = name[: dot + 1]
        self._room = _ROOM
        if self._unseen:
            self._unseen = set()
        if not kept:
            self._unseen.add(extension)
            self._room -= 1
        return extension if kept else None

    def _remember_extension(self, name: bytes) -> str:
        extension = sys.intern(name.decode("utf-8", "replace").lower())
        if extension not in _FIXED_FIELDS and (self._fields is None or extension in self._fields):
            if len(self._extensions) >= _REMEMBERED_MAX:
                self._extensions.clear()
            self._extensions[name] = extension
        elif self._leave_out is not None:
            self._leave_out(extension)
        return extension


def _adler_of(field: bytes) -> int:
    """The lower half of adler32 of a header with this checksum. A sum above 65,520 looks like one that is smaller by 65,521;
    no accidental damage turns one into the other."""
    total = stored_sum(field)
    return (total + 1) % _ADLER_MODULUS if total >= 0 else -1


def parse_item(
    data: bytearray,
    view: memoryview,
    start: int,
    end: int,
    source: str,
    fields: Collection[str] | None = None,
    leave_out: LeaveOut | None = None,
) -> Sample:
    """Parse one sample: `data` (of which `view` is a view) from `start` to `end` has its members and nothing else, like an
    item of a batch read. Header checksums are not checked; `source`, `fields` and `leave_out` as above. Raises TarError."""
    sample: Sample = {"__key__": "", "__source__": source}
    key: bytes | bytearray | None = None
    at = start
    last = end - TAR_HEADER_BYTES
    while at <= last:
        body = at + TAR_HEADER_BYTES
        # A name in one field, no long-name header before it, an octal size: all others take the slow path.
        flag = data[at + 156]
        if (flag != FILE_FLAG and flag != 0) or data[at + 345] or data[at + 124] & _BASE_256:
            return _parse_any(bytes(view[start:end]), source, fields, leave_out)
        try:
            size = int(data[at + 124 : at + 136].rstrip(b" \0"), 8)
        except ValueError:
            size = -1
        name = data[at : at + 100].partition(b"\0")[0]
        # A size that is no number, or would go backwards; a directory, whose size means nothing.
        if size < 0 or (flag == 0 and name[-1:] == b"/"):
            return _parse_any(bytes(view[start:end]), source, fields, leave_out)
        if body + size > end:
            raise TarError("a member extends beyond its sample", at - start)
        dot = key_bytes(name)
        if dot >= 0:
            key = name[:dot]
            extension = name[dot + 1 :].decode("utf-8", "replace").lower()
            if fields is None or extension in fields:
                sample[extension] = view[body : body + size].tobytes()
            elif leave_out is not None:
                leave_out(extension)
        at = body + ((size + 511) & -512)
    if at < end:
        raise TarError("a sample ends inside a header", at - start, truncated=True)
    return _finished(sample, key, source)


def _parse_any(item: bytes, source: str, fields: Collection[str] | None, leave_out: LeaveOut | None) -> Sample:
    scanner = Scanner()
    entries = [*scanner.feed(item), *scanner.feed(bytes(2 * TAR_HEADER_BYTES))]
    scanner.finish(strict=True)
    sample: Sample = {"__key__": "", "__source__": source}
    key: bytes | bytearray | None = None
    for name, kind, _, offset, size in entries:
        dot = key_bytes(name) if kind == FILE else -1
        if dot >= 0:
            key = name[:dot]
            extension = name[dot + 1 :].decode("utf-8", "replace").lower()
            if fields is None or extension in fields:
                sample[extension] = item[offset : offset + size]
            elif leave_out is not None:
                leave_out(extension)
    return _finished(sample, key, source)


def _finished(sample: Sample, key: bytes | bytearray | None, source: str) -> Sample:
    if key is None:
        raise TarError("a sample has no members", 0)
    sample["__key__"] = key.decode("utf-8", "replace")
    sample["__source__"] = source  # a member may have that name, and is then no field
    return sample
