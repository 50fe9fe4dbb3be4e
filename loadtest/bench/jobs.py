"""The rows about jobs: reshuffles beside `cp`, keys, tar to tgz beside gzip, batch reads, and how soon a job starts."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadtest.bench.context import Bench
from loadtest.bench.jobinput import JobInput, job_input, sample_input
from loadtest.bench.row import Row, alternated, median, rate_ratio_row, seconds_row
from loadtest.cluster import Cluster, cluster
from loadtest.processes import ProcessFailed, descendants, find_program, meanwhile, memory_bytes, run
from loadtest.report import format_bytes
from loadtest.scenarios import expect
from loadtest.tarstream import empty_members, empty_members_size, sample_tar, sample_tar_size

LARGE_SAMPLES, LARGE_BYTES, LARGE_SHARDS = 40_000, 100_000, 16
SMALL_SAMPLES, SMALL_BYTES, SMALL_SHARDS = 100_000, 10_000, 8
WEBDATASET_SAMPLES = 10_000
KEY_SHARDS, KEY_SAMPLES = 1000, 10_000
GZIP_SAMPLES, GZIP_SHARDS = 32_000, 8
GZIP_ALPHABET = 64  # compresses by a quarter, as images do not and text does more
BATCH_ITEMS, BATCH_ROUNDS = 20_000, 5
PAIRS_MAX = 5  # gigabytes each: more pairs take an hour
PEAK_POLL_S = 0.05


def _copy(dataset: JobInput, directory: Path, *, sync: bool) -> float:
    """Bytes a second of `cp` of the dataset's own files, with a `sync` of the copies where the job would sync too."""
    blobs = [str(path) for path in dataset.started.directory.rglob("x-*.tar@*") if path.suffix != ".idx"]
    if len(blobs) != dataset.shards:
        raise ProcessFailed(f"{len(blobs)} files of {dataset.shards} shards")
    copies = directory / "copies"
    copies.mkdir()
    try:
        os.sync()
        begin = time.monotonic()
        run(["cp", *blobs, str(copies)])
        if sync:
            run(["sync", *map(str, copies.iterdir())])
        return dataset.size / (time.monotonic() - begin)
    finally:
        shutil.rmtree(copies)


def _reshuffle(dataset: JobInput, seed: int, strategy: str = "gather") -> float:
    """Bytes a second from the submission to `succeeded`."""
    job, seconds = dataset.job("reshuffle", "y-%06d.tar", {"seed": seed, "strategy": strategy})
    if job["output"]["samples"] != dataset.samples or job["output"]["shards"] != dataset.shards:
        raise ProcessFailed(f"the job wrote {job['output']}")
    return dataset.size / seconds


def reshuffle_large(bench: Bench) -> list[Row]:
    """100 kB samples in memory: gather beside cp, spill beside gather, and the workers' peak meanwhile."""
    where = bench.memory
    pairs = min(bench.pairs, PAIRS_MAX)
    with sample_input(where / "jobs", "relaxed", LARGE_SAMPLES, LARGE_BYTES, LARGE_SHARDS) as dataset:
        _reshuffle(dataset, 0)
        ours, theirs = alternated(pairs, lambda: _reshuffle(dataset, 1), lambda: _copy(dataset, where, sync=False))
        what = f"reshuffle {format_bytes(dataset.size)} of 100 kB samples, gather, relaxed, in memory"
        rows = [rate_ratio_row("reshuffle-100k", what, "cp", ours, theirs, 0.6)]
        with _peak_of_workers(dataset.started) as peak:
            spill, gather = alternated(
                max(2, pairs // 2), lambda: _reshuffle(dataset, 1, "spill"), lambda: _reshuffle(dataset, 1)
            )
        rows.append(rate_ratio_row("reshuffle-spill", "the same by spill", "gather", spill, gather, 0.5))
        rows.append(_memory_row(peak[0]))
    return rows


def reshuffle_disk(bench: Bench) -> list[Row]:
    """The same on the disk with fsync, beside cp and sync of the copies."""
    where = bench.directory
    with sample_input(where / "jobs", "fsync", LARGE_SAMPLES, LARGE_BYTES, LARGE_SHARDS) as dataset:
        _reshuffle(dataset, 0)
        ours, theirs = alternated(
            min(bench.pairs, PAIRS_MAX), lambda: _reshuffle(dataset, 1), lambda: _copy(dataset, where, sync=True)
        )
        what = f"reshuffle {format_bytes(dataset.size)} of 100 kB samples, gather, fsync, on disk"
    return [rate_ratio_row("reshuffle-disk", what, "cp + sync", ours, theirs, 0.7)]


def reshuffle_small(bench: Bench) -> list[Row]:
    """10 kB samples in memory: beside cp, beside a WebDataset pipeline; and batch reads of the same samples."""
    where = bench.memory
    with sample_input(where / "jobs", "relaxed", SMALL_SAMPLES, SMALL_BYTES, SMALL_SHARDS) as dataset:
        _reshuffle(dataset, 0)
        ours, theirs = alternated(bench.pairs, lambda: _reshuffle(dataset, 1), lambda: _copy(dataset, where, sync=False))
        what = f"reshuffle {format_bytes(dataset.size)} of 10 kB samples, gather, relaxed, in memory"
        rows = [rate_ratio_row("reshuffle-10k", what, "cp", ours, theirs, 0.35)]
        webdataset = [_webdataset(where) for _ in ours[:2]]
        rows.append(
            rate_ratio_row("reshuffle-wds", "the same", "WebDataset read, shuffle, ShardWriter", ours[:2], webdataset, 10)
        )
    return rows


def _webdataset(where: Path) -> float:
    """Bytes a second of a process that reads shards, shuffles and writes shards with WebDataset, all in memory."""
    directory = where / "wds"
    directory.mkdir()
    try:
        source = directory / "in-000000.tar"
        with source.open("wb") as file:
            for piece in sample_tar(WEBDATASET_SAMPLES, SMALL_BYTES):
                file.write(piece)
        argv = [sys.executable, "-m", "loadtest.webdataset_shuffle", str(source), str(directory / "out-%06d.tar")]
        result = msgspec.json.decode(run(argv, cwd=Path(__file__).parents[2]))
        if result["samples"] != WEBDATASET_SAMPLES:
            raise ProcessFailed(f"WebDataset gave {result}")
        return float(source.stat().st_size / result["seconds"])
    finally:
        shutil.rmtree(directory)


def batch(bench: Bench) -> list[Row]:
    """Random samples of 10 kB by number from one target process to one client."""
    directory = bench.memory / "batch"
    rates = []
    try:
        with cluster(directory) as started, contextlib.closing(started.connect(started.targets[0])) as connection:
            started.make_bucket("in", "relaxed")
            each = SMALL_SAMPLES // SMALL_SHARDS
            for number in range(SMALL_SHARDS):
                body, size = sample_tar(each, SMALL_BYTES, first=number * each), sample_tar_size(each, SMALL_BYTES)
                expect(connection.request("PUT", f"/in/x-{number:06d}.tar", body=map(memoryview, body), size=size), 201)
            for turn in range(BATCH_ROUNDS + 1):
                rate = read_batch(started, turn)
                rates += [rate] if turn else []
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return [
        Row(
            name="batch",
            what="batch read of random 10 kB samples, one target process, one client",
            measured=f"{median(rates):,.0f} samples/s",
            beside="",
            reached=median(rates),
            required=60_000,
            unit="/s",
            note=f"{BATCH_ITEMS:,} samples a request, in random order over {SMALL_SHARDS} shards",
            samples={"samples_per_s": rates},
        )
    ]


def read_batch(started: Cluster, seed: int) -> float:
    """Samples a second by one curl, which discards them; the size of the stream tells that all of them came."""
    chance, each = random.Random(seed), SMALL_SAMPLES // SMALL_SHARDS
    numbers = chance.sample(range(SMALL_SAMPLES), BATCH_ITEMS)
    items = [{"bucket": "in", "object": f"x-{n // each:06d}.tar", "number": n % each} for n in numbers]
    body = started.directory.with_suffix(".items")
    body.write_bytes(msgspec.json.encode({"items": items, "on_missing": "fail"}))
    written = "%{http_code} %{size_download} %{time_total}"
    url = f"{started.targets[0]}/v1/batch"
    argv = ["curl", "-sS", "-o", "/dev/null", "-w", written, "-H", "Expect:", "-X", "POST", "-T", str(body), url]
    status, size, seconds = run(argv).split()
    sample = sample_tar_size(1, SMALL_BYTES) - 1024
    if status != "200" or int(size) < BATCH_ITEMS * sample:
        raise ProcessFailed(f"a batch of {BATCH_ITEMS} samples was answered {status} with {size} bytes")
    return BATCH_ITEMS / float(seconds)


def keys(bench: Bench) -> list[Row]:
    """A manifest of ten million keys in a thousand shards, short and in full, and the proxy's growth meanwhile."""

    def make(number: int) -> tuple[Iterator[memoryview], int]:
        return empty_members(KEY_SAMPLES), empty_members_size(KEY_SAMPLES)

    total = KEY_SHARDS * KEY_SAMPLES
    rows = []
    with job_input(bench.memory / "jobs", "relaxed", KEY_SHARDS, make, total) as dataset:
        dataset.job("keys", "keys.txt", {"fields": ["key"]})
        pid = dataset.started.pid_of(dataset.started.url)
        before = memory_bytes(pid)[1]
        cases: tuple[tuple[str, dict[str, Any], int], ...] = (("key", {"fields": ["key"]}, 1_000_000), ("full", {}, 300_000))
        for name, options, required in cases:
            rates = [total / dataset.job("keys", "keys.ndjson", options)[1] for _ in range(3)]
            rows.append(
                Row(
                    name=f"keys-{name}",
                    what=f"list keys of {total:,} samples in {KEY_SHARDS:,} shards, fields={name}",
                    measured=f"{median(rates):,.0f} samples/s",
                    beside="",
                    reached=median(rates),
                    required=required,
                    unit="/s",
                    samples={"samples_per_s": rates},
                )
            )
        grown = (memory_bytes(pid)[1] - before) / 1e6
    rows.append(
        Row("keys-memory", "the proxy's peak during these jobs, over its peak after the first", f"{grown:+.1f} MB", "",
            grown, 32, "MB", at_most=True)
    )  # fmt: skip
    return rows


def convert(bench: Bench) -> list[Row]:
    """tar → tgz at level 1, a process, beside `gzip -6` of the same bytes."""
    program = find_program("gzip")
    if program is None:
        raise FileNotFoundError("gzip is not installed")
    workers = os.cpu_count() or 1
    with sample_input(bench.memory / "jobs", "relaxed", GZIP_SAMPLES, SMALL_BYTES, GZIP_SHARDS, GZIP_ALPHABET) as dataset:
        blob = next(path for path in dataset.started.directory.rglob("x-*.tar@*") if path.suffix != ".idx")

        def ours() -> float:
            return dataset.size / dataset.job("convert", "y-%06d.tgz", {"format": "tgz"})[1] / workers

        def theirs() -> float:
            begin = time.monotonic()
            with blob.open("rb") as source:
                subprocess.run([program, "-6", "-c"], stdin=source, stdout=subprocess.DEVNULL, check=True)
            return blob.stat().st_size / (time.monotonic() - begin)

        ours()
        mine, other = alternated(bench.pairs, ours, theirs)
    return [rate_ratio_row("convert-tgz", f"convert tar to tgz, a process (of {workers})", "gzip -6", mine, other, 3)]


def start(bench: Bench) -> list[Row]:
    """A job of one small shard from its submission to `succeeded`: the first of a fresh cluster, and later ones."""
    firsts, later = [], []
    for _ in range(3):
        with sample_input(bench.directory / "jobs", "relaxed", 10, 1000, 1) as dataset:
            firsts.append(dataset.job("reshuffle", "y-%06d.tar", {})[1])
            later += [dataset.job("reshuffle", "y-%06d.tar", {"seed": seed})[1] for seed in range(5)]
    return [
        seconds_row("start-first", "the first job of a cluster, one small shard, whole", firsts, 3.0),
        seconds_row("start-later", "later jobs, whole", later, 0.3),
    ]


@contextlib.contextmanager
def _peak_of_workers(started: Cluster) -> Iterator[list[int]]:
    """The largest VmHWM of any process below the cluster that is neither proxy nor target, in bytes."""
    nodes = {started.child.pid, *(started.pid_of(url) for url in [started.url, *started.targets])}
    peak = [0]

    def watch(ended: threading.Event) -> None:
        while not ended.wait(PEAK_POLL_S):
            for pid in descendants(started.child.pid):
                with contextlib.suppress(OSError, KeyError):
                    if pid not in nodes:
                        peak[0] = max(peak[0], memory_bytes(pid)[1])

    with meanwhile(watch):
        yield peak


def _memory_row(peak: int) -> Row:
    if not peak:
        raise ProcessFailed("no process of a worker was seen")
    measured = f"{peak / 1e6:.0f} MB"
    return Row("job-memory", "a worker's peak during these jobs", measured, "", peak / 1e6, 512, "MB", at_most=True)
