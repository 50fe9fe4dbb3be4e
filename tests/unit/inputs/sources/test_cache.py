"""The local cache of shards: fetched once, whole or not there, bounded, and never in the way."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash

from dfc.http.retry import Cancellation, Cancelled
from dfc.inputs.base import ShardBroken, ShardChanged, ShardUnreadable
from dfc.inputs.sources.opening import ShardCache
from dfc.inputs.sources.streams import Stream

URL = "http://host/bucket/a.tar"


class MemoryStream(Stream):
    def __init__(self, data: bytes, etag: str, size: int | None, fail_at: int | None = None) -> None:
        self.url, self.etag, self.size, self.indexed = URL, etag, size, True
        self._data, self._fail_at = data, fail_at
        self.closed = False

    def readinto(self, buffer: bytearray | memoryview) -> int:
        if self._fail_at is not None:
            raise ShardUnreadable("broke off", url=URL)
        piece = self._data[: len(buffer)]
        buffer[: len(piece)] = piece
        self._data = self._data[len(piece) :]
        return len(piece)

    def close(self) -> None:
        self.closed = True


class Origin:
    """Opens streams over bytes and counts them."""

    def __init__(self, size: int = 10_000, etag: str | None = None, known: bool = True, fail: bool = False) -> None:
        self.data = random.Random(size).randbytes(size)
        self.etag = xxhash.xxh3_128_hexdigest(self.data) if etag is None else etag
        self.known, self.fail = known, fail
        self.streams: list[MemoryStream] = []

    def __call__(self, start: int, end: int | None) -> Stream:
        data = self.data[start:end]
        self.streams.append(MemoryStream(data, self.etag, len(self.data) if self.known else None, 0 if self.fail else None))
        return self.streams[-1]


def read(stream: Stream, size: int = 3000) -> bytes:
    data, buffer = b"", bytearray(size)
    with stream:
        while count := stream.readinto(buffer):
            data += buffer[:count]
    return data


def files(cache: ShardCache) -> list[str]:
    return sorted(name for name in os.listdir(cache.directory) if name != "lock")


def test_it_is_fetched_once_and_any_part_is_read_from_the_file(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path / "new" / "dir"), Origin()
    assert read(cache.open(URL, origin, start=17, end=7001, etag=origin.etag)) == origin.data[17:7001]
    stream = cache.open(URL, origin, etag=origin.etag)
    assert (stream.etag, stream.size, stream.indexed) == (origin.etag, 10_000, True)
    assert read(stream) == origin.data
    assert read(cache.open(URL, origin, start=9_999, etag=origin.etag)) == origin.data[9_999:]
    assert read(cache.open(URL, origin, start=20_000, etag=origin.etag)) == b""
    assert len(origin.streams) == 1
    assert all(stream.closed for stream in origin.streams)
    assert files(cache) == [f"{origin.etag}.indexed"]
    assert (cache.hits, cache.misses) == (3, 1)


@pytest.mark.parametrize("size", [10_000, 5_000, 0])
def test_a_file_that_was_damaged_is_told_of_and_removed(tmp_path: Path, size: int) -> None:
    cache, origin = ShardCache(tmp_path), Origin()
    assert read(cache.open(URL, origin, etag=origin.etag)) == origin.data
    path = tmp_path / f"{origin.etag}.indexed"
    path.write_bytes((bytes([origin.data[0] ^ 1]) + origin.data[1:])[:size])
    with pytest.raises(ShardBroken, match=r"indexed, the cached copy of .*damaged"):
        read(cache.open(URL, origin, etag=origin.etag))
    assert not path.exists()
    assert read(cache.open(URL, origin, etag=origin.etag)) == origin.data  # fetched anew


def test_without_a_planned_etag_the_server_is_asked_for_it(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path), Origin(etag="5f-62")
    for _ in range(2):
        assert read(cache.open(URL, origin)) == origin.data
    assert len(origin.streams) == 3
    other = Origin(20_000, etag="5f-62")  # the same ETag of another URL means nothing
    assert read(cache.open("http://host/bucket/b.tar", other)) == other.data
    assert read(cache.open(URL + "?signature=2", origin)) == origin.data
    assert len(files(cache)) == 2


@pytest.mark.parametrize(("etag", "known"), [("", True), ("5f-62", False)])
def test_what_cannot_be_told_or_measured_is_not_kept(tmp_path: Path, etag: str, known: bool) -> None:
    cache, origin = ShardCache(tmp_path), Origin(etag=etag, known=known)
    assert read(cache.open(URL, origin, start=5)) == origin.data[5:]
    assert files(cache) == []


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, size_max=35_000)
    origins = [Origin(size) for size in (10_000, 10_001, 10_002)]
    for moment, origin in enumerate(origins):
        read(cache.open(URL, origin, etag=origin.etag))
        os.utime(tmp_path / f"{origin.etag}.indexed", (moment, moment))
    held = cache.open(URL, origins[1], etag=origins[1].etag)
    os.utime(tmp_path / f"{origins[1].etag}.indexed", (1, 1))
    read(cache.open(URL, origins[0], etag=origins[0].etag))
    more = Origin(10_003)
    read(cache.open(URL, more, etag=more.etag))
    assert files(cache) == sorted(f"{origin.etag}.indexed" for origin in (origins[0], origins[2], more))
    assert read(held) == origins[1].data  # open files stay


def test_a_shard_that_has_no_room_is_read_past_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, origin = ShardCache(tmp_path, size_max=9_999), Origin()
    assert read(cache.open(URL, origin, start=3, etag=origin.etag)) == origin.data[3:]
    assert files(cache) == []
    assert "without the cache" in caplog.text


def test_a_directory_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path / "gone"), Origin()
    os.rmdir(tmp_path / "gone")
    assert read(cache.open(URL, origin, etag=origin.etag)) == origin.data


def test_a_disk_that_takes_no_more_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, origin = ShardCache(tmp_path), Origin()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
    try:
        stream = cache.open(URL, origin, start=2, etag=origin.etag)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read(stream) == origin.data[2:]
    assert files(cache) == []
    assert "too large" in caplog.text


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path)
    broken = Origin(fail=True)
    with pytest.raises(ShardUnreadable):
        cache.open(URL, broken, etag=broken.etag)
    changed = Origin()
    with pytest.raises(ShardChanged):
        cache.open(URL, changed, etag="0" * 32)
    short = Origin()
    short.data = short.data[:-1]
    stream = MemoryStream(short.data, short.etag, 10_000)
    with pytest.raises(ShardBroken):
        cache.open(URL, lambda start, end: stream, etag=short.etag)
    assert files(cache) == []


def test_many_threads_fetch_it_once(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path), Origin(300_000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: read(cache.open(URL, origin, etag=origin.etag)), range(8)))
    assert found == [origin.data] * 8
    assert len(origin.streams) == 1


def test_who_waits_for_another_can_be_cancelled_and_a_part_left_behind_is_taken_over(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path), Origin()
    part = tmp_path / f"{origin.etag}.part"
    holder = "import fcntl, sys; f = open(sys.argv[1], 'wb'); f.write(b'x' * 50000); f.flush(); fcntl.flock(f, fcntl.LOCK_EX);"
    holder += "print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holder, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        cancellation = Cancellation()
        timer = threading.Timer(0.05, cancellation.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            cache.open(URL, origin, etag=origin.etag, cancellation=cancellation)
        timer.join()
        process.kill()
    assert part.stat().st_size == 50_000
    assert read(cache.open(URL, origin, etag=origin.etag)) == origin.data
    assert files(cache) == [f"{origin.etag}.indexed"]


def test_parts_of_processes_that_are_gone_are_removed_when_room_is_made(tmp_path: Path) -> None:
    cache, origin = ShardCache(tmp_path, size_max=15_000), Origin()
    (tmp_path / "abandoned.part").write_bytes(b"x" * 10_000)
    with open(tmp_path / "held.part", "wb") as held:
        held.write(b"x" * 4_000)
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        assert read(cache.open(URL, origin, etag=origin.etag)) == origin.data
        assert files(cache) == [f"{origin.etag}.indexed", "held.part"]
        other = Origin(14_000)  # together with what is being fetched it is too much
        assert read(cache.open(URL, other, etag=other.etag)) == other.data
        assert "held.part" in files(cache)


def test_a_negative_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="-1"):
        ShardCache(tmp_path, size_max=-1)
