"""reshuffle and reshard: exact, the same bytes by either strategy and any number of attempts, from all sorts of archives."""

from __future__ import annotations

import tracemalloc
from itertools import islice
from pathlib import Path

import pytest
from folder_store import run_job
from job_shards import put
from jobs_ordered import SampleList, canonical, compress, dataset, gnu_tar_reads, samples_of, spec

from dfc.errors import BadRequest
from dfc.jobs.operations import reshard
from dfc.jobs.tasks import InputShard, JobInput
from dfc.listing.specs import OutputPattern
from dfc.order import Permutation


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store")
    dataset(path, "in", 6, 60)
    compress(path, "in", "packed", ".tgz")
    return path


@pytest.fixture(scope="module")
def everything(folder) -> SampleList:
    return [sample for path in sorted((folder / "in").iterdir()) for sample in samples_of(path.read_bytes())]


def shuffled(everything: SampleList, seed: int) -> SampleList:
    return [everything[i] for i in Permutation(seed, len(everything)).ordinals(0, len(everything))]


@pytest.mark.parametrize("strategy", ["gather", "spill"])
@pytest.mark.parametrize("memory", [1 << 18, 64 << 20])
def test_reshuffle_is_the_permutation_in_canonical_shards(folder, everything, strategy, memory):
    options = {"seed": 42, "samples_per_shard": 70, "strategy": strategy}
    done = run_job(folder, spec("reshuffle", options), memory_bytes=memory, twice=True)
    expected = shuffled(everything, 42)
    assert list(done.outputs) == [f"o-{k:03d}.tar" for k in range(5)]
    for k, content in enumerate(done.outputs.values()):
        assert content == canonical(expected[70 * k : 70 * (k + 1)])
        assert gnu_tar_reads(content) == [name for sample in expected[70 * k : 70 * (k + 1)] for name, _ in sample]
    assert done.samples == 300


def test_every_way_gives_the_same_digest(folder):
    options = {"seed": 1, "shard_size": "100 kB"}
    digests = {
        run_job(folder, spec("reshuffle", options | {"strategy": strategy}, source=source), memory_bytes=memory).digest
        for strategy, source, memory in [
            ("auto", "in", 64 << 20), ("spill", "in", 1 << 18), ("auto", "packed", 64 << 20), ("spill", "packed", 1 << 17),
        ]
    }  # fmt: skip
    assert len(digests) == 1


def test_no_size_gives_the_successor_of_each_shard(folder, everything):
    done = run_job(folder, spec("reshuffle", {}))
    assert [len(samples_of(content)) for content in done.outputs.values()] == [60] * 5 + [0]
    assert [sample for content in done.outputs.values() for sample in samples_of(content)] == shuffled(everything, 0)


def test_size_of_a_shuffled_shard_is_a_number_of_samples(folder, everything):
    total = sum(path.stat().st_size for path in (folder / "in").iterdir())
    done = run_job(folder, spec("reshuffle", {"shard_size": total // 3}))
    counts = [len(samples_of(content)) for content in done.outputs.values()]
    assert counts[:-1] == [max(1, (total // 3) * 300 // total)] * (len(counts) - 1)
    assert sum(counts) == 300


def test_gathering_from_compressed_shards_is_refused(folder):
    with pytest.raises(BadRequest, match="compressed"):
        run_job(folder, spec("reshuffle", {"strategy": "gather"}, source="packed"))


@pytest.mark.parametrize(
    "options", [{"seed": -1}, {"samples_per_shard": 0}, {"strategy": "x"}, {"sead": 1}, {"shard_size": "x"}]
)
def test_bad_options(folder, options):
    with pytest.raises(BadRequest):
        run_job(folder, spec("reshuffle", options))


@pytest.mark.parametrize("pattern", ["one.tar", "o-%03d/", "o-%03d.zip", "o-{part}-%03d.tar"])
def test_bad_patterns(folder, pattern):
    with pytest.raises(BadRequest):
        run_job(folder, spec("reshuffle", {}, pattern=pattern))


def test_compressed_outputs_hold_the_same(folder):
    plain = run_job(folder, spec("reshuffle", {"samples_per_shard": 100}))
    packed = run_job(folder, spec("reshuffle", {"samples_per_shard": 100}, pattern="o-%03d.tar.zst"))
    assert [samples_of(c, "zst") for c in packed.outputs.values()] == [samples_of(c) for c in plain.outputs.values()]


@pytest.mark.parametrize("source", ["in", "packed"])
@pytest.mark.parametrize("strategy", ["auto", "spill"])
def test_reshard_by_count(folder, everything, source, strategy):
    done = run_job(folder, spec("reshard", {"samples_per_shard": 47, "strategy": strategy}, source=source), twice=True)
    assert list(done.outputs.values()) == [canonical(everything[i : i + 47]) for i in range(0, 300, 47)]


@pytest.mark.parametrize("source", ["in", "packed"])
def test_reshard_without_a_size_tidies_each_shard(folder, source):
    done = run_job(folder, spec("reshard", {}, source=source))
    shards = [canonical(samples_of(path.read_bytes())) for path in sorted((folder / "in").iterdir())]
    assert list(done.outputs.values()) == shards


def by_size(everything: SampleList, limit: int) -> list[bytes]:
    shards: list[SampleList] = [[]]
    for sample in everything:
        if shards[-1] and len(canonical([*shards[-1], sample])) > limit:
            shards.append([])
        shards[-1].append(sample)
    return [canonical(shard) for shard in shards]


@pytest.mark.parametrize("limit", [1, 4000, 50_000, 10**9])
def test_reshard_by_size_closes_before_the_sample_that_is_too_much(folder, everything, limit):
    done = run_job(folder, spec("reshard", {"shard_size": limit}, pattern="o-%06d.tar"))
    assert list(done.outputs.values()) == by_size(everything, limit)


def test_sizes_over_many_tables(folder, everything, monkeypatch):
    monkeypatch.setattr("dfc.jobs.data.ordering.MEASURE_PLACES", 7)
    for limit in (3000, 20_000):
        done = run_job(folder, spec("reshard", {"shard_size": limit}, pattern="o-%06d.tar"))
        assert list(done.outputs.values()) == by_size(everything, limit)


@pytest.mark.parametrize("fan_out", [2, 4, 300])
def test_many_passes(folder, everything, monkeypatch, fan_out):
    monkeypatch.setattr("dfc.jobs.data.spilling.FAN_OUT", fan_out)
    monkeypatch.setattr("dfc.jobs.data.spilling.FENCE_SAMPLES", 3)
    done = run_job(folder, spec("reshuffle", {"seed": 5, "samples_per_shard": 20, "strategy": "spill"}), memory_bytes=1 << 18)
    expected = shuffled(everything, 5)
    assert list(done.outputs.values()) == [canonical(expected[i : i + 20]) for i in range(0, 300, 20)]
    assert ("merge2" in done.results) == (fan_out == 2)


def test_lookups_in_pieces(folder, everything, monkeypatch):
    monkeypatch.setattr("dfc.jobs.data.gathering.LOOKUP_SAMPLES", 16)
    done = run_job(folder, spec("reshuffle", {"samples_per_shard": 150}))
    assert list(done.outputs.values()) == [canonical(shuffled(everything, 0)[i : i + 150]) for i in (0, 150)]


@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_large_members_are_sent_or_copied_in_pieces(tmp_path, strategy):
    everything = dataset(tmp_path, "in", 4, 8, seed=3, mean=150_000)
    done = run_job(tmp_path, spec("reshuffle", {"samples_per_shard": 5, "strategy": strategy}), memory_bytes=1 << 19)
    expected = shuffled(everything, 0)
    assert list(done.outputs.values()) == [canonical(expected[i : i + 5]) for i in range(0, 24, 5)]


@pytest.mark.parametrize("name", ["tendata.tar", "mpdata.tar", "sample.tgz"])
@pytest.mark.parametrize("strategy", ["auto", "spill"])
def test_real_shards(tmp_path, data, name, strategy):
    shard = put(tmp_path, name, (data / name).read_bytes())
    everything = samples_of(shard.read_bytes(), "gz" if name.endswith("gz") else "tar")
    done = run_job(tmp_path, spec("reshuffle", {"samples_per_shard": 3, "strategy": strategy}))
    expected = shuffled(everything, 0)
    assert list(done.outputs.values()) == [canonical(expected[i : i + 3]) for i in range(0, len(expected), 3)]


def test_nothing_in_nothing_out(tmp_path):
    dataset(tmp_path, "in", 1, 0)
    assert list(run_job(tmp_path, spec("reshuffle", {})).outputs.values()) == [canonical([])]
    assert run_job(tmp_path, spec("reshuffle", {"samples_per_shard": 5})).outputs == {}
    assert run_job(tmp_path, spec("reshard", {"shard_size": 5000, "strategy": "spill"})).outputs == {}


@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_long_lists_of_shards_are_written_down_once(folder, everything, monkeypatch, strategy):
    monkeypatch.setattr("dfc.jobs.data.corpus.JOB_INLINE_SHARDS_MAX", 2)
    options = {"samples_per_shard": 45, "strategy": strategy}
    done = run_job(folder, spec("reshuffle", options), twice=True)
    assert len(done.results["shards"]) == 3
    assert list(done.outputs.values()) == [canonical(shuffled(everything, 0)[i : i + 45]) for i in range(0, 300, 45)]
    assert run_job(folder, spec("sort", {"by": "cls", "shard_size": 9000})).samples == 300


def test_an_output_for_every_sample_of_a_huge_dataset_is_planned_in_little_memory():
    shard = InputShard("in", "a.tar", "v", "c", 10**12, 10**12, 3_000_000, 3_000_000, 0, 0, "tar", "t1")
    options = reshard.Options(samples_per_shard=1)
    job = JobInput(options, ((shard,),), "out", OutputPattern("x-%06d.tar"), 64 << 20, lambda name: "t1")
    (stage,) = reshard.plan(job)
    tracemalloc.start()
    assert stage.count_after({}) == 3_000_000
    assert [draft.label for draft in islice(stage.tasks({}), 3)] == ["x-000000.tar", "x-000001.tar", "x-000002.tar"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
