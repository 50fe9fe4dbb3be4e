"""Bad input and bad days of training runs: PyTorch's loaders, with workers that are killed, too many, or given broken data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Cluster, go_on_without, wait_for
from job_shards import samples, tar_of

from dfc.client import Client
from dfc.errors import DfcError
from dfc.inputs.base import InputError, SampleBroken, ShardChanged
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.torch import DataLoader, ShardDataset

BUCKET = "train"
# Five uneven shards; 100 samples.
UNEVEN = [[f"{shard}/{number:03d}" for number in range(count)] for shard, count in enumerate((33, 2, 40, 11, 14))]
KEYS = [key for keys in UNEVEN for key in keys]


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Client:
    with Client(cluster.url) as client:
        yield client


@pytest.fixture(scope="module")
def spec(client: Client) -> str:
    """The URL of the five shards."""
    return store(client, BUCKET, UNEVEN)


def store(client: Client, bucket: str, shards: list[list[str]], pad: int = 0) -> str:
    for number, keys in enumerate(shards):
        client.put(bucket, f"{number}.tar", tar_of(samples(keys, txt="{key}", cls="{number}", bin=bytes(pad))))
    return f"{client.url}/{bucket}/*.tar"


def keys_of(batches: list[dict]) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def loader(spec: str, workers: int, **options: object) -> DataLoader:
    return DataLoader(ShardDataset(spec, 4, **options), num_workers=workers)


def loaded(spec: str, workers: int, **options: object) -> list[dict]:
    return list(loader(spec, workers, **options))


# --- numbers that do not fit

# On machines with few processors torch warns of four workers.
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")


@many_workers
def test_more_workers_than_shards(client: Client) -> None:
    """One shard, four workers: each reads a part of it."""
    url = store(client, "one", [KEYS[:41]])
    found = loader(url, 4)
    batches = list(found)
    assert len(batches) == len(found) == 11
    assert set(keys_of(batches)) == set(KEYS[:41])
    assert found.dataset.counts.samples == 44


@many_workers
def test_more_workers_than_batches(client: Client) -> None:
    url = store(client, "few", [KEYS[:6]])
    assert sorted(Counter(keys_of(loaded(url, 4))).values()) == [1, 1, 1, 1, 2, 2]


def test_more_places_than_samples(client: Client) -> None:
    """Three samples, 2 ranks × 2 workers: a full batch for each rank, and all samples among them."""
    url = store(client, "tiny", [KEYS[:3]])
    ranks = [loaded(url, 2, rank=rank, ranks=2) for rank in range(2)]
    assert [[len(batch["__key__"]) for batch in batches] for batches in ranks] == [[4], [4]]
    assert set(keys_of(ranks[0] + ranks[1])) == set(KEYS[:3])
    with pytest.raises(ValueError, match="batch"):
        loaded(url, 2, rank=0, ranks=2, equal="drop")


# --- broken data


@pytest.fixture(scope="module")
def broken(client: Client) -> str:
    """Two shards: a class is not a number in samples 5 and 6, missing in 20."""
    members = [list(samples(KEYS[at : at + 15], txt="{key}", cls="1")) for at in (0, 15)]
    for number in (5, 6):
        members[0][2 * number + 1] = (members[0][2 * number + 1][0], b"one")
    del members[1][2 * 5 + 1]
    for number, shard in enumerate(members):
        client.put("broken", f"{number}.tar", tar_of(shard))
    return f"{client.url}/broken/*.tar"


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_samples_raise_by_default(broken: str, workers: int) -> None:
    with pytest.raises(SampleBroken) as raised:
        loaded(broken, workers, fields=["txt", "cls"])
    assert any(key in str(raised.value) for key in (KEYS[5], KEYS[6], KEYS[20]))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_samples_are_replaced_and_counted(broken: str, workers: int) -> None:
    """As many batches, all of them full: or one rank would wait for another for ever."""
    found = loader(broken, workers, fields=["txt", "cls"], handler="skip")
    batches = list(found)
    assert [len(batch["cls"]) for batch in batches] == [4] * len(found) == [4] * 8
    assert set(keys_of(batches)) == set(KEYS[:30]) - {KEYS[5], KEYS[6], KEYS[20]}
    counts = found.dataset.counts
    assert (counts.samples, counts.samples_skipped, counts.samples_replaced) == (32, 3, 3)


def test_too_many_broken_samples_end_a_run(client: Client) -> None:
    client.put("rotten", "0.tar", tar_of(samples(KEYS, txt="{key}", cls="none")))
    with pytest.raises(InputError):
        loaded(f"{client.url}/rotten/0.tar", 0, handler="skip")


def test_a_shard_that_was_stored_truncated_is_told_of_before_training(client: Client) -> None:
    whole = tar_of(samples(KEYS[:20], txt="{key}"))
    stored = client.put("cut", "0.tar", whole[: len(whole) // 2 + 100])
    assert stored.samples is None
    with pytest.raises(ValueError, match=r"0\.tar"):
        loaded(f"{client.url}/cut/0.tar", 2)


def test_a_shard_that_is_replaced_is_noticed(client: Client) -> None:
    """Between looking it up and reading it: half of an epoch would be of other data."""
    url = store(client, "moving", [KEYS[:20], KEYS[20:40]])
    found = loader(url, 0, shuffle=False)
    client.put("moving", "1.tar", tar_of(samples(KEYS[40:60], txt="{key}")))
    with pytest.raises(ShardChanged, match=r"1\.tar"):
        list(found)
    state = loader(url, 0).state_dict()
    client.put("moving", "0.tar", tar_of(samples(KEYS[60:70], txt="{key}")))
    with pytest.raises(ShardChanged):
        loader(url, 0).load_state_dict(state)


def test_what_is_not_there(client: Client, spec: str) -> None:
    with pytest.raises(DfcError, match="nothing"):
        loaded(f"{client.url}/nothing/*.tar", 0)
    with pytest.raises(DfcError, match=r"[5-7]\.tar"):
        loaded(spec.replace("*", "{0..7}"), 0)


# --- processes that end


def test_a_worker_that_is_killed_ends_the_epoch_with_an_error(client: Client) -> None:
    """At once, not by waiting for a batch that never comes; and a new epoch can be begun."""
    url = store(client, "long", [[f"{number:05d}" for number in range(2000)]], pad=2000)
    found = loader(url, 2)
    before = set(multiprocessing.active_children())
    batches = iter(found)
    next(batches)
    victim = next(process for process in multiprocessing.active_children() if process not in before)
    with pytest.raises(RuntimeError, match=r"worker .*killed|exited unexpectedly"):
        go_on_without(victim.pid, batches)
    wait_for(lambda: not set(multiprocessing.active_children()) - before, "the other worker to end")
    found.set_epoch(0)
    assert len(next(iter(found))["__key__"]) == 4


PROGRAM = """
import multiprocessing, sys
import torch.utils.data._utils.worker as torch_worker
from dfc.inputs.torch import DataLoader, ShardDataset

torch_worker.MP_STATUS_CHECK_INTERVAL = 0.5  # so often workers look for their parent; torch has 5 s
url, way = sys.argv[1:]
batches = iter(DataLoader(ShardDataset(url, 4), num_workers=2))
for _ in range(3): next(batches)
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
if way == "exit": sys.exit(3)
if way == "raise": raise ValueError("of the user's own")
if way == "wait": sys.stdin.read()
"""


@pytest.mark.parametrize(("way", "status"), [("return", 0), ("exit", 3), ("raise", 1), ("wait", -signal.SIGKILL)])
def test_a_program_that_ends_in_mid_epoch_leaves_no_workers(client: Client, way: str, status: int) -> None:
    """It comes to its end, exits, raises, or is killed."""
    url = store(client, "ending", [[f"{number:05d}" for number in range(2000)]], pad=2000)
    command = [sys.executable, "-c", PROGRAM, url, way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        workers = [int(pid) for pid in child.stdout.readline().split()]
        assert len(workers) == 2
        if way == "wait":
            child.kill()
        assert child.wait(120) == status
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "its workers to end")
        assert child.stderr is not None
        said = child.stderr.read()
    if way != "wait":
        assert said.strip().rpartition("\n")[2] == ("ValueError: of the user's own" if way == "raise" else "")


def test_a_cluster_that_is_killed_and_comes_back(start_cluster: Callable[..., Cluster]) -> None:
    """The rest of the epoch is what it would have been."""
    cluster = start_cluster(targets=2)
    with Client(cluster.url) as client:
        url = store(client, "big", [[f"{shard}/{number:04d}" for number in range(300)] for shard in range(2)], pad=150_000)
    options = {"streams": 1, "ahead_bytes": 1, "options": StreamOptions(retries=40)}
    whole = keys_of(loaded(url, 2, **options))
    found = loader(url, 2, **options)
    batches = iter(found)
    first = [next(batches) for _ in range(3)]
    for pid in cluster.children().values():
        os.kill(pid, signal.SIGKILL)
    assert keys_of(first + list(batches)) == whole
    assert found.dataset.counts.retries > 0


def test_nothing_of_a_rank_is_random(spec: str) -> None:
    """Random states of the process, and how many workers another rank has begun with, change no order."""
    torch.manual_seed(1)
    one = keys_of(loaded(spec, 2, rank=1, ranks=2))
    torch.manual_seed(2)
    assert keys_of(loaded(spec, 2, rank=1, ranks=2)) == one
    other = keys_of(loaded(spec, 2, rank=0, ranks=2))
    assert set(one) | set(other) == set(KEYS)
    assert len(one) == len(other) == 52
