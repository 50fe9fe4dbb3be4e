"""Lists of keys of any length, stored as runs of sorted 128-bit hashes and searched one run at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import xxhash

from dfc.errors import Conflict
from dfc.jobs.shards.output import PlainOutput
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard
from dfc.limits import TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.index.arrays import Integers

HASH_BYTES: Final = 16
_RUN_KEYS: Final = 1 << 19  # 8 MiB
_READ_BYTES: Final = 1 << 20
_LINE_BYTES_MAX: Final = 4 * TAR_MEMBER_NAME_BYTES_MAX + 65_536  # an NDJSON line also lists the members
_HASH: Final = np.dtype([("high", ">u8"), ("low", ">u8")])


class BadKeyList(Conflict):
    """A line in a list of keys is not a key."""

    code = "bad_key_list"


class _Line(msgspec.Struct):
    key: str


def write_key_hashes(store: Store, shard: InputShard, name: str) -> int:
    """Write the hashes of all keys of an object in sorted runs, and return their number. BadKeyList names the line."""
    count, run = 0, []
    with PlainOutput(store, name, temporary=True) as output:
        for key in _keys(store, shard):
            run.append(xxhash.xxh3_128_digest(key))
            if len(run) == _RUN_KEYS:
                output.write(b"".join(sorted(run)))
                count += len(run)
                run.clear()
                store.check()
        output.write(b"".join(sorted(run)))
        output.commit()
    return count + len(run)


def _keys(store: Store, shard: InputShard) -> Iterator[bytes]:
    decoder, rest, number = msgspec.json.Decoder(_Line), b"", 0
    source = store.open(shard)
    try:
        with source.open() as stream:
            while True:
                data = stream.read(_READ_BYTES)
                lines = (rest + data).split(b"\n")
                rest = lines.pop() if data else b""
                if len(rest) > _LINE_BYTES_MAX:
                    raise BadKeyList(f"{shard.label}: line {number + len(lines) + 1} is too long for a key")
                for line in lines:
                    number += 1
                    line = line.rstrip(b"\r")
                    if line.startswith(b"{"):
                        try:
                            yield decoder.decode(line).key.encode()
                        except msgspec.DecodeError as error:
                            raise BadKeyList(f"{shard.label}: line {number} is not a JSON object with a key: {error}") from None
                    elif line:
                        yield line
                if not data:
                    return
    finally:
        source.close()


class KeyList:
    """The hashes written by `write_key_hashes`."""

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self._store, self._names = store, names

    def find(self, hashes: Sequence[bytes]) -> Integers:
        """Return the ascending positions of those hashes (xxh3-128 of keys) that are in the list."""
        mine = np.frombuffer(b"".join(hashes), dtype=_HASH)
        high, low = mine["high"].astype(np.uint64), mine["low"].astype(np.uint64)
        found = np.zeros(len(mine), dtype=bool)
        for run_high, run_low in self._runs():
            at = np.searchsorted(run_high, high, side="left")
            # Equal upper halves are adjacent; there are more than a few only if the keys are equal.
            end = np.searchsorted(run_high, high, side="right")
            candidates = np.flatnonzero(at < end)
            for i in candidates[~found[candidates]].tolist():
                found[i] = bool((run_low[at[i] : end[i]] == low[i]).any())
        return np.flatnonzero(found)

    def _runs(
        self,
    ) -> Iterator[tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], np.ndarray[tuple[int], np.dtype[np.uint64]]]]:
        for name in self._names:
            source = self._store.open_temporary(name)
            try:
                step = _RUN_KEYS * HASH_BYTES
                for offset in range(0, source.size, step):
                    data = bytearray(min(step, source.size - offset))
                    source.read_into(offset, memoryview(data))
                    run = np.frombuffer(data, dtype=_HASH)
                    yield run["high"].astype(np.uint64), run["low"].astype(np.uint64)
            finally:
                source.close()
