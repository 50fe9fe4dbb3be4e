"""TFRecord files of `tf.train.Example`: one bytes_list by extension, and `__key__`.

A record is `u64 length, u32 masked crc32c of the length's 8 bytes, data, u32 masked crc32c of the data`, little-endian.
The Example is protobuf's wire form, of which the four messages in question are read and written here; fields stand in the
order of the sample's members. Sources: tensorflow/core/lib/io/record_writer.h, tensorflow/core/example/feature.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import google_crc32c
import msgspec

from dfc.errors import Conflict
from dfc.formats.base import KEY_FIELD, ByteReader, FileFormat, FormatError, Readable, SampleData, Sink, key_without, sample_of
from dfc.limits import FORMAT_NUMBERS_MAX

_LENGTH: Final = struct.Struct("<Q")
_CHECKSUM: Final = struct.Struct("<I")
_MASK: Final = 0xA282EAD8
_EXAMPLE_BYTES_MAX: Final = (1 << 31) - 1  # protobuf's own bound for a message


def masked_crc(data: bytes) -> int:
    """crc32c, rotated right by 15 bits and moved by a constant, as the format requires."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class TFRecordWriter:
    """One record a sample."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def add(self, sample: SampleData) -> None:
        data = encode_example(sample)
        length = _LENGTH.pack(len(data))
        self._sink.write(length + _CHECKSUM.pack(masked_crc(length)))
        self._sink.write(data)
        self._sink.write(_CHECKSUM.pack(masked_crc(data)))

    def finish(self) -> None:
        pass  # the file ends with its last record


def read_tfrecord(source: Readable, file: str) -> Iterator[SampleData]:
    """The samples of a file in order. FormatError, with the offset, if a checksum, length or Example is wrong."""
    with closing(ByteReader(source, file)) as reader:
        number = 0
        while not reader.at_end:
            start = reader.at
            head = reader.take(12, "a record's length")
            if masked_crc(head[:8]) != _CHECKSUM.unpack_from(head, 8)[0]:
                raise FormatError(file, "the length of a record fails its checksum", start)
            data = reader.take(_LENGTH.unpack_from(head)[0], "a record")
            if masked_crc(data) != _CHECKSUM.unpack(reader.take(4, "a record's checksum"))[0]:
                raise FormatError(file, "a record fails its checksum", start)
            yield decode_example(data, file, number, start)
            number += 1


# --- tf.train.Example


def encode_example(sample: SampleData) -> bytes:
    """`Example { Features { map<string, Feature> } }` with `__key__` first. Conflict when it is larger than protobuf allows."""
    if any(member.ext == KEY_FIELD for member in sample.members):
        raise Conflict(f"the sample {sample.key!r} has a field {KEY_FIELD!r}, which TFRecord files use for the key")
    features = _feature(KEY_FIELD, sample.key.encode())
    example = features + b"".join(_feature(member.ext, member.data) for member in sample.members)
    data = _message(1, example)
    if len(data) > _EXAMPLE_BYTES_MAX:
        raise Conflict(f"the sample {sample.key!r} is larger than the 2 GiB of an Example")
    return data


def _feature(name: str, value: bytes) -> bytes:
    """An entry of the map `feature`: {1: name, 2: Feature {1: BytesList {1: value}}}."""
    return _message(1, _message(1, name.encode()) + _message(2, _message(1, _message(1, value))))


def _message(field: int, data: bytes) -> bytes:
    """A field of wire type 2: tag, length, bytes."""
    out = bytearray((field << 3 | 2,))
    size = len(data)
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data


def decode_example(data: bytes, file: str, number: int, offset: int) -> SampleData:
    """An Example as a sample. Without `__key__` it gets one from file name and ordinal.

    A slash in a name of a feature becomes a dot (`image/encoded` → `image.encoded`). A bytes_list has one value, or none, and
    the field is absent then; numbers become text, several of them a JSON list.
    """
    try:
        features = dict(_features(memoryview(data)))
    except (ValueError, struct.error, RecursionError) as error:
        raise FormatError(file, f"a record is not a tf.train.Example ({error})", offset) from None
    key = features.pop(KEY_FIELD, None)
    try:
        text = key.decode() if key is not None else key_without(file, number)
    except UnicodeDecodeError:
        raise FormatError(file, "a key is not UTF-8", offset) from None
    named = ((name.replace("/", "."), value) for name, value in features.items() if value is not None)
    return sample_of(file, number, text, named, offset)


def _features(example: memoryview) -> Iterator[tuple[str, bytes | None]]:
    for field, features in _fields(example):
        if field != 1 or not isinstance(features, memoryview):
            continue
        for field, entry in _fields(features):
            if field != 1 or not isinstance(entry, memoryview):
                continue
            parts = dict(_fields(entry))
            name, feature = parts.get(1, memoryview(b"")), parts.get(2, memoryview(b""))
            if not isinstance(name, memoryview) or not isinstance(feature, memoryview):
                raise ValueError("a feature without a name")
            text = bytes(name).decode()
            yield text, _value(text, feature)


def _value(name: str, feature: memoryview) -> bytes | None:
    for kind, values in _fields(feature):
        if kind not in (1, 2, 3) or not isinstance(values, memoryview):
            continue
        if kind == 1:
            found = [value for field, value in _fields(values) if field == 1]
            if len(found) > 1 or any(not isinstance(value, memoryview) for value in found):
                raise ValueError(f"{name!r} has {len(found)} values instead of one")
            return bytes(found[0]) if found else None
        numbers = list(_numbers(values, kind))
        if not numbers:
            return None
        return str(numbers[0]).encode() if len(numbers) == 1 else msgspec.json.encode(numbers)
    return None


def _numbers(values: memoryview, kind: int) -> Iterator[int | float]:
    count = 0
    for field, value in _fields(values):
        if field != 1:
            continue
        if isinstance(value, memoryview):
            found = _packed_floats(value) if kind == 2 else _packed_integers(value)
        else:
            found = iter((struct.unpack("<f", struct.pack("<I", value))[0] if kind == 2 else _signed(value),))
        for each in found:
            count += 1
            if count > FORMAT_NUMBERS_MAX:
                raise ValueError(f"more than {FORMAT_NUMBERS_MAX} numbers in a list")
            yield each


def _packed_floats(data: memoryview) -> Iterator[float]:
    return (value for (value,) in struct.iter_unpack("<f", data))


def _packed_integers(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """(number, value) of a message's fields. ValueError for a length that exceeds it."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: memoryview | int
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = int.from_bytes(_cut(data, at, size), "little"), at + size
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = _cut(data, at, size), at + size
        else:
            raise ValueError(f"a field has the unknown wire type {kind}")
        yield tag >> 3, value


def _cut(data: memoryview, at: int, size: int) -> memoryview:
    if size > len(data) - at:
        raise ValueError("a field is longer than its message")
    return data[at : at + size]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise ValueError("a number has more than ten bytes")


FORMAT: Final = FileFormat(endings=(".tfrecord", ".tfrecords"), writer=lambda sink, _: TFRecordWriter(sink), read=read_tfrecord)
