"""`python -m loadtest.inputs.readers NAME`: read a dataset in a process of its own and print as JSON what that took.

Options are JSON on standard input. What is imported is imported before the clock starts. `imported_bytes` is what was resident
after the imports, `peak_bytes` the most that ever was (VmHWM).
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from loadtest.processes import memory_bytes

BUFFER_BYTES = 1 << 20
INFLATE_BYTES = 1 << 20  # a call's output; of 256 KiB to 4 MiB the one that is fastest here
Result = dict[str, Any]


def samples(options: Mapping[str, Any]) -> Result:
    """Samples undecoded, by `gopen.sharditerator`: options `url`, `ours` (arguments of the call)."""
    from dfc.inputs import gopen

    imported = memory_bytes(os.getpid())[0]
    begin = time.perf_counter()
    with gopen.sharditerator(options["url"], epochs=1, decode=False, handler="raise", **options.get("ours", {})) as source:
        found = _consume(source, begin, options.get("first_only", False))
    return {**found, "imported_bytes": imported}


def webdataset(options: Mapping[str, Any]) -> Result:
    """The same by WebDataset, which runs `curl` for every shard: option `urls`."""
    import webdataset

    imported = memory_bytes(os.getpid())[0]
    begin = time.perf_counter()
    found = _consume(webdataset.WebDataset(options["urls"], shardshuffle=False), begin)
    return {**found, "imported_bytes": imported}


def _consume(source: Iterable[Mapping[str, Any]], begin: float, first_only: bool = False) -> Result:
    count = size = 0
    first_s = 0.0
    for sample in source:
        if not count:
            first_s = time.perf_counter() - begin
        count += 1
        size += len(sample["jpg"]) + len(sample["cls"])
        if first_only:
            break
    return {"samples": count, "size": size, "seconds": time.perf_counter() - begin, "first_s": first_s}


def receive(options: Mapping[str, Any]) -> Result:
    """What the link gives to one thread: bodies read into a buffer and forgotten. Option `urls`, those of the targets."""
    buffer = bytearray(BUFFER_BYTES)
    size = 0
    begin = time.perf_counter()
    links: dict[str, http.client.HTTPConnection] = {}
    for url in options["urls"]:
        parts = urlsplit(url)
        link = links.get(parts.netloc) or links.setdefault(parts.netloc, http.client.HTTPConnection(parts.netloc))
        link.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        answer = link.getresponse()
        if answer.status != 200:
            raise OSError(f"{url} was answered {answer.status}")
        while count := answer.readinto(buffer):
            size += count
    seconds = time.perf_counter() - begin
    for link in links.values():
        link.close()
    return {"size": size, "seconds": seconds}


def inflate(options: Mapping[str, Any]) -> Result:
    """The decompressor alone, from memory, what it gives forgotten: options `path` (gzip, one member) and `rounds`."""
    from isal import igzip_lib

    data = Path(options["path"]).read_bytes()
    size = 0
    begin = time.perf_counter()
    for _ in range(options["rounds"]):
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        rest = data
        while not member.eof:
            size += len(member.decompress(rest, INFLATE_BYTES))
            rest = b""
    return {"size": size, "seconds": time.perf_counter() - begin}


def decode(options: Mapping[str, Any]) -> Result:
    """The decoder alone on files in memory: options `path` (a tar), `rounds`, `workers` (processes that share them)."""
    with tarfile.open(options["path"]) as archive:
        files = [archive.extractfile(each).read() for each in archive if each.name.endswith(".jpg")]  # type: ignore[union-attr]
    files *= options["rounds"]
    fork = multiprocessing.get_context("fork")
    workers: int = options["workers"]
    start = fork.Barrier(workers + 1)
    processes = [fork.Process(target=_decode_all, args=(files[rank::workers], start)) for rank in range(workers)]
    for process in processes:
        process.start()
    start.wait()
    begin = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"exit codes {[process.exitcode for process in processes]}")
    return {"samples": len(files), "size": sum(map(len, files)), "seconds": seconds}


def _decode_all(files: Sequence[bytes], start: Any) -> None:
    import simplejpeg

    start.wait()
    for file in files:
        simplejpeg.decode_jpeg(file, "RGB")


def torch(options: Mapping[str, Any]) -> Result:
    """Batches of a `DataLoader` in the training process: options `url`, `workers`, `ours` (arguments of `ShardDataset`)."""
    from dfc.inputs import torch as inputs

    imported = memory_bytes(os.getpid())[0]
    begin = time.perf_counter()
    dataset = inputs.ShardDataset(options["url"], **options["ours"])
    count = 0
    first_s = 0.0
    for batch in inputs.DataLoader(dataset, num_workers=options["workers"]):
        if not count:
            first_s = time.perf_counter() - begin
        count += len(batch["__key__"])
        if options.get("first_only"):
            break
    seconds = time.perf_counter() - begin
    return {"samples": count, "seconds": seconds, "first_s": first_s, "imported_bytes": imported}


def numpy(options: Mapping[str, Any]) -> Result:
    """Batches of the loader without a framework, decoded by threads: options `url`, `workers` (threads), `ours`."""
    from dfc.inputs.numpy import Loader

    imported = memory_bytes(os.getpid())[0]
    begin = time.perf_counter()
    count = sum(len(batch["__key__"]) for batch in Loader(options["url"], threads=options["workers"], **options["ours"]))
    return {"samples": count, "seconds": time.perf_counter() - begin, "imported_bytes": imported}


def interrupted(options: Mapping[str, Any]) -> Result:
    """The keys of one epoch, and the state after `stop` batches; options otherwise as for `torch`."""
    from dfc.inputs import torch as inputs

    loader = inputs.DataLoader(inputs.ShardDataset(options["url"], **options["ours"]), num_workers=options["workers"])
    keys: list[str] = []
    state = None
    for number, batch in enumerate(loader, 1):
        if number > options["stop"]:
            keys += batch["__key__"]
        elif number == options["stop"]:
            state = loader.state_dict()
    return {"keys": keys, "state": state}


def resumed(options: Mapping[str, Any]) -> Result:
    """From a `state`: seconds to the first batch, and the keys of the rest of the epoch."""
    from dfc.inputs import torch as inputs

    begin = time.perf_counter()
    loader = inputs.DataLoader(inputs.ShardDataset(options["url"], **options["ours"]), num_workers=options["workers"])
    loader.load_state_dict(options["state"])
    keys: list[str] = []
    first_s = 0.0
    for batch in loader:
        first_s = first_s or time.perf_counter() - begin
        keys += batch["__key__"]
    return {"first_s": first_s, "seconds": time.perf_counter() - begin, "keys": keys}


READERS: dict[str, Callable[[Mapping[str, Any]], Result]] = {
    reader.__name__: reader for reader in (samples, webdataset, receive, inflate, decode, torch, numpy, interrupted, resumed)
}


def main() -> int:
    name = sys.argv[1]
    found = READERS[name](msgspec.json.decode(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(msgspec.json.encode({**found, "peak_bytes": memory_bytes(os.getpid())[1]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
