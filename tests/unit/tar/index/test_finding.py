"""Samples by their keys, in an index: every way finds what a scan of all keys finds."""

from __future__ import annotations

import pytest
from job_shards import tar_of

from dfc.listing.search import KeyQuery, SampleHit
from dfc.tar.index import lines
from dfc.tar.index.lines import find_samples
from dfc.tar.index.reader import ShardIndex

LONG = "deep/" * 30 + "key"
KEYS = [
    *(f"n{number % 7}/{number:05d}" for number in range(300)), "again", "other", "again", "ünï/日本", "new\nline", "../up",
    "a b&c=d%00", LONG, "again", "n", 'quo"te\\',
]  # fmt: skip


@pytest.fixture
def index(index_of) -> ShardIndex:
    members = [
        (f"{key}.{ext}", bytes(number))
        for number, key in enumerate(KEYS)
        for ext in ("JPG", "seg.png", "cls")[: 1 + number % 3]
    ]
    return index_of(tar_of(members))[1]


def found(index: ShardIndex, query: KeyQuery, start: int = 0) -> list[SampleHit]:
    return [hit for hit in find_samples(index, "s.tar", query, start) if isinstance(hit, SampleHit)]


MATCHES = {
    "exact": lambda key, text: key == text,
    "prefix": lambda key, text: key.startswith(text),
    "contains": lambda key, text: text in key,
}


@pytest.mark.parametrize("how", MATCHES)
@pytest.mark.parametrize(
    "text",
    [
        "n3/00010", "again", "n", "n1/", "0", "ünï", "日", "new\nline", "\n", "../", "\0", "%00", "&c=", LONG, "deep/key",
        "JPG", '"', "zz", "\\",
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [4096, 7])
def test_every_way_finds_what_is_there(index, how, text, batch, monkeypatch):
    monkeypatch.setattr(lines, "_BATCH_SAMPLES", batch)
    hits = found(index, KeyQuery(how, text))
    assert [(hit.number, hit.key) for hit in hits] == [(at, key) for at, key in enumerate(KEYS) if MATCHES[how](key, text)]
    assert all(hit.shard == "s.tar" for hit in hits)


def test_a_hit_has_the_sizes_of_its_members(index):
    (hit,) = found(index, KeyQuery("exact", "n2/00002"))
    assert {ext: size for ext, (_, size) in hit.members.items()} == {"jpg": 2, "seg.png": 2, "cls": 2}
    assert hit == SampleHit("s.tar", 2, "n2/00002", {m.ext: (m.offset, m.size) for m in index.sample_at(2).members})
    assert [hit.number for hit in found(index, KeyQuery("exact", "again"))] == [300, 302, 308]


def test_who_looks_through_keys_can_stop_now_and_then(index, monkeypatch):
    monkeypatch.setattr(lines, "_BATCH_SAMPLES", 50)
    steps = list(find_samples(index, "s.tar", KeyQuery("contains", "日")))
    (hit,) = (step for step in steps if isinstance(step, SampleHit))
    assert [step for step in steps if step != hit] == [*range(50, len(KEYS), 50), len(KEYS)]
    assert hit.number < steps[steps.index(hit) + 1] <= hit.number + 50


@pytest.mark.parametrize("batch", [4096, 7])
@pytest.mark.parametrize(("how", "text"), [("exact", "again"), ("prefix", "n"), ("contains", "1")])
def test_a_search_goes_on_at_any_ordinal(index, how, text, batch, monkeypatch):
    monkeypatch.setattr(lines, "_BATCH_SAMPLES", batch)
    whole = found(index, KeyQuery(how, text))
    for start in (0, 1, 7, 299, 300, 301, len(KEYS) - 1, len(KEYS), len(KEYS) + 1, 1 << 23):
        assert found(index, KeyQuery(how, text), start) == [hit for hit in whole if hit.number >= start]


def test_a_key_that_is_no_text_in_utf_8_is_in_no_index(index):
    assert found(index, KeyQuery("exact", "\udcff")) == found(index, KeyQuery("contains", "\udcff")) == []
