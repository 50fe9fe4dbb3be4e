"""Global shuffle, mixing, random access and the local cache against real clusters."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Cluster, open_files, wait_for
from job_shards import tar_of

from dfc.client import Client
from dfc.inputs import gopen
from dfc.inputs.base import Counts, SampleBroken, ShardChanged, ShardUnreadable
from dfc.inputs.epochs.gather import BatchShard, Gather
from dfc.inputs.loader import Loader
from dfc.inputs.mapstyle import MapDataset
from dfc.inputs.mixing import Mixture
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import Stream, StreamOptions
from dfc.order import Place
from loadtest.nginx import nginx

SHARDS = 5
IMAGE_BYTES = 20_000
COUNTS = [300 + 37 * shard for shard in range(SHARDS)]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def files_of(shard: int) -> list[tuple[str, bytes]]:
    """Keys repeat from shard to shard, and shards differ in their extensions: samples must not be mixed all the same."""
    draw = random.Random(shard)
    files = []
    for number in range(COUNTS[shard]):
        key = f"{'x' * 120 if number % 50 == 7 else 'd'}/{number:06d}"
        if shard != 3:
            files.append((f"{key}.jpg", draw.randbytes(IMAGE_BYTES + draw.randrange(600))))
        if shard != 4:
            files.append((f"{key}.cls", b"%d" % (1000 * shard + number)))
    return files


def samples_of(files: list[tuple[str, bytes]], url: str) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    for name, body in files:
        key, _, extension = name.partition(".")
        if not samples or samples[-1]["__key__"] != key:
            samples.append({"__key__": key, "__source__": url})
        samples[-1][extension] = body
    return samples


@pytest.fixture(scope="module")
def cluster(start_cluster: Any) -> Cluster:
    cluster: Cluster = start_cluster(targets=2)
    return cluster


@pytest.fixture(scope="module")
def fragile(start_cluster: Any) -> Cluster:
    """For tests that do harm: one kills its target, which comes back; the last one ends it."""
    cluster: Cluster = start_cluster(targets=1)
    return cluster


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Any:
    with Client(cluster.url) as client:
        yield client


@pytest.fixture(scope="module")
def corpus(cluster: Cluster, client: Client) -> tuple[list[BatchShard], list[dict[str, Any]]]:
    """Shards of all formats, and every sample of them in order."""
    shards, samples = [], []
    for shard in range(SHARDS):
        files = files_of(shard)
        name, url = f"s-{shard}.tar", f"{cluster.url}/gathered/s-{shard}.tar"
        stored = client.put("gathered", name, tar_of(files, FORMATS[shard % 3], mtime=1.5))
        assert stored.samples == COUNTS[shard]
        shards.append(BatchShard(url, "gathered", name, stored.checksum, COUNTS[shard]))
        samples += samples_of(files, url)
    return shards, samples


def flat(portions: Any) -> list[Any]:
    return [sample for portion in portions for sample in portion]


@pytest.mark.parametrize("readers", [1, 3])
def test_samples_come_in_the_order_of_their_numbers(cluster: Cluster, corpus: Any, readers: int) -> None:
    shards, samples = corpus
    order = np.random.default_rng(readers).permutation(len(samples))
    # Neighbours with one key and different extensions, which a tar cannot tell apart.
    order[:4] = [0, sum(COUNTS[:3]), sum(COUNTS[:4]), 0]
    counts = Counts()
    pieces = np.split(order, [1, 5, 300, 301])
    with Gather(shards, pieces, lambda: Client(cluster.url), size=30_000_000, readers=readers, counts=counts) as gather:
        found = flat(gather)
    assert found == [samples[number] for number in order]
    assert counts.retries == 0
    assert counts.size > sum(len(sample.get("jpg", b"")) for sample in samples)


def test_only_the_fields_that_are_wanted_are_kept(cluster: Cluster, corpus: Any) -> None:
    shards, samples = corpus
    numbers = np.arange(0, len(samples), 11)  # among them names that need long headers
    with Gather(shards, [numbers], lambda: Client(cluster.url), fields={"cls"}) as gather:
        found = flat(gather)
    assert found == [{name: value for name, value in samples[number].items() if name != "jpg"} for number in numbers]


def test_dropping_it_in_mid_stream_ends_its_threads(cluster: Cluster, corpus: Any) -> None:
    shards, samples = corpus
    before = set(threading.enumerate())  # those of the last test may be about to end
    iterator = iter(Gather(shards, [np.arange(len(samples))], lambda: Client(cluster.url), ahead_bytes=2_000_000))
    assert next(iterator)[0] == samples[0]
    del iterator
    wait_for(lambda: set(threading.enumerate()) <= before, "the threads to end")


def test_a_consumer_that_takes_its_time_keeps_no_answer_open(cluster: Cluster, corpus: Any) -> None:
    shards, samples = corpus
    size = sum(len(value) for sample in samples for value in sample.values())
    pids = [pid for name, pid in cluster.children().items() if name.startswith("target")]

    def blobs_open() -> int:
        links = [link for pid in pids for link in open_files(pid)]
        return sum("/objects/" in link and not link.endswith(".idx") for link in links)

    order = np.random.default_rng(1).permutation(len(samples))
    with Gather(shards, [order], lambda: Client(cluster.url), size=size, ahead_bytes=16_000_000) as gather:
        iterator = iter(gather)
        found = next(iterator)
        wait_for(lambda: blobs_open() == 0, "the answers to be taken whole")
        assert gather.counts.size < 20_000_000 < size
        found += flat(iterator)
    assert found == [samples[number] for number in order]


def test_a_broken_connection_is_continued(fragile: Cluster) -> None:
    cluster = fragile
    files = files_of(0)
    with Client(cluster.url) as client:
        etag = client.put("gathered", "s.tar", tar_of(files)).checksum
    shard = BatchShard(f"{cluster.url}/gathered/s.tar", "gathered", "s.tar", etag, COUNTS[0])
    samples = samples_of(files, shard.url)
    order = np.random.default_rng(5).integers(0, len(samples), 6000)
    counts = Counts()
    found: list[Any] = []
    killed = False
    with Gather([shard], [order], lambda: Client(cluster.url), size=len(samples), readers=1, counts=counts) as gather:
        for portion in gather:  # without a pause: a reader that is as far ahead as it may be meets no break
            found += portion
            if len(found) >= 1500 and not killed:  # 80 MB more than the sockets hold
                os.kill(cluster.children()["target-0"], signal.SIGKILL)  # it is asked directly
                killed = True
    assert found == [samples[number] for number in order]
    assert counts.retries >= 1


def test_shards_that_changed_or_are_gone_stand_as_errors(cluster: Cluster, client: Client, corpus: Any) -> None:
    shards, samples = corpus
    changed = shards[1]._replace(etag="0" * 32)
    gone = shards[2]._replace(name="gone.tar")
    fewer = shards[3]._replace(samples=COUNTS[3] + 1)
    broken = [shards[0], changed, gone, fewer, shards[4]]
    total = len(samples) + 1
    order = np.random.default_rng(1).permutation(total)
    with Gather(broken, [order], lambda: Client(cluster.url)) as gather:
        found = flat(gather)
    assert len(found) == total
    lost = {1: ShardChanged, 2: ShardUnreadable, 3: ShardUnreadable}
    starts = np.cumsum([0, *(shard.samples for shard in broken)])
    for number, sample in zip(order.tolist(), found, strict=True):
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        if shard in lost and not isinstance(sample, dict):
            assert type(sample) is lost[shard]
            assert sample.url == broken[shard].url
        else:
            assert sample == samples[number - (shard > 3)]
            assert shard in (0, 3, 4)


def test_a_cluster_that_is_not_there_raises(corpus: Any) -> None:
    shards, _ = corpus
    gather = Gather(shards, [np.arange(3)], lambda: Client("http://127.0.0.1:9", retries=0))
    with pytest.raises(ShardUnreadable, match=r"127\.0\.0\.1:9"):
        list(gather)


def test_numbers_that_are_none_raise(cluster: Cluster, corpus: Any) -> None:
    shards, samples = corpus
    with pytest.raises(IndexError):
        list(Gather(shards, [np.array([len(samples)])], lambda: Client(cluster.url)))


LEFT = """
import sys
from dfc.inputs.numpy import Loader
from dfc.inputs.mixing import Mixture

options = {"decode": False, "transform": lambda sample: 1, "threads": 2, "shuffle": "global"}
source = Loader(sys.argv[1], 10, collate=sum, **options)
if sys.argv[2] == "mixture":
    source = Mixture([Loader(sys.argv[1], **options)] * 2, [1, 2], 10, collate=sum)
iterator = iter(source)
print(next(iterator))
"""


@pytest.mark.parametrize("kind", ["global", "mixture"])
def test_the_interpreter_ends_in_mid_epoch(spec: str, kind: str) -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT, spec, kind], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "10\n", "")


# Random access.


@pytest.fixture(scope="module")
def spec(cluster: Cluster, corpus: Any) -> str:
    return f"{cluster.url}/gathered/s-@{SHARDS}.tar"


def test_samples_by_number_and_slice(spec: str, corpus: Any) -> None:
    samples = corpus[1]
    dataset = MapDataset(spec, decode=False)
    assert len(dataset) == len(samples)
    assert dataset[0] == samples[0]
    assert dataset[np.int64(7)] == samples[7]
    assert dataset[-1] == samples[-1]
    assert dataset[290:310] == samples[290:310]
    draw = random.Random(1)
    chosen = [draw.randrange(len(samples)) for _ in range(200)]
    assert dataset.__getitems__(chosen) == [samples[number] for number in chosen]
    assert list(dataset) == samples
    for wrong in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError):
            dataset[wrong]


def test_samples_by_key(spec: str, corpus: Any) -> None:
    samples = corpus[1]
    dataset = MapDataset(spec, decode={"cls": int, "*": False})
    assert dataset["d/000012"]["cls"] == 12  # of the first shard that has it
    last = f"d/{COUNTS[-1] - 1:06d}"
    assert dataset.index(last) == len(samples) - 1
    assert dataset[last]["jpg"] == samples[-1]["jpg"]
    found = dataset.__getitems__([3, last, "d/000001"])
    assert [sample["__key__"] for sample in found] == ["d/000003", last, "d/000001"]
    assert last in dataset
    assert "d/none" not in dataset
    with pytest.raises(KeyError, match="d/none"):
        dataset["d/none"]
    # A key whose hash equals that of another one.
    clash = np.where(dataset.key_index()._numbers == 1)[0]
    dataset.key_index()._numbers[clash] = 0
    assert dataset["d/000001"]["cls"] in (1, 1001)


def test_a_broken_sample_is_replaced_by_another_of_its_batch(spec: str) -> None:
    def transform(sample: dict[str, Any]) -> int:
        if int(sample["cls"]) % 3 == 1:
            raise ZeroDivisionError
        return int(sample["cls"])

    with closing(MapDataset(spec, decode=False, transform=transform, handler="skip")) as dataset:
        found = dataset.__getitems__([0, 1, 2, 3, 4, 5, 6, 7])
        assert [found[at] for at in (0, 2, 3, 5, 6)] == [0, 2, 3, 5, 6]
        assert {found[1], found[4], found[7]} <= {0, 2, 3, 5, 6}
        assert dataset.counts.samples_replaced == 3
        with pytest.raises(SampleBroken, match="d/000001"):
            dataset[1]
    with closing(MapDataset(spec, decode=False, transform=transform)) as dataset, pytest.raises(ZeroDivisionError):
        dataset[1]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_torch_reads_it_with_workers_and_samplers(spec: str, corpus: Any, context: str) -> None:
    import torch

    data = torch.utils.data
    dataset = MapDataset(f"{spec.rpartition('/')[0]}/s-{{0,1}}.tar", decode=True, only="cls")
    assert dataset["d/000000"]["cls"] == 0  # the parent has connections, which its children must not use
    workers = 1 if context == "spawn" else 2  # each imports torch anew
    part, _ = data.random_split(dataset, [0.5, 0.5], generator=torch.Generator().manual_seed(1))
    loader = data.DataLoader(
        part, batch_size=32, shuffle=True, num_workers=workers, collate_fn=labels, multiprocessing_context=context
    )
    found = [label for batch in loader for label in batch]
    assert sorted(found) == sorted(dataset[number]["cls"] for number in part.indices)


def labels(samples: list[dict[str, Any]]) -> list[int]:
    return [sample["cls"] for sample in samples]


def test_shards_that_are_replaced_have_other_numbers(cluster: Cluster, client: Client) -> None:
    client.put("changing", "a.tar", tar_of(files_of(0)[:20]))
    url = f"{cluster.url}/changing/a.tar"
    # Closed: an error that is kept keeps what it came through, and whoever collects that meets open sockets.
    with closing(MapDataset(url, decode=False)) as known, closing(MapDataset(url, decode=False)) as unknown:
        assert known["d/000003"] == known[3]
        client.put("changing", "a.tar", tar_of(files_of(0)[:30]))
        for read in (lambda: known[3], lambda: known["d/000003"], lambda: unknown["d/000003"]):
            with pytest.raises(ShardChanged, match=r"changing/a\.tar"):
                read()
    with closing(MapDataset(url)) as changed:
        assert len(changed) == 15


def test_shards_without_an_index_have_no_random_access(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(files_of(0)[:4]))
    with pytest.raises(ValueError, match="index"):
        MapDataset(str(tmp_path / "a.tar"))


# Global shuffle and mixing.


def key_of(sample: dict[str, Any]) -> tuple[str, str]:
    return sample["__source__"], sample["__key__"]


def test_the_global_shuffle_gives_every_sample_once_whoever_reads(spec: str, corpus: Any) -> None:
    samples = corpus[1]
    total = len(samples)
    found = []
    for rank in range(2):
        loader = Loader(spec, 32, shuffle="global", decode=False, seed=4, transform=key_of, collate=list)
        for worker in range(2):
            found += [key for batch in loader.batches(Place(rank, 2, worker, 2), 0) for key in batch]
    padding = Loader(spec, 32, shuffle="global").padding(2)
    assert len(found) == total + padding
    assert set(found) == set(map(key_of, samples))
    # Neighbours come from everywhere.
    sources = [source for source, _ in found[:64]]
    assert len(set(sources)) == SHARDS


def test_lost_shards_leave_batches_of_the_global_shuffle_as_many_as_they_were(cluster: Cluster, client: Client) -> None:
    for number in range(4):
        client.put("lossy", f"l-{number}.tar", tar_of(files_of(number)[:200]))
    spec = f"{cluster.url}/lossy/l-@4.tar"
    options: dict[str, Any] = {"shuffle": "global", "decode": False, "transform": key_of, "collate": list}
    loader, strict = Loader(spec, 20, handler="skip", **options), Loader(spec, 20, **options)
    client.put("lossy", "l-1.tar", tar_of(files_of(1)[:202]))
    client.delete("lossy", "l-2.tar")
    batches = list(loader)
    assert [len(batch) for batch in batches] == [20] * len(loader)
    left = {source for batch in batches for source, _ in batch}
    assert left == {f"{cluster.url}/lossy/l-{number}.tar" for number in (0, 3)}
    # The samples of l-3 have one member each, those of the others two.
    assert len({key for batch in batches for key in batch}) == 100 + 200
    assert loader.counts.shards_skipped == 2
    assert loader.counts.samples_skipped == loader.counts.samples_replaced == 200
    assert [error.partition(":")[0] for error in sorted(loader.counts.errors)] == ["ShardChanged", "ShardUnreadable"]
    with pytest.raises((ShardChanged, ShardUnreadable)):
        list(strict)


def sources_of(cluster: Cluster, **options: Any) -> list[Loader]:
    """Two datasets of very different sizes."""
    return [
        Loader(f"{cluster.url}/gathered/s-{{0,1,2}}.tar", decode=False, fields=["cls"], seed=7, **options),
        Loader(f"{cluster.url}/gathered/s-3.tar", decode=False, fields=["cls"], **options),
    ]


@pytest.mark.parametrize("shuffle", [True, "global", False])
def test_a_mixture_is_divided_among_ranks_and_workers_without_gaps(cluster: Cluster, spec: str, shuffle: Any) -> None:
    mixture = Mixture(sources_of(cluster, shuffle=shuffle), [1, 3], 20, seed=5, epoch_samples=2990)
    found: list[str] = []
    for rank in range(2):
        for worker in range(2):
            batches = list(mixture.batches(Place(rank, 2, worker, 2), 0))
            assert all(len(batch["cls"]) == 20 for batch in batches)
            found += [source for batch in batches for source in batch["__source__"]]
    assert len(found) == 3000
    assert mixture.padding(2) == mixture.counts.samples_padded == 10
    small = [source.endswith("s-3.tar") for source in found]
    assert small == (np.concatenate(list(mixture.turns.sources(0, 3000))) == 1).tolist()
    # The small one is gone through five times and more, evenly; the large one not even once.
    times = Counter(int(label) for rank in range(2) for label in labels_of(mixture, Place(rank, 2)))
    often = [times[3000 + number] for number in range(COUNTS[3])]
    assert sum(often) == sum(small)
    assert {sum(often) // COUNTS[3], sum(often) // COUNTS[3] + 1} == set(often)
    assert max(times[label] for label in times if label < 3000) == 1


def labels_of(mixture: Mixture, place: Place, epoch: int = 0, delivered: int = 0) -> list[bytes]:
    return [label for batch in mixture.batches(place, epoch, delivered) for label in batch["cls"]]


@pytest.mark.parametrize("shuffle", [True, "global"])
def test_a_mixture_goes_on_anywhere(cluster: Cluster, spec: str, shuffle: Any) -> None:
    mixture = Mixture(sources_of(cluster, shuffle=shuffle), [1, 1], 10, seed=5, epoch_samples=1500)
    for epoch, place in ((0, Place(0, 1, 0, 1)), (3, Place(1, 2, 1, 3))):
        whole = labels_of(mixture, place, epoch)
        for delivered in (1, 7, len(whole) // 10 - 1):
            assert labels_of(mixture, place, epoch, delivered) == whole[10 * delivered :]
    first = iter(mixture)
    begun = [next(first)["cls"] for _ in range(30)]
    state = json.loads(json.dumps(mixture.state_dict()))
    rest = [batch["cls"] for batch in first]
    other = Mixture(sources_of(cluster, shuffle=shuffle), [1, 1], 10, seed=5, epoch_samples=1500)
    other.load_state_dict(state)
    assert [batch["cls"] for batch in other] == rest
    assert len(begun) + len(rest) == len(mixture) == 150
    with pytest.raises(ValueError, match="shares"):
        Mixture(sources_of(cluster, shuffle=shuffle), [1, 2], 10, seed=5, epoch_samples=1500).load_state_dict(state)


@pytest.mark.parametrize("kind", ["mixture", "global"])
def test_torch_reads_it_with_workers_and_resumes(cluster: Cluster, spec: str, kind: str) -> None:
    from dfc.inputs import torch

    def source() -> Loader:
        if kind == "mixture":
            return Mixture(sources_of(cluster), [1, 1], 10, seed=5, epoch_samples=600)
        return Loader(f"{cluster.url}/gathered/s-{{0,1}}.tar", 10, decode=False, fields=["cls"], shuffle="global")

    plain = source()
    loader = torch.DataLoader(torch.ShardDataset(source()), num_workers=2)
    iterator = iter(loader)
    found = [tuple(next(iterator)["cls"]) for _ in range(21)]
    state = loader.state_dict()
    found += [tuple(batch["cls"]) for batch in iterator]
    parts = [[tuple(batch["cls"]) for batch in plain.batches(Place(0, 1, worker, 2), 0)] for worker in range(2)]
    assert found == [batch for pair in zip_longest(*parts) for batch in pair if batch]
    assert len(found) == len(plain)
    other = torch.DataLoader(torch.ShardDataset(source()), num_workers=2)
    other.load_state_dict(state)
    assert [tuple(batch["cls"]) for batch in other] == found[21:]


def test_sources_of_a_mixture_are_checked(cluster: Cluster, spec: str) -> None:
    sources = sources_of(cluster)
    with pytest.raises(ValueError, match="weights"):
        Mixture(sources, [1])
    with pytest.raises(ValueError, match="single samples"):
        Mixture([sources[0], Loader(spec, 5)], [1, 1])


# The local cache.


def test_shards_are_read_from_the_cache_when_the_server_is_gone(fragile: Cluster, tmp_path: Path) -> None:
    cluster = fragile
    body = tar_of(files_of(0))
    with Client(cluster.url) as client:
        etag = client.put("gathered", "s.tar", body).checksum
    url = f"{cluster.url}/gathered/s.tar"
    options = StreamOptions(cache_dir=str(tmp_path / "cache"))
    counts = Counts()
    for planned in (None, etag):
        with open_stream(url, start=1000, etag=planned, options=options, counts=counts) as stream:
            assert stream.indexed
            assert read_all(stream) == body[1000:]
    assert counts.shards_cached == 1
    cluster.stop()
    with open_stream(url, etag=etag, options=options) as stream:
        assert read_all(stream) == body
    assert [path.name for path in (tmp_path / "cache").glob("*.*")] == [f"{etag}.indexed"]


def read_all(stream: Stream) -> bytes:
    data, buffer = b"", bytearray(1 << 20)
    while count := stream.readinto(buffer):
        data += buffer[:count]
    return data


def test_a_loader_with_a_cache_fetches_every_shard_once_for_all_its_epochs_and_workers(
    cluster: Cluster, spec: str, corpus: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"decode": False, "transform": key_of, "collate": list, "cache_dir": str(tmp_path)}
    cached, plain = Loader(spec, 50, **options), Loader(spec, 50, **{**options, "cache_dir": None})
    for epoch in range(2):
        for worker in range(2):
            place = Place(0, 1, worker, 2)
            assert list(cached.batches(place, epoch)) == list(plain.batches(place, epoch))
        if epoch == 0:
            first = cached.counts.as_dict()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([*(f"{shard.etag}.indexed" for shard in corpus[0]), "lock"])
    whole = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert cached.counts.as_dict()["size"] == first["size"] == whole
    assert cached.counts.shards_cached > SHARDS


def test_processes_share_a_cache(spec: str, corpus: Any, tmp_path: Path) -> None:
    program = (
        "import sys; from dfc.inputs.loader import Loader; "
        "loader = Loader(sys.argv[1], decode=False, cache_dir=sys.argv[2], seed=int(sys.argv[3])); "
        "print(sum(len(sample) for sample in loader), loader.counts.size)"
    )
    command = [sys.executable, "-c", program, spec, str(tmp_path)]
    running = [subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True) for seed in range(3)]
    said = [process.communicate(timeout=60)[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert {fields for fields, _ in said} == {str(sum(len(sample) for sample in corpus[1]))}
    whole = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(int(received) for _, received in said) == whole


def test_a_cache_in_front_of_any_web_server(tmp_path: Path) -> None:
    options = StreamOptions(cache_dir=str(tmp_path / "cache"))
    with nginx(tmp_path / "nginx", workers=1) as server:
        files = [files_of(shard)[:40] for shard in range(2)]
        for shard in range(2):
            (server.root / f"n-{shard}.tar").write_bytes(tar_of(files[shard]))

        def read() -> Counts:
            dataset = gopen.sharditerator_once(f"{server.url}/n-@2.tar", decode=False, options=options)
            expected = [sample for shard in range(2) for sample in samples_of(files[shard], f"{server.url}/n-{shard}.tar")]
            assert list(dataset) == expected
            return dataset.counts

        assert [read().shards_cached for _ in range(2)] == [0, 2]
        files[1] = files_of(1)[:50]
        (server.root / "n-1.tar").write_bytes(tar_of(files[1]))
        assert read().shards_cached == 1
