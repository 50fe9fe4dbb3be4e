"""The push parser on well-formed archives of every kind and on each kind of bad input."""

from __future__ import annotations

import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.limits import TAR_META_CHAIN_MAX
from dfc.tar import header
from dfc.tar import scanner as scanner_module
from dfc.tar.header import FILE, OTHER, TYPES, TarError
from dfc.tar.scanner import Entry, Scanner

CHUNKS = (1, 100, 512, 700, 1 << 20)


def scanned(data: bytes, chunk: int = 1 << 20, wrap: type = bytes) -> tuple[Scanner, list[Entry]]:
    scanner = Scanner()
    entries = []
    for start in range(0, len(data), chunk):
        entries += scanner.feed(wrap(data[start : start + chunk]))
    scanner.finish()
    return scanner, entries


def scan(*arguments: Any) -> list[Entry]:
    return scanned(*arguments)[1]


def oddities(data: bytes) -> list[tuple[str, int]]:
    """What is odd about an archive that can be read, which must be the same in any pieces, and for a reader that skips."""
    found = [scanned(data, chunk)[0].oddities for chunk in CHUNKS]
    scanner = Scanner()
    whole = True
    while whole:
        assert scanner.next <= len(data)
        piece = data[scanner.next : scanner.next + scanner.want]
        whole = len(piece) == scanner.want
        scanner.take(piece)
    scanner.finish()
    assert all(odd == scanner.oddities for odd in found)
    return found[0]


def problem(data: bytes) -> TarError:
    """The error of an archive, which must be the same however it is cut into pieces."""
    errors = []
    for chunk in CHUNKS:
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
    flags |= {b"5": "directory", b"6": "fifo", b"S": "sparse", b"D": "other", b"N": "other", b"M": "other", b"?": "other"}
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
    header = make.header(b"s", 1024, b"S", magic=b"ustar  \x00", more=[(482, b"\1")])
    more = bytes(504) + b"\1" + bytes(7)
    data = header + more + bytes(512) + b"d" * 1024 + make.member(b"a", b"1") + make.end
    sparse, after = scan(data)
    assert (TYPES[sparse[1]], sparse[2:]) == ("sparse", (0, 1536, 1024))
    assert after[:3] == (b"a", FILE, 2560)
    assert problem(header + more * 3).offset == 2048


def test_sparse_maps_end(make, monkeypatch):
    monkeypatch.setattr(scanner_module, "TAR_SPARSE_MAP_BYTES_MAX", 2048)
    header = make.header(b"s", 0, b"S", more=[(482, b"\1")])
    more = bytes(504) + b"\1" + bytes(7)
    assert "sparse map" in problem(header + more * 10).message


def test_pax_size_overrules_the_header(make):
    body = make.pax(b"size", b"700")
    data = make.member(b"pax", body, b"x") + make.header(b"a.txt", 3) + b"x" * 700 + bytes(324) + make.end
    assert scan(data) == [(b"a.txt", FILE, 0, 1536, 700)]


def test_global_headers_pass_unless_they_name_members(make):
    comment = make.member(b"g", make.pax(b"comment", b"0123"), b"g")
    assert scan(comment * 100 + make.member(b"a", b"") + comment + make.end) == [(b"a", FILE, 100 * 1024, 100 * 1024 + 512, 0)]
    for key, value in ((b"path", b"x"), (b"size", b"1000")):
        names = make.member(b"g", make.pax(key, value), b"g")
        data = make.member(b"a", b"") + names + make.member(b"b", b"1") + names + make.end
        assert [entry[:2] for entry in scan(data)] == [(b"a", FILE), (b"b", FILE)]
        assert oddities(data) == [("names and sizes in a global pax header are ignored", 512)]


def test_long_link_names_and_empty_meta_bodies_pass(make):
    data = make.member(b"K", b"target" * 50, b"K") + make.member(b"x", b"", b"x") + make.header(b"link", 0, b"2") + make.end
    assert [entry[0] for entry in scan(data)] == [b"link"]


@pytest.mark.parametrize("padding", [0, 1, 512, 700, 10240, 200_000])
def test_zero_padding_after_the_end(make, padding):
    assert len(scan(make.tar({"a": b"1"}) + bytes(padding))) == 1
    assert scan(make.end + bytes(padding)) == []


def test_truncation_at_every_block(make):
    """Between two members there is nothing that tells an archive from one that was cut off; the warning does."""
    data = make.tar({"a.txt": b"x" * 1000, "b" * 150: b"y" * 600, "c": b""}, tarfile.GNU_FORMAT)
    heads = [entry[2] for entry in scan(data)]
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512
    while data[end - 512 : end].strip(b"\0"):
        end += 512
    complete = data.index(bytes(1024), scan(data)[-1][3]) + 1024
    for size in range(0, len(data) + 1, 512):
        if size >= complete:
            assert not oddities(data[:size])
        elif size in heads or size >= complete - 1024:
            assert len(scan(data[:size])) == sum(head < size for head in heads)
            ((text, offset),) = oddities(data[:size])
            assert ("one zero block" in text, offset) == (size == complete - 512, min(size, complete - 1024)), size
        else:
            assert problem(data[:size]).offset == size, size
    for size in (1, 100, 513, 1500, complete - 1025):
        assert problem(data[:size]).offset == size
    for size in (complete - 1, complete - 600):
        assert len(scan(data[:size])) == 3
        assert oddities(data[:size])


def test_messages_say_what_is_missing(make):
    data = make.member(b"dir/a.txt", b"x" * 1000)
    assert "ends inside member 'dir/a.txt'" in str(problem(data[:700]))
    assert "inside a header" in str(problem(data + data[:100]))
    for data in (make.member(b"n", b"name", b"L"), make.member(b"x", b"", b"x"), make.member(b"A", b"1", b"A")):
        assert "after a long-name or pax header" in str(problem(data))
        assert "inside a header" in str(problem(make.header(b"m", 600, data[156:157])))
    assert str(problem(b"no tar" * 1000)) == "not a tar archive: no header at offset 0"


def test_bad_checksum(make):
    assert problem(make.member(b"a", b"1") + make.header(b"b", checksum=b"000000\x00 ") + make.end).offset == 1024


def test_what_follows_the_end_is_ignored(make):
    data = make.tar({"a": b"1"})
    lone = make.member(b"a", b"") + bytes(512) + make.member(b"b", b"") + make.end
    for archive, offset in ((data + data, len(data)), (data + bytes(1000) + b"x", len(data) + 1000), (lone, 1024)):
        assert [entry[0] for entry in scan(archive)] == [b"a"]
        assert oddities(archive)[-1] == ("data after the end of the archive is ignored", offset)
    assert "one zero block" in oddities(lone)[0][0]
    assert len(oddities(data + b"x" * 200_000)) == 1


def test_nothing_is_an_archive_of_nothing(make):
    assert scan(b"") == []
    assert oddities(b"") == [("the archive has no end blocks; it may have been truncated between two members", 0)]
    assert problem(bytes(511)).offset == 511


def test_what_a_node_sends_must_have_its_end(make):
    data = make.tar({"a": b"1"})
    for archive in (data + b"x", data[:1024], data[:1536]):
        scanner = Scanner()
        scanner.feed(archive)
        with pytest.raises(TarError) as caught:
            scanner.finish(strict=True)
        assert (caught.value.message, caught.value.offset) == oddities(archive)[0]
    scanner = Scanner()
    scanner.feed(make.member(b"a\0rubbish", b"") + make.end)  # stored by somebody, and sent as it is
    scanner.finish(strict=True)
    assert scanner.oddities


def test_labels_and_access_lists_are_no_members(make):
    label, acl = make.header(b"volume", 0, b"V"), make.member(b"acl", b"1000003\0user::rwx", b"A")
    member = make.member(b"a", b"1")
    entries = scan(label + member + acl + member + acl + make.member(b"L", b"long\0", b"L") + member + label)
    assert [(name, head) for name, _, head, _, _ in entries] == [(b"a", 512), (b"a", 2560), (b"long", 4608)]
    assert [offset for _, offset in oddities(label + member + acl + member + make.end)] == [0, 1536]
    assert len(scan(make.member(b"volume", b"text", b"V") + member)) == 1
    assert problem(acl + make.end).offset == 1024
    assert "more than" in problem(acl * (TAR_META_CHAIN_MAX + 1) + member + make.end).message
    assert len(scan(acl * TAR_META_CHAIN_MAX + member + member + make.end)) == 2


def test_of_two_names_the_one_that_comes_first_counts(make):
    long, pax = make.member(b"L", b"long\0", b"L"), make.member(b"x", make.pax(b"path", b"pax"), b"x")
    for first, second, name in ((long, pax, b"long"), (pax, long, b"pax"), (long, make.member(b"L", b"2", b"L"), b"2")):
        assert scan(first + second + make.member(b"a", b"") + make.end)[0][0] == name


def test_a_pax_size_is_that_of_any_member(make):
    pax = make.member(b"x", make.pax(b"size", b"600"), b"x")
    for flag in (b"0", b"1", b"2", b"5"):
        data = pax + make.header(b"a", 0, flag) + b"x" * 1024 + make.member(b"b", b"") + make.end
        assert [(name, size) for name, _, _, _, size in scan(data)] == [(b"a", 600), (b"b", 0)]


def test_fields_end_with_their_first_nul(make):
    data = make.member(b"a.txt\0rest", b"1") + make.member(b"b", b"") + make.member(b"c\0r", b"") + make.end
    assert [entry[0] for entry in scan(data)] == [b"a.txt", b"b", b"c"]
    assert oddities(data) == [("data after the NUL of a name is ignored", 0)]


def test_damage_in_a_pax_header_that_nobody_needs_is_found(make):
    good = make.pax(b"mtime", b"1700000000.5")
    for body in (b"9" + good[1:], good[:-1] + b"1", good.replace(b"=", b"-"), good + b"x"):
        assert problem(make.member(b"x", body, b"x") + make.member(b"a", b"") + make.end).offset == 0


@pytest.mark.parametrize("flag", [b"L", b"K", b"x", b"g"])
def test_meta_bombs(make, flag):
    assert "more than" in problem(make.header(b"m", 2 << 20, flag) + bytes(4096)).message


def test_meta_chains_are_bounded(make):
    link = make.member(b"L", b"name\0", b"L")
    assert TAR_META_CHAIN_MAX < 100
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
    assert "inside member 'b'" in problem(huge).message


def test_nul_in_a_pax_name(make):
    data = make.member(b"x", make.pax(b"path", b"a\0b"), b"x") + make.header() + make.end
    assert "NUL" in problem(data).message


def test_many_different_checksum_fields_are_not_all_remembered(make, monkeypatch):
    monkeypatch.setattr(header, "_REMEMBERED_MAX", 4)
    assert len(scan(b"".join(make.header(b"%d" % number) for number in range(1000)) + make.end)) == 1000


@given(st.binary(max_size=3000))
def test_garbage(data):
    with pytest.raises(TarError):
        scan(b"x" + data)


@given(st.integers(0, 10239), st.integers(1, 255), st.integers(1, 3000))
def test_flipped_bytes_raise_or_change_nothing_much(make, position, flip, chunk):
    data = bytearray(make.tar({"a.txt": b"x" * 100, "l" * 120: b"y" * 700, "c.txt": b""}, tarfile.PAX_FORMAT))
    data[position] ^= flip
    try:
        entries = scan(bytes(data), chunk)
    except TarError:
        return
    assert all(offset + size <= len(data) for _, _, _, offset, size in entries)
