"""Merged datasets: the order, exactly, against a simulation of the rule; keys that meet; sizes and strategies."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from folder_store import run_job
from hypothesis import given
from hypothesis import strategies as st
from job_shards import members_of, put, samples

from dfc.errors import BadRequest, Conflict
from dfc.formats.base import SplitSample
from dfc.jobs.data.partitions import DuplicateKey
from dfc.jobs.request import parse_spec
from dfc.order import Interleave, interleave, whole_weights

DATA = Path(__file__).parents[3] / "data"


def simulated(counts, weights, until):
    """The rule, word for word: pairs of source and number of the sample in it."""
    emitted, order = [0] * len(counts), []
    if until == "first" and 0 in counts:
        return order
    while True:
        left = [number for number, count in enumerate(counts) if emitted[number] < count]
        if not left or (until == "first" and len(left) < len(counts)):
            return order
        source = min(left, key=lambda number: (Fraction(emitted[number] + 1, weights[number]), number))
        order.append((source, emitted[source]))
        emitted[source] += 1


def merge(folder, inputs, pattern="m-%03d.tar", twice=False, **options):
    spec = {"operation": "merge", "input": inputs, "output": {"bucket": "out", "pattern": pattern}, "options": options}
    return run_job(folder, spec, twice=twice)


def bucket(name):
    return {"bucket": name, "shards": "**"}


def keys(done):
    """Of all outputs, in order."""
    return [name.rpartition(".")[0] for output in sorted(done.outputs) for name, _ in members_of(done.outputs[output])]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, 2, 3, 7, 10**9])), min_size=1, max_size=4),
    st.sampled_from(["first", "all"]),
    st.data(),
)
def test_the_order_is_that_of_the_rule(sources, until, data):
    counts, weights = [count for count, _ in sources], [weight for _, weight in sources]
    order = interleave(counts, weights, until)
    expected = [sum(counts[:source]) + number for source, number in simulated(counts, weights, until)]
    assert order.count == len(expected)
    assert order.ordinals(0, order.count).tolist() == expected
    lo = data.draw(st.integers(0, order.count))
    hi = data.draw(st.integers(lo, order.count))
    assert order.ordinals(lo, hi).tolist() == expected[lo:hi]
    places = order.places(0, sum(counts))
    assert [int(places[ordinal]) for ordinal in expected] == list(range(order.count))
    assert int((places < 0).sum()) == sum(counts) - order.count
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Interleave) == order


def test_orders_too_large_for_64_bits():
    order = interleave([10**12, 10**12], [10**9 - 1, 10**9], "all")
    lo = 10**12 + 3
    found = order.ordinals(lo, lo + 50)
    assert np.array_equal(order.places(int(found.min()), int(found.min()) + 1), [lo + int(found.argmin())])
    assert len(set(found.tolist())) == 50


def test_weights_are_taken_as_they_are_written():
    assert whole_weights([1, 2]) == [1, 2]
    assert whole_weights([0.1, 0.3]) == [1, 3]
    assert whole_weights([0.25, 1, 1e-06]) == [250000, 1000000, 1]


def test_two_datasets(tmp_path):
    put(tmp_path, "1.tar", samples(["a1", "a2"], txt="{key}"), "a")
    put(tmp_path, "2.tar", samples(["a3"], txt="{key}"), "a")
    put(tmp_path, "1.tar", samples(["b1", "b2", "b3", "b4"], txt="{key}"), "b")
    both = [bucket("a"), bucket("b")]
    done = merge(tmp_path, both, twice=True)
    assert keys(done) == ["a1", "b1", "a2", "b2", "a3", "b3", "b4"]
    assert [len(members_of(done.outputs[name])) for name in sorted(done.outputs)] == [2, 1, 4]
    assert keys(merge(tmp_path, both, until="first")) == ["a1", "b1", "a2", "b2", "a3"]
    assert keys(merge(tmp_path, both, weights=[1, 2])) == ["b1", "a1", "b2", "b3", "a2", "b4", "a3"]
    assert keys(merge(tmp_path, both, weights=[1, 2], until="first")) == ["b1", "a1", "b2", "b3", "a2", "b4"]
    assert len(merge(tmp_path, both, until="first").outputs) == 3


@pytest.mark.parametrize("strategy", ["gather", "spill"])
@pytest.mark.parametrize("size", [{"samples_per_shard": 7}, {"shard_size": "20 kB"}, {}])
def test_every_strategy_writes_the_same(tmp_path, strategy, size):
    put(tmp_path, "mpdata.tar", (DATA / "mpdata.tar").read_bytes(), "real")
    put(tmp_path, "x.tar", samples([f"{number:03d}" for number in range(31)], txt="{key}" * 300, cls="{number}"), "made")
    inputs = [bucket("real"), bucket("made")]
    options = {"weights": [3, 1.5], "prefix": ["", "long/" * 25], **size}
    done = merge(tmp_path, inputs, strategy=strategy, twice=True, **options)
    assert done.digest == merge(tmp_path, inputs, **options).digest
    found = list(dict.fromkeys(keys(done)))
    expected = [
        f"{number:06d}" if source == 0 else "long/" * 25 + f"{number:03d}"
        for source, number in simulated([done.samples - 31, 31], [2, 1], "all")
    ]
    assert found == expected


def test_compressed_inputs(tmp_path):
    put(tmp_path, "1.tgz", samples(["a1", "a2"], txt="{key}"), "a")
    put(tmp_path, "1.tar", samples(["b1"], txt="{key}"), "b")
    done = merge(tmp_path, [bucket("b"), bucket("a")], "m-%03d.tgz", prefix=["x-", "y-"], twice=True)
    assert keys(done) == ["x-b1", "y-a1", "y-a2"]
    assert dict(members_of(done.outputs["m-001.tgz"]))["y-a2.txt"] == b"a2"


def test_equal_keys_fail(tmp_path):
    put(tmp_path, "1.tar", samples("abc", txt="{key}"), "a")
    put(tmp_path, "1.tar", samples("xyc", txt="{key}"), "b")
    inputs = [bucket("a"), bucket("b")]
    with pytest.raises(DuplicateKey, match=r"the key 'c' is in inputs 0 and 1"):
        merge(tmp_path, inputs)
    assert keys(merge(tmp_path, inputs, prefix=["a-", "b-"]))[:3] == ["a-a", "b-x", "a-b"]
    put(tmp_path, "1.tar", samples(["-c"], txt="{key}"), "b")
    with pytest.raises(DuplicateKey, match=r"the key 'a-c'"):
        merge(tmp_path, inputs, prefix=["a-", "a"])


def test_keys_that_are_not_taken_do_not_meet(tmp_path):
    put(tmp_path, "1.tar", samples("ab", txt="{key}"), "a")
    put(tmp_path, "1.tar", samples("xyza", txt="{key}"), "b")
    assert keys(merge(tmp_path, [bucket("a"), bucket("b")], until="first")) == ["a", "x", "b"]
    with pytest.raises(DuplicateKey):
        merge(tmp_path, [bucket("a"), bucket("b")])


def test_equal_keys_of_one_input_fail_unless_there_are_prefixes(tmp_path):
    put(tmp_path, "1.tar", samples("ab", txt="{key}"), "a")
    put(tmp_path, "2.tar", samples("b", txt="{key}"), "a")
    put(tmp_path, "1.tar", samples("x", txt="{key}"), "b")
    with pytest.raises(DuplicateKey, match="input 0 twice"):
        merge(tmp_path, [bucket("a"), bucket("b")])
    assert keys(merge(tmp_path, [bucket("a"), bucket("b")], prefix=["", "b-"])) == ["a", "b-x", "b", "b"]


def test_split_samples(tmp_path):
    put(tmp_path, "1.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")], "a")
    put(tmp_path, "1.tar", samples("x", txt="{key}"), "b")
    inputs = [bucket("a"), bucket("b")]
    with pytest.raises(SplitSample, match="'a' occurs again"):
        merge(tmp_path, inputs)
    assert keys(merge(tmp_path, inputs, on_split="join", twice=True)) == ["a", "a", "x", "b"]
    with pytest.raises(DuplicateKey):
        merge(tmp_path, inputs, on_split="keep")
    assert keys(merge(tmp_path, inputs, on_split="keep", prefix=["1", "2"])) == ["1a", "2x", "1b", "1a"]


def test_one_input_and_empty_ones(tmp_path):
    put(tmp_path, "1.tar", [], "a")
    put(tmp_path, "1.tar", samples("xy", txt="{key}"), "b")
    assert keys(merge(tmp_path, [bucket("a"), bucket("b")])) == ["x", "y"]
    assert keys(merge(tmp_path, [bucket("a"), bucket("b")], until="first")) == []
    assert keys(merge(tmp_path, bucket("b"))) == ["x", "y"]


def test_a_prefix_that_makes_names_too_long(tmp_path):
    put(tmp_path, "1.tar", [("d/" * 1000 + "x" * 2000 + ".txt", b"")], "a")
    with pytest.raises(Conflict, match="not a valid member name"):
        merge(tmp_path, [bucket("a")], prefix=["p" * 200])


@pytest.mark.parametrize(
    "options",
    [
        {"weights": [1]},
        {"weights": [1, 0]},
        {"weights": [1, -1]},
        {"weights": ["1", "2"]},
        {"prefix": ["a"]},
        {"prefix": ["a.", "b"]},
        {"prefix": ["a/.", "b"]},
        {"prefix": ["__a__/", "b"]},
        {"until": "last"},
    ],
)
def test_bad_options(tmp_path, options):
    for name in "ab":
        put(tmp_path, "1.tar", samples([name], txt="{key}"), name)
    with pytest.raises(BadRequest):
        merge(tmp_path, [bucket("a"), bucket("b")], **options)


def test_a_bucket_that_is_named_very_many_times():
    spec = {"operation": "merge", "input": [{"bucket": "in"}] * 257, "output": {"bucket": "out", "pattern": "m-%03d.tar"}}
    with pytest.raises(BadRequest, match="merge takes at most 256 inputs, not 257"):
        parse_spec(msgspec.json.encode(spec))
