"""NDJSON listings: the fields of the contract, in archive order, in chunks that stay small."""

from __future__ import annotations

import json

import pytest

from dfc.tar.index.listing import list_keys, list_members, list_samples


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
