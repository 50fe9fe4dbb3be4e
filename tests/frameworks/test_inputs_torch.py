"""PyTorch's loaders against a real cluster: ranks and workers, ends and beginnings of epochs, resuming, and what is killed."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Cluster, get, go_on_without, wait_for
from job_shards import tar_of

from dfc.client import Client
from dfc.inputs.base import SampleBroken, ShardChanged, ShardUnreadable
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.images import encode_npy
from dfc.inputs.loader import Loader
from dfc.inputs.torch import DataLoader, ShardDataset
from dfc.order import Place

# Three workers are more than some machines have processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
UNEVEN = (37, 3, 58, 11, 24)
TOTAL = sum(UNEVEN)
LARGE_SAMPLES, LARGE_BYTES, LARGE_SHARDS = 200, 20_000, 4


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.url) as client:
        client.create_bucket("small", durability="relaxed")
        put_uneven(client, "small")
        yield client


@pytest.fixture
def spec(cluster: Cluster, client: Client) -> str:
    """Five uneven shards, 133 samples whose class is their number."""
    return f"{cluster.url}/small/t-@000005.tar"


def put_uneven(client: Client, bucket: str) -> None:
    number = 0
    for shard, count in enumerate(UNEVEN):
        members = [(f"{number + k:05d}.cls", str(number + k).encode()) for k in range(count)]
        client.put(bucket, f"t-{shard:06d}.tar", tar_of(members))
        number += count


def labels(batches: Any) -> list[list[int]]:
    return [[int(label) for label in batch["cls"]] for batch in batches]


def in_turn(source: Any, ranks: int, rank: int, workers: int, epoch: int) -> list[list[int]]:
    """What DataLoader must give: a batch of each worker in turn."""
    parts = [labels(source.batches(Place(rank, ranks, worker, workers), epoch)) for worker in range(workers)]
    return [parts[n % workers][n // workers] for n in range(sum(map(len, parts)))]


# Two ranks with two workers each.


class Ranks:
    """Two processes of a training run, each the leader of a group with its workers."""

    def __init__(self, spec: str, folder: Path, epochs: int = 2, workers: int = 2) -> None:
        folder.mkdir(exist_ok=True)
        run = str(len(list(folder.glob("store-*"))))
        program = Path(__file__).parents[1] / "ddp_rank.py"
        command = [sys.executable, str(program), spec, str(folder), str(epochs), str(workers)]
        self.processes = [
            subprocess.Popen(
                command,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "RUN": run},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(2)
        ]

    def finish(self) -> list[dict[str, int]]:
        """Wait for both; what they say at the end."""
        found = []
        for process in self.processes:
            said, errors = process.communicate(timeout=250)
            assert process.returncode == 0, errors
            found.append(json.loads(said))
        return found

    def kill(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.communicate()


def steps_of(folder: Path, rank: int) -> list[tuple[int, ...]]:
    """Epoch and labels of each step that a rank has written whole."""
    lines = (folder / f"steps.{rank}").read_text().splitlines(keepends=True)
    return [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]


def test_two_ranks_with_two_workers_and_a_kill(spec: str, tmp_path: Path) -> None:
    """Five uneven shards for two epochs; then the same killed at a random step, and gone on with from the saved state."""
    whole = tmp_path / "whole"
    said = Ranks(spec, whole).finish()
    steps = [steps_of(whole, rank) for rank in range(2)]
    for epoch in range(2):
        batches = [[step[1:] for step in rank if step[0] == epoch] for rank in steps]
        assert len(batches[0]) == len(batches[1]) == 17
        times = Counter(label for rank in batches for batch in rank for label in batch)
        assert set(times) == set(range(TOTAL))
        assert sum(times.values()) - TOTAL == 3  # 136 places are 17 batches of 4 for each of 2
        assert max(times.values()) == 2
    assert [step[1:] for step in steps[0][:17]] != [step[1:] for step in steps[0][17:]]
    assert sum(rank["padded"] for rank in said) == 2 * 3
    assert {rank["padding"] for rank in said} == {3}
    assert sum(rank["samples"] for rank in said) == 2 * 136

    stop = random.randrange(2, 33)  # the state is saved after the line of its step
    killed = tmp_path / "killed"
    running = Ranks(spec, killed)
    written = killed / "steps.0"
    wait_for(lambda: written.exists() and written.read_text().count("\n") >= stop, f"step {stop}", 180)
    running.kill()
    state = json.loads((killed / "state.json").read_text())
    done = state["epoch"] * 17 + state["batches"]
    assert done >= stop - 1
    for rank in range(2):
        before = steps_of(killed, rank)
        assert before == steps[rank][: len(before)]
        (killed / f"steps.{rank}").unlink()
    Ranks(spec, killed).finish()
    for rank in range(2):
        rest = steps_of(killed, rank) if (killed / f"steps.{rank}").exists() else []
        assert rest == steps[rank][done:], f"killed at step {stop}, gone on at {done}"


# One rank: ways to start workers, epochs.


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (2, {}),
        (3, {"persistent_workers": True}),
        (2, {"persistent_workers": True, "multiprocessing_context": "spawn"}),
    ],
)
def test_epochs_of_one_rank(spec: str, workers: int, options: dict[str, Any]) -> None:
    """Each epoch is the next one, in an order of its own, whether its workers live on or not."""
    dataset = ShardDataset(spec, 8, seed=1, rank=1, ranks=2)
    loader = DataLoader(dataset, num_workers=workers, **options)
    source = Loader(dataset.source.corpus, 8, seed=1)  # type: ignore[attr-defined]
    for epoch in (0, 1, 7, 3, 3, 4):
        if epoch in (7, 3):
            loader.set_epoch(epoch)
        batches = list(loader)
        assert loader.epoch == epoch + 1
        assert all(isinstance(batch["cls"], torch.Tensor) and batch["cls"].dtype == torch.int64 for batch in batches)
        assert labels(batches) == in_turn(source, 2, 1, max(1, workers), epoch)
        assert len(batches) == len(loader) == len(dataset) == 9
    assert dataset.counts.samples == 6 * 9 * 8
    assert dataset.counts.samples_padded == 6 * (144 - TOTAL)


def test_the_dataset_in_the_loader_of_torch(spec: str) -> None:
    dataset = ShardDataset(spec, 8, seed=1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    source = Loader(dataset.source.corpus, 8, seed=1)  # type: ignore[attr-defined]
    for epoch in (0, 1, 5):
        if epoch == 5:
            dataset.set_epoch(5)
        assert labels(loader) == in_turn(source, 1, 0, 2, epoch)
    assert dataset.epoch == 5
    with pytest.raises(RuntimeError, match=r"state_dict\(\) of a dfc.inputs.torch.DataLoader"):
        dataset.state_dict()
    singles = torch.utils.data.DataLoader(ShardDataset(spec, seed=1), batch_size=8, num_workers=2)
    assert sorted(label for batch in singles for label in batch["cls"].tolist()) == list(range(TOTAL))


def test_an_epoch_that_is_left_early_ends_its_workers(spec: str) -> None:
    loader = DataLoader(ShardDataset(spec, 4), num_workers=2)
    batches = iter(loader)
    next(batches)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    assert children.read_text()
    workers = {int(pid) for pid in children.read_text().split() if b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    del batches
    wait_for(lambda: len(workers & set(map(int, children.read_text().split()))) <= len(workers) - 2, "the end of two workers")
    assert len(list(loader)) == len(loader)


class _Late:
    """Keeps the last worker from its first iteration until it was said once more where iterations begin."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def __call__(self, worker: int) -> None:
        info = torch.utils.data.get_worker_info()
        if worker == info.num_workers - 1:
            wait_for(lambda: int(info.dataset._shared[0, 3]) >= self.turns, "the next iteration")


def test_who_looks_at_one_batch_first_loses_nothing(spec: str) -> None:
    """Also when not all workers have begun by then, and whoever looks: each epoch is whole, and of one order."""
    whole = [labels(_epoch_of(spec, epoch)) for epoch in range(3)]

    loader = DataLoader(ShardDataset(spec, 4), 2, persistent_workers=True, worker_init_fn=_Late(2))
    next(iter(loader))
    loader.set_epoch(0)
    assert [labels(loader) for _ in range(2)] == whole[:2]

    dataset = ShardDataset(spec, 4)
    plain = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=2, persistent_workers=True, worker_init_fn=_Late(1)
    )
    next(iter(plain))
    dataset.set_epoch(0)
    assert [labels(plain) for _ in range(2)] == whole[:2]
    assert dataset.epoch == 1

    dataset = ShardDataset(spec, 4)
    next(iter(dataset))
    assert labels(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)) == whole[1]
    found = labels(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=3))
    assert {label for batch in found for label in batch} == set(range(TOTAL))


def test_torch_seeded_again_makes_other_epochs_all_the_same(spec: str) -> None:
    dataset = ShardDataset(spec, 4)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(labels(loader))
    assert found == [labels(_epoch_of(spec, epoch)) for epoch in range(3)]


def _epoch_of(spec: str, epoch: int) -> DataLoader:
    loader = DataLoader(ShardDataset(spec, 4), 2)
    loader.set_epoch(epoch)
    return loader


def test_going_back_to_a_state_in_the_same_program(spec: str) -> None:
    loader = DataLoader(ShardDataset(spec, 4), 2)
    running = iter(loader)
    begun = labels(next(running) for _ in range(5))
    state = loader.state_dict()
    rest = labels(running)
    loader.load_state_dict(state)
    loader.set_epoch(loader.epoch)  # keeps the place in it
    assert labels(loader) == rest
    loader.set_epoch(0)
    assert labels(loader) == begun + rest
    # The next epoch may be of another number of workers.
    assert len(labels(DataLoader(loader.dataset, 3))) == len(loader)


def test_there_is_no_state_of_batches_that_come_as_they_are_made(spec: str) -> None:
    loader = DataLoader(ShardDataset(spec, 4), 2, in_order=False)
    assert len(labels(loader)) == len(loader)
    with pytest.raises(RuntimeError, match="in_order"):
        loader.state_dict()


def test_a_dataset_travels(spec: str) -> None:
    dataset = ShardDataset(spec, 4, seed=2, fields=["cls"], decode={"cls": int})
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert labels(copy) == labels(dataset)
    copy.set_epoch(4)
    assert dataset.epoch == 0


def test_rank_and_ranks_come_from_the_environment(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ShardDataset(spec, 4)
    assert (dataset.place.rank, dataset.place.ranks, len(dataset)) == (0, 1, 34)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (dataset.place.rank, dataset.place.ranks, len(dataset)) == (2, 3, 12)
    assert ShardDataset(spec, 4, rank=1, ranks=2).place == Place(1, 2)
    with pytest.raises(ValueError, match="pass both"):
        ShardDataset(spec, 4, rank=1)


# Resuming.


@pytest.mark.parametrize(("workers", "shuffle"), [(0, True), (0, 30), (0, False), (0, "global"), (3, 30), (2, "global")])
def test_resumed_at_any_batch(spec: str, workers: int, shuffle: Any) -> None:
    def loader() -> DataLoader:
        return DataLoader(ShardDataset(spec, 4, seed=5, shuffle=shuffle), num_workers=workers)

    whole = loader()
    epochs = [labels(whole) for _ in range(3)]
    stop = random.randrange(1, 34)
    first = loader()
    first.set_epoch(1)
    batches = iter(first)
    begun = labels([next(batches) for _ in range(stop)])
    state = json.loads(json.dumps(first.state_dict()))
    del batches
    assert begun == epochs[1][:stop]
    second = loader()
    second.load_state_dict(state)
    second.set_epoch(second.epoch)
    assert labels(second) == epochs[1][stop:], f"stopped at {stop}"
    assert labels(second) == epochs[2]
    assert second.state_dict()["epoch"] == 3


def test_each_worker_keeps_its_own_place(spec: str) -> None:
    """The protocol of torchdata's StatefulDataLoader: it asks and tells the dataset in each worker."""

    def loader(dataset: Any, **options: Any) -> Any:
        return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, **options)

    whole = labels(loader(ShardDataset(spec, 4, seed=5)))
    states: list[Any] = [None, None]
    batches = iter(loader(_WithState(spec, 4, seed=5)))
    for number in range(9):
        _, state = next(batches)
        states[number % 2] = json.loads(json.dumps(state))
    del batches
    assert [state["batches"] for state in states] == [5, 4]
    rest = labels(loader(ShardDataset(spec, 4, seed=5), worker_init_fn=_Load(states)))
    # Such a loader begins with the worker whose turn it is; torch's begins with the first.
    assert sorted(rest) == sorted(whole[9:])
    assert rest[:24:2] == whole[10::2]
    assert rest[1:24:2] + rest[24:] == whole[9::2]


class _WithState(ShardDataset):
    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch, self.state_dict()


class _Load:
    def __init__(self, states: list[Any]) -> None:
        self.states = states

    def __call__(self, worker: int) -> None:
        info = torch.utils.data.get_worker_info()
        info.dataset.load_state_dict(self.states[worker])


def test_other_ranks_workers_and_shards_are_refused(spec: str, cluster: Cluster, client: Client) -> None:
    state = DataLoader(ShardDataset(spec, 4), num_workers=2).state_dict()
    with pytest.raises(ValueError, match="1 ranks × 2 workers, but this loader has 1 ranks × 3 workers"):
        DataLoader(ShardDataset(spec, 4), num_workers=3).load_state_dict(state)
    with pytest.raises(ValueError, match="1 ranks × 2 workers, but this loader has 2 ranks × 2 workers"):
        DataLoader(ShardDataset(spec, 4, rank=0, ranks=2), num_workers=2).load_state_dict(state)
    dataset = ShardDataset(spec, 4)
    dataset.load_state_dict({**state, "batches": 3})
    with pytest.raises(ValueError, match="the state is of 2 workers"):
        list(DataLoader(dataset, num_workers=3))
    dataset = ShardDataset(spec, 4)
    dataset.load_state_dict({**state, "batches": 3})
    batches = iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=3))
    with pytest.raises(ValueError, match="the state is of 2 workers"):
        next(batches)
    batches._shutdown_workers()  # as garbage they would take 5 s each
    with pytest.raises(ValueError, match="a single worker"):
        DataLoader(ShardDataset(spec, 4), num_workers=2).load_state_dict({**state, "part": 1})
    client.create_bucket("changing")
    put_uneven(client, "changing")
    changing = f"{cluster.url}/changing/t-@000005.tar"
    state = DataLoader(ShardDataset(changing, 4)).state_dict()
    client.put("changing", "t-000001.tar", tar_of([(f"{n}.cls", b"7") for n in range(3)]))
    with pytest.raises(ShardChanged):
        DataLoader(ShardDataset(changing, 4)).load_state_dict(state)


def counted(cluster: Cluster, beginning: str) -> int:
    """The sum over the targets of the metrics that begin so."""
    total = 0.0
    for url in cluster.target_urls():
        lines = get(f"{url}/metrics", 10).decode().splitlines()
        total += sum(float(line.split()[-1]) for line in lines if line.startswith(beginning))
    return int(total)


def sent_bytes(cluster: Cluster) -> int:
    """All that the targets have sent of objects."""
    return counted(cluster, 'dfc_http_sent_bytes_total{route="/v1/objects/')


@pytest.fixture(scope="module")
def large(cluster: Cluster, client: Client) -> str:
    client.create_bucket("resumed-large", durability="relaxed")
    for shard in range(LARGE_SHARDS):
        content = random.Random(shard).randbytes(LARGE_BYTES)
        client.put("resumed-large", f"{shard}.tar", tar_of([(f"{shard}/{n}.bin", content) for n in range(LARGE_SAMPLES)]))
    return f"{cluster.url}/resumed-large/*.tar"


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_fetches_only_what_is_left(cluster: Cluster, large: str, workers: int) -> None:
    total, window, batch = LARGE_SAMPLES * LARGE_SHARDS, 50, 10
    sample = LARGE_BYTES + 512 + -LARGE_BYTES % 512

    def loader() -> DataLoader:
        dataset = ShardDataset(large, batch, shuffle=window, decode=False)
        return DataLoader(dataset, num_workers=workers)

    first = loader()
    batches = iter(first)
    for _ in range(55):
        next(batches)
    state = first.state_dict()
    del batches
    before = sent_bytes(cluster)
    began = time.monotonic()
    second = loader()
    second.load_state_dict(state)
    batches = iter(second)
    next(batches)
    seconds = time.monotonic() - began
    left = 1 + sum(1 for _ in batches)
    assert left == total // batch - 55
    received = second.dataset.counts.size
    sent = (
        wait_for(lambda: max(0, sent_bytes(cluster) - before - received + 1), "the servers' count of what was received")
        + received
        - 1
    )
    needed = left * batch * sample
    assert needed <= received <= needed + max(1, workers) * window * sample + LARGE_SHARDS * 2048  # and the ends of archives
    assert sent <= received + 100_000  # small requests: where samples begin
    assert seconds < 60


def test_the_first_sample_of_many_shards_comes_at_once(cluster: Cluster, client: Client) -> None:
    client.create_bucket("many", durability="relaxed")
    from concurrent.futures import ThreadPoolExecutor

    shards = 1000
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: client.put("many", f"{n:06d}.tar", tar_of([(f"{n}.cls", b"%d" % n)])), range(shards)))
    before = counted(cluster, "dfc_http_requests_total")
    loader = Loader(f"{cluster.url}/many/@{shards:06d}.tar", 1)
    batches = iter(loader)
    next(batches)
    assert counted(cluster, "dfc_http_requests_total") - before < shards / 10
    assert len(loader) == shards
    loader.close()


# What is broken.


def test_a_killed_worker_is_an_error(spec: str) -> None:
    def slow(sample: Any) -> Any:
        time.sleep(0.02)  # so that the epoch does not end first
        return sample

    loader = DataLoader(ShardDataset(spec, 1, transform=slow), num_workers=2, prefetch_factor=1, timeout=60)
    batches = iter(loader)
    next(batches)
    worker = batches.gi_frame.f_locals["batches"]._workers[0]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"killed|exited"):
        go_on_without(worker.pid, batches)


def _break_at(label: int) -> Callable[[Any], Any]:
    def transform(sample: Any) -> Any:
        if sample["cls"] == label:
            raise RuntimeError("broken")
        return sample

    return transform


def test_errors_of_workers_arrive(spec: str) -> None:
    """And end the workers; the loader can be used again."""
    broken = ShardDataset(Corpus.open(spec), 4, transform=_break_at(70))
    loader = DataLoader(broken, num_workers=2, persistent_workers=True)
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(SampleBroken, match=r"'00070'.*transform failed: RuntimeError: broken"):
            list(loader)
        assert time.monotonic() - began < 50


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_stay_equal_when_a_shard_is_lost(cluster: Cluster, client: Client, workers: int) -> None:
    bucket = f"losing-{workers}"
    client.create_bucket(bucket, durability="relaxed")
    put_uneven(client, bucket)
    spec = f"{cluster.url}/{bucket}/t-@000005.tar"
    datasets = [ShardDataset(spec, 4, seed=1, rank=rank, ranks=2, handler="skip") for rank in range(2)]
    strict = ShardDataset(spec, 4, seed=1)
    client.delete(bucket, "t-000002.tar")
    found = []
    for dataset in datasets:
        batches = labels(DataLoader(dataset, num_workers=workers))
        assert len(batches) == 17
        assert all(len(batch) == 4 for batch in batches)
        found += [label for batch in batches for label in batch]
    assert set(found) == set(range(40)) | set(range(98, TOTAL))
    counts = [dataset.counts for dataset in datasets]
    padded = sum(count.samples_padded for count in counts)
    assert padded == 3
    replaced = sum(count.samples_replaced for count in counts)
    assert replaced == sum(count.samples_skipped for count in counts)
    assert UNEVEN[2] <= replaced <= UNEVEN[2] + padded
    assert sum(count.shards_skipped for count in counts) >= 1
    with pytest.raises(ShardUnreadable, match="t-000002"):
        list(strict)
    client.put(bucket, "t-000002.tar", tar_of([("x.cls", b"1")]))
    with pytest.raises(ShardChanged, match="t-000002"):
        list(strict)


def test_a_missing_shard_is_said_when_the_corpus_is_looked_up(cluster: Cluster, client: Client, spec: str) -> None:
    more = spec.replace("@000005", "@000007")
    with pytest.raises(ShardUnreadable, match="t-000005"):
        Loader(more, 4)
    loader = Loader(more, 4, handler="skip")
    assert loader.samples == TOTAL
    assert loader.counts.shards_skipped == 2
    assert [problem.url[-12:] for problem in loader.corpus.lost] == ["t-000005.tar", "t-000006.tar"]


def test_compressed_shards_are_cut_at_samples_too(cluster: Cluster, client: Client) -> None:
    import gzip

    client.create_bucket("packed", durability="relaxed")
    for shard in range(3):
        members = [(f"{shard}{n:03d}.npy", encode_npy(np.full(50, shard * 100 + n))) for n in range(100)]
        name = f"{shard}.tgz" if shard < 2 else f"{shard}.tar"  # compressed under a name that does not say so
        client.put("packed", name, gzip.compress(tar_of(members), 1))
    corpus = Corpus.open(f"{cluster.url}/packed/*")
    found = []
    for rank in range(2):
        for worker in range(2):
            batches = Loader(corpus, 5, seed=3).batches(Place(rank, 2, worker, 2), 0)
            found += [int(value) for batch in batches for value in batch["npy"][:, 0]]
    assert sorted(found) == list(range(300))
