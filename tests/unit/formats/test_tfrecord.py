"""TFRecord: there and back, and damage. What TensorFlow says of it: tests/frameworks/test_tfrecord.py."""

from __future__ import annotations

import struct
from contextlib import suppress

import google_crc32c
import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, plain, sample, written
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import Conflict
from dfc.formats.base import FormatError
from dfc.formats.tfrecord import TFRecordWriter, decode_example, encode_example, masked_crc, read_tfrecord


def read(data: bytes):
    return contents(read_tfrecord(MemorySource(data), "b/x.tfrecord"))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def test_the_checksum_of_rfc_3720():
    assert google_crc32c.value(bytes(32)) == 0x8A9136AA
    assert google_crc32c.implementation == "c"


def test_there_and_back():
    data = written(TFRecordWriter, ODD_SAMPLES)
    assert read(data) == plain(ODD_SAMPLES)
    assert written(TFRecordWriter, ODD_SAMPLES) == data
    assert read(b"") == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], r"b/x.tfrecord: the file ends inside a record's checksum, .* at offset"),
        (lambda data: data[:5], "the file ends inside a record's length"),
        (lambda data: b"\0" + data[1:], "the length of a record fails its checksum at offset 0"),
        (lambda data: data[:20] + b"?" + data[21:], "a record fails its checksum at offset 0"),
        (lambda data: record(b"\xff\xff\xff"), "not a tf.train.Example"),
        (lambda data: record(b"\x0a\x7fabc"), "a field is longer than its message"),
        (lambda data: data + data, None),
    ],
)
def test_damage(damage, message):
    data = written(TFRecordWriter, [sample("a", jpg=b"1234567890", cls=b"1")])
    if message is None:
        assert len(read(damage(data))) == 2
        return
    with pytest.raises(FormatError, match=message):
        read(damage(data))


def test_a_length_of_a_terabyte():
    length = struct.pack("<Q", 1 << 40)
    with pytest.raises(FormatError, match="ends inside a record"):
        read(length + struct.pack("<I", masked_crc(length)) + b"x")


@given(st.binary(max_size=80))
def test_any_bytes_as_an_example(data):
    with suppress(FormatError):
        decode_example(data, "b/x", 0, 0)


def test_a_field_named_like_the_key():
    each = sample("a", x=b"1")
    each.members[0].ext = "__key__"
    with pytest.raises(Conflict, match="__key__"):
        encode_example(each)
