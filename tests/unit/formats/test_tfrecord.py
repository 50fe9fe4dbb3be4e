"""TFRecord: read back by TensorFlow, bit flips and foreign Examples."""

from __future__ import annotations

import os
import platform
import struct
import sys

import google_crc32c
import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, sample, written
from hypothesis import given
from hypothesis import strategies as st
from lazy import Lazy

from dfc.errors import Conflict
from dfc.formats.base import FormatError
from dfc.formats.tfrecord import TFRecordWriter, decode_example, encode_example, masked_crc, read_tfrecord

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if sys.version_info >= (3, 14) or platform.machine() != "x86_64":  # as in pyproject.toml
    pytest.skip("there are no wheels of TensorFlow for this Python or processor", allow_module_level=True)
tf = Lazy("tensorflow")


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
    assert read(data) == contents(_numbered(ODD_SAMPLES))
    assert written(TFRecordWriter, ODD_SAMPLES) == data
    assert read(b"") == []


def _numbered(samples):
    for number, each in enumerate(samples):
        each.number = number
        yield each


def test_tensorflow_reads_it(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(written(TFRecordWriter, ODD_SAMPLES))
    found = []
    for data in tf.data.TFRecordDataset(str(path)):
        example = tf.train.Example()
        example.ParseFromString(data.numpy())
        found.append({name: list(value.bytes_list.value) for name, value in example.features.feature.items()})
    assert found == [
        {"__key__": [each.key.encode()], **{member.ext: [member.data] for member in each.members}} for each in ODD_SAMPLES
    ]


@given(st.dictionaries(st.text("abcz.", min_size=1, max_size=8), st.binary(max_size=300), max_size=5))
def test_protobuf_agrees(fields):
    each = sample("k", **{name.strip(".") or "x": data for name, data in fields.items()})
    example = tf.train.Example()
    example.ParseFromString(encode_example(each))
    assert {name: value.bytes_list.value[0] for name, value in example.features.feature.items()} == {
        "__key__": b"k",
        **{member.ext: member.data for member in each.members},
    }


def test_examples_of_others():
    example = tf.train.Example()
    features = example.features.feature
    features["image/encoded"].bytes_list.value.append(b"jpeg")
    features["label"].int64_list.value.append(-7)
    features["box"].float_list.value.extend([0.5, 1.0])
    features["ids"].int64_list.value.extend([1, 1 << 40])
    features["none"].bytes_list.SetInParent()
    found = decode_example(example.SerializeToString(), "b/train-1.tfrecord", 3, 0)
    assert found.key == "train-1-000000003"
    assert {member.ext: member.data for member in found.members} == {
        "image.encoded": b"jpeg", "label": b"-7", "box": b"[0.5,1.0]", "ids": b"[1,1099511627776]",
    }  # fmt: skip


def test_two_values_of_one_feature():
    example = tf.train.Example()
    example.features.feature["x"].bytes_list.value.extend([b"1", b"2"])
    with pytest.raises(FormatError, match="'x' has 2 values"):
        read(record(example.SerializeToString()))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], r"b/x.tfrecord: the file ends inside of a record's checksum, .* at offset"),
        (lambda data: data[:5], "the file ends inside of a record's length"),
        (lambda data: b"\0" + data[1:], "the length of a record fails its checksum at offset 0"),
        (lambda data: data[:20] + b"?" + data[21:], "a record fails its checksum at offset 0"),
        (lambda data: record(b"\xff\xff\xff"), "no tf.train.Example"),
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
    with pytest.raises(FormatError, match="ends inside of a record"):
        read(length + struct.pack("<I", masked_crc(length)) + b"x")


@given(st.binary(max_size=80))
def test_any_bytes_as_an_example(data):
    try:
        decode_example(data, "b/x", 0, 0)
    except FormatError:
        pass


def test_a_field_named_like_the_key():
    each = sample("a", x=b"1")
    each.members[0].ext = "__key__"
    with pytest.raises(Conflict, match="__key__"):
        encode_example(each)
