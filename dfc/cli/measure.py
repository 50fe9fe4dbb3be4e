"""Measures how fast a loader on this machine reads from a cluster: each of its parts alone, then all together.

Parts are measured with 1, 2, 4 … processes at once, like the workers of a training job (`dfc.cli.measureworker`), for the same
short time each. Rates are the totals of all processes, in samples per second.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from dfc.cli.measureworker import ArchiveHead, Measurement, read_portion
from dfc.inputs.base import InputError, ShardRef
from dfc.inputs.decoding import Decoder
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import INPUT_RETRIES

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
        for rank in range(task.workers):
            process = stack.enter_context(_started())
            stack.callback(_end, process)
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


def _started() -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "dfc.cli.measureworker"]
    # Its own session: only this process gets Ctrl-C, and then kills it.
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


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


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
