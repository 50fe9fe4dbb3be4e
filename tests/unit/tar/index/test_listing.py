"""NDJSON listings: the fields of the contract, in archive order, in chunks that stay small."""

from __future__ import annotations

import json
import random

import pytest

from dfc.tar.index import reader
from dfc.tar.index.format import IndexCorrupt
from dfc.tar.index.lines import list_keys, list_members, list_samples, list_unsampled
from dfc.tar.index.reader import ShardIndex


def lines(chunks) -> list[dict]:
    return [json.loads(line) for line in b"".join(chunks).splitlines()]


def test_members(make, index_of):
    data = make.header(b"d/", 0, b"5") + make.member('d/é"\n.jpg'.encode(), b"123") + make.end
    assert lines(list_members(index_of(data)[1])) == [
        {"name": "d/", "key": None, "ext": None, "offset": 512, "size": 0, "type": "directory"},
        {"name": 'd/é"\n.jpg', "key": 'd/é"\n', "ext": "jpg", "offset": 1024, "size": 3, "type": "file"},
    ]


def test_samples_and_keys(make, index_of):
    index = index_of(make.tar({"a.JPG": b"123", "README": b"", "a.seg.png": b"", "b.cls": b"1"}))[1]
    assert lines(list_samples(index)) == [
        {"key": "a", "members": {"jpg": {"offset": 512, "size": 3}, "seg.png": {"offset": 2048, "size": 0}}},
        {"key": "b", "members": {"cls": {"offset": 2560, "size": 1}}},
    ]
    assert lines(list_keys(index, "s-0.tar", "all")) == [
        {"shard": "s-0.tar", "key": "a", "members": {"jpg": 3, "seg.png": 0}},
        {"shard": "s-0.tar", "key": "b", "members": {"cls": 1}},
    ]
    assert lines(list_keys(index, "s-0.tar", "key")) == [{"shard": "s-0.tar", "key": "a"}, {"shard": "s-0.tar", "key": "b"}]


def test_nothing_to_list(make, index_of):
    index = index_of(make.end)[1]
    assert [*list_members(index), *list_samples(index), *list_keys(index, "a.tar")] == []


def test_chunks_are_whole_lines_of_bounded_size(make, index_of):
    index = index_of(make.tar({f"{number}.x": b"" for number in range(3000)}))[1]
    chunks = list(list_members(index))
    assert len(chunks) > 2
    assert all(chunk.endswith(b"\n") and len(chunk) < 66 * 1024 for chunk in chunks)
    assert len(lines(chunks)) == 3000


def test_ninety_samples(data_directory, index_of):
    index = index_of((data_directory / "sample.tgz").read_bytes(), "gz")[1]
    samples = lines(list_samples(index))
    assert len(samples) == 90
    assert set(samples[0]["members"]) == {"cls", "png"}


@pytest.mark.parametrize("start", [0, 1, 999, 1000, 1001, 2500, 2999, 3000, 10**9])
@pytest.mark.parametrize("limit", [1, 7, None])
def test_a_part_of_a_list_is_that_part_of_the_whole(make, index_of, start: int, limit: int | None):
    """With names of different lengths and order, and members of no sample between them."""
    names = {f"{number * 7919 % 3000:0{4 + number % 3}}.{ext}": b"" for number in range(1000) for ext in ("a", "b")}
    names |= {f"README{number}": b"" for number in range(1000)}
    index = index_of(make.tar(names))[1]
    stop = None if limit is None else start + limit
    assert lines(list_members(index, start, limit)) == lines(list_members(index))[start:stop]
    assert lines(list_samples(index, start, limit)) == lines(list_samples(index))[start:stop]


def archive_of(make, chance: random.Random, samples: int, loose: float) -> bytes:
    """Samples, and between and inside of them folders and members of no sample, some of a size that looks like their mark."""
    pieces = []
    for number in range(samples):
        for ext in ("jpg", "cls", "seg.png")[: chance.randrange(1, 4)]:
            size = 0xFFFF if chance.random() < 0.02 else chance.randrange(3)
            pieces.append(make.member(f"{'d' * chance.randrange(30)}/{number}.{ext}".encode(), bytes(size)))
            while chance.random() < loose:
                name = chance.choice(("README", ".hidden.txt", "__meta__/x.json", "ünï/NOTES", "l" * 90)).encode()
                # Without bytes, the next header is where they would be.
                pieces.append(make.member(name, bytes(chance.randrange(2))))
            if chance.random() < 0.1:
                pieces.append(make.header(b"folder/", 0, b"5"))
    return b"".join([*pieces, make.end])


@pytest.mark.parametrize("piece", [1 << 20, 70, 333, 4096])
@pytest.mark.parametrize(("samples", "loose"), [(1, 0.98), (400, 0.0), (400, 0.01), (150, 0.5), (0, 0.0)])
def test_members_of_no_sample_are_those_of_the_whole_list(make, index_of, monkeypatch, piece, samples, loose) -> None:
    chance = random.Random(samples + piece)
    index = index_of(archive_of(make, chance, samples, loose))[1]
    monkeypatch.setattr(reader, "_CHECK_BYTES", piece)
    wanted = [line for line in lines(list_members(index)) if line["key"] is None and line["type"] != "directory"]
    assert len(wanted) == index.dropped
    assert lines(list_unsampled(index)) == wanted
    offsets = [line["offset"] for line in wanted]
    for start in {0, 1, *chance.sample(range(index.archive_size + 9), 20), *offsets[-60:], *(at + 1 for at in offsets[-3:])}:
        part = [line for line in wanted if line["offset"] >= start]
        assert lines(list_unsampled(index, start)) == part
        assert lines(list_unsampled(index, start, 2)) == part[:2]


def test_members_of_no_sample_are_not_looked_for_where_there_are_none(make, index_of, monkeypatch) -> None:
    index = index_of(make.tar({f"{number}.x": b"" for number in range(3000)}))[1]
    monkeypatch.setattr(ShardIndex, "_record_before", None)
    assert list(list_unsampled(index)) == list(list_unsampled(index, 5, 1)) == []


def test_who_looks_for_members_of_no_sample_can_stop_now_and_then(make, index_of, monkeypatch) -> None:
    files = {f"{number}.x": b"" for number in range(3000)}
    index = index_of(make.tar({**files, "README": b"", "z.x": b""}))[1]
    monkeypatch.setattr(reader, "_CHECK_BYTES", 1000)
    steps = list(list_unsampled(index))
    assert len(steps) > 60
    assert [bool(step) for step in steps].count(True) == 1
    assert lines(steps)[0]["name"] == "README"


def test_a_damaged_index_does_not_hide_members_of_no_sample(make, index_of, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(reader, "_CHECK_BYTES", 1000)
    index = index_of(make.tar({**{f"{number}.x": b"" for number in range(300)}, "README": b"", "z.x": b""}))[1]
    path = tmp_path / "0.idx"
    assert lines(list_unsampled(index))[0]["name"] == "README"
    index.close()
    with open(path, "r+b") as opened:
        opened.seek(512 + 3000)
        opened.write(b"\x01\x02\x03")
    damaged = ShardIndex.open(path)
    with pytest.raises(IndexCorrupt):
        list(list_unsampled(damaged))
