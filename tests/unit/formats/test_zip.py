"""Zip: read back by zipfile and unzip rules, and hostile ones."""

from __future__ import annotations

import io
import zipfile
from contextlib import suppress

import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, plain, sample, written

from dfc.errors import Conflict
from dfc.formats import base, zip
from dfc.formats.base import FormatError, SplitSample
from dfc.formats.zip import ZipWriter, read_zip


def read(data: bytes, on_split="fail", warnings=None):
    return contents(read_zip(MemorySource(data), "b/x.zip", on_split, [] if warnings is None else warnings))


def zip_of(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("level", [None, 0, 1, 9])
def test_there_and_back(level):
    data = written(ZipWriter, ODD_SAMPLES, level)
    assert written(ZipWriter, ODD_SAMPLES, level) == data
    assert read(data) == plain(ODD_SAMPLES)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
        assert {info.flag_bits & 0x8 for info in infos} == {0}, "sizes stand before the data"
        assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
        assert [(info.filename, archive.read(info)) for info in infos] == [
            (member.name, member.data) for each in ODD_SAMPLES for member in each.members
        ]


def test_nothing():
    assert read(written(ZipWriter, [])) == []


def test_levels_differ():
    samples = [sample("a", txt=b"the same again " * 5000)]
    sizes = [len(written(ZipWriter, samples, level)) for level in (0, 1, 9)]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_name_twice():
    with pytest.raises(Conflict, match=r"two members 'a\.txt'"):
        written(ZipWriter, [sample("a", txt=b"1"), sample("a", txt=b"2")])


def test_samples_of_a_zip_as_people_make_them():
    link = zipfile.ZipInfo("a.lnk")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    data = zip_of(("dir/", b""), ("b.jpg", b"1"), ("a.jpg", b"2"), (".hidden", b""), ("README", b"x"), (link, b"/etc/passwd"))
    warnings: list[str] = []
    assert read(data, warnings=warnings) == [("b", [("b.jpg", b"1")]), ("a", [("a.jpg", b"2")])]
    assert warnings == ["b/x.zip: 2 members belong to no sample and were left out"]


def test_a_key_that_comes_back():
    data = zip_of(("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"))
    with pytest.raises(SplitSample, match=r"b/x\.zip: the key 'a' occurs again"):
        read(data)
    assert read(data, "join") == [("a", [("a.jpg", b"1"), ("a.cls", b"3")]), ("b", [("b.jpg", b"2")])]
    assert [key for key, _ in read(data, "keep")] == ["a", "b", "a"]


@pytest.mark.parametrize("name", ["../x.txt", "/etc/x.txt", "a/../../x.txt", "n" * 5000 + ".txt"])
def test_names_that_lead_elsewhere(name):
    with pytest.raises(FormatError, match="is not a valid member name"):
        read(zip_of((name, b"x")))


def test_methods_that_cannot_be_bounded():
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(FormatError, match="not stored or deflated"):
            read(zip_of(("a.txt", b"x" * 100), method=method))


def test_encryption():
    data = bytearray(zip_of(("a.txt", b"x")))
    for at in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[at] |= 1
    with pytest.raises(FormatError, match=r"'a\.txt' is encrypted at offset 0"):
        read(bytes(data))


def test_a_bomb(monkeypatch):
    monkeypatch.setattr(zip, "DECOMPRESS_FREE_BYTES", 1 << 20)
    with pytest.raises(FormatError, match="expands to more than 100 times its size"):
        read(zip_of(("a.txt", bytes(20 << 20))))


def test_a_member_over_the_limit(monkeypatch):
    monkeypatch.setattr(zip, "JOB_MEMBER_BYTES_MAX", 1000)
    with pytest.raises(FormatError, match=r"'a\.txt' is too large"):
        read(zip_of(("a.txt", b"x" * 1001)))


def test_sizes_that_lie():
    data = bytearray(zip_of(("a.txt", b"x" * 5000)))
    central = data.find(b"PK\x01\x02")
    data[central + 24 : central + 28] = (10).to_bytes(4, "little")  # the bomb that says it is small
    with pytest.raises(FormatError, match="is broken"):
        read(bytes(data))
    data[central + 24 : central + 28] = (900_000).to_bytes(4, "little")
    with pytest.raises(FormatError, match=r"broken|shorter than it says"):
        read(bytes(data))


def test_a_directory_over_the_limit(monkeypatch):
    monkeypatch.setattr(zip, "ZIP_DIRECTORY_BYTES_MAX", 70_000)
    data = zip_of(*((f"{number:05d}.txt", b"") for number in range(2000)))
    with pytest.raises(FormatError, match="too large for one read"):
        read(data)
    assert base.SeekableFile(MemorySource(data), "x").seek(0, 2) == len(data)


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + b"\xff" * 18])
def test_no_zip(data):
    with pytest.raises(FormatError, match=r"b/x\.zip: not a zip file"):
        read(data)


def test_every_flipped_byte_is_an_error_or_harmless():
    data = zip_of(("a.txt", b"hello world" * 3), ("b.txt", b"2"))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        with suppress(FormatError, SplitSample):
            read(bytes(damaged))
