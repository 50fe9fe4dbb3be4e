"""The rows about loaders: samples beside WebDataset, decoders and decompressors alone, starts, resuming, memory.

Readers are processes of their own (`loadtest.inputs.readers`); shards lie in a cluster of two targets in memory.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.bench.context import Bench
from loadtest.bench.row import Row, alternated, median, median_ratio, rate_ratio_row, seconds_row
from loadtest.cluster import Cluster
from loadtest.inputs.child import read
from loadtest.inputs.dataset import Dataset, compress, picture_tar, plain_tar, stored
from loadtest.processes import ProcessFailed, processor_seconds
from loadtest.report import format_bytes
from loadtest.scenarios import expect

SMALL_BYTES, SMALL_SAMPLES, SMALL_SHARDS = 10_000, 12_500, 16
WEBDATASET_SHARDS = 2  # it is slower: fewer take as long
LARGE_BYTES, LARGE_SAMPLES, LARGE_SHARDS = 100_000, 1000, 24
PICTURES, DIFFERENT_PICTURES, PICTURE_SHARDS = 1000, 250, 8  # batches of 32 come out even
GZIP_SAMPLES, GZIP_SHARDS, GZIP_ALPHABET = 10_000, 8, 64  # compresses by a quarter, as text does and images do not
START_SHARDS, START_SAMPLES, START_BYTES = 10_000, 10, 1000
RESUME_SAMPLES, RESUME_SHARDS = 3000, 4
RESUME_AT = 3 / 8  # of the epoch: far from the edges of shards, however many of them are read at a time
WINDOW = 500  # samples that are shuffled
BATCH_SIZE, WORKERS = 32, 2
# What a resumed epoch may fetch again: the window of the shuffle, and what was read ahead. Shards from their starts: 450 MB.
REREAD_BYTES_MAX = WINDOW * LARGE_BYTES + (64 << 20)
PAIRS_MAX = 5
IN_ORDER = {"shuffle": False}
MB = 1_000_000
SENT = re.compile(r"^dfc_http_sent_bytes_total\{.*\} (\S+)", re.MULTILINE)


def samples_small(bench: Bench) -> list[Row]:
    """10 kB and a label, undecoded, beside WebDataset from the same URLs."""
    with stored(bench.memory / "inputs", [plain_tar(SMALL_SAMPLES, SMALL_BYTES)], SMALL_SHARDS) as dataset:
        ours, theirs = alternated(
            _pairs(bench),
            lambda: _samples_rate(dataset, SMALL_SAMPLES),
            lambda: _rate(read("webdataset", urls=dataset.urls[:WEBDATASET_SHARDS]), WEBDATASET_SHARDS * SMALL_SAMPLES),
        )
    what = "samples of 10 kB and a label, undecoded, one process"
    show = "{:,.0f} samples/s".format
    return [rate_ratio_row("samples-10k", what, "WebDataset", ours, theirs, 8, show=show)]


def samples_large(bench: Bench) -> list[Row]:
    """100 kB, undecoded, beside the same bytes received into a buffer and forgotten."""
    with stored(bench.memory / "inputs", [plain_tar(LARGE_SAMPLES, LARGE_BYTES)], LARGE_SHARDS) as dataset:
        owners = dataset.owners()

        def receive() -> float:
            found = read("receive", urls=owners)
            _expect(found["size"], dataset.size, "bytes received")
            return float(found["size"] / found["seconds"])

        payload = LARGE_BYTES + 3
        ours, link = alternated(_pairs(bench), lambda: _samples_rate(dataset, LARGE_SAMPLES) * payload, receive)
    return [
        Row(
            name="samples-100k",
            what="samples of 100 kB, undecoded, one process",
            measured=f"{median(ours) / payload:,.0f} samples/s",
            beside=f"received by one thread {format_bytes(median(link))}/s",
            reached=median(ours) / 1e9,
            required=1.2,
            unit="GB/s",
            note=f"bytes of samples, without headers; {median_ratio(ours, link):.2f} x of what one thread receives",
            samples={"ours": ours, "received": link},
        )
    ]


def jpeg(bench: Bench) -> list[Row]:
    """Real JPEG files decoded by two workers of a DataLoader, and by two threads, beside two processes that only decode."""
    body = picture_tar(PICTURES, DIFFERENT_PICTURES)
    path = bench.memory / "pictures.tar"
    path.write_bytes(body)
    cases = (
        ("jpeg", "torch", f"DataLoader with {WORKERS} workers"),
        ("jpeg-threads", "numpy", f"{WORKERS} threads, NumPy"),
    )
    try:
        with stored(bench.memory / "inputs", [body], PICTURE_SHARDS) as dataset:
            return [_jpeg(bench, dataset, path, *case) for case in cases]
    finally:
        path.unlink()


def _jpeg(bench: Bench, dataset: Dataset, path: Path, name: str, reader: str, who: str) -> Row:
    total = PICTURES * PICTURE_SHARDS
    options = {"batch_size": BATCH_SIZE, "decode": "rgb8", **IN_ORDER}
    shares: list[float] = []  # of one processor, that proxy and targets took meanwhile

    def ours() -> float:
        before = processor_seconds(dataset.started.child.pid)
        found = read(reader, url=dataset.spec, ours=options, workers=WORKERS)
        shares.append((processor_seconds(dataset.started.child.pid) - before) / found["seconds"])
        return _rate(found, total)

    def theirs() -> float:
        return _rate(read("decode", path=str(path), rounds=PICTURE_SHARDS, workers=WORKERS), total)

    mine, other = alternated(_pairs(bench), ours, theirs)
    return Row(
        name=name,
        what=f"JPEG of {dataset.size / total / 1000:.0f} kB decoded, {who}",
        measured=f"{median(mine):,.0f} samples/s",
        beside=f"{WORKERS} processes with simplejpeg alone {median(other):,.0f}/s",
        reached=median_ratio(mine, other),
        required=0.9,
        unit="x",
        note=f"batches of {BATCH_SIZE} stacked pictures; the cluster took {median(shares):.0%} of a processor meanwhile",
        samples={"ours": mine, "theirs": other},
    )


def tgz(bench: Bench) -> list[Row]:
    """Compressed shards beside the decompressor alone: bytes that shrink by a quarter, and JPEG files, which do not."""
    plain = plain_tar(GZIP_SAMPLES, SMALL_BYTES, GZIP_ALPHABET)
    rows = [_tgz(bench, "tgz", "samples of 10 kB that shrink by a quarter", plain, GZIP_SAMPLES)]
    rows.append(_tgz(bench, "tgz-jpeg", "JPEG files", picture_tar(PICTURES, DIFFERENT_PICTURES), PICTURES))
    return rows


def _tgz(bench: Bench, name: str, what: str, plain: bytes, samples: int) -> Row:
    body = compress(plain)
    path = bench.memory / "alone.tgz"
    path.write_bytes(body)
    total = len(plain) * GZIP_SHARDS
    try:
        with stored(bench.memory / "inputs", [body], GZIP_SHARDS, "tgz") as dataset:

            def ours() -> float:
                return _samples_rate(dataset, samples) * len(plain) / samples

            def theirs() -> float:
                found = read("inflate", path=str(path), rounds=GZIP_SHARDS)
                _expect(found["size"], total, "bytes decompressed")
                return float(total / found["seconds"])

            mine, other = alternated(_pairs(bench), ours, theirs)
    finally:
        path.unlink()
    return rate_ratio_row(name, f"undecoded, from .tgz: {what}", "decompressor alone", mine, other, 0.9)


def epoch_start(bench: Bench) -> list[Row]:
    """From the call to the first sample of 10,000 shards, shuffled, every time in a new process."""
    body = plain_tar(START_SAMPLES, START_BYTES)
    with stored(bench.memory / "inputs", [body], START_SHARDS) as dataset:
        glob = dataset.spec.replace(f"@{START_SHARDS:06d}", "*")
        options = {"batch_size": 10, "decode": False, "shuffle": 1000}
        cases: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
            ("start", "sharditerator of a count", lambda: read("samples", url=dataset.spec, first_only=True)),
            ("start-glob", "sharditerator of a glob", lambda: read("samples", url=glob, first_only=True)),
            ("start-torch", "DataLoader in one process", lambda: _first_batch(dataset, options, 0)),
            ("start-workers", f"DataLoader with {WORKERS} workers", lambda: _first_batch(dataset, options, WORKERS)),
        ]
        rows, peaks = [], {}
        for name, what, run in cases:
            found = [run() for _ in range(_pairs(bench))]
            what = f"first sample of an epoch over {START_SHARDS:,} shards, {what}"
            rows.append(seconds_row(name, what, [float(each["first_s"]) for each in found], 0.5))
            grown = [each["peak_bytes"] - each["imported_bytes"] for each in found]
            peaks[name] = max(grown) / MB
        rows.append(_memory_row("start-memory", "these processes, over their imports", peaks, ""))
    return rows


def _first_batch(dataset: Dataset, options: dict[str, Any], workers: int) -> dict[str, Any]:
    return read("torch", url=dataset.spec, workers=workers, ours=options, first_only=True)


def resume(bench: Bench) -> list[Row]:
    """An epoch of a shuffled loader continued in its middle by a new process: the same rest, how soon, what it fetches."""
    plain = plain_tar(RESUME_SAMPLES, LARGE_BYTES, GZIP_ALPHABET)
    rows = []
    for ending, body, required in (("tar", plain, 1.0), ("tgz", compress(plain), None)):
        with stored(bench.memory / "inputs", [body], RESUME_SHARDS, ending) as dataset:
            rows += _resume(bench, dataset, required)
    return rows


def _resume(bench: Bench, dataset: Dataset, required: float | None) -> list[Row]:
    total = RESUME_SAMPLES * RESUME_SHARDS
    options = {"batch_size": BATCH_SIZE, "decode": False, "shuffle": WINDOW, "seed": 1, "equal": "drop"}
    stop = int(total // BATCH_SIZE * RESUME_AT)
    first = read("interrupted", url=dataset.spec, workers=0, ours=options, stop=stop)
    seconds, fetched = [], []
    for _ in range(_pairs(bench)):
        before = _sent_bytes(dataset.started)
        found = read("resumed", url=dataset.spec, workers=0, ours=options, state=first["state"])
        if found["keys"] != first["keys"]:
            raise ProcessFailed("the resumed epoch is not the rest of the one that was interrupted")
        seconds.append(float(found["first_s"]))
        fetched.append(float(_sent_bytes(dataset.started) - before))
    name = "resume" if dataset.ending == "tar" else f"resume-{dataset.ending}"
    rest = dataset.size * len(first["keys"]) / total
    what = f"resume in the middle of an epoch over {RESUME_SHARDS} shards of {format_bytes(dataset.size / RESUME_SHARDS)}"
    note = f"the rest of the epoch is {format_bytes(rest)}, fetched were {format_bytes(median(fetched))}"
    row = seconds_row(name, f"{what}, .{dataset.ending}", seconds, required, note)
    if dataset.ending != "tar":
        return [row]
    again = (median(fetched) - rest) / MB
    if again < 0:
        raise ProcessFailed(f"the targets say that they sent {median(fetched):,.0f} bytes of the {rest:,.0f} of the rest")
    beyond = Row(
        name="resume-bytes",
        what="fetched beyond the rest of the epoch",
        measured=f"{again:+.0f} MB",
        beside=f"the rest is {format_bytes(rest)}",
        reached=again,
        required=REREAD_BYTES_MAX / MB,
        unit="MB",
        at_most=True,
        samples={"fetched_bytes": fetched},
    )
    return [row, beyond]


def _sent_bytes(started: Cluster) -> int:
    """Bytes of bodies that the targets have sent so far."""
    total = 0
    for url in started.targets:
        with contextlib.closing(started.connect(url)) as connection:
            text = expect(connection.request("GET", "/metrics"), 200).body.decode()
        total += sum(int(float(value)) for value in SENT.findall(text))
    return total


def input_memory(bench: Bench) -> list[Row]:
    """Peaks of loader processes: undecoded samples from .tar and .tgz, and the workers of a DataLoader without a shuffle."""
    plain = plain_tar(LARGE_SAMPLES, LARGE_BYTES, GZIP_ALPHABET)
    peaks: dict[str, float] = {}
    with stored(bench.memory / "inputs", [plain], LARGE_SHARDS) as dataset:
        found = read("samples", url=dataset.spec, ours=IN_ORDER)
        peaks["samples of 100 kB from .tar"] = found["peak_bytes"] / MB
        imported = found["imported_bytes"] / MB
    with stored(bench.memory / "inputs", [compress(plain)], GZIP_SHARDS, "tgz") as dataset:
        peaks["from .tgz"] = read("samples", url=dataset.spec, ours=IN_ORDER)["peak_bytes"] / MB
    options = {"batch_size": BATCH_SIZE, "decode": "rgb8", **IN_ORDER}
    with stored(bench.memory / "inputs", [picture_tar(PICTURES, DIFFERENT_PICTURES)], PICTURE_SHARDS // 2) as dataset:
        found = read("torch", watch=True, url=dataset.spec, workers=WORKERS, ours=options)
        worker, torch_imported = found["workers_peak_bytes"] / MB, found["imported_bytes"] / MB
    return [
        _memory_row("input-memory", "a loader's process", peaks, f"{imported:.0f} MB of that are imports"),
        _memory_row(
            "input-memory-torch",
            "a DataLoader's worker, over what importing torch takes",
            {"JPEG decoded, batches of 32": worker - torch_imported},
            f"peak {worker:.0f} MB, of which {torch_imported:.0f} MB are imports that it shares with the training process",
        ),
    ]


def _memory_row(name: str, what: str, peaks: dict[str, float], note: str) -> Row:
    told = "; ".join(f"{case}: {peak:.0f} MB" for case, peak in peaks.items())
    reached = max(peaks.values())
    samples = {case: [peak * MB] for case, peak in peaks.items()}
    return Row(name, f"peak of {what}", f"{reached:.0f} MB", told, reached, 200, "MB", at_most=True, note=note, samples=samples)


def _pairs(bench: Bench) -> int:
    return min(bench.pairs, PAIRS_MAX)


def _samples_rate(dataset: Dataset, samples: int) -> float:
    """Samples a second of one `sharditerator` over all shards, which have so many each."""
    return _rate(read("samples", url=dataset.spec, ours=IN_ORDER), samples * len(dataset.names))


def _rate(found: dict[str, Any], samples: int) -> float:
    _expect(found["samples"], samples, "samples")
    return float(samples / found["seconds"])


def _expect(found: float, wanted: float, what: str) -> None:
    if found != wanted:
        raise ProcessFailed(f"{found} {what} instead of {wanted}")
