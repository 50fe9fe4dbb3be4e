"""Look at the write-ahead log of an SQLite database before SQLite opens it.

SQLite takes a frame with a wrong checksum for the end of the log, and forgets whatever was committed after it, without a word.
But a log that ends has nothing behind its end: a complete commit there means that the frame was damaged. (Or that the machine
lost power while none of this was synced: then the file system may have written what came later, and not that.)
https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_HEADER: Final = struct.Struct(">8I")  # magic, version, page size, checkpoint, two salts, two checksums
_MAGICS: Final = {0x377F0682: "<u4", 0x377F0683: ">u4"}  # the last bit says in which order checksums read words
_PAGE_SIZES: Final = frozenset(512 << shift for shift in range(8))
_FRAME_BYTES: Final = 24  # page, size of the database after a commit or 0, two salts, two checksums; before each page
_FRAMES_AT_ONCE: Final = 1024


class TornLog(NamedTuple):
    """A log that goes on behind a damaged frame. `frame` counts from 1, 0: the header; `commits` are complete behind it."""

    frame: int
    frames: int
    commits: int


def torn_log(path: str) -> TornLog | None:
    """Where the log of the database at `path` is damaged; None if it is not, or nothing was committed behind that. OSError."""
    try:
        with open(f"{path}-wal", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size or size == _HEADER.size:
                return None
            import numpy as np  # so that a node without such a log does not load it

            magic, _, page_bytes, _, *salts = _HEADER.unpack(head)
            if magic in _MAGICS and page_bytes in _PAGE_SIZES:
                seed = np.array(salts[2:], np.uint32)
                of_head = _sums(np.frombuffer(head[:24], _MAGICS[magic]).reshape(1, -1), np.zeros((1, 2), np.uint32))
                if np.array_equal(of_head, [seed]):
                    return _scan(file, page_bytes, _MAGICS[magic], seed, salts[:2])
            # SQLite forgets all of a log whose header is damaged. Whatever fields of it are wrong, frames tell by themselves.
            tried = [
                _scan(file, each, words, np.array(salts[2:], np.uint32), None)
                for each in sorted({page_bytes, _page_bytes(path)} & _PAGE_SIZES)
                for words in _MAGICS.values()
            ]
    except FileNotFoundError:
        return None
    return max((each for each in tried if each is not None), key=lambda each: each.commits, default=None)


def _page_bytes(path: str) -> int:
    """The size of the pages of a database, by its header; 0 if it is not to be had."""
    with open(path, "rb") as file:
        found = int.from_bytes(file.read(18)[16:18])
    return 65_536 if found == 1 else found


def _scan(file: BinaryIO, page_bytes: int, words: str, seed: np.ndarray[Any, Any], salts: list[int] | None) -> TornLog | None:
    """Look at all frames. `seed`: the checksums in the header; `salts` None: it is damaged, and the first frame tells them."""
    import numpy as np

    frames, first_bad, commits = 0, 0 if salts is None else -1, 0
    step = _FRAME_BYTES + page_bytes
    file.seek(_HEADER.size)
    while block := file.read(step * _FRAMES_AT_ONCE):
        count = len(block) // step
        if not count:
            break
        if salts is None:
            salts = list(struct.unpack(">2I", block[8:16]))
        read = np.frombuffer(block, np.uint8, count * step).reshape(count, step)
        good, commit, seed = _look(read, seed, salts, words)
        bad = np.flatnonzero(~good)
        if first_bad < 0 and bad.size:
            first_bad = frames + int(bad[0]) + 1
        behind = np.arange(frames + 1, frames + count + 1) > first_bad if first_bad >= 0 else np.zeros(count, bool)
        commits += int(np.count_nonzero(good & commit & behind))
        frames += count
    return TornLog(first_bad, frames, commits) if commits else None


def _look(
    frames: np.ndarray[Any, Any], seed: np.ndarray[Any, Any], salts: list[int], words: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Which frames follow the one before them, which end a commit, and the checksums of the last one. Each is checked with the
    checksums that the one before says it has, so that those behind a damaged one are seen to be sound."""
    import numpy as np

    heads = np.ascontiguousarray(frames[:, :_FRAME_BYTES]).view(">u4").astype(np.uint32)
    seeds = np.vstack((seed.reshape(1, 2), heads[:-1, 4:6]))
    summed = np.ascontiguousarray(np.hstack((frames[:, :8], frames[:, _FRAME_BYTES:]))).view(words)
    is_ours = np.all(heads[:, 2:4] == np.array(salts[:2], np.uint32), axis=1)
    return is_ours & np.all(_sums(summed, seeds) == heads[:, 4:6], axis=1), heads[:, 1] != 0, heads[-1, 4:6]


def _sums(words: np.ndarray[Any, Any], seeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """SQLite's checksums of rows of 32-bit words, each begun with a seed.

    For each pair of words it does s0 += x0 + s1, then s1 += x1 + s0, modulo 2^32. That is linear, so it is done for all pairs
    at once, with the share that each has in the end.
    """
    import numpy as np

    ours = words.astype(np.uint32)
    of_first, of_second, of_seed = _shares(words.shape[1] // 2)
    found: np.ndarray[Any, Any] = ours[:, 0::2] @ of_first + ours[:, 1::2] @ of_second + seeds @ of_seed
    return found


@lru_cache(maxsize=4)
def _shares(pairs: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The shares of the first word of each pair, of the second one, and of the seeds, in both sums."""
    import numpy as np

    step = np.array([[1, 1], [1, 2]], np.uint32)  # s0 + s1, then s1 + that
    power = np.eye(2, dtype=np.uint32)
    first, second = np.empty((pairs, 2), np.uint32), np.empty((pairs, 2), np.uint32)
    for at in reversed(range(pairs)):
        first[at], second[at] = power @ np.array([1, 1], np.uint32), power @ np.array([0, 1], np.uint32)
        power = power @ step
    return first, second, np.ascontiguousarray(power.T)
