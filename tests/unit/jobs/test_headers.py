"""Headers made many at a time are those that the writer makes one at a time; index columns are what the index says."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
from folder_store import build_index
from hypothesis import given, settings
from hypothesis import strategies as st
from job_shards import gnu_tar
from jobs_ordered import canonical

from dfc.jobs.data.output import clear_padding, head_sizes, header_blocks, sample_sizes, special_headers
from dfc.tar.index.columns import concatenate
from dfc.tar.samples import member_header

NAME = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=100).filter(
    lambda name: len(name.encode()) <= 100
)


@settings(max_examples=60)
@given(st.lists(st.tuples(NAME, st.integers(0, 8**11 - 1)), min_size=1, max_size=20))
def test_blocks_are_those_of_the_writer(members):
    encoded = [name.encode() for name, _ in members]
    names = np.zeros((len(members), max(map(len, encoded))), dtype=np.uint8)
    for row, name in enumerate(encoded):
        names[row, : len(name)] = list(name)
    blocks = header_blocks(names, np.array([size for _, size in members]))
    assert [block.tobytes() for block in blocks] == [member_header(name, size) for name, size in members]


def test_padding():
    blocks = np.full((6, 512), 7, dtype=np.uint8)
    clear_padding(blocks, np.array([1, 4]), np.array([100, 1023]))
    assert blocks.sum(axis=1).tolist() == [3584, 700, 3584, 3584, 3577, 3584]


def check(index) -> None:
    """All columns against what the index gives one by one, in order and out of it."""
    numbers = np.arange(index.sample_count)[::-1].copy()
    found = index.arrays(numbers)
    names = found.name_list()
    for row, number in enumerate(numbers.tolist()):
        sample = index.sample_at(number)
        rows = range(found.first[row], found.first[row + 1])
        assert (sample.start, sample.end) == (found.starts[row], found.ends[row])
        got = [(names[m].decode(), names[m].decode()[: found.key_chars[m]], found.offsets[m], found.sizes[m]) for m in rows]
        assert got == [(m.name, m.key, m.offset, m.size) for m in sample.members]
    back = found.reordered(numbers)
    forward = index.arrays(np.arange(index.sample_count))
    assert back.name_list() == forward.name_list()
    assert np.array_equal(back.first, forward.first)
    assert np.array_equal(back.whole, forward.whole)
    both = concatenate([forward, back])
    assert both.name_list() == forward.name_list() * 2
    sizes = [sum(len(member_header(m.name, m.size)) + -(-m.size // 512) * 512 for m in s.members) for s in index.samples()]
    assert sample_sizes(both).tolist() == sizes * 2


def test_columns_of_plain_and_odd_samples(tmp_path):
    long = "d" * 90 + "/" + "ü" * 60
    members = [("a.jpg", 5), ("a.cls", 0), ("README", 9), ("b.jpg", 600), ("__x__/m", 1), ("b.cls", 1)]
    members += [(f"{long}.jpg", 3), ("e" * 160 + "/f.txt", 512), ("ключ.txt", 1), ("z.txt", 1)]
    (tmp_path / "a.tar").write_bytes(canonical([[(name, bytes(size)) for name, size in members]]))
    index, _ = build_index(tmp_path / "a.tar")
    check(index)
    found = index.arrays(np.arange(index.sample_count))
    assert found.whole.tolist() == [True, False, False, False, True, True]
    assert len(found.long_names) == 2
    assert set(special_headers(found)) == set(found.long_names)
    assert head_sizes(found, special_headers(found)).max() >= 1536


def test_an_empty_shard_and_samples_that_are_not_there(tmp_path):
    (tmp_path / "a.tar").write_bytes(canonical([]))
    index, _ = build_index(tmp_path / "a.tar")
    assert len(index.arrays(np.zeros(0, dtype=np.int64))) == 0
    assert len(concatenate([])) == 0
    with pytest.raises(IndexError):
        index.arrays(np.array([0]))


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax", "v7"])
def test_archives_of_gnu_tar(tmp_path, form):
    index, summary = build_index(gnu_tar(tmp_path, form))
    assert summary.samples == {"v7": 25, "ustar": 27}.get(form, 28), "the longer a name may be, the more there are"
    check(index)


def test_archives_of_python(data):
    for name in ("tendata.tar", "mpdata.tar"):
        index, summary = build_index(data / name)
        assert summary.samples
        check(index)
        with tarfile.open(data / name) as tar:
            files = [m.name for m in tar if m.isfile()]
        assert len(index.arrays(np.arange(index.sample_count)).name_list()) <= len(files)
