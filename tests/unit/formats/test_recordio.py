"""RecordIO: a decoder written from MXNet's, and the index beside."""

from __future__ import annotations

import io
import struct

import msgpack
import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, plain, sample, written
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import Conflict
from dfc.formats.base import FormatError
from dfc.formats.recordio import RecordIOWriter, read_recordio

MAGIC = b"\x0a\x23\xd7\xce"


def read(data: bytes):
    return contents(read_recordio(MemorySource(data), "b/x.rec"))


def mxnet_read(file: io.BytesIO) -> bytes:
    """`RecordIOReader::NextRecord` of dmlc-core, in Python."""
    parts = []
    while True:
        magic, head = struct.unpack("<II", file.read(8))
        assert magic == 0xCED7230A
        kind, length = head >> 29, head & (1 << 29) - 1
        parts.append(file.read(length))
        file.read(-length % 4)
        if kind in (0, 3):
            return MAGIC.join(parts)


def test_what_mxnet_would_read_by_the_index():
    sink = io.BytesIO()
    writer = RecordIOWriter(sink)
    for each in ODD_SAMPLES:
        writer.add(each)
    writer.finish()
    rows = [line.split("\t") for line in writer.index.decode().splitlines()]
    assert [int(number) for number, _ in rows] == list(range(len(ODD_SAMPLES)))
    for (number, offset), each in zip(rows, ODD_SAMPLES, strict=True):
        sink.seek(int(offset))
        data = mxnet_read(sink)
        assert struct.unpack("IfQQ", data[:24]) == (0, 0.0, int(number), 0)
        wanted = {"__key__": each.key, **{member.ext: member.data for member in each.members}}
        assert msgpack.unpackb(data[24:]) == wanted


@given(st.lists(st.lists(st.sampled_from([MAGIC, b"\xce", b"abcd", b"x", b""])).map(b"".join), max_size=4))
def test_there_and_back_with_magic_anywhere(bodies):
    samples = [sample(f"k{number}", bin=data) for number, data in enumerate(bodies)]
    data = written(RecordIOWriter, samples)
    assert read(data) == plain(samples)
    assert len(data) % 4 == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"x" + data[1:], "not a RecordIO record at offset 0"),
        (lambda data: data[:-4], r"b/x.rec: the file ends inside a record"),
        (lambda data: data[:6], "the file ends inside a record's header"),
        (lambda data: MAGIC + struct.pack("<I", 3 << 29), "not a RecordIO record"),  # a last part without a first
        (lambda data: MAGIC + struct.pack("<I", 4) + b"abcd", "shorter than its IRHeader"),
        (lambda data: MAGIC + struct.pack("<I", 28) + bytes(24) + b"\xc1\0\0\0", "not a msgpack map"),
        (lambda data: MAGIC + struct.pack("<I", 28) + bytes(24) + b"\x81\xa1x\x01", "values other than bytes"),
    ],
)
def test_damage(damage, message):
    with pytest.raises(FormatError, match=message):
        read(damage(written(RecordIOWriter, [sample("a", jpg=b"12345678")])))


def test_a_field_named_like_the_key():
    each = sample("a", x=b"1")
    each.members[0].ext = "__key__"
    with pytest.raises(Conflict, match="'__key__', which RecordIO files use for the key"):
        written(RecordIOWriter, [each])
