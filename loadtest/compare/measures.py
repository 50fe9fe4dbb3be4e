"""What is compared: the operations of the benchmark's tables, each done once by one version and then by the other."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench.bulk import dfc_put, discard
from loadtest.bench.context import BUCKET, OBJECT_BYTES, RELAXED_BUCKET, SHARD_MEMBER_BYTES
from loadtest.bench.curl import curl_get
from loadtest.bench.inputs import BATCH_SIZE, IN_ORDER, WINDOW, WORKERS
from loadtest.bench.jobinput import JobInput, sample_input
from loadtest.bench.jobs import BATCH_ITEMS, read_batch
from loadtest.bench.listing import seed_objects, walk_json
from loadtest.bench.small import CONNECTIONS, SMALL_BYTES, member_paths, small_objects
from loadtest.bodies import Body
from loadtest.compare.side import Side, Work
from loadtest.inputs.child import read
from loadtest.inputs.dataset import Dataset, compress, picture_tar, plain_tar
from loadtest.processes import ProcessFailed
from loadtest.scenarios import expect, put_body
from loadtest.tarstream import sample_tar, sample_tar_size, write_member_tar
from loadtest.wrk import WrkResult, wrk_get, wrk_put

GB = 1e9
LARGE_OBJECTS = 4
PUTS_A_RUN = 4
SECONDS = 2  # of a run of small requests
LISTED = 200_000
LIST_TARGETS = 4
WALKS = 3  # a run
JOBS_A_RUN = 20
SMALL_SAMPLES, LARGE_SAMPLES, SHARDS = 40_000, 6000, 8
PICTURES, DIFFERENT_PICTURES = 1000, 250
START_SHARDS = 2000
TASKS = 1000


@dataclass(frozen=True, slots=True)
class Measure:
    """`prepare(side)` makes ready what a run needs and gives the run; `operation` is what its rate counts.

    With `readers` the processor time of our child processes counts as well: they run the code that is compared.
    """

    prepare: Callable[[Side], Work]
    operation: str
    readers: bool = False


def _get8(side: Side) -> Work:
    urls = [side.disk_cluster.targets[0] + path for path in _large_objects(side)] * 2
    return lambda: _bulk(discard(urls), len(urls) * OBJECT_BYTES)


def _relay(side: Side) -> Work:
    urls = [side.disk_cluster.url + path for path in _large_objects(side)]
    return lambda: _bulk(curl_get(urls, OBJECT_BYTES), len(urls) * OBJECT_BYTES)


def _large_objects(side: Side) -> list[str]:
    paths = [f"/{BUCKET}/get-{number}.bin" for number in range(LARGE_OBJECTS)]
    with contextlib.closing(side.disk_cluster.connect(side.disk_cluster.targets[0])) as connection:
        for number, path in enumerate(paths):
            if connection.request("HEAD", path).status == 404:
                put_body(connection, path, Body(number, OBJECT_BYTES))
    return paths


def _puts(put: Callable[[], float]) -> Work:
    def work() -> tuple[float, float]:
        return PUTS_A_RUN * OBJECT_BYTES / GB, sum(OBJECT_BYTES / put() for _ in range(PUTS_A_RUN))

    return work


def _source_tar(side: Side) -> Path:
    path = side.memory / "source.tar"
    if not path.exists():
        write_member_tar(path, OBJECT_BYTES, SHARD_MEMBER_BYTES)
    return path


def _bulk(rate: float, size: int) -> tuple[float, float]:
    return size / GB, size / rate


def _small_get(side: Side) -> Work:
    return _requests(side, side.disk_cluster.targets[0], small_objects(side.disk_cluster))


def _redirect(side: Side) -> Work:
    return _requests(side, side.disk_cluster.url, [f"/v1/objects{path}" for path in small_objects(side.disk_cluster)])


def _member(side: Side) -> Work:
    return _requests(side, side.disk_cluster.targets[0], member_paths(side.disk_cluster))


def _requests(side: Side, url: str, paths: Sequence[str]) -> Work:
    return lambda: _wrk(wrk_get(url, paths, side.disk, connections=CONNECTIONS, seconds=SECONDS))


def _small_put(side: Side) -> Work:
    url, runs = side.disk_cluster.targets[0], itertools.count()

    def work() -> tuple[float, float]:
        prefix = f"/{BUCKET}/small-put/{next(runs)}-"
        return _wrk(wrk_put(url, prefix, SMALL_BYTES, side.disk, connections=CONNECTIONS, seconds=SECONDS))

    return work


def _wrk(found: WrkResult) -> tuple[float, float]:
    return found.requests, found.requests / found.requests_per_s


def _list(side: Side) -> Work:
    directory = side.disk / "dfc-list"
    seed_objects(directory, LISTED, source=side.source)
    started = side.cluster(directory, targets=LIST_TARGETS)

    def work() -> tuple[float, float]:
        with contextlib.closing(started.connect()) as connection:
            return LISTED * WALKS, sum(LISTED / walk_json(connection, LISTED) for _ in range(WALKS))

    return work


def _first_jobs(side: Side) -> Work:
    dataset = _job_input(side, 10, 1000, 1)

    def work() -> tuple[float, float]:
        return JOBS_A_RUN, sum(dataset.job("reshuffle", "y-%06d.tar", {"seed": seed})[1] for seed in range(JOBS_A_RUN))

    return work


def _reshuffle(samples: int, sample_bytes: int) -> Callable[[Side], Work]:
    return lambda side: _job(_job_input(side, samples, sample_bytes, SHARDS), "reshuffle", "y-%06d.tar", {"seed": 1})


def _reshuffle_disk(side: Side) -> Work:
    dataset = side.enter(sample_input(side.disk / "jobs", "fsync", LARGE_SAMPLES, 100_000, SHARDS, source=side.source))
    side.watch(dataset.started)
    return _job(dataset, "reshuffle", "y-%06d.tar", {"seed": 1})


def _tasks(side: Side) -> Work:
    """Tasks that have next to nothing to do: what is left is planning, giving them out, and writing them down."""
    dataset = _job_input(side, TASKS, 10, TASKS)
    return lambda: (TASKS, dataset.job("convert", "y-%06d.tgz", {"format": "tgz"})[1])


def _convert(side: Side) -> Work:
    return _job(_job_input(side, 16_000, 10_000, SHARDS, 64), "convert", "y-%06d.tgz", {"format": "tgz"})


def _job_input(side: Side, samples: int, sample_bytes: int, shards: int, alphabet: int = 256) -> JobInput:
    context = sample_input(side.memory / "jobs", "relaxed", samples, sample_bytes, shards, alphabet, source=side.source)
    dataset = side.enter(context)
    side.watch(dataset.started)
    return dataset


def _job(dataset: JobInput, operation: str, ending: str, options: dict[str, Any]) -> Work:
    return lambda: (dataset.samples, dataset.job(operation, ending, options)[1])


def _batch(side: Side) -> Work:
    started = side.cluster(side.memory / "batch")
    started.make_bucket("in", "relaxed")
    each = 100_000 // 8
    with contextlib.closing(started.connect(started.targets[0])) as connection:
        for number in range(8):
            body, size = sample_tar(each, 10_000, first=number * each), sample_tar_size(each, 10_000)
            expect(connection.request("PUT", f"/in/x-{number:06d}.tar", body=map(memoryview, body), size=size), 201)
    seeds = itertools.count()
    return lambda: (BATCH_ITEMS, BATCH_ITEMS / read_batch(started, next(seeds)))


def _plain(samples: int, sample_bytes: int, shards: int) -> Callable[[Side], Work]:
    return lambda side: _samples(side, side.dataset([plain_tar(samples, sample_bytes)], shards), samples)


def _tgz(side: Side) -> Work:
    return _samples(side, side.dataset([compress(plain_tar(10_000, 10_000, 64))], SHARDS // 2, "tgz"), 10_000)


def _samples(side: Side, dataset: Dataset, each: int) -> Work:
    return lambda: _read(side, "samples", each * len(dataset.names), url=dataset.spec, ours=IN_ORDER)


def _jpeg(reader: str) -> Callable[[Side], Work]:
    def prepare(side: Side) -> Work:
        dataset = side.dataset([picture_tar(PICTURES, DIFFERENT_PICTURES)], SHARDS // 2)
        options = {"batch_size": BATCH_SIZE, "decode": "rgb8", **IN_ORDER}
        return lambda: _read(side, reader, PICTURES * (SHARDS // 2), url=dataset.spec, ours=options, workers=WORKERS)

    return prepare


def _read(side: Side, reader: str, samples: int, **options: Any) -> tuple[float, float]:
    found = read(reader, source=side.source, **options)
    if found["samples"] != samples:
        raise ProcessFailed(f"{reader} of {side.name} gave {found['samples']} samples instead of {samples}")
    return samples, found["seconds"]


def _start(reader: str, **more: Any) -> Callable[[Side], Work]:
    """Epochs a second when each ends with its first sample, or batch: the inverse of how long that takes."""

    def prepare(side: Side) -> Work:
        dataset = side.dataset([plain_tar(10, 1000)], START_SHARDS)
        return lambda: (1, read(reader, source=side.source, url=dataset.spec, first_only=True, **more)["first_s"])

    return prepare


def _resume(side: Side) -> Work:
    shards, each = SHARDS // 2, 2000
    dataset = side.dataset([plain_tar(each, 100_000)], shards)
    ours = {"batch_size": BATCH_SIZE, "decode": False, "shuffle": WINDOW, "seed": 1, "equal": "drop"}
    common: dict[str, Any] = {"source": side.source, "url": dataset.spec, "workers": 0, "ours": ours}
    first = read("interrupted", stop=shards * each // BATCH_SIZE // 2, **common)

    def work() -> tuple[float, float]:
        found = read("resumed", state=first["state"], **common)
        if found["keys"] != first["keys"]:
            raise ProcessFailed(f"{side.name}: the resumed epoch is not the rest of the interrupted one")
        return 1, found["first_s"]

    return work


_FIRST_BATCH = {"ours": {"batch_size": 10, "decode": False, "shuffle": 1000}, "workers": WORKERS}
MEASURES: dict[str, Measure] = {
    "get8": Measure(_get8, "GB"),
    "relay": Measure(_relay, "GB"),
    "put-relaxed": Measure(lambda side: _puts(dfc_put(side.memory_cluster, RELAXED_BUCKET, _source_tar(side))), "GB"),
    "put-fsync": Measure(lambda side: _puts(dfc_put(side.disk_cluster, BUCKET, _source_tar(side))), "GB"),
    "small-get": Measure(_small_get, "request"),
    "redirect": Measure(_redirect, "request"),
    "small-put": Measure(_small_put, "request"),
    "member": Measure(_member, "request"),
    "list": Measure(_list, "name"),
    "job-start": Measure(_first_jobs, "job"),
    "reshuffle-10k": Measure(_reshuffle(SMALL_SAMPLES, 10_000), "sample"),
    "reshuffle-100k": Measure(_reshuffle(LARGE_SAMPLES, 100_000), "sample"),
    "reshuffle-disk": Measure(_reshuffle_disk, "sample"),
    "batch": Measure(_batch, "sample"),
    "tasks": Measure(_tasks, "task"),
    "keys": Measure(lambda side: _job(_job_input(side, 200_000, 10, 50), "keys", "keys.ndjson", {}), "sample"),
    "convert-tgz": Measure(_convert, "sample"),
    "samples-10k": Measure(_plain(12_500, 10_000, SHARDS), "sample", readers=True),
    "samples-100k": Measure(_plain(1000, 100_000, 2 * SHARDS), "sample", readers=True),
    "jpeg": Measure(_jpeg("torch"), "sample", readers=True),
    "jpeg-threads": Measure(_jpeg("numpy"), "sample", readers=True),
    "tgz": Measure(_tgz, "sample", readers=True),
    "epoch-start": Measure(_start("samples"), "epoch", readers=True),
    "epoch-start-torch": Measure(_start("torch", **_FIRST_BATCH), "epoch", readers=True),
    "resume": Measure(_resume, "epoch", readers=True),
}
