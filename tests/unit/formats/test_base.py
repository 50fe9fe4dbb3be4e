"""What formats share: files with `seek` over a source, names of members, keys."""

from __future__ import annotations

import io
import random

import pytest
from format_files import MemorySource, sample

from dfc.formats.base import (
    ByteReader,
    FormatError,
    SeekableFile,
    check_member_name,
    key_without,
    pack_fields,
    sample_of,
    unpack_fields,
)


def test_a_seekable_file_reads_like_any_other():
    draw = random.Random(1)
    data = draw.randbytes(300_000)
    mine, other = SeekableFile(MemorySource(data), "x"), io.BytesIO(data)
    for _ in range(2000):
        if draw.random() < 0.5:
            whence = draw.randrange(3)
            offset = draw.randrange(len(data) + 100) if whence == 0 else draw.randrange(-1000, 1000)
            if whence == 0 or (offset + (other.tell() if whence == 1 else len(data))) >= 0:
                assert mine.seek(offset, whence) == other.seek(offset, whence)
        count = draw.choice([0, 1, 30, 4096, 70_000, 200_000])
        assert mine.read(count) == other.read(count)
        assert mine.tell() == other.tell()
    mine.seek(10)
    buffer = bytearray(20)
    assert mine.readinto(buffer) == 20
    assert bytes(buffer) == data[10:30]
    assert mine.read() == data[30:]
    with pytest.raises(OSError, match="before the first"):
        mine.seek(-1)


def test_one_read_is_bounded():
    file = SeekableFile(MemorySource(bytes(1000)), "b/x", read_max=500)
    assert len(file.read(500)) == 500
    file.seek(0)
    with pytest.raises(FormatError, match="b/x: a piece of 501 bytes is too large"):
        file.read(501)


def test_a_reader_takes_what_is_there():
    reader = ByteReader(MemorySource(b"abcdef"), "b/x")
    assert (reader.take(4, "a thing"), reader.at, reader.at_end) == (b"abcd", 4, False)
    with pytest.raises(FormatError, match="b/x: the file ends inside a thing, which has 3 bytes at offset 4"):
        reader.take(3, "a thing")
    assert (reader.take(2, "a thing"), reader.at_end) == (b"ef", True)
    reader.close()


@pytest.mark.parametrize("name", ["a.txt", "d/e/a.b.c", "ü.txt", "..a/b.txt", "a..b"])
def test_names(name):
    check_member_name("x", name)


@pytest.mark.parametrize("name", ["", "/a", "a/../b", "..", "n\0", "x" * 4097, "\ud800"])
def test_names_that_cannot_be(name):
    with pytest.raises(FormatError):
        check_member_name("x", name)


@pytest.mark.parametrize(
    ("key", "fields", "message"),
    [
        ("a.b", [("jpg", b"")], "are not key and extension"),
        ("a", [("x/y", b"")], "are not key and extension"),
        (".a", [("jpg", b"")], "are not key and extension"),
        ("a", [("jpg", b""), ("JPG", b"")], "has 'jpg' twice"),
        ("../a", [("jpg", b"")], "is not a valid member name"),
    ],
)
def test_samples_that_a_tar_would_not_give_back(key, fields, message):
    with pytest.raises(FormatError, match=message):
        sample_of("b/x", 0, key, fields)


def test_fields():
    each = sample("k", jpg=b"\xff", cls=b"")
    assert unpack_fields("x", pack_fields(each), 0) == {"jpg": b"\xff", "cls": b""}
    assert list(unpack_fields("x", pack_fields(each, a="b"), 0)) == ["a", "jpg", "cls"]
    with pytest.raises(ValueError, match="has a field 'jpg'"):
        pack_fields(each, jpg="x")
    for data in (b"", b"\x90", b"\x81\x01\x01", b"\x81\xa1x\x90", b"\x91" * 100_000):
        with pytest.raises(FormatError, match="x: a record"):
            unpack_fields("x", data, 0)


def test_keys_of_files_without():
    assert key_without("b/d/train-01.x.parquet", 7) == "train-01-000000007"
    assert key_without("b/.x", 7) == "sample-000000007"
