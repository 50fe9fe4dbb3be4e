"""An index file under its readers: cut short, on a disk that fails, closed meanwhile, and not in memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import DATA, open_files, wait_for

from dfc.limits import INDEX_CACHE_BYTES
from dfc.tar.index import reader
from dfc.tar.index.format import HEADER_BYTES, PAGE_BYTES, IndexCorrupt, NotAtHand, PageCache
from dfc.tar.index.reader import ShardIndex

COUNT = 6000


@pytest.fixture(scope="module")
def large(make, tmp_path_factory) -> Path:
    """An index of many pages, of COUNT samples of two members."""
    directory = tmp_path_factory.mktemp("large")
    from dfc.tar.index.builder import open_builder

    data = make.tar({f"d/{number // 2:06d}.{'xy'[number % 2]}": b"" for number in range(2 * COUNT)})
    with open(directory / "i", "w+b") as file:
        builder = open_builder("tar", file, str(directory))
        builder.feed(data)
        builder.finish("0" * 14 + "0001", len(data), "ab" * 16)
    return directory / "i"


@pytest.fixture
def path(large, tmp_path) -> Path:
    copy = tmp_path / "x.idx"
    copy.write_bytes(large.read_bytes())
    return copy


USES: dict[str, Callable[[ShardIndex], object]] = {
    "member": lambda index: [index.find_member(f"d/{number:06d}.x") for number in range(0, COUNT, 7)],
    "sample": lambda index: [index.find_sample(f"d/{number:06d}") for number in range(0, COUNT, 7)],
    "ordinal": lambda index: index.sample_at(COUNT - 1),
    "members": lambda index: list(index.members()),
    "samples": lambda index: list(index.samples()),
    "offsets": lambda index: index.sample_offsets(),
    "columns": lambda index: index.arrays(np.arange(COUNT)),
    "spans": lambda index: index.spans(np.array([1, COUNT - 1])),
    "check": lambda index: index.verify(),
}


_TRUNCATED = """
import os, sys
sys.path.insert(0, os.path.dirname(sys.argv[1]))
from test_file import HEADER_BYTES, USES, IndexCorrupt, ShardIndex
content = open(sys.argv[2], "rb").read()
for use in USES:
    for length in (0, HEADER_BYTES + 100, 4096, 100_000):
        child = os.fork()
        if not child:
            path = f"{sys.argv[2]}-{use}-{length}"
            with open(path, "wb") as file:
                file.write(content)
            index = ShardIndex.open(path)
            os.truncate(path, length)
            try:
                USES[use](index)
            except IndexCorrupt as error:
                os._exit(0 if "truncated" in str(error) else 3)
            os._exit(4)
        print(use, length, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_file_that_is_cut_short_while_it_is_open(path):
    """In processes of their own: what is mapped ends them by SIGBUS."""
    command = [sys.executable, "-c", _TRUNCATED, __file__, path]
    environment = {**os.environ, "PYTHONPATH": str(DATA.parent)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (ended.returncode, ended.stderr) == (0, "")
    wanted = [f"{use} {length} 0" for use in USES for length in (0, HEADER_BYTES + 100, 4096, 100_000)]
    assert ended.stdout.splitlines() == wanted


@pytest.mark.parametrize("use", USES)
def test_an_error_of_the_disk(path, use, monkeypatch):
    index = ShardIndex.open(path)
    told: list[OSError] = []

    def translate(error: OSError) -> Exception:
        told.append(error)
        return LookupError("translated")

    other = ShardIndex.open(path, translate=translate)
    monkeypatch.setattr(os, "pread", _fails)
    with pytest.raises(OSError, match="medium"):
        USES[use](index)
    with pytest.raises(LookupError, match="translated"):
        USES[use](other)
    assert [error.errno for error in told] == [errno.EIO]


def _fails(*_: object) -> bytes:
    raise OSError(errno.EIO, "the medium is bad")


def test_an_error_behind_good_bytes_is_no_damage_of_the_index(path, monkeypatch):
    """The kernel first gives what it has, then the error."""
    index = ShardIndex.open(path)
    pread = os.pread

    def cut(descriptor: int, size: int, start: int) -> bytes:
        if start + size > 10_000:
            if start >= 10_000:
                raise OSError(errno.EIO, "the medium is bad")
            size = 10_000 - start
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", cut)
    with pytest.raises(OSError, match="medium"):
        index.verify()


def test_closing_under_readers_never_reads_another_file(path, tmp_path):
    """The number of a closed descriptor is given to the next file that is opened: here files of nonsense, all the time."""
    (tmp_path / "nonsense").write_bytes(b"\xee" * path.stat().st_size)
    found: list[BaseException] = []
    stop = threading.Event()
    box = [ShardIndex.open(path, PageCache(1))]

    def read(seed: int) -> None:
        draw = random.Random(seed)
        while not stop.is_set():
            name = f"d/{draw.randrange(COUNT):06d}.x"
            try:
                assert box[0].find_member(name).name == name
            except ValueError as error:
                if isinstance(error, IndexCorrupt) or "closed" not in str(error):
                    found.append(error)
            except BaseException as error:
                found.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            box[0].close()
            others = [os.open(tmp_path / "nonsense", os.O_RDONLY) for _ in range(4)]
            box[0] = ShardIndex.open(path, PageCache(1))
            for other in others:
                os.close(other)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    assert found == []


def descriptors_of(path: Path) -> int:
    return open_files(os.getpid()).count(str(path))


def test_a_descriptor_ends_with_its_index(path, tmp_path):
    indexes = [ShardIndex.open(path) for _ in range(20)]
    assert descriptors_of(path) == 20
    for index in indexes[:10]:
        index.close()
    assert descriptors_of(path) == 10
    del indexes, index
    assert descriptors_of(path) == 0
    (tmp_path / "none.idx").write_bytes(b"")
    with pytest.raises(IndexCorrupt) as refused:
        ShardIndex.open(tmp_path / "none.idx")
    del refused
    assert descriptors_of(tmp_path / "none.idx") == 0


def test_memory_is_bounded(large):
    cache = PageCache(10 * PAGE_BYTES)
    indexes = [ShardIndex.open(large, cache) for _ in range(3)]
    for index in indexes:
        USES["member"](index)
    assert len(cache) == 10
    assert INDEX_CACHE_BYTES > 10 * PAGE_BYTES


def test_pages_of_two_files_are_told_apart(large, make, index_of):
    _, small = index_of(make.tar({"a.x": b"1"}))
    cache = PageCache(1 << 20)
    first, second = ShardIndex.open(large, cache), ShardIndex.open(large.parent / "i", cache)
    third = ShardIndex.open(os.open(index_path(small), os.O_RDONLY), cache)
    for _ in range(2):
        assert first.find_member("d/000001.x") == second.find_member("d/000001.x") is not None
        assert third.find_member("a.x") is not None
        assert third.find_member("d/000001.x") is None
    first.close()
    with pytest.raises(ValueError, match="closed"):
        first.find_member("d/000001.x")
    assert second.find_member("d/000001.x") is not None


def index_path(index: ShardIndex) -> str:
    return os.readlink(f"/proc/self/fd/{index._file._descriptor.number}")


# --- without waiting


def drop(path: Path) -> None:
    def is_gone() -> bool:  # not while the kernel fetches what was asked for before
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        return resident(path) == 0

    wait_for(is_gone, "the pages to go")


def resident(path: Path) -> int:
    """Pages of a file that are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, ctypes.c_size_t(size), 1, 1, descriptor, ctypes.c_long(0))
    os.close(descriptor)
    vector = (ctypes.c_ubyte * (-(-size // 4096)))()
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector) == 0
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(byte & 1 for byte in vector)


AT_HAND: dict[str, Callable[[ShardIndex], object]] = {
    "member": lambda index: index.find_member_at_hand("d/000005.x"),
    "sample": lambda index: index.find_sample_at_hand("d/000005"),
}


@pytest.mark.parametrize("what", AT_HAND)
@pytest.mark.parametrize("there", ["nothing", "a part"])
def test_what_is_not_in_memory_is_not_waited_for(path, monkeypatch, what, there):
    # The kernel's part is played: it fetches what it is asked for, and a fast disk has it there before it answers.
    def not_yet(_fd, buffers, _offset, flags=0):
        assert flags & os.RWF_NOWAIT
        if there == "nothing":
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return len(buffers[0]) - 1

    index = ShardIndex.open(path)
    monkeypatch.setattr(os, "preadv", not_yet)
    with pytest.raises(NotAtHand):
        AT_HAND[what](index)
    assert index.find_member("d/000005.x") is not None
    assert index.find_sample("d/000005") is not None


@pytest.mark.parametrize("what", AT_HAND)
def test_what_the_disk_must_fetch_is_right_or_not_given(path, what):
    index = ShardIndex.open(path)
    path.read_bytes()
    right = AT_HAND[what](index)
    assert right is not None
    for _ in range(20):
        index = ShardIndex.open(path)
        drop(path)
        with contextlib.suppress(NotAtHand):
            assert AT_HAND[what](index) == right
        index.close()


def test_what_was_read_is_kept(path):
    index = ShardIndex.open(path)
    member, sample = index.find_member("d/000005.x"), index.find_sample("d/000005")
    assert member is not None
    assert sample is not None
    drop(path)
    assert index.find_member_at_hand("d/000005.x") == member
    assert index.find_sample_at_hand("d/000005") == sample
    assert resident(path) == 0


def test_what_is_in_memory_is_answered_at_once(path):
    index = ShardIndex.open(path)
    path.read_bytes()
    for number in range(0, COUNT, 100):
        assert index.find_member_at_hand(f"d/{number:06d}.y") == index.find_member(f"d/{number:06d}.y") is not None
        assert index.find_sample_at_hand(f"d/{number:06d}") == index.find_sample(f"d/{number:06d}") is not None
    assert index.find_member_at_hand("nothing") is None
    assert index.find_sample_at_hand("nothing") is None


def test_where_the_kernel_cannot_tell(path, monkeypatch):
    index = ShardIndex.open(path)
    monkeypatch.setattr("dfc.tar.index.format._NOWAIT", None)
    with pytest.raises(NotAtHand):
        index.find_member_at_hand("d/000005.x")
    assert index.find_member("d/000005.x") is not None
    assert index.find_member_at_hand("d/000005.x") is not None


def test_a_sample_of_many_members_is_no_work_for_an_event_loop(make, index_of):
    _, index = index_of(make.tar({f"many.{number}": b"" for number in range(1000)} | {"few.x": b""}))
    assert len(index.find_sample("many").members) == 1000
    with pytest.raises(NotAtHand):
        index.find_sample_at_hand("many")
    assert index.find_sample_at_hand("few") is not None


def test_hashes_that_are_not_spread_evenly(make, index_of, monkeypatch):
    """A table may be anything: searching it is as right as `bisect`, and no slower than halving."""
    draw = random.Random(3)
    values = {
        f"{number}.x": draw.choice((draw.randrange(1 << 64), draw.randrange(1 << 20), 5 + number % 400, (1 << 64) - 1 - number))
        for number in range(5000)
    }
    known = {key.encode(): value for key, value in values.items()} | {key[:-2].encode(): value for key, value in values.items()}
    real = reader.xxhash.xxh3_64_intdigest

    def skewed(data: bytes, seed: int = 0) -> int:
        return known.get(bytes(data), real(data))

    monkeypatch.setattr(reader.xxhash, "xxh3_64_intdigest", skewed)
    _, index = index_of(make.tar(dict.fromkeys(values, b"")))
    reads = 0
    pread = os.pread

    def counted(descriptor: int, size: int, start: int) -> bytes:
        nonlocal reads
        reads += 1
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", counted)
    for name in values:
        assert index.find_member(name).name == name
        assert index.find_sample(name[:-2]).key == name[:-2]
    assert index.find_member("other") is None
    assert reads < 1.2 * os.path.getsize(index_path(index)) / PAGE_BYTES + 10  # each page once: then it is kept
