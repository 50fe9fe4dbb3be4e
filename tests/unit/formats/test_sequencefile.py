"""SequenceFiles: the layout byte by byte, sync markers, damage. (PySpark reads them too: docs/formats.md.)"""

from __future__ import annotations

import struct
from itertools import pairwise

import msgpack
import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, plain, sample, written
from hypothesis import given
from hypothesis import strategies as st

from dfc.formats.base import FormatError
from dfc.formats.sequencefile import KEY_CLASS, VALUE_CLASS, SequenceFileWriter, read_sequencefile, sync_marker

HEAD = b"SEQ\x06\x19org.apache.hadoop.io.Text\x22org.apache.hadoop.io.BytesWritable\0\0\0\0\0\0" + sync_marker("s")


def read(data: bytes):
    return contents(read_sequencefile(MemorySource(data), "b/x.seq"))


def test_the_layout():
    assert (len(KEY_CLASS), len(VALUE_CLASS)) == (0x19, 0x22)
    data = written(SequenceFileWriter, [sample("ab", cls=b"7")], "s")
    value = msgpack.packb({"cls": b"7"})
    assert data == HEAD + struct.pack(">ii", 3 + 4 + len(value), 3) + b"\x02ab" + struct.pack(">i", len(value)) + value


def test_there_and_back():
    data = written(SequenceFileWriter, ODD_SAMPLES, "s")
    assert read(data) == plain(ODD_SAMPLES)
    assert written(SequenceFileWriter, ODD_SAMPLES, "s") == data
    assert written(SequenceFileWriter, ODD_SAMPLES, "t") != data
    assert read(written(SequenceFileWriter, [], "s")) == []


def test_a_marker_every_2000_bytes():
    samples = [sample(f"{number:06d}", bin=bytes(100)) for number in range(200)]
    data = written(SequenceFileWriter, samples, "s")
    places = [at for at in range(len(data)) if data.startswith(b"\xff\xff\xff\xff" + sync_marker("s"), at)]
    assert len(places) > 8
    assert all(2000 <= right - left < 2300 for left, right in pairwise(places))
    assert len(read(data)) == 200


@given(st.integers(1, 3000))
def test_keys_of_all_lengths(length):
    key = "k" * length
    assert read(written(SequenceFileWriter, [sample(key, x=b"1")], "s")) == [(key, [(f"{key}.x", b"1")])]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"SEQ\x05" + data[4:], "not a SequenceFile of version 6 at offset 0"),
        (lambda data: data[:-1], r"b/x.seq: the file ends inside a record"),
        (lambda data: data[:30], "the file ends inside"),
        (lambda data: data.replace(b"BytesWritable", b"BytesWritablf"), "not Text and BytesWritable"),
        (lambda data: data[: len(HEAD) - 22] + b"\1" + data[len(HEAD) - 21 :], "compressed SequenceFiles are not supported"),
        (lambda data: data[: len(HEAD)] + struct.pack(">ii", 20, 30), "a record of 20 bytes with a key of 30"),
        (lambda data: data[: len(HEAD)] + struct.pack(">ii", -2, 3), "a record of -2 bytes"),
        (lambda data: data[: len(HEAD)] + struct.pack(">i", -1) + bytes(16), "a wrong sync marker"),
        (lambda data: data[: len(HEAD)] + struct.pack(">ii", 7, 3) + b"\x7fab" + bytes(4), "a key is longer"),
        (lambda data: data[: len(HEAD)] + struct.pack(">ii", 2**31 - 1, 3) + b"\x02ab", "ends inside a record"),
        (lambda data: data[: len(HEAD) - 20] + struct.pack(">i", 2**31 - 1) + bytes(16), "metadata: 2147483647 pairs"),
    ],
)
def test_damage(damage, message):
    with pytest.raises(FormatError, match=message):
        read(damage(written(SequenceFileWriter, [sample("ab", cls=b"7")], "s")))
