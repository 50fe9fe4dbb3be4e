from __future__ import annotations

import struct
from urllib.parse import quote

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dfc.checksum import checksum_of
from dfc.errors import BadName
from dfc.limits import BLOB_NAME_BYTES_MAX
from dfc.storage import ObjectRow, layout
from dfc.storage.rows import Attributes

VERSION = "0660cacf6391ae0001"
names = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=300)


@given(names)
def test_a_name_becomes_one_short_path_component_and_back(name: str) -> None:
    stem = layout.blob_stem(name)
    assert "/" not in stem
    assert 1 <= len(stem.encode()) <= BLOB_NAME_BYTES_MAX
    assert len(f"{stem}@{VERSION}.idx".encode()) <= 255
    parsed = layout.parse_blob_file(f"{stem}@{VERSION}")
    assert parsed == (None if stem.startswith("#") else name, stem, VERSION, False)
    assert layout.parse_blob_file(f"{stem}@{VERSION}.idx") == (*parsed[:3], True)


def test_only_names_that_are_too_long_are_hashed() -> None:
    assert layout.blob_stem("a" * 180) == "a" * 180
    assert layout.blob_stem("a" * 181) == "#90fb9e9ed1e34829d4aa11618d0b1550"
    assert layout.blob_stem("ü" * 31).startswith("#")  # three bytes for each of 62: 186
    assert layout.blob_stem("#") == "%23"
    assert layout.blob_stem("a@b/c.tar.idx") == "a%40b%2Fc.tar.idx"


@given(st.text("aZ09_.~/-%@ ü", min_size=1, max_size=100))
def test_names_are_escaped_as_urls_are(name: str) -> None:
    """Whatever way is taken: these files are on disks, and are found by their names."""
    escaped = quote(name, safe="")
    assert layout.blob_stem(name) == (escaped if len(escaped) <= BLOB_NAME_BYTES_MAX else layout.hashed_stem(name))


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        "a",
        "@" + VERSION,
        "a@" + VERSION[:-1],
        "a@" + VERSION.upper(),
        "a b@" + VERSION,
        "a@" + VERSION + ".tmp",
        "%41@" + VERSION,
    ],
)
def test_other_file_names_are_none_of_ours(file_name: str) -> None:
    assert layout.parse_blob_file(file_name) is None


@pytest.mark.parametrize("bucket_id", ["", ".", "..", "a/b", "a.b", "-a", "_a", "a" * 64, "ä"])
def test_a_bucket_id_that_is_no_plain_directory_name_is_refused(bucket_id: str) -> None:
    with pytest.raises(BadName):
        layout.check_bucket_id(bucket_id)


@given(names, st.integers(0, 2**63), st.binary(max_size=100))
def test_a_footer_says_whose_bytes_stand_before_it(name: str, size: int, body: bytes) -> None:
    row = ObjectRow("b-1", name, VERSION, size, "0123456789abcdef" * 2)
    footer = layout.row_footer(row)
    assert size + len(footer) == layout.blob_bytes(row)
    found = layout.decode_footer(body + footer)
    assert (found.bucket_id, found.name, found.version) == ("b-1", name, VERSION)
    assert (found.size, found.checksum, found.footer_bytes) == (size, row.checksum, len(footer))


def test_the_footer_of_the_documentation() -> None:
    attributes = Attributes(content_type="text/plain").encode()
    row = ObjectRow("4f2c", "train/000000.tar", VERSION, 5, checksum_of(b"hello"), attributes=attributes)
    footer = layout.row_footer(row)
    assert footer.hex() == (
        "34663263747261696e2f3030303030302e74617281ac636f6e74656e745f74797065aa746578742f706c61696e0500000000000000"
        "b5e9c1ad071b3e7fc779cfaa5e5238183036363063616366363339316165303030310400100019000100e4faa52c954b52374446432d424c4f42"
    )
    path = layout.blob_path("", "4f2c", "train/000000.tar", VERSION)
    assert path == "/objects/4f2c/72/train%2F000000.tar@0660cacf6391ae0001"


def test_every_flipped_bit_of_a_footer_is_noticed() -> None:
    footer = layout.row_footer(ObjectRow("b", "name", VERSION, 5, "0" * 32, attributes=b"abc"))
    for bit in range(len(footer) * 8):
        broken = bytearray(footer)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(layout.FooterDamaged):
            layout.decode_footer(b"12345" + broken)


@pytest.mark.parametrize("tail", [b"", b"short", bytes(64), b"x" * 56 + b"DFC-BLOB"])
def test_a_file_without_a_footer_is_said_to_have_none(tail: bytes) -> None:
    with pytest.raises(layout.FooterDamaged):
        layout.decode_footer(tail)


@pytest.mark.parametrize("form", [3, 4, 5])
def test_a_footer_of_another_format_says_so(form: int) -> None:
    fields = (5, bytes(16), VERSION.encode(), 1, 4, form)
    head = b"bname" + struct.pack("<Q16s18sHHH", *fields)
    footer = head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + b"DFC-BLOB"
    with pytest.raises(layout.FooterDamaged, match=f"has format {form}, and this version of DFC reads 1 and 2"):
        layout.decode_footer(b"12345" + footer)
    with pytest.raises(layout.FooterDamaged, match=f"has format {form}"):
        layout.decode_footer(footer)
