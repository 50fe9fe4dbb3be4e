"""Fields of single headers: numbers, names, checksums and pax records, good and bad."""

from __future__ import annotations

import tarfile
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.tar.header import (
    ARCHIVE_BYTES_MAX,
    NO_PAX_FIELDS,
    PaxFields,
    TarError,
    byte_sum,
    checksum_matches,
    has_rubbish,
    header_name,
    is_plain_pax,
    parse_long_name,
    parse_pax,
    parse_size,
    stored_sum,
)


@given(st.binary(min_size=512, max_size=512))
def test_byte_sum_is_exact(block):
    assert byte_sum(block) == sum(block)


def test_byte_sum_of_the_largest_block():
    assert byte_sum(b"\xff" * 512) == 512 * 255


def test_error_says_where():
    error = TarError("a header has a wrong checksum", 1536)
    assert (str(error), error.offset) == ("a header has a wrong checksum at offset 1536", 1536)


@pytest.mark.parametrize(
    ("field", "size"),
    [
        (b"00000000017\x00", 15),
        (b"          17", 15),
        (b"17\x00         ", 15),
        (b"17 garbage"[:3] + bytes(9), 15),
        (b"17 7 garbage", 15),
        (b"17\x00garbage77", 15),
        (b"\t17\x00        ", 15),
        (bytes(12), 0),
        (b" " * 12, 0),
        (b"777777777777", 8**12 - 1),
        (b"\x80" + (10**12).to_bytes(11, "big"), 10**12),
    ],
)
def test_sizes(field, size):
    assert parse_size(field, 0) == size


@pytest.mark.parametrize(
    "field",
    [
        b"-0000000001\x00",
        b"+0000000001\x00",
        b"0o777777777\x00",
        b"1_000000000\x00",
        b"00000000008\x00",
        b"0000000000x\x00",
        b"17garbage\x00  ",
        b"17\n         ",
        b"\xff" * 12,  # -1 in base-256
        b"\xc0" + bytes(11),  # the most negative
        b"\x80" + b"\xff" * 11,
        b"\x80" + (1 << 63).to_bytes(11, "big"),
        b"\x80" + ARCHIVE_BYTES_MAX.to_bytes(11, "big"),  # would end beyond 2^63
    ],
)
def test_bad_sizes(field):
    with pytest.raises(TarError) as caught:
        parse_size(field, 512)
    assert caught.value.offset == 512


@given(st.integers(0, 8**11 - 1))
def test_sizes_agree_with_the_standard_library(size):
    assert parse_size(tarfile.itn(size, 12, tarfile.USTAR_FORMAT), 0) == size
    assert parse_size(tarfile.itn(size * 1000, 12, tarfile.GNU_FORMAT), 0) == size * 1000


def test_checksum_of_unsigned_and_signed_bytes(make):
    block = make.header("é.txt".encode())
    assert checksum_matches(block)
    signed = sum(block) - sum(block[148:156]) + 256 - 2 * 256
    assert checksum_matches(block[:148] + b"%06o\x00 " % signed + block[156:])
    assert not checksum_matches(block[:148] + b"%06o\x00 " % (signed + 1) + block[156:])


@pytest.mark.parametrize("field", [b"abcdefgh", bytes(8), b"-00001\x00 ", b"000009\x00 ", b"\xff" * 8])
def test_unreadable_checksums(make, field):
    assert stored_sum(field) == -1
    assert not checksum_matches(make.header(checksum=field))


def test_a_flipped_bit_anywhere_is_noticed(make):
    block = make.header(b"dir/name.jpg", 1234)
    for position in (0, 99, 100, 130, 153, 156, 257, 300, 511):
        assert not checksum_matches(block[:position] + bytes([block[position] ^ 4]) + block[position + 1 :])


def test_names_with_prefix(make):
    assert header_name(make.header(b"n" * 100)) == b"n" * 100
    assert header_name(make.header(b"b.txt", prefix=b"dir/sub")) == b"dir/sub/b.txt"
    assert header_name(make.header(b"b.txt", prefix=b"dir/sub/")) == b"dir/sub/b.txt"
    assert header_name(make.header(b"b", prefix=b"p" * 155)) == b"p" * 155 + b"/b"
    assert header_name(make.header(b"b", prefix=b"dir", magic=b"ustar000")) == b"dir/b"
    for times in (b"14371351404 14371351404 ", b" 4371351404  4371351404 ", b"\x80" + bytes(6) + b"\1" * 5):
        star = b"dir".ljust(131, b"\0") + times
        assert header_name(make.header(b"b", prefix=star)) == b"dir/b"
        assert has_rubbish(make.header(b"b", prefix=star)) == (not times[:1].isdigit())
    # GNU keeps times in place of a prefix; V7 and star's first format have no magic, and no prefix that others read.
    for magic in (b"ustar  \x00", bytes(8)):
        block = make.header(b"b", prefix=b"14371351404\x00" + b"more", magic=magic)
        assert header_name(block) == b"b"
        assert not has_rubbish(block)


@pytest.mark.parametrize(("name", "prefix"), [(b"a\0b.txt", b""), (b"a", b"d\0x")])
def test_a_field_ends_with_its_first_nul(make, name, prefix):
    block = make.header(name, prefix=prefix)
    assert header_name(block) == (b"d/a" if prefix else b"a")
    assert has_rubbish(block)
    assert not has_rubbish(make.header(b"a", prefix=b"d"))


def test_long_names():
    assert parse_long_name(b"x" * 4096 + b"\0", 0) == b"x" * 4096
    assert parse_long_name(b"a\0b\0", 0) == b"a"
    for body in (b"x" * 4097 + b"\0", b"\0\0", b"\0a", b""):
        with pytest.raises(TarError):
            parse_long_name(body, 0)


def test_pax_fields(make):
    pax = make.pax
    assert parse_pax(b"", 0) == NO_PAX_FIELDS
    assert parse_pax(pax(b"mtime", b"1.5") + pax(b"comment", b"no size"), 0) == NO_PAX_FIELDS
    body = pax(b"path", b"first") + pax(b"linkpath", b"x") + pax(b"size", b"123") + pax(b"path", "ü/b.txt".encode())
    assert parse_pax(body, 0) == PaxFields("ü/b.txt".encode(), 123, False)
    assert parse_pax(pax(b"path", b"a") + pax(b"path", b""), 0).path is None
    assert parse_pax(pax(b"path", b"a\nb=c 12 d"), 0).path == b"a\nb=c 12 d"
    assert parse_pax(pax(b"path", b"x") + bytes(10), 0).path == b"x"


def test_pax_headers_that_say_nothing_of_members(make):
    times = [
        make.pax(key, value) for key in (b"mtime", b"atime", b"ctime") for value in (b"1", b"-1.5", b"1700000000.123456789")
    ]
    plain = [b"", *times, b"".join(times), make.pax(b"comment", b"x" * 200), make.pax(b"mtime", b"soon"), times[0] + bytes(3)]
    for body in plain:
        assert is_plain_pax(b"x" * 7 + body + b"y" * 7, 7, 7 + len(body)), body
        assert is_plain_pax(memoryview(bytearray(body)), 0, len(body)), body
        assert parse_pax(body, 0) == NO_PAX_FIELDS
    for body in (make.pax(b"path", b"x"), make.pax(b"size", b"1"), make.pax(b"GNU.sparse.map", b"0,1")):
        assert not is_plain_pax(body, 0, len(body))
    for body in (times[0][:-1], b"3" + times[0], times[0].replace(b"\n", b"1"), b"12 mtime=1\n", times[0] + b"x"):
        assert not is_plain_pax(body, 0, len(body)), body
        with pytest.raises(TarError):
            parse_pax(body, 0)


def test_pax_sparse(make):
    body = make.pax(b"GNU.sparse.major", b"1") + make.pax(b"path", b"GNUSparseFile.1/a") + make.pax(b"GNU.sparse.name", b"a")
    assert parse_pax(body, 0) == PaxFields(b"a", None, True)


@pytest.mark.parametrize(
    "body",
    [
        b"8 path=x\n", b"11 path=x\n",  # one too short, one too long
        b"path=x", b"9 path=xy", b"0 path=x\n", b"-9 path=x\n", b"99999999999999999999 path=x\n", b"9 path x\n" + b"size=",
        b"5 size=1\n", b"11 size=-1\n ",
    ],
)  # fmt: skip
def test_bad_pax(body):
    with pytest.raises(TarError):
        parse_pax(body, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"path", b"a\0b"),
        (b"path", b"x" * 4097),
        (b"GNU.sparse.name", b"a\0"),
        (b"size", b"-1"),
        (b"size", b"1e3"),
        (b"size", b"9" * 19),
        (b"size", b"9" * 100_000),
    ],
)
def test_bad_pax_values(make, key, value):
    with pytest.raises(TarError):
        parse_pax(make.pax(key, value), 0)


def test_binary_pax_values_that_nobody_reads_are_fine(make):
    body = make.pax(b"SCHILY.xattr.user.x", bytes(range(256))) + make.pax(b"path", b"a.txt")
    assert parse_pax(body, 0).path == b"a.txt"


@given(st.binary(max_size=200))
def test_garbage_is_a_tar_error_or_nothing(body):
    with suppress(TarError):
        parse_pax(body + b"path=", 0)
