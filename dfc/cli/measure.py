"""How fast a loader on this machine reads from a cluster: each of its parts alone, then all together.

Parts are measured with 1, 2, 4 … processes at once, like the workers of a training job (`dfc.cli.measure`), for the same
short time each. Rates are the totals of all processes, in samples per second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import Any, Final, NamedTuple

import msgspec

from dfc.errors import DfcError
from dfc.inputs import gopen
from dfc.inputs.base import InputError, Sample, ShardBroken, ShardRef
from dfc.inputs.decoding import Decoder
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import INPUT_BUFFER_BYTES, INPUT_RETRIES, MIB
from dfc.tar.compression import CompressionError, Decompressor, kind_of_bytes
from dfc.tar.header import TarError
from dfc.tar.sampleparser import SampleParser

# --- A process started by `dfc.cli.measure`: it gets ready, waits for the signal, and does one thing for some seconds.
#
# It reads its task from standard input as a line of JSON, and a second line once all processes are ready. It prints `ready`,
# and then the result: `amount` (samples; for the link, bytes) and `seconds`, or `error`, a message.

PORTION_BYTES: Final = 32 * MIB  # of a shard, held in memory for the parts that need no network
ARCHIVE_BYTES_MAX: Final = 4 * PORTION_BYTES  # some compressed shards become a thousand times larger
_PIECE_BYTES: Final = 1 * MIB
INTERRUPTED: Final = 130  # exit code
FOREVER: Final = 1_000_000_000  # epochs
Amounts = Generator[float, None, None]


class Measurement(msgspec.Struct, frozen=True):
    """What to measure. `part` is a name in PARTS; this process is number `rank` of `workers`."""

    part: str
    refs: list[ShardRef]
    rank: int
    workers: int
    seconds: float
    decode: str | None  # a form of pictures, "auto" for floats in [0, 1]
    retries: int
    token: str | None = None

    @property
    def options(self) -> StreamOptions:
        return StreamOptions(token=self.token, retries=self.retries)

    @property
    def how(self) -> str | bool:
        """`decode` in the form that `Decoder` takes."""
        return True if self.decode in (None, "auto") else str(self.decode)

    @property
    def own_refs(self) -> list[ShardRef]:
        """The shards for this process; if there are too few, all of them, in each process from a different one on."""
        if len(self.refs) >= self.workers:
            return self.refs[self.rank :: self.workers]
        return [*self.refs[self.rank % len(self.refs) :], *self.refs[: self.rank % len(self.refs)]]


class ArchiveHead(NamedTuple):
    """The beginning of a shard in memory: `stored` has at most PORTION_BYTES, `archive` is the same decompressed."""

    stored: bytes
    archive: bytes
    kind: str | None  # of compression
    indexed: bool
    samples: list[Sample]
    sample_bytes: float  # as stored, headers included, on average


def read_portion(ref: ShardRef, options: StreamOptions) -> ArchiveHead:
    """Read the beginning of a shard. InputError if it cannot be read, ShardBroken if it has no complete sample."""
    buffer = bytearray(PORTION_BYTES)
    with open_stream(ref, end=PORTION_BYTES, options=options) as stream:
        stored = bytes(buffer[: stream.readinto(buffer)])
        indexed = stream.indexed
    whole = len(stored) < PORTION_BYTES
    kind = kind_of_bytes(stored, ref.url)
    found = SampleParser(ref.url, indexed=indexed)
    try:
        archive = stored
        if kind is not None:
            stored, archive = _decompress_portion(stored, kind)
        for start in range(0, len(archive), INPUT_BUFFER_BYTES):
            found.feed(archive, start, min(start + INPUT_BUFFER_BYTES, len(archive)))
        if whole and len(archive) < ARCHIVE_BYTES_MAX:
            found.finish()
    except (CompressionError, TarError) as problem:
        raise ShardBroken(f"{ref.url}: {problem}", url=ref.url) from None
    if not found.samples:
        raise ShardBroken(f"{ref.url}: there is no complete sample in its first {len(stored):,} bytes", url=ref.url)
    stored_share = len(stored) / len(archive)
    return ArchiveHead(stored, archive, kind, indexed, found.samples, found.sample_at * stored_share / len(found.samples))


def _decompress_portion(stored: bytes, kind: str) -> tuple[bytes, bytes]:
    """Decompress until there are ARCHIVE_BYTES_MAX bytes, or little more; return the input used, and the result."""
    stream = Decompressor(kind, limited=False)
    chunks: list[bytes] = []
    at = 0
    while at < len(stored) and stream.bytes_out < ARCHIVE_BYTES_MAX:
        for chunk in stream.feed(stored[at : at + _PIECE_BYTES]):
            chunks.append(chunk)
            if stream.bytes_out >= ARCHIVE_BYTES_MAX:
                break
        at += _PIECE_BYTES
    return stored[:at], b"".join(chunks)


# Each part yields once when it is ready, and then, endlessly, the amounts done.


def link(task: Measurement) -> Amounts:
    """Receive bytes and discard them."""
    buffer = bytearray(INPUT_BUFFER_BYTES)
    yield 0
    for ref in cycle(task.own_refs):
        with open_stream(ref, options=task.options) as stream:
            while count := stream.readinto(buffer):
                yield count


def decompressor(task: Measurement) -> Amounts:
    """Decompress from memory, counted in samples."""
    portion = read_portion(task.own_refs[0], task.options)
    if portion.kind is None:
        raise ShardBroken(f"{task.own_refs[0].url} is not compressed like the first shard", url=task.own_refs[0].url)
    sample_share = len(portion.samples) / len(portion.archive)
    yield 0
    while True:
        for chunk in Decompressor(portion.kind, limited=False).feed(portion.stored):
            yield len(chunk) * sample_share


def parser(task: Measurement) -> Amounts:
    """Parse samples from an archive in memory."""
    portion = read_portion(task.own_refs[0], task.options)
    portion.samples.clear()
    yield 0
    while True:
        found = SampleParser(task.own_refs[0].url, indexed=portion.indexed)
        for start in range(0, len(portion.archive), INPUT_BUFFER_BYTES):
            found.feed(portion.archive, start, min(start + INPUT_BUFFER_BYTES, len(portion.archive)))
            yield len(found.samples)
            found.samples = []
        if found.has_open_sample():
            yield 1


def decoder(task: Measurement) -> Amounts:
    """Decode samples in memory."""
    decode = Decoder(task.how)
    found = read_portion(task.own_refs[0], task.options).samples
    decode(found[0])
    yield 0
    for sample in cycle(found):
        decode(sample)
        yield 1


def loader(task: Measurement) -> Amounts:
    """Load samples from the network, undecoded, like a training script."""
    yield 0
    for _ in _samples(task):
        yield 1


def decoding_loader(task: Measurement) -> Amounts:
    """Load samples from the network and decode them."""
    decode = Decoder(task.how)
    decode(read_portion(task.own_refs[0], task.options).samples[0])  # so that slow imports of decoders are done
    yield 0
    for sample in _samples(task):
        decode(sample)
        yield 1


def _samples(task: Measurement) -> Iterator[Sample]:
    urls = [[ref.url, *ref.replicas] for ref in task.own_refs]
    with gopen.sharditerator(
        urls, epochs=FOREVER, shuffle=False, decode=False, handler="raise", options=task.options
    ) as source:
        yield from source


PARTS: Final[dict[str, Callable[[Measurement], Amounts]]] = {
    part.__name__: part for part in (link, decompressor, parser, decoder, loader, decoding_loader)
}


def run(task: Measurement, wait: Callable[[], None]) -> tuple[float, float]:
    """Run a part and return (amount, seconds). `wait` returns when the clock may start."""
    amount = 0.0
    work = PARTS[task.part](task)
    try:
        next(work)
        wait()
        begin = time.perf_counter()
        for done in work:
            amount += done
            seconds = time.perf_counter() - begin
            if seconds >= task.seconds:
                break
        return amount, seconds
    finally:
        work.close()


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return INTERRUPTED  # the parent process is gone
    task = msgspec.json.decode(line, type=Measurement)

    def wait() -> None:
        print("ready", flush=True)
        if not sys.stdin.buffer.readline():
            raise KeyboardInterrupt

    found: dict[str, Any]
    try:
        amount, seconds = run(task, wait)
        found = {"amount": amount, "seconds": seconds}
    except (KeyboardInterrupt, BrokenPipeError):
        return INTERRUPTED
    except (DfcError, OSError, ValueError, ImportError) as problem:
        found = {"error": str(problem) or type(problem).__name__}
    print(msgspec.json.encode(found).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())


# --- The measurement, which starts such processes.

LINK, DECOMPRESSOR, PARSER, DECODER = "link", "decompressor", "parser", "decoder"
LOADER, DECODING_LOADER = "loader", "decoding_loader"
WORKERS_MAX: Final = 64
DEFAULT_WORKERS_MAX: Final = 16
_END_S: Final = 5.0


class Measured(msgspec.Struct, frozen=True):
    """Samples per second with `workers` processes: of each of `parts` alone, and of whole `loaders`, undecoded and decoded."""

    workers: int
    parts: dict[str, float]
    loaders: dict[str, float]

    @property
    def weakest(self) -> str:
        """The slowest part: no loader with this many processes can be faster."""
        return min(self.parts, key=self.parts.__getitem__)

    @property
    def reached(self) -> float:
        """The rate of the whole loader (with decoding, if requested), as a fraction of the rate of the weakest part."""
        whole = self.loaders.get(DECODING_LOADER, self.loaders[LOADER])
        return whole / self.parts[self.weakest] if self.parts[self.weakest] else 0.0


class Report(msgspec.Struct, frozen=True):
    """The results. `sample_bytes` is the average stored size of the samples at the beginning of the first shard."""

    shards: int
    sample_bytes: float
    compression: str | None
    decode: str | None
    cpus: int
    measured: list[Measured]


def default_workers() -> list[int]:
    """1, 2, 4 … up to the number of processors that this process may use, at most 16."""
    cpus = len(os.sched_getaffinity(0))
    return [count for count in (1, 2, 4, 8, DEFAULT_WORKERS_MAX) if count <= max(cpus, 1)]


def measure(
    refs: Sequence[ShardRef],
    *,
    workers: Sequence[int],
    seconds: float,
    decode: str | None = "rgb8",
    retries: int = INPUT_RETRIES,
    token: str | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Measure every part with each number of worker processes, for `seconds`. InputError if something cannot be read.

    `decode` is a form of pictures (`dfc.inputs.decoding`), "auto" for floats in [0, 1], or None: undecoded samples only.
    `retries` and `token` are as in `StreamOptions`; `progress` gets the name of each measurement.
    """
    portion = read_portion(refs[0], StreamOptions(token=token, retries=retries))
    if decode is not None:
        Decoder(True if decode == "auto" else decode)(portion.samples[0])
    measured = []
    for count in workers:
        parts: dict[str, float] = {}
        loaders: dict[str, float] = {}
        for part in _parts(portion, decode):
            progress(f"{part.replace('_', ' ')}, {count} {'process' if count == 1 else 'processes'}")
            task = Measurement(part, list(refs), 0, count, seconds, decode, retries, token)
            rate = sum(_run(task))
            found = loaders if part in (LOADER, DECODING_LOADER) else parts
            found[part] = rate / portion.sample_bytes if part == LINK else rate
        measured.append(Measured(count, parts, loaders))
    return Report(len(refs), portion.sample_bytes, portion.kind, decode, len(os.sched_getaffinity(0)), measured)


def _parts(portion: ArchiveHead, decode: str | None) -> Iterator[str]:
    # Measure the link right before the loader: both read from the cluster, whose load may change.
    if portion.kind is not None:
        yield DECOMPRESSOR
    yield PARSER
    if decode is not None:
        yield DECODER
    yield from (LINK, LOADER)
    if decode is not None:
        yield DECODING_LOADER


def _run(task: Measurement) -> list[float]:
    """The rate of each process. They start together."""
    with ExitStack() as stack:
        processes = []
        argv = [sys.executable, "-m", "dfc.cli.measure"]
        for rank in range(task.workers):
            # Its own session: only this process gets Ctrl-C, and then kills it.
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
            _tell(process, msgspec.json.encode(msgspec.structs.replace(task, rank=rank)))
        for process in processes:
            line = _line(process)
            if line != b"ready\n":
                _rate(line)  # raises: the process failed before it was ready
                raise InputError(f"unexpected output of a measuring process: {line[:200]!r}")
        for process in processes:
            _tell(process, b"go")
        return [_rate(_line(process)) for process in processes]


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise InputError(f"a measuring process ended with exit code {process.wait(_END_S)}") from None


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise InputError(f"a measuring process ended with exit code {process.wait(_END_S)}")
    return line


def _rate(line: bytes) -> float:
    """The amount per second of a result. InputError if the result is an error."""
    found: dict[str, Any] = msgspec.json.decode(line)
    if "error" in found:
        raise InputError(found["error"])
    return float(found["amount"] / found["seconds"])
