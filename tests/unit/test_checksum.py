"""Checksums: known values, the headers that carry them, bodies that arrive in pieces."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.checksum import BodyHasher, ExpectedChecksums, checksum_of, hash64
from dfc.errors import BadRequest, ChecksumMismatch


def test_known_values():
    # From the reference implementation's test vectors (XXH3, seed 0).
    assert checksum_of(b"") == "99aa06d3014798d86001c324468d497f"
    assert checksum_of(b"abc") == "06b05ab6733a618578af5f94892f3950"
    assert hash64("") == 0x2D06800538D394C2
    assert hash64("ä") == hash64("ä")
    assert checksum_of(memoryview(b"xabcx")[1:4]) == checksum_of(b"abc")


@given(st.lists(st.binary(max_size=100), max_size=10), st.booleans())
def test_pieces_hash_like_the_whole(pieces, with_md5):
    whole = b"".join(pieces)
    md5 = hashlib.md5(whole).digest() if with_md5 else None
    hasher = BodyHasher(ExpectedChecksums(checksum_of(whole), md5))
    for piece in pieces:
        hasher.update(memoryview(piece))
    assert hasher.finish() == checksum_of(whole)


@pytest.mark.parametrize("expected", [ExpectedChecksums("0" * 32), ExpectedChecksums(None, b"0" * 16)])
def test_a_body_that_is_another(expected):
    hasher = BodyHasher(expected)
    hasher.update(b"abc")
    with pytest.raises(ChecksumMismatch):
        hasher.finish()


def test_headers():
    md5 = hashlib.md5(b"abc").digest()
    value = checksum_of(b"abc")
    for text in (f"xxh3-128={value}", f" XXH3-128 = {value.upper()} "):
        assert ExpectedChecksums.from_headers(text, None) == ExpectedChecksums(value)
    assert ExpectedChecksums.from_headers(None, base64.b64encode(md5).decode()) == ExpectedChecksums(None, md5)
    assert ExpectedChecksums.from_headers(None, None) == ExpectedChecksums()


@pytest.mark.parametrize(
    "text", ["", "xxh3-128", "xxh3-128=", "xxh3-128=12", "md5=" + "0" * 32, "0" * 32, "xxh3-128=" + "g" * 32]
)
def test_a_checksum_header_that_is_none(text):
    with pytest.raises(BadRequest):
        ExpectedChecksums.from_headers(text, None)


@pytest.mark.parametrize("text", ["", "abc", "YWJj", "=" * 24, "!" * 24, base64.b64encode(b"0" * 17).decode(), "ä" * 24])
def test_an_md5_header_that_is_none(text):
    with pytest.raises(BadRequest):
        ExpectedChecksums.from_headers(None, text)
