"""The samples that the push parser makes of an archive, against those of the scanner and grouper that build the index."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from job_shards import gnu_tar

from dfc.inputs.base import Sample
from dfc.tar import header, sampleparser
from dfc.tar import samples as grouping
from dfc.tar.header import TarError
from dfc.tar.sampleparser import SampleParser
from dfc.tar.samples import NO_KEY, SampleGrouper
from dfc.tar.scanner import Scanner

DATA = Path(__file__).parents[2] / "data"
# Names that meet, split, or are left out: keys with dots and slashes, other cases, hidden and meta names, what is not UTF-8.
NAMES = [
    "a.jpg", "a.cls", "a.JPG", "a.seg.png", "b.jpg", "d/a.jpg", "d/a.cls", "d.x/a.jpg", "d.x/a.b/c.jpg", "a.d/x.jpg", "./a.jpg",
    "a", "a.", "jpg", "cls", ".jpg", "._a.jpg", "d/.hidden.jpg", "__meta__", "__meta__/a.jpg", "__a.jpg", "__x__y.jpg",
    "a.__key__", "c.__source__", "ä.jpg", "p" * 60 + "/" + "q" * 60 + ".jpg", "l" * 180 + ".jpg", "l" * 180 + ".cls",
]  # fmt: skip
RAW_NAMES = [b"\xff.jpg", b"\xfe.jpg", b"\xff.cls", b"a.\xff", b"e\xc3.jpg"]


def expected(data: bytes, fields: frozenset[str] | None = None) -> list[Sample]:
    """The samples by the scanner and the grouper."""
    scanner = Scanner()
    entries = scanner.feed(data)
    scanner.finish()
    names = [entry[0].decode(errors="replace") for entry in entries]
    chars, starts = SampleGrouper().cut(names, [entry[1] for entry in entries])
    found: list[Sample] = []
    for index, (name, length) in enumerate(zip(names, chars, strict=True)):
        if index in starts:
            found.append({"__key__": name[:length], "__source__": "shard"})
        if length != NO_KEY:
            extension = name[length + 1 :].lower()
            _, _, _, offset, size = entries[index]
            if extension not in ("__key__", "__source__") and (fields is None or extension in fields):
                found[-1][extension] = data[offset : offset + size]
    return found


def parse(data: bytes, cuts: list[int] | None = None, **options: Any) -> list[Sample]:
    """The samples by the parser, fed pieces that end at `cuts`, each from the same buffer at another place."""
    parser = SampleParser("shard", **options)
    buffer = bytearray(len(data) + 64)
    found: list[Sample] = []
    edges = [0, *sorted(cuts or []), len(data)]
    for number, (start, end) in enumerate(pairwise(edges)):
        at = number % 64
        buffer[at : at + end - start] = data[start:end]
        parser.feed(buffer, at, at + end - start)
        buffer[at : at + end - start] = b"\xaa" * (end - start)  # samples must not hold on to it
        found += parser.samples
        parser.samples.clear()
    parser.finish()
    return found + parser.samples


def feed_all(parser: SampleParser, data: bytes, size: int = 1 << 30) -> SampleParser:
    for start in range(0, len(data), size):
        parser.feed(data, start, min(start + size, len(data)))
    parser.finish()
    return parser


def tar_of(members: list[tuple[str, bytes, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar of (name, type, data)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, encoding="utf-8", errors="surrogateescape") as tar:
        for number, (name, kind, data) in enumerate(members):
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            info.mtime = 1.5 * number if format == tarfile.PAX_FORMAT else number  # a pax header for every other member
            info.linkname = "elsewhere" if kind == tarfile.SYMTYPE else ""
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, *(name.decode(errors="surrogateescape") for name in RAW_NAMES)]),
        st.sampled_from([tarfile.REGTYPE] * 8 + [tarfile.DIRTYPE, tarfile.SYMTYPE]),
        st.sampled_from([b"", b"7", b"x" * 511, b"y" * 512, b"z" * 513, bytes(range(256)) * 10]),
    ),
    max_size=14,
)
FORMATS = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@settings(max_examples=300, deadline=None)
@given(
    MEMBERS,
    FORMATS,
    st.lists(st.integers(0, 1 << 16), max_size=8),
    st.booleans(),
    st.sampled_from([None, frozenset({"jpg"}), frozenset({"cls", "seg.png"})]),
)
def test_any_archive_in_any_pieces_gives_the_samples_of_the_index(members, format, cuts, indexed, fields):
    data = tar_of(members, format)
    assert parse(data, [cut % (len(data) + 1) for cut in cuts], indexed=indexed, fields=fields) == expected(data, fields)


@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 1000, 4096])
def test_pieces_of_one_size(size):
    data = tar_of([(name, tarfile.REGTYPE, name.encode() * 50) for name in NAMES], tarfile.PAX_FORMAT)
    assert parse(data, list(range(0, len(data), size))) == expected(data)


@pytest.mark.parametrize("name", ["sample.tgz", "compressed.tar", "mpdata.tar", "tendata.tar"])
def test_shards_of_others(name):
    data = (DATA / name).read_bytes()
    if name.endswith("tgz"):
        data = gzip.decompress(data)
    found = parse(data, list(range(0, len(data), 100_000)))
    assert found == expected(data)
    assert len(found) >= 3


@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_archives_of_gnu_tar(tmp_path, form):
    """With a sparse file, a directory and links, which are no part of samples."""
    (tmp_path / "tree").mkdir()
    with open(tmp_path / "tree" / "sparse.bin", "wb") as file:
        file.truncate(1 << 20)
        file.write(b"x")
    data = gnu_tar(tmp_path, form, *(["--sparse"] if form in ("oldgnu", "gnu", "pax") else [])).read_bytes()
    found = parse(data, list(range(0, len(data), 777)))
    assert found == expected(data)
    assert sum("cls" in sample for sample in found) == 25 + (form != "v7")


def test_a_repeated_extension_begins_a_new_sample_and_is_counted():
    data = tar_of([("a.jpg", tarfile.REGTYPE, b"1"), ("a.cls", tarfile.REGTYPE, b"2")] * 3)
    parser = feed_all(SampleParser("shard"), data)
    assert [sample["__key__"] for sample in parser.samples] == ["a"] * 3
    assert parser.keys_repeated == 2


@pytest.mark.parametrize("fields", [None, frozenset({"0001"})])
def test_samples_end_where_those_of_the_index_do(monkeypatch, fields):
    monkeypatch.setattr(grouping, "SAMPLE_RECORDS_MAX", 10)
    monkeypatch.setattr(sampleparser, "_ROOM", 12)
    names = [f"a.{number:04d}" for number in range(25)]
    names[3:3] = ["dir", "a", ".hidden.x"]
    data = tar_of([(name, tarfile.REGTYPE, b"") for name in names])
    assert parse(data, fields=fields) == expected(data, fields)
    assert len(expected(data)) == 3


def test_the_offset_of_the_open_sample_is_where_it_can_be_parsed_again():
    members = [
        (f"{'l' * (number % 3 * 70)}{number:03d}.{ext}", tarfile.REGTYPE, b"x" * number * 10)
        for number in range(40)
        for ext in "ab"
    ]
    data = tar_of(members, tarfile.PAX_FORMAT)
    whole = parse(data)
    parser = SampleParser("shard")
    done = 0
    for start in range(0, len(data), 3000):
        parser.feed(data, start, min(start + 3000, len(data)))
        done += len(parser.samples)
        parser.samples.clear()
        assert parse(data[parser.sample_at :], start=parser.sample_at) == whole[done:]
    assert done > 30


def test_a_part_that_ends_before_a_sample_is_whole():
    data = tar_of([("a.jpg", tarfile.REGTYPE, b"1"), ("b.jpg", tarfile.REGTYPE, b"2")])
    parser = SampleParser("shard", start=1 << 40)
    parser.feed(data, 0, 1024)
    parser.finish(whole=False)
    assert [sample["__key__"] for sample in parser.samples] == ["a"]
    assert not parser.unended


@pytest.mark.parametrize("end", [b"", bytes(512), bytes(100), bytes(700)])
def test_an_archive_without_its_end_blocks_keeps_its_last_sample(end):
    data = tar_of([("a.jpg", tarfile.REGTYPE, b"1"), ("b.jpg", tarfile.REGTYPE, b"2")])[:2048] + end
    parser = feed_all(SampleParser("shard"), data)
    assert len(parser.samples) == 2
    assert parser.unended


def broken(data: bytes, **options: Any) -> tuple[list[Sample], str, bool]:
    """What came before the error, the error, and whether a sample was left out; the same in any pieces."""
    results = []
    for size in (1 << 20, 1, 700, 512):
        parser = SampleParser("shard", **options)
        with pytest.raises(TarError) as caught:
            feed_all(parser, data, size)
        results.append((parser.samples, str(caught.value), parser.has_open_sample()))
    assert all(result == results[0] for result in results)
    return results[0]


def cut_tars() -> Iterator[tuple[bytes, int, str]]:
    data = tar_of([("a.jpg", tarfile.REGTYPE, b"x" * 600), ("b.jpg", tarfile.REGTYPE, b"y" * 600)])
    yield data[:1600], 0, "inside a header"
    yield data[:2000], 0, "inside a header"
    yield data[:2048], 1, "inside member 'b.jpg'"
    yield data[:2200], 1, "inside member 'b.jpg'"
    yield data[:3000], 1, "inside member 'b.jpg'"
    yield data[:1536] + b"junk" * 300, 0, "wrong checksum"
    yield b"<html>" * 300, 0, "not a tar archive"
    yield data[:1536] + bytes(100) + b"x", 0, "inside a header"


@pytest.mark.parametrize(("data", "samples", "message"), list(cut_tars()))
def test_what_is_whole_comes_before_the_error(data, samples, message):
    found, text, cut_off = broken(data)
    assert message in text
    assert len(found) == samples
    assert cut_off == (message != "not a tar archive")
    with pytest.raises(TarError) as scanned:
        expected(data)
    assert str(scanned.value) == text


def test_members_are_bounded(monkeypatch):
    monkeypatch.setattr(sampleparser, "INPUT_MEMBER_BYTES_MAX", 5000)
    assert "more than 5000 bytes" in broken(tar_of([("a.jpg", tarfile.REGTYPE, b"x" * 6000)])[:1000])[1]


@pytest.mark.parametrize("pieces", [1, 700, 512, 4096])
@pytest.mark.parametrize("count", [4, 60])
def test_samples_are_bounded(monkeypatch, pieces, count):
    """Whether their members are few and large, or many and small; those that are not wanted do not count."""
    monkeypatch.setattr(sampleparser, "INPUT_SAMPLE_BYTES_MAX", 20_000)
    members = [(f"large.{number}", tarfile.REGTYPE, b"x" * (30_000 // count)) for number in range(count)]
    data = tar_of([("small.0", tarfile.REGTYPE, b"x" * 15_000), *members, ("next.0", tarfile.REGTYPE, b"")])
    parser = SampleParser("shard")
    with pytest.raises(TarError, match="sample 'large' has more than 20000 bytes"):
        feed_all(parser, data, pieces)
    assert [sample["__key__"] for sample in parser.samples] == ["small"]
    assert parser.has_open_sample()
    wanted = feed_all(SampleParser("shard", fields=["0", "1"]), data, pieces)
    assert [len(sample) for sample in wanted.samples] == [3, 4, 3]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10239), st.integers(1, 255), st.lists(st.integers(0, 10240), max_size=4))
@example(156, ord("0") ^ ord("x"), [])
def test_damage_is_found_where_the_scanner_finds_it(position, flip, cuts):
    members = [
        ("a.txt", tarfile.REGTYPE, b"x" * 100),
        ("l" * 120 + ".txt", tarfile.REGTYPE, b"y" * 700),
        ("c.txt", tarfile.REGTYPE, b""),
    ]
    data = bytearray(tar_of(members, tarfile.PAX_FORMAT))
    data[position] ^= flip
    try:
        wanted: list[Sample] | str = expected(bytes(data))
    except TarError as problem:
        wanted = str(problem)
    try:
        found: list[Sample] | str = parse(bytes(data), cuts)
    except TarError as problem:
        found = str(problem)
    assert found == wanted


@given(st.binary(max_size=3000))
def test_garbage(data):
    with pytest.raises(TarError):
        parse(b"x" + data)


def test_extensions_and_sums_are_not_remembered_without_bound(monkeypatch):
    for module in (sampleparser, header):
        monkeypatch.setattr(module, "_REMEMBERED_MAX", 4)
    data = tar_of([(f"{number}.{number}", tarfile.REGTYPE, b"%d" % number) for number in range(100)])
    parser = feed_all(SampleParser("shard"), data)
    assert parser.samples == [{**sample, "__source__": "shard"} for sample in expected(data)]
    assert len(parser._extensions) <= 4
    assert len(parser._sums) <= 4
