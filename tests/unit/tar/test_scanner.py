"""The push parser on well-formed archives of every kind and on each kind of bad input."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.limits import TAR_META_CHAIN_MAX
from dfc.tar import scanner as scanner_module
from dfc.tar.header import FILE, OTHER, TYPES, TarError
from dfc.tar.scanner import Entry, Scanner


def scan(data: bytes, chunk: int = 1 << 20, wrap: type = bytes) -> list[Entry]:
    scanner = Scanner()
    entries = []
    for start in range(0, len(data), chunk):
        entries += scanner.feed(wrap(data[start : start + chunk]))
    scanner.finish()
    return entries


def problem(data: bytes) -> TarError:
    """The error of an archive, which must be the same however it is cut into pieces."""
    errors = []
    for chunk in (1, 100, 512, 700, 1 << 20):
        with pytest.raises(TarError) as caught:
            scan(data, chunk)
        errors.append(caught.value)
    assert len({str(error) for error in errors}) == 1
    return errors[0]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("chunk", [1, 511, 513, 8192, 1 << 20])
def test_pieces_of_any_size_and_type(make, format, wrap, chunk):
    members = {"a.txt": b"", "b.txt": b"x" * 512, "d/c.txt": b"y" * 513, "d/" * 49 + "long.txt": b"z" * 9000}
    if format != tarfile.USTAR_FORMAT:
        members["l" * 300 + ".txt"] = b"0" * 100
    data = make.tar(members, format)
    entries = scan(data, chunk, wrap)
    assert [(name.decode(), data[offset : offset + size]) for name, _, _, offset, size in entries] == list(members.items())
    heads = [head for _, _, head, _, _ in entries]
    assert heads[0] == 0
    ends = [offset + -(-size // 512) * 512 for _, _, _, offset, size in entries]
    assert heads[1:] == ends[:-1]


def test_a_reader_that_skips_finds_the_same(make):
    data = make.tar({"a.txt": b"x" * 5000, "n" * 200: b"y", "c": b""}, tarfile.PAX_FORMAT)
    scanner = Scanner()
    entries = []
    while chunk := data[scanner.next : scanner.next + scanner.want]:
        entries += scanner.take(chunk)
    scanner.finish()
    assert entries == scan(data)


def test_types(make):
    flags = {b"0": "file", b"\0": "file", b"7": "file", b"1": "hardlink", b"2": "symlink", b"3": "character", b"4": "block"}
    flags |= {b"5": "directory", b"6": "fifo", b"S": "sparse", b"D": "other", b"V": "other", b"M": "other", b"?": "other"}
    data = b"".join(make.header(b"m", 0, flag) for flag in flags) + make.end
    assert [TYPES[entry[1]] for entry in scan(data)] == list(flags.values())
    assert TYPES[scan(make.header(b"old/", 0, b"\0", magic=bytes(8)) + make.end)[0][1]] == "directory"


def test_links_and_directories_have_no_data_whatever_their_size_says(make):
    data = b"".join(make.header(b"m", 4096, flag) for flag in (b"1", b"2", b"5", b"6")) + make.end
    assert [entry[4] for entry in scan(data)] == [0, 0, 0, 0]


def test_types_nobody_knows_keep_their_data(make):
    data = make.header(b"?", 700, b"Z") + bytes(1024) + make.member(b"a", b"1") + make.end
    assert [entry[:2] for entry in scan(data)] == [(b"?", OTHER), (b"a", FILE)]


def test_gnu_sparse_maps_lie_before_the_data(make):
    header = bytearray(make.header(b"s", 1024, b"S", magic=b"ustar  \x00"))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\x00 " % sum(header)
    more = bytearray(512)
    more[504] = 1
    data = bytes(header) + bytes(more) + bytes(512) + b"d" * 1024 + make.member(b"a", b"1") + make.end
    sparse, after = scan(data)
    assert (TYPES[sparse[1]], sparse[2:]) == ("sparse", (0, 1536, 1024))
    assert after[:3] == (b"a", FILE, 2560)
    assert problem(bytes(header) + bytes(more) * 3).offset == 2048


def test_sparse_maps_end(make, monkeypatch):
    monkeypatch.setattr(scanner_module, "TAR_SPARSE_MAP_BYTES_MAX", 2048)
    header = bytearray(make.header(b"s", 0, b"S"))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\x00 " % sum(header)
    more = bytes(504) + b"\1" + bytes(7)
    assert "sparse map" in problem(bytes(header) + more * 10).message


def test_pax_size_overrules_the_header(make):
    body = make.pax(b"size", b"700")
    data = make.member(b"pax", body, b"x") + make.header(b"a.txt", 3) + b"x" * 700 + bytes(324) + make.end
    assert scan(data) == [(b"a.txt", FILE, 0, 1536, 700)]


def test_global_headers_pass_unless_they_name_members(make):
    comment = make.member(b"g", make.pax(b"comment", b"0123"), b"g")
    assert scan(comment * 100 + make.member(b"a", b"") + comment + make.end) == [(b"a", FILE, 100 * 1024, 100 * 1024 + 512, 0)]
    for key, value in ((b"path", b"x"), (b"size", b"1")):
        bad = make.member(b"g", make.pax(key, value), b"g")
        assert problem(make.member(b"a", b"") + bad + make.member(b"b", b"") + make.end).offset == 512


def test_long_link_names_and_empty_meta_bodies_pass(make):
    data = make.member(b"K", b"target" * 50, b"K") + make.member(b"x", b"", b"x") + make.header(b"link", 0, b"2") + make.end
    assert [entry[0] for entry in scan(data)] == [b"link"]


@pytest.mark.parametrize("padding", [0, 1, 512, 700, 10240, 200_000])
def test_zero_padding_after_the_end(make, padding):
    assert len(scan(make.tar({"a": b"1"}) + bytes(padding))) == 1
    assert scan(make.end + bytes(padding)) == []


def test_truncation_at_every_block(make):
    data = make.tar({"a.txt": b"x" * 1000, "b" * 150: b"y" * 600, "c": b""}, tarfile.GNU_FORMAT)
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    while data[end - 512 : end].strip(b"\0"):
        end += 512
    complete = data.index(bytes(1024), scan(data)[-1][3]) + 1024
    for size in range(0, len(data) + 1, 512):
        if size >= complete:
            scan(data[:size])
        else:
            assert problem(data[:size]).offset == size, size
    for size in (1, 100, 513, 1500, complete - 1):
        assert problem(data[:size]).offset == size


def test_messages_say_what_is_missing(make):
    data = make.member(b"dir/a.txt", b"x" * 1000)
    assert "ends inside of member 'dir/a.txt'" in str(problem(data[:700]))
    assert "without the two zero blocks" in str(problem(data))
    assert "inside of a header" in str(problem(data + data[:100]))
    assert "after one zero block" in str(problem(data + bytes(512)))
    assert str(problem(b"no tar" * 1000)) == "not a tar archive: no header at offset 0"


def test_bad_checksum(make):
    assert problem(make.member(b"a", b"1") + make.header(b"b", checksum=b"000000\x00 ") + make.end).offset == 1024


def test_concatenated_archives(make):
    data = make.tar({"a": b"1"})
    assert "data follows" in problem(data + data).message
    assert problem(data + data).offset == len(data)
    assert problem(data + bytes(1000) + b"x").offset == len(data) + 1000
    lone = make.member(b"a", b"") + bytes(512) + make.member(b"b", b"") + make.end
    assert problem(lone).offset == 1024


@pytest.mark.parametrize("flag", [b"L", b"K", b"x", b"g"])
def test_meta_bombs(make, flag):
    assert "more than" in problem(make.header(b"m", 2 << 20, flag) + bytes(4096)).message


def test_meta_chains_are_bounded(make):
    link = make.member(b"L", b"name\0", b"L")
    assert scan(link * TAR_META_CHAIN_MAX + make.header() + make.end)[0][0] == b"name"
    assert problem(link * (TAR_META_CHAIN_MAX + 1) + make.header() + make.end).offset == TAR_META_CHAIN_MAX * 1024
    endless = link + make.member(b"g", b"", b"g") * TAR_META_CHAIN_MAX
    assert "more than" in problem(endless + make.header() + make.end).message


def test_a_meta_header_without_a_member(make):
    assert problem(make.member(b"L", b"name\0", b"L") + make.end).offset == 1024


@pytest.mark.parametrize("size", [b"-0000000001\x00", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"0000000009\x00"])
def test_bad_sizes_name_the_header(make, size):
    assert problem(make.member(b"a", b"1") + make.header(b"b", size) + make.end).offset == 1024


def test_a_size_beyond_the_archive_is_a_truncation(make):
    huge = make.header(b"b", b"\x80" + (1 << 62).to_bytes(11, "big")) + make.end
    assert "inside of member 'b'" in problem(huge).message


def test_nul_in_a_pax_name(make):
    data = make.member(b"x", make.pax(b"path", b"a\0b"), b"x") + make.header() + make.end
    assert "NUL" in problem(data).message


def test_many_different_checksum_fields_are_not_all_remembered(make, monkeypatch):
    monkeypatch.setattr(scanner_module, "_SUMS_MAX", 4)
    assert len(scan(b"".join(make.header(b"%d" % number) for number in range(1000)) + make.end)) == 1000


@given(st.binary(max_size=3000))
def test_garbage(data):
    with pytest.raises(TarError):
        scan(data + b"x")


@given(st.integers(0, 10239), st.integers(1, 255), st.integers(1, 3000))
def test_flipped_bytes_raise_or_change_nothing_much(make, position, flip, chunk):
    data = bytearray(make.tar({"a.txt": b"x" * 100, "l" * 120: b"y" * 700, "c.txt": b""}, tarfile.PAX_FORMAT))
    data[position] ^= flip
    try:
        entries = scan(bytes(data), chunk)
    except TarError:
        return
    assert all(offset + size <= len(data) for _, _, _, offset, size in entries)
