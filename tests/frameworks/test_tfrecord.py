"""TFRecord held against TensorFlow itself: it reads ours, and we read what it writes."""

from __future__ import annotations

import os
import platform
import struct
import sys

import pytest
from format_files import ODD_SAMPLES, MemorySource, contents, sample, written
from hypothesis import given
from hypothesis import strategies as st
from lazy import Lazy

from dfc.formats.base import FormatError
from dfc.formats.tfrecord import TFRecordWriter, decode_example, encode_example, masked_crc, read_tfrecord

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if sys.version_info >= (3, 14) or platform.machine() != "x86_64":  # as in pyproject.toml
    pytest.skip("there are no wheels of TensorFlow for this Python or processor", allow_module_level=True)
tf = Lazy("tensorflow")


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
    data = example.SerializeToString()
    length = struct.pack("<Q", len(data))
    record = length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    with pytest.raises(FormatError, match="'x' has 2 values"):
        contents(read_tfrecord(MemorySource(record), "b/x.tfrecord"))
