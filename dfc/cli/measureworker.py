"""One of the processes that `dfc.cli.measure` starts: it gets ready, waits for the signal, does one thing for some seconds.

Standard input has a task, a line of JSON, and then a line when all processes are ready. Standard output has `ready`, and then
what was done: `amount` (samples, or bytes of the link) and `seconds`; or `error`, a sentence.
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

PORTION_BYTES: Final = 32 * MIB  # of a shard, held in memory for what is measured without a network
ARCHIVE_BYTES_MAX: Final = 4 * PORTION_BYTES  # some compressed shards grow a thousand times
_PIECE_BYTES: Final = 1 * MIB
INTERRUPTED: Final = 130  # exit code
FOREVER: Final = 1_000_000_000  # epochs
Amounts = Generator[float, None, None]


class Measurement(msgspec.Struct, frozen=True):
    """What to measure: `part` is a name of PARTS. `rank` says which of `workers` processes this one is."""

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
        """`decode` as `Decoder` takes it."""
        return True if self.decode in (None, "auto") else str(self.decode)

    @property
    def own_refs(self) -> list[ShardRef]:
        """Every process reads shards of its own; where there are too few, all of them, each from another on."""
        if len(self.refs) >= self.workers:
            return self.refs[self.rank :: self.workers]
        return [*self.refs[self.rank % len(self.refs) :], *self.refs[: self.rank % len(self.refs)]]


class ArchiveHead(NamedTuple):
    """The beginning of a shard in memory, at most PORTION_BYTES as stored; `archive` is the same decompressed."""

    stored: bytes
    archive: bytes
    kind: str | None  # of compression
    indexed: bool
    samples: list[Sample]
    sample_bytes: float  # as stored, headers included, on average


def read_portion(ref: ShardRef, options: StreamOptions) -> ArchiveHead:
    """InputError when it cannot be read, ShardBroken when no sample ends in it."""
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
        raise ShardBroken(f"{ref.url}: no sample ends in its first {len(stored):,} bytes", url=ref.url)
    stored_share = len(stored) / len(archive)
    return ArchiveHead(stored, archive, kind, indexed, found.samples, found.sample_at * stored_share / len(found.samples))


def _decompress_portion(stored: bytes, kind: str) -> tuple[bytes, bytes]:
    """What of it was decompressed, and the result, which is not much larger than ARCHIVE_BYTES_MAX."""
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


# A part yields once when it is ready, and then without an end the amounts that were done.


def link(task: Measurement) -> Amounts:
    """Bytes received and thrown away."""
    buffer = bytearray(INPUT_BUFFER_BYTES)
    yield 0
    for ref in cycle(task.own_refs):
        with open_stream(ref, options=task.options) as stream:
            while count := stream.readinto(buffer):
                yield count


def decompressor(task: Measurement) -> Amounts:
    """Samples that the bytes decompressed from memory would give."""
    portion = read_portion(task.own_refs[0], task.options)
    if portion.kind is None:
        raise ShardBroken(f"{task.own_refs[0].url} is not compressed as the first shard is", url=task.own_refs[0].url)
    sample_share = len(portion.samples) / len(portion.archive)
    yield 0
    while True:
        for chunk in Decompressor(portion.kind, limited=False).feed(portion.stored):
            yield len(chunk) * sample_share


def parser(task: Measurement) -> Amounts:
    """Samples cut out of an archive in memory."""
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
    """Samples in memory decoded."""
    decode = Decoder(task.how)
    found = read_portion(task.own_refs[0], task.options).samples
    decode(found[0])
    yield 0
    for sample in cycle(found):
        decode(sample)
        yield 1


def loader(task: Measurement) -> Amounts:
    """Samples from the network, undecoded, as a training script gets them."""
    yield 0
    for _ in _samples(task):
        yield 1


def decoding_loader(task: Measurement) -> Amounts:
    """The same, decoded."""
    decode = Decoder(task.how)
    decode(read_portion(task.own_refs[0], task.options).samples[0])  # what decoders import takes a while
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
    """(amount, seconds) of a part; `wait` returns when the clock may start."""
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
        return INTERRUPTED  # who started us has gone
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
