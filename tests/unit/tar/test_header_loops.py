"""Every loop over headers, over the same archives, sound and damaged: the same members and samples, or the same refusal.

The reference is the scanner that is given one header after the other; it has none of the loops that are there for speed.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from archives import BLOCK, END, Archive, corpus, header, padded

from dfc.limits import INPUT_MEMBER_BYTES_MAX
from dfc.tar.compression import kind_of_bytes, open_decompressed
from dfc.tar.header import TarError
from dfc.tar.sampleparser import SampleParser, parse_item
from dfc.tar.samples import NO_KEY, SampleGrouper, key_bytes, split_key
from dfc.tar.scanner import Entry, PlainFiles, Scanner

DATA: Final = Path(__file__).parents[2] / "data"
SEED: Final = 20261123
FLIPS, FLIPS_LONG = 400, 6000
PIECES: Final = (1 << 30, 777, BLOCK)
TOO_LARGE: Final = f"has more than {INPUT_MEMBER_BYTES_MAX} bytes"  # the loaders say so before they know how much there is
Odd = list[tuple[str, int]]
Sample = dict[str, Any]
Members = tuple[list[Entry], Odd]
Samples = tuple[list[Sample], Odd]


# --- The loops.


def one_by_one(data: bytes) -> Members:
    """The scanner, given each header by a reader that skips the bodies."""
    scanner = Scanner()
    found: list[Entry] = []
    whole = True
    while whole:
        if scanner.next > len(data):
            raise TarError(f"the archive ends inside member {scanner.last_name[:80].decode(errors='replace')!r}", len(data))
        chunk = data[scanner.next : scanner.next + scanner.want]
        whole = len(chunk) == scanner.want
        found += scanner.take(chunk)
    return found + scanner.finish(), sorted(scanner.oddities)


def scanned(data: bytes, piece: int) -> Members:
    """The scanner's own loop."""
    scanner = Scanner()
    found: list[Entry] = []
    for start in range(0, len(data), piece):
        found += scanner.feed(memoryview(data)[start : start + piece])
    return found + scanner.finish(), sorted(scanner.oddities)


def in_columns(data: bytes, piece: int) -> Members:
    """Headers that are checked together."""
    found: list[Entry] = []

    def take(before: list[Entry], files: PlainFiles) -> None:
        found.extend(before + files.entries())

    scanner = Scanner(take_files=take)
    for start in range(0, len(data), piece):
        found += scanner.feed(memoryview(data)[start : start + piece])
    found += scanner.finish()
    return found, sorted(scanner.oddities)


def parsed(data: bytes, piece: int, *, indexed: bool = False) -> Samples:
    """The parser of the loaders."""
    parser = SampleParser("shard", indexed=indexed)
    for start in range(0, len(data), piece):
        parser.feed(data, start, min(start + piece, len(data)))
    parser.finish()
    return parser.samples, sorted(parser.oddities)


def grouped(data: bytes, entries: list[Entry]) -> Iterator[tuple[Sample, int, int]]:
    """The samples of members, by the rule of the index, and from where to where they lie."""
    names = [entry[0].decode(errors="replace") for entry in entries]
    chars, starts = SampleGrouper().cut(names, [entry[1] for entry in entries])
    sample: Sample = {}
    begin = end = 0
    for index, (_, _, head, offset, size) in enumerate(entries):
        if chars[index] == NO_KEY:
            continue
        if index in starts:
            if sample:
                yield sample, begin, end
            sample, begin = {"__key__": names[index][: chars[index]], "__source__": "shard"}, head
        extension = names[index][chars[index] + 1 :].lower()
        if extension not in ("__key__", "__source__"):
            sample[extension] = data[offset : offset + size]
        end = offset + (size + BLOCK - 1 & -BLOCK)
    if sample:
        yield sample, begin, end


def outcome(read: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What it gives, or what it says."""
    try:
        return read(*arguments, **options)
    except TarError as problem:
        return str(problem)


def check(archive: Archive, *, sound: bool) -> bool:
    """Whether it was taken. `sound`: it is as its tool wrote it, so that checksums can be left alone."""
    data = archive.data
    wanted = outcome(one_by_one, data)
    for piece in PIECES:
        for read in (scanned, in_columns):
            assert outcome(read, data, piece) == wanted, (archive.what, read.__name__, piece)
    if isinstance(wanted, str):
        for piece in PIECES:
            found = outcome(parsed, data, piece)
            assert found == wanted or (isinstance(found, str) and TOO_LARGE in found), (archive.what, piece)
        return False
    entries, oddities = wanted
    samples = list(grouped(data, entries))
    alone = [sample for sample, _, _ in samples]
    for piece in PIECES:
        assert outcome(parsed, data, piece) == (alone, oddities), (archive.what, piece)
        if sound:
            assert parsed(data, piece, indexed=True)[0] == alone, (archive.what, piece)
    both = bytearray(data)
    with memoryview(both) as view:
        for sample, start, end in samples:
            assert parse_item(both, view, start, end, "shard") == sample, (archive.what, start)
    for name, *_ in entries:
        parts = split_key(name.decode(errors="replace"))
        dot = key_bytes(name)
        rule = None if dot < 0 else (name[:dot].decode(errors="replace"), name[dot + 1 :].decode(errors="replace").lower())
        assert rule == parts, name
    return True


# --- The archives.


def odd_keys() -> bytes:
    """Names that meet, split, or are left out, and those that are no fields."""
    names = [
        b"a.jpg", b"a.JPG", b"a.seg.png", b"d.x/a.jpg", b"d.x/a.b/c.jpg", b"a.", b"jpg", b".jpg", b"d/.hidden.jpg", b"__meta__",
        b"__meta__/a.jpg", b"__meta__x/a.jpg", b"__a.jpg", b"__x__y.jpg", b"__a\xff__", b"b.__key__", b"b.__source__", b"b.txt",
        b"c.__source__", b"\xff.jpg", b"\xfe.jpg", b"e\xc3.jpg", b"e\xc3.\xff", b"./a.jpg", b"/a.jpg", b"a/", b"n\n.x",
        b"__n__\n",
    ]  # fmt: skip
    return b"".join(header(name, number) + padded(bytes(number)) for number, name in enumerate(names))


def large_sizes() -> bytes:
    """In GNU's base-256, as for members of 8 GiB and more."""
    return b"".join(
        header(b"%d.bin" % size, b"\x80" + size.to_bytes(11, "big"), magic=b"ustar  \0") + padded(bytes(size))
        for size in (0, 1, 512, 3000)
    )


def old_directories() -> bytes:
    """Of V7, which had no type for them: the name says so, and then the size says nothing."""
    files = [header(b"a." + ext, 3, b"\0", magic=b"") + padded(ext) for ext in (b"jpg", b"cls", b"txt")]
    return files[0] + header(b"d/", 700, b"\0", magic=b"") + b"".join(files[1:])


@cache
def sound_archives() -> tuple[Archive, ...]:
    found = [archive for archive in corpus() if archive.ending == ".tar"]
    for path in sorted(DATA.glob("*.t*gz")) + sorted(DATA.glob("*.tar")):
        data = path.read_bytes()
        kind = kind_of_bytes(data[:100], path.name)
        found.append(Archive(path.name, ".tar", data if kind is None else open_decompressed(io.BytesIO(data), kind).read()))
    by_hand = {"odd keys": odd_keys(), "large sizes": large_sizes(), "old directories": old_directories()}
    found += [Archive(what, ".tar", data + END) for what, data in by_hand.items()]
    return tuple(found)


def small_archives() -> list[Archive]:
    return [archive for archive in sound_archives() if archive.data.rstrip(b"\0") and len(archive.data) < 60_000]


def flips(count: int) -> Iterator[Archive]:
    """Every other one in a header, with the checksum that belongs to it: what else is damaged is then seen."""
    source = random.Random(SEED)
    archives = small_archives()
    heads = {archive.what: heads_of(archive.data) for archive in archives}
    for number in range(count):
        archive = archives[number % len(archives)]
        data = bytearray(archive.data)
        places = heads[archive.what]
        if number // len(archives) % 2 and places:
            head = source.choice(places)
            bit = 8 * head + source.randrange(8 * BLOCK)
            data[bit // 8] ^= 1 << bit % 8
            block = data[head : head + 148] + b" " * 8 + data[head + 156 : head + BLOCK]
            data[head + 148 : head + 156] = b"%06o\0 " % sum(block)
        else:
            bit = source.randrange(8 * min(len(data), len(data.rstrip(b"\0")) + 2 * BLOCK))
            data[bit // 8] ^= 1 << bit % 8
        yield Archive(f"{archive.what} with bit {bit} flipped", archive.ending, bytes(data))


def heads_of(data: bytes) -> list[int]:
    entries = outcome(one_by_one, data)
    return [] if isinstance(entries, str) else [entry[2] for entry in entries[0]]


def truncations(archives: list[Archive], step: int) -> Iterator[Archive]:
    """At every so many bytes up to the end blocks, and around each header."""
    for archive in archives:
        end = min(len(archive.data), len(archive.data.rstrip(b"\0")) + 3 * BLOCK)
        near = {head + more for head in heads_of(archive.data) for more in (-1, 0, 1, 300, BLOCK, BLOCK + 1)}
        for size in sorted({*range(0, end, step), *(size for size in near if 0 <= size <= end)}):
            yield Archive(f"{archive.what} cut at {size}", archive.ending, archive.data[:size])


# --- The tests.


def test_the_same_of_what_the_tools_write() -> None:
    taken = [check(archive, sound=True) for archive in sound_archives()]
    assert sum(taken) > 80


def test_the_same_of_flipped_bits() -> None:
    taken = [check(archive, sound=False) for archive in flips(FLIPS)]
    assert min(taken.count(True), taken.count(False)) > FLIPS // 10


def test_the_same_of_truncations() -> None:
    archives = small_archives()
    random.Random(SEED).shuffle(archives)
    for archive in truncations(archives[:6], 5000):
        check(archive, sound=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_same_of_every_truncation_and_many_flipped_bits() -> None:
    for archive in truncations(small_archives(), BLOCK):
        check(archive, sound=False)
    for archive in flips(FLIPS_LONG):
        check(archive, sound=False)


def test_what_is_no_field_is_none_of_an_item_either() -> None:
    """A loader gets the same sample from a batch read as from the shard."""
    data = bytearray(b"".join(header(b"a." + field, 4) + padded(b"evil") for field in (b"__key__", b"__source__", b"cls")))
    with memoryview(data) as view:
        found = parse_item(data, view, 0, len(data), "shard")
    assert found == {"__key__": "a", "__source__": "shard", "cls": b"evil"} == parsed(bytes(data + END), 1 << 20)[0][0]


@pytest.mark.parametrize(
    "item",
    [
        header(b"a.txt", 3)[:100],
        header(b"a.txt", 3) + padded(b"abc") + header(b"a.cls", 3)[:100],
        header(b"a.txt", 3)[:124] + b"-0000001000\0" + header(b"a.txt", 3)[136:],
    ],
    ids=["no header", "half a header", "a size that leads back"],
)
def test_an_item_that_is_no_sample_ends_in_an_error(item: bytes) -> None:
    """Whatever a server sends: a loader goes on with the next sample."""
    data = bytearray(item)
    with memoryview(data) as view, pytest.raises(TarError):
        parse_item(data, view, 0, len(data), "shard")
