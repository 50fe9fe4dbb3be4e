"""A process started by `dfc.cli.measure`: it gets ready, waits for the signal, and does one thing for some seconds.

It reads its task from standard input as a line of JSON, and a second line once all processes are ready. It prints `ready`, and
then the result: `amount` (samples; for the link, bytes) and `seconds`, or `error`, a message.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from itertools import cycle
from typing import Any, Final, NamedTuple

import msgspec

from dfc.errors import DfcError
from dfc.inputs import gopen
from dfc.inputs.base import Sample, ShardBroken, ShardRef
from dfc.inputs.decoding import Decoder
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import INPUT_BUFFER_BYTES, MIB
from dfc.tar.compression import CompressionError, Decompressor, kind_of_bytes
from dfc.tar.header import TarError
from dfc.tar.sampleparser import SampleParser

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
        _parse(found, archive)
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


def _parse(found: SampleParser, archive: bytes) -> None:
    for start in range(0, len(archive), INPUT_BUFFER_BYTES):
        found.feed(archive, start, min(start + INPUT_BUFFER_BYTES, len(archive)))


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
