"""MXNet RecordIO: `.rec` files of records with an IRHeader, and the `.idx` text beside them (`ordinal TAB offset`).

A record is `u32 0xced7230a, u32 (part << 29 | length), data, zeros up to 4 bytes`, little-endian. The magic number inside of
data, at a multiple of 4, cuts it into parts (1 first, 2 middle, 3 last; 0 is a whole one) and is left out between them.
The data begins with IRHeader `u32 flag, f32 label, u64 id, u64 id2`; flag and label are 0 here, id is the sample's ordinal,
and msgpack of {"__key__": text, extension: bytes} follows. Sources: dmlc-core/src/recordio.cc, mxnet/recordio.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from dfc.errors import Conflict
from dfc.formats.base import (
    KEY_FIELD,
    ByteReader,
    FileFormat,
    FormatError,
    Readable,
    SampleData,
    Sink,
    fields_in_order,
    key_without,
    pack_fields,
    sample_of,
    unpack_fields,
)
from dfc.limits import JOB_MEMBER_BYTES_MAX

_MAGIC: Final = struct.pack("<I", 0xCED7230A)
_HEAD: Final = struct.Struct("<II")
_IR_HEADER: Final = struct.Struct("<IfQQ")
_LENGTH_BITS: Final = 29
_LENGTH_MAX: Final = (1 << _LENGTH_BITS) - 1
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)


class RecordIOWriter:
    """One record a sample. `index` has a line for each, ready to be written beside it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._at = 0
        self._count = 0
        self.index = bytearray()

    def add(self, sample: SampleData) -> None:
        try:
            payload = pack_fields(sample, **{KEY_FIELD: sample.key})
        except ValueError as error:
            raise Conflict(f"{error}, which RecordIO files use for the key") from None
        data = _IR_HEADER.pack(0, 0.0, self._count, 0) + payload
        if len(data) > _LENGTH_MAX:
            raise Conflict(f"the sample {sample.key!r} is larger than the 512 MiB of a RecordIO record")
        self.index += b"%d\t%d\n" % (self._count, self._at)
        self._count += 1
        for piece in _pieces(data):
            self._sink.write(piece)
            self._at += len(piece)

    def finish(self) -> None:
        pass  # the file ends with its last record


def _pieces(data: bytes) -> Iterator[bytes]:
    start = 0
    for at in _magic_places(data):
        yield _MAGIC + struct.pack("<I", (_MIDDLE if start else _FIRST) << _LENGTH_BITS | at - start)
        yield data[start:at]
        start = at + 4
    yield _MAGIC + struct.pack("<I", (_LAST if start else _WHOLE) << _LENGTH_BITS | len(data) - start)
    yield data[start:] if start else data
    yield bytes(-len(data) % 4)


def _magic_places(data: bytes) -> Iterator[int]:
    at = data.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            yield at
            at = data.find(_MAGIC, at + 4)
        else:
            at = data.find(_MAGIC, at + 1)


def read_recordio(source: Readable, file: str) -> Iterator[SampleData]:
    """The samples of a `.rec` file in order; its `.idx` is not needed. FormatError, with the offset, for a broken file."""
    with closing(ByteReader(source, file)) as reader:
        number = 0
        while not reader.at_end:
            start = reader.at
            data = _read_record(reader)
            if len(data) < _IR_HEADER.size:
                raise FormatError(file, "a record is shorter than its IRHeader", start)
            labels = _IR_HEADER.unpack_from(data)[0]
            fields = unpack_fields(file, memoryview(data)[_IR_HEADER.size + 4 * labels :], start)
            key = fields.get(KEY_FIELD, key_without(file, number))
            if not isinstance(key, str):
                raise FormatError(file, "a key is not text", start)
            yield sample_of(file, number, key, fields_in_order(fields), start)
            number += 1


def _read_record(reader: ByteReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        start = reader.at
        magic, head = _HEAD.unpack(reader.take(_HEAD.size, "a record's header"))
        part, length = head >> _LENGTH_BITS, head & _LENGTH_MAX
        if magic != 0xCED7230A or part > _LAST or (part in (_WHOLE, _FIRST)) == bool(parts):
            raise FormatError(reader.file, "not a RecordIO record", start)
        size += length + 4
        if size > JOB_MEMBER_BYTES_MAX:
            raise FormatError(reader.file, "a record is too large to be changed in memory", start)
        parts.append(reader.take(length, "a record"))
        if part in (_FIRST, _MIDDLE) and length % 4:
            raise FormatError(reader.file, "the length of a part of a record is not a multiple of 4 bytes", start)
        reader.take(-length % 4, "a record's padding")
        if part in (_WHOLE, _LAST):
            return _MAGIC.join(parts)


FORMAT: Final = FileFormat(
    endings=(".rec",), writer=lambda sink, _: RecordIOWriter(sink), read=read_recordio, index_ending=".idx"
)
