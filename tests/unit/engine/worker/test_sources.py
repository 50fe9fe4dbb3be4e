"""Ranges of a file that go to many places: from the kernel's memory where they are there, and the same bytes where not."""

from __future__ import annotations

import errno
import os
import random

import pytest

from dfc.engine.worker import reading
from dfc.engine.worker.reading import BlobSource, Throttle
from dfc.errors import ObjectCorrupt

SIZE = 3_000_000


@pytest.fixture
def stored(tmp_path):
    """A file with 100 bytes behind the object's, as blobs have them; the object, and a descriptor."""
    content = random.Random(1).randbytes(SIZE)
    (tmp_path / "blob").write_bytes(content + bytes(100))
    descriptor = os.open(tmp_path / "blob", os.O_RDONLY)
    yield content, descriptor
    os.close(descriptor)


def spans(seed: int, count: int) -> tuple[list[int], list[int], list[int]]:
    chance = random.Random(seed)
    offsets = sorted(chance.randrange(SIZE - 5000) for _ in range(count))
    sizes = [chance.choice((0, 1, 500, 5000)) for _ in offsets]
    places = [5000 * place for place in chance.sample(range(count), count)]
    return offsets, sizes, places


def check(stored, source, count):
    content, _ = stored
    offsets, sizes, places = spans(count, count)
    buffer = bytearray(5000 * count)
    source.read_scattered(offsets, sizes, places, memoryview(buffer))
    for offset, size, place in zip(offsets, sizes, places, strict=True):
        assert buffer[place : place + size] == content[offset : offset + size]


@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("memory", ["warm", "cold", "half", "not to be asked", "no such flag"])
def test_bytes_go_to_their_places(stored, monkeypatch, count, memory):
    descriptor = stored[1]
    if memory in ("cold", "half"):
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if memory == "half":
            os.pread(descriptor, SIZE // 2, 0)
    elif memory == "not to be asked":  # as of a file system that does not know the flag
        real = os.preadv

        def refuse(fd, buffers, offset, flags=0):
            if flags:
                raise OSError(errno.EOPNOTSUPP, "not supported")
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", refuse)
    elif memory == "no such flag":
        monkeypatch.setattr(reading, "_NOWAIT", None)
    check(stored, BlobSource(descriptor, SIZE, "x.tar", Throttle(0)), count)


def test_what_is_in_memory_is_asked_for_once(stored, monkeypatch):
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advised.append(arguments))
    os.pread(stored[1], SIZE, 0)
    check(stored, BlobSource(stored[1], SIZE, "x.tar", Throttle(0)), 100)
    assert not advised or reading._NOWAIT is None or _unknown(stored[1])


def _unknown(descriptor: int) -> bool:
    """Whether this file system cannot say what is in memory."""
    try:
        os.preadv(descriptor, [bytearray(10)], 0, os.RWF_NOWAIT)
    except OSError:
        return True
    return False


@pytest.mark.parametrize("offset", [SIZE - 10, SIZE, SIZE + 50, -1])
def test_no_byte_behind_the_object_is_given(stored, offset):
    source = BlobSource(stored[1], SIZE, "x.tar", Throttle(0))
    with pytest.raises(ObjectCorrupt):
        source.read_scattered([5, offset], [10, 11], [0, 10], memoryview(bytearray(21)))


def test_a_file_that_was_cut_is_told(stored, tmp_path):
    os.truncate(tmp_path / "blob", 1000)
    source = BlobSource(stored[1], SIZE, "x.tar", Throttle(0))
    with pytest.raises(ObjectCorrupt, match="ends early, at byte 1000"):
        source.read_scattered([0, 990], [10, 100], [0, 10], memoryview(bytearray(110)))


def test_all_of_it_counts_for_the_speed_limit(stored):
    taken = []

    class Counting(Throttle):
        def take(self, count: int) -> None:
            taken.append(count)

    source = BlobSource(stored[1], SIZE, "x.tar", Counting(1))
    source.read_scattered([0, 1000], [10, 20], [0, 10], memoryview(bytearray(30)))
    assert sum(taken) == 30
