"""Hadoop SequenceFiles, version 6, without compression: Text key → BytesWritable msgpack of {extension: bytes}.

Head: `SEQ` 6, class names of key and value, two flags, metadata, 16 bytes of sync marker. Record: `i32 length of key and
value, i32 length of the key, key, value`, big-endian; before a record that begins 2,000 bytes or more after the last marker
stand `i32 -1` and the marker, so that a reader can begin in the middle. The marker is derived from what is converted, where
Hadoop draws it at random. Source: org.apache.hadoop.io.SequenceFile, WritableUtils.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import xxhash

from dfc.errors import Conflict
from dfc.formats.base import (
    ByteReader,
    FileFormat,
    FormatError,
    Readable,
    SampleData,
    Sink,
    fields_in_order,
    pack_fields,
    sample_of,
    unpack_fields,
)
from dfc.limits import FORMAT_PAIRS_MAX, FORMAT_TEXT_BYTES_MAX

KEY_CLASS: Final = "org.apache.hadoop.io.Text"
VALUE_CLASS: Final = "org.apache.hadoop.io.BytesWritable"
_SYNC_INTERVAL: Final = 2000  # Hadoop 2's; version 3 writes fewer, and all of them read any
_INT: Final = struct.Struct(">i")
_INTS: Final = struct.Struct(">ii")
_VALUE_MAX: Final = (1 << 31) - 1 - 8192  # lengths are signed 32 bits, and key and value share one


def sync_marker(seed: str) -> bytes:
    """The 16 bytes of a sync marker, which data contains only by chance: a hash of `seed`."""
    return xxhash.xxh3_128_digest(b"dfc sequencefile\0" + seed.encode())


class SequenceFileWriter:
    """One record a sample. `seed` identifies the input; the same seed gives the same file."""

    def __init__(self, sink: Sink, seed: str) -> None:
        self._sink = sink
        self._sync = sync_marker(seed)
        head = b"SEQ\x06" + _text(KEY_CLASS.encode()) + _text(VALUE_CLASS.encode()) + b"\0\0" + _INT.pack(0) + self._sync
        self._sink.write(head)
        self._at = self._synced = len(head)

    def add(self, sample: SampleData) -> None:
        key = _text(sample.key.encode())
        value = pack_fields(sample)
        if len(value) > _VALUE_MAX:
            raise Conflict(f"the sample {sample.key!r} is larger than the 2 GiB of a SequenceFile record")
        head = b""
        if self._at >= self._synced + _SYNC_INTERVAL:
            head = _INT.pack(-1) + self._sync
            self._synced = self._at + len(head)
        head += _INTS.pack(len(key) + 4 + len(value), len(key)) + key + _INT.pack(len(value))
        self._sink.write(head)
        self._sink.write(value)
        self._at += len(head) + len(value)

    def finish(self) -> None:
        pass  # the file ends with its last record


def read_sequencefile(source: Readable, file: str) -> Iterator[SampleData]:
    """The samples of a file in order. FormatError, with the offset, if it is broken, compressed or of other classes."""
    with closing(ByteReader(source, file)) as reader:
        sync = _read_head(reader)
        number = 0
        while not reader.at_end:
            start = reader.at
            length = _INT.unpack(reader.take(4, "a record's length"))[0]
            if length == -1:
                if reader.take(16, "a sync marker") != sync:
                    raise FormatError(file, "a wrong sync marker", start)
                continue
            key_length = _INT.unpack(reader.take(4, "a key's length"))[0]
            if not 0 < key_length <= min(FORMAT_TEXT_BYTES_MAX, length - 4):
                raise FormatError(file, f"impossible lengths: a record of {length} bytes with a key of {key_length}", start)
            key, used = _parse_text(file, reader.take(key_length, "a key"), start)
            data = reader.take(length - key_length, "a record")
            size = _INT.unpack_from(data)[0]
            if used != key_length or size != len(data) - 4:
                raise FormatError(file, "the lengths in a record contradict each other", start)
            fields = unpack_fields(file, memoryview(data)[4:], start)
            yield sample_of(file, number, key, fields_in_order(fields), start)
            number += 1


def _read_head(reader: ByteReader) -> bytes:
    file = reader.file
    magic = reader.take(4, "the head")
    if magic[:3] != b"SEQ" or magic[3] != 6:
        raise FormatError(file, "not a SequenceFile of version 6", 0)
    classes = (_read_text(reader), _read_text(reader))
    if classes != (KEY_CLASS, VALUE_CLASS):
        raise FormatError(file, f"keys and values are {classes[0][:80]} and {classes[1][:80]}, not Text and BytesWritable", 4)
    compressed, blocks = reader.take(2, "the head")
    if compressed or blocks:
        raise FormatError(file, "compressed SequenceFiles are not supported", reader.at - 2)
    count = _INT.unpack(reader.take(4, "the metadata"))[0]
    if not 0 <= count <= FORMAT_PAIRS_MAX:
        raise FormatError(file, f"impossible metadata: {count} pairs", reader.at - 4)
    for _ in range(2 * count):
        _read_text(reader)
    return reader.take(16, "the sync marker")


# --- Text: a length in Hadoop's own form of numbers, then UTF-8


def _text(data: bytes) -> bytes:
    size = len(data)
    if size <= 127:
        return bytes((size,)) + data
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((144 - len(digits),)) + digits + data  # -112 - number of digits, as an unsigned byte


def _read_text(reader: ByteReader) -> str:
    start = reader.at
    first = reader.take(1, "a text")
    digits = reader.take(_digits(reader.file, first[0], start), "a text")
    size = int.from_bytes(digits, "big") if digits else first[0]
    if size > FORMAT_TEXT_BYTES_MAX:
        raise FormatError(reader.file, f"impossible text of {size} bytes in the head", start)
    return _decode(reader.file, reader.take(size, "a text"), start)


def _parse_text(file: str, data: bytes, offset: int) -> tuple[str, int]:
    """The text at the start of `data`, and its size in bytes, length included."""
    digits = _digits(file, data[0], offset)
    size = int.from_bytes(data[1 : 1 + digits], "big") if digits else data[0]
    end = 1 + digits + size
    if end > len(data):
        raise FormatError(file, "a key is longer than its record says", offset)
    return _decode(file, data[1 + digits : end], offset), end


def _digits(file: str, first: int, offset: int) -> int:
    """The number of bytes that follow the first byte of a number; 0 when that byte is the number."""
    if first <= 127:
        return 0
    if not 136 <= first <= 143:
        raise FormatError(file, "a text has a negative length", offset)
    return 144 - first


def _decode(file: str, data: bytes, offset: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(file, "a text is not UTF-8", offset) from None


FORMAT: Final = FileFormat(
    endings=(".seq",), writer=lambda sink, options: SequenceFileWriter(sink, options.seed), read=read_sequencefile
)
