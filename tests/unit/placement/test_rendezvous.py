"""Rendezvous hashing: committed vectors, shares by weight, the quick ways against the definition."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.placement import rendezvous
from dfc.placement.rendezvous import Candidate, Rendezvous, score

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "placement.json").read_text())["scores"]


@pytest.mark.parametrize("vector", VECTORS)
def test_committed_vectors(vector) -> None:
    candidates = tuple(Candidate(each["id"], each["weight"]) for each in vector["candidates"])
    key = vector["key"].encode()
    assert Rendezvous(candidates).best(key) == vector["ranking"][0]
    assert Rendezvous(candidates).ranking(key) == vector["ranking"]
    for each, wanted in zip(candidates, vector["candidates"], strict=True):
        assert abs(score(each, key) - wanted["score"]) < 1e-9


def test_weights_share_in_proportion() -> None:
    disks = Rendezvous((Candidate("a", 1.0), Candidate("b", 3.0)))
    share = Counter(disks.best(b"%d" % i) for i in range(20_000))["b"] / 20_000
    assert abs(share - 0.75) < 0.02


def by_score(candidates: tuple[Candidate, ...], key: bytes) -> list[str]:
    """The definition: by score, of equal scores by hash, of equal hashes the first id."""

    def rank(each: Candidate) -> tuple[float, int, str]:
        return -score(each, key), -(rendezvous.xxhash.xxh3_64_intdigest(f"{each.id}\0".encode() + key) >> 11), each.id

    return [each.id for each in sorted(candidates, key=rank)]


IDS = st.lists(
    st.text(min_size=1, max_size=8).map(lambda text: text.encode("utf-8", "ignore").decode()),
    min_size=1,
    max_size=90,
    unique=True,
)
WEIGHTS = st.one_of(
    st.sampled_from((1.0, 2.0)), st.floats(1e-6, 1e9), st.floats(1.0, 1.0 + 1e-12), st.integers(1, 4).map(float)
)


@given(IDS, st.data())
def test_the_same_as_by_score(ids: list[str], data: st.DataObject) -> None:
    weights = data.draw(st.one_of(st.just([2.0] * len(ids)), st.lists(WEIGHTS, min_size=len(ids), max_size=len(ids))))
    candidates = tuple(map(Candidate, ids, weights))
    found = Rendezvous(candidates)
    for number in range(20):
        key = b"b\0n%d" % number
        wanted = by_score(candidates, key)
        assert found.best(key) == wanted[0]
        assert found.ranking(key) == wanted


@pytest.mark.parametrize("seed", range(4))
def test_many_of_many_weights(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [lambda: draw.uniform(1, 20), lambda: draw.choice((4.0, 8.0, 16.0)), lambda: 10 ** draw.uniform(-6, 9), lambda: 1.0]
    candidates = tuple(Candidate(f"{draw.randrange(1 << 64):016x}", sizes[seed]()) for _ in range(400))
    found = Rendezvous(candidates)
    for number in range(500):
        assert found.best(b"b\0n%d" % number) == by_score(candidates, b"b\0n%d" % number)[0]


@pytest.mark.parametrize(
    "digests", [(0,), (5 << 11, 5 << 11 | 7), ((1 << 64) - 1, (1 << 64) - 2048, (1 << 64) - 4096), (0, 1 << 63)]
)
@given(weights=st.lists(st.sampled_from((1.0, 1.0 + 2**-52, 3.0)), min_size=1, max_size=80))
def test_of_equal_scores_the_first_id(digests: tuple[int, ...], weights: list[float]) -> None:
    """With hashes that are equal, or differ in bits that do not count, or so little that their logarithms are equal."""
    real = rendezvous.xxhash.xxh3_64_intdigest
    candidates = tuple(Candidate(f"d{number:03d}", weight) for number, weight in enumerate(weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous.xxhash, "xxh3_64_intdigest", lambda data: digests[real(data) % len(digests)])
        for number in range(10):
            key = b"n%d" % number
            assert Rendezvous(candidates).ranking(key) == by_score(candidates, key)
            assert Rendezvous(candidates).best(key) == by_score(candidates, key)[0]


def test_none_of_nothing() -> None:
    assert Rendezvous(()).best(b"x") is None
    assert Rendezvous(()).ranking(b"x") == []


def test_of_equal_scores_of_different_hashes_the_higher_hash_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A light one with the higher hash and a heavy one whose score is the same number to the last bit."""
    light, heavy = 5072016059579332 << 11, 1608282437942340 << 11
    hashes = {b"b-light\0k": light, b"a-heavy\0k": heavy}
    monkeypatch.setattr(rendezvous.xxhash, "xxh3_64_intdigest", lambda data: hashes[data])
    candidates = (Candidate("a-heavy", 3.0), Candidate("b-light", 1.0))
    assert score(candidates[0], b"k") == score(candidates[1], b"k")
    assert Rendezvous(candidates).best(b"k") == "b-light"
    assert Rendezvous(candidates).ranking(b"k") == ["b-light", "a-heavy"]
