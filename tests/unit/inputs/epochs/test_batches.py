"""Samples out of the answers to batch reads: any member of any tar, and never one sample's field in another."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.inputs.base import Counts, Sample, SampleBroken, Wanted
from dfc.inputs.epochs.gather import Arrival, BatchRead, BatchShard
from dfc.tar.header import FILE
from dfc.tar.samples import split_key
from dfc.tar.scanner import Scanner

URL = "http://host/bucket/a.tar"
SHARD = BatchShard(URL, "bucket", "a.tar", "0" * 32, 1000)
NAMES = st.one_of(
    st.sampled_from(["a.jpg", "dir.x/a.seg.PNG", "a.txt", ".hidden", "noext", "__meta__/a.b", "é.txt", "d/._a.jpg"]),
    st.text("abé/.", min_size=1, max_size=300).filter(lambda name: not name.startswith("/") and "//" not in name),
)
KINDS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


def member(name: str, body: bytes, kind: int, directory: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        info = tarfile.TarInfo(name)
        info.size = 0 if directory else len(body)
        info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
        info.mtime = 1.5 if kind == tarfile.PAX_FORMAT else 1
        archive.addfile(info, io.BytesIO(body))
        end = archive.offset
    return buffer.getvalue()[:end]


def parse(items: list[bytes], fields: Collection[str] | None = None, spare: int = 0) -> list[Any]:
    read = BatchRead(None, [SHARD], [(0, number) for number in range(len(items))], counts=Counts(), fields=fields)  # type: ignore[arg-type]
    data = bytearray(b"".join(items) + b"x" * spare)
    return read.parse(Arrival(range(len(items)), [len(item) for item in items], data), 0)


def expected(item: bytes) -> Sample:
    scanner = Scanner()
    entries = scanner.feed(item + bytes(1024))
    sample: Sample = {"__key__": "", "__source__": URL}
    for name, kind, _, offset, size in entries:
        parts = split_key(name.decode("utf-8", "surrogateescape")) if kind == FILE else None
        if parts is not None:
            sample["__key__"] = parts[0]
            sample[parts[1]] = item[offset : offset + size]
    return sample


@given(
    st.lists(
        st.lists(st.tuples(NAMES, st.binary(max_size=1200), KINDS, st.booleans()), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_every_item_is_what_the_scanner_finds(items: list[list[tuple[str, bytes, int, bool]]]) -> None:
    tars = []
    for members in items:
        # The first of an item is in a sample: an item is one, with whatever stands between its members.
        pieces = [member("key.first", b"1", tarfile.USTAR_FORMAT)]
        for name, body, kind, directory in members:
            try:
                pieces.append(member(name, body, kind, directory))
            except ValueError:
                continue  # a name too long for USTAR
        tars.append(b"".join(pieces))
    assert parse(tars, spare=700) == [expected(item) for item in tars]


def test_a_large_size_is_read_as_gnu_writes_it() -> None:
    plain = member("a.bin", b"x" * 700, tarfile.GNU_FORMAT)
    large = bytearray(plain)
    large[124:136] = b"\x80" + (700).to_bytes(11, "big")
    total = 8 * 32 + sum(large[:148]) + sum(large[156:512])
    large[148:156] = b"%06o\0 " % total
    assert parse([bytes(large), plain]) == [{"__key__": "a", "__source__": URL, "bin": b"x" * 700}] * 2


def test_only_wanted_fields_are_kept() -> None:
    names = ("a.jpg", "a.cls", "b" * 150 + ".cls")
    items = [member(name, b"1", tarfile.GNU_FORMAT) for name in names]
    kept = [set(sample) - {"__key__", "__source__"} for sample in parse(items, fields={"cls"})]
    assert kept == [set(), {"cls"}, {"cls"}]
    wanted = Wanted({"jpg"})
    assert len(parse(items, fields=wanted)) == 3
    assert wanted.lacking(["jpg"], {"__key__": "b"}) == "has no field 'jpg'; present but not requested: 'cls'"


@pytest.mark.parametrize(
    "item",
    [
        member("a.jpg", b"1" * 600, tarfile.USTAR_FORMAT)[:-512],
        member("hidden", b"1", tarfile.USTAR_FORMAT),
        member("b" * 150, b"1", tarfile.GNU_FORMAT),
        b"\xff" * 1024,
    ],
)
def test_a_broken_item_is_an_error_in_its_place(item: bytes) -> None:
    good = member("a.jpg", b"1", tarfile.USTAR_FORMAT)
    first, broken, last = parse([good, item, good])
    assert first == last == {"__key__": "a", "__source__": URL, "jpg": b"1"}
    assert isinstance(broken, SampleBroken)
    assert "sample 1" in str(broken)
    assert broken.url == URL


def test_more_than_a_request_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="100000"):
        BatchRead(None, [SHARD], [(0, 0)] * 100_001, counts=Counts())  # type: ignore[arg-type]
