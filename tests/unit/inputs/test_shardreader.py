"""Samples of many segments in order, read ahead by threads: order, bounds, errors, and threads that end."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from archives import COMPRESS
from harness import wait_for
from job_shards import tar_of

from dfc.inputs.base import Counts, Sample, ShardBroken, ShardChanged, ShardRef, ShardUnreadable
from dfc.inputs.sources import pieces
from dfc.inputs.sources.pieces import Lane, LaneSegment, ShardRange
from dfc.inputs.sources.shardreader import Segment, SegmentReader
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import INPUT_BUFFER_BYTES, MIB
from dfc.tar.scanner import Scanner


def shard_of(prefix: str, samples: int, size: int = 1000) -> bytes:
    """Samples `prefix`000 and so on, of a `bin` and a `cls`."""
    members = []
    for number, key in enumerate(names(prefix, 0, samples)):
        members += [(f"{key}.bin", bytes([number % 256]) * size), (f"{key}.cls", b"%d" % number)]
    return tar_of(members)


def starts_of(data: bytes) -> list[int]:
    """Where samples begin: those of `shard_of` have two members each."""
    return [entry[2] for entry in Scanner().feed(data)][::2]


@pytest.fixture
def shard(tmp_path: Path) -> Callable[..., ShardRef]:
    def store(name: str, data: bytes) -> ShardRef:
        path = tmp_path / name
        path.write_bytes(data)
        return ShardRef(str(path))

    return store


def keys(samples: list[Sample]) -> list[str]:
    return [sample["__key__"] for sample in samples]


def read(*segments: Segment, **options: object) -> list[str]:
    with SegmentReader(segments, **options) as reader:  # type: ignore[arg-type]
        return [key for portion in reader.portions() for key in keys(portion)]


def names(prefix: str, start: int, end: int) -> list[str]:
    return [f"{prefix}{number:03d}" for number in range(start, end)]


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dfc-inputs-ahead"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    wait_for(lambda: not own_threads(), "the threads to end")


@pytest.mark.parametrize("readers", [1, 2, 3, 8])
def test_segments_come_in_order_and_are_never_mixed(shard, readers):
    refs = [shard(f"{number}.tar", shard_of(f"{number}/", number * 3)) for number in range(8)]
    counts = Counts()
    with SegmentReader([Segment(ref) for ref in refs], readers=readers, counts=counts) as reader:
        found = [(portion.number, portion.segment.ref, keys(portion)) for portion in reader.portions()]
    assert [key for _, _, found_keys in found for key in found_keys] == [
        key for number in range(8) for key in names(f"{number}/", 0, number * 3)
    ]
    assert all(ref is refs[number] and found_keys[0].startswith(f"{number}/") for number, ref, found_keys in found)
    assert (counts.shards, counts.size, counts.shards_skipped) == (8, sum(Path(ref.url).stat().st_size for ref in refs), 0)


@pytest.mark.parametrize("name", ["x.tar", "x.tgz"])
@pytest.mark.parametrize("kind", [None, *COMPRESS])
def test_any_part_of_a_shard_of_any_kind_whatever_its_name(shard, kind, name):
    data = shard_of("", 50, 20_000)
    starts = starts_of(data)
    ref = shard(name, COMPRESS[kind](data) if kind else data)
    assert read(Segment(ref)) == names("", 0, 50)
    assert read(Segment(ref, starts[20])) == names("", 20, 50)
    assert read(Segment(ref, starts[20], skip=5, count=3)) == names("", 25, 28)
    assert read(Segment(ref, skip=45)) == names("", 45, 50)
    assert read(Segment(ref, count=0)) == []
    assert read(Segment(ref, count=50)) == names("", 0, 50)
    assert read(Segment(ref, end=starts[7])) == names("", 0, 7)
    counts = Counts()
    assert read(Segment(ref, starts[3], end=starts[7], count=4), counts=counts) == names("", 3, 7)
    assert counts.shards_unended == 0


def test_many_parts_of_one_shard_after_each_other(shard):
    data = shard_of("", 60, 50_000)
    starts = starts_of(data)
    for form in (data, gzip.compress(data, 1)):
        ref = shard("x.tar", form)
        segments = [Segment(ref, starts[start], count=2) for start in range(0, 60, 3)]
        assert read(*segments) == [name for start in range(0, 60, 3) for name in names("", start, start + 2)]


def test_a_portion_tells_where_it_can_be_read_again(shard):
    data = shard_of("", 200, 50_000)
    ref = shard("x.tar", data)
    with SegmentReader([Segment(ref, skip=10)]) as reader:
        portions = list(reader.portions())
    assert len(portions) > 3
    for portion in portions:
        again = Segment(ref, portion.at, portion.skipped + 1, len(portion) - 1, etag=portion.etag)
        assert read(again) == keys(portion)[1:]


def test_only_some_fields(shard):
    ref = shard("x.tar", shard_of("", 3))
    with SegmentReader([Segment(ref)], fields=["cls"]) as reader:
        found = [sample for portion in reader.portions() for sample in portion]
    assert found == [{"__key__": key, "__source__": ref.url, "cls": b"%d" % n} for n, key in enumerate(names("", 0, 3))]


def test_segments_are_asked_for_as_they_come_near(shard):
    ref = shard("x.tar", shard_of("", 2))
    asked = []

    def endless() -> Iterator[Segment]:
        while True:
            asked.append(1)
            yield Segment(ref)

    with SegmentReader(endless()) as reader:
        portions = reader.portions()
        for _ in range(20):
            next(portions)
    assert len(asked) < 40


def test_so_much_is_read_ahead_and_no_more(shard):
    """Four buffers a thread, and the one in use."""
    ref = shard("large.tar", shard_of("", 8, 16 * MIB))
    counts = Counts()
    with SegmentReader([Segment(ref), Segment(ref)], ahead_bytes=8 * INPUT_BUFFER_BYTES, readers=2, counts=counts) as reader:
        portions = reader.portions()
        next(portions)
        at_least = 16 * MIB + 4 * INPUT_BUFFER_BYTES
        wait_for(lambda: counts.size >= at_least and not _grows(counts), "the readers to be ahead")
        assert counts.size <= 16 * MIB + 9 * INPUT_BUFFER_BYTES
        assert sum(len(portion) for portion in portions) == 15


def _grows(counts: Counts) -> bool:
    before = counts.size
    time.sleep(0.1)  # nothing tells that a thread will not go on
    return counts.size != before


def broken_shards() -> dict[str, tuple[bytes, int | None]]:
    """Bytes and whole samples (None: some) by the name of a file that holds them; there are ten in each."""
    data = shard_of("b", 10, 3000)
    starts = starts_of(data)
    damaged = bytearray(data)
    damaged[starts[6] + 3] ^= 1
    noise = random.Random(1).randbytes(50_000)
    packed = gzip.compress(noise_tar(noise))
    return {
        "cut.tar": (data[: starts[4] + 1000], 4),
        "cut.tgz": (packed[: len(packed) // 2], None),
        "damaged.tar": (bytes(damaged), 5),
        "damaged.tgz": (packed[:30_000] + b"\xff" * 100 + packed[30_100:], None),
        "without-checksum.tgz": (packed[:-8], 10),
        "page.tar": (b"<html>not found</html>" * 100, 0),
        "header.tar": (data[:100], 0),
    }


def noise_tar(noise: bytes) -> bytes:
    """Ten samples that cannot be compressed."""
    data = bytearray(shard_of("b", 10, 5000))
    for number, start in enumerate(starts_of(bytes(data))):
        data[start + 512 : start + 5512] = noise[number * 5000 : (number + 1) * 5000]
    return bytes(data)


@pytest.mark.parametrize("name", list(broken_shards()))
def test_what_is_whole_in_a_broken_shard_is_handed_out_and_the_rest_is_counted(shard, name):
    data, whole = broken_shards()[name]
    good = Segment(shard("good.tar", shard_of("g", 3)))
    bad = Segment(shard(name, data))
    with pytest.raises(ShardBroken) as caught:
        read(good, bad, good)
    assert name in str(caught.value)
    assert caught.value.url == bad.ref.url
    counts = Counts()
    found = read(good, bad, bad, good, handler="skip", counts=counts)
    half = names("b", 0, whole if whole is not None else (len(found) - 6) // 2)
    assert found == [*names("g", 0, 3), *half, *half, *names("g", 0, 3)]
    assert len(half) <= 10
    assert (counts.shards, counts.shards_skipped) == (2, 2)
    assert len(counts.errors) == 2
    assert read(good, bad, good, handler=lambda problem: not isinstance(problem, ShardBroken)) == [*names("g", 0, 3), *half]


def test_a_sample_that_is_cut_off_is_counted(shard):
    data, _ = broken_shards()["cut.tar"]
    counts = Counts()
    assert read(Segment(shard("cut.tar", data)), handler="skip", counts=counts) == names("b", 0, 4)
    assert counts.samples_skipped == 1


def test_a_shard_without_end_blocks_is_whole_and_counted(shard, caplog):
    counts = Counts()
    data = shard_of("", 5)
    assert read(Segment(shard("x.tar", data[: starts_of(data)[4]])), counts=counts) == names("", 0, 4)
    assert (counts.shards, counts.shards_unended, counts.shards_skipped) == (1, 1, 0)
    assert "x.tar: the archive has no end blocks" in caplog.text


def test_what_follows_an_archive_or_its_gzip_stream_is_ignored_with_a_warning(shard, caplog):
    data = shard_of("", 5)
    counts = Counts()
    for name, archive, warning in (
        ("tail.tar", data + b"x" * 600, "data after the end of the archive is ignored, at offset 20480"),
        ("two.tar", data + shard_of("other", 5), "data after the end of the archive is ignored, at offset 20480"),
        ("tail.tgz", gzip.compress(data) + b"x", "ignored the bytes after the gz stream, at offset"),
    ):
        caplog.clear()
        assert read(Segment(shard(name, archive)), counts=counts) == names("", 0, 5)
        (record,) = caplog.records
        assert f"{name}: {warning}" in record.getMessage()
    assert (counts.shards, counts.shards_unended, counts.shards_skipped) == (3, 0, 0)
    assert read(Segment(shard("empty.tar", b"")), counts=counts) == []
    assert counts.shards_unended == 1


def test_shards_that_are_not_there(shard, tmp_path, caplog):
    missing = Segment(ShardRef(str(tmp_path / "missing.tar")))
    good = Segment(shard("good.tar", shard_of("g", 3)))
    with pytest.raises(ShardUnreadable, match=r"missing\.tar"):
        read(missing)
    counts = Counts()
    assert read(*[missing, good] * 10, handler="warn", counts=counts) == names("g", 0, 3) * 10
    assert (counts.shards_skipped, counts.samples_skipped) == (10, 0)
    assert caplog.text.count("missing.tar") >= 10


def test_another_version_or_fewer_samples_than_planned(shard):
    ref = shard("x.tar", shard_of("", 3))
    with pytest.raises(ShardChanged):
        read(Segment(ref, etag="other"))
    with pytest.raises(ShardBroken, match="has only 3 samples, but 4 were expected"):
        read(Segment(ref, count=4))
    with pytest.raises(ShardBroken, match="has only 3 samples, but 6 were expected"):
        read(Segment(ref, skip=5, count=1))


def test_what_is_wrong_at_the_end_is_found_when_the_last_sample_is_wanted(shard):
    """As a checksum is that is compared there: here it is the exit status of a command."""
    ref = shard("x.tar", shard_of("", 30))
    command = ShardRef(f"pipe:cat {ref.url}; exit 3")
    for count in (None, 30):
        counts = Counts()
        with pytest.raises(ShardUnreadable):
            read(Segment(command, count=count))
        assert read(Segment(command, count=count), handler="skip", counts=counts) == names("", 0, 30)
        assert (counts.shards, counts.shards_skipped) == (0, 1)
    assert read(Segment(command, count=20)) == names("", 0, 20)


def test_errors_of_a_program_are_no_errors_of_shards(shard):
    def segments() -> Iterator[Segment]:
        yield Segment(shard("x.tar", shard_of("", 3)))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), SegmentReader(segments(), handler="skip") as reader:
        list(reader.portions())
    with pytest.raises(ValueError, match="1 to 64"):
        SegmentReader([], readers=0)


def test_closing_ends_what_waits_for_a_command():
    """In the reading thread and in the one that asks for samples."""
    reader = SegmentReader([Segment(ShardRef("pipe:sleep 1000")), Segment(ShardRef("pipe:sleep 1000"))])
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(list(reader.portions())))
    asking.start()
    wait_for(lambda: len(own_threads()) == 2, "the threads to start")
    begun = time.monotonic()
    reader.close()
    asking.join(10)
    assert found == [[]]
    wait_for(lambda: not own_threads(), "the threads to end")
    assert time.monotonic() - begun < 20


def test_a_lane_may_be_closed_while_its_thread_starts(monkeypatch):
    """As the end of the program does from the main thread: what has not begun cannot be joined."""
    closed: list[str] = []

    class Late(threading.Thread):
        def start(self) -> None:
            lane.close()
            lane.join(5)
            closed.append(self.name)
            super().start()

    lane = Lane(StreamOptions(), Counts(), 2)
    monkeypatch.setattr(pieces, "threading", SimpleNamespace(Thread=Late, current_thread=threading.current_thread))
    lane.add(LaneSegment(0, ShardRange(ShardRef("pipe:sleep 1000"), 0, None, None)))
    assert closed == ["dfc-inputs-ahead"]
    lane.join(10)
    assert not own_threads()


def leave_early(ref: ShardRef) -> None:
    """A reader that is closed, and one that is forgotten."""
    for forget in (False, True):
        reader = SegmentReader([Segment(ref)] * 4)
        portions = reader.portions()
        next(portions)
        assert own_threads()
        if forget:
            del portions, reader
        else:
            portions.close()
        wait_for(lambda: not own_threads(), "the threads to end")


def test_an_early_end_and_a_forgotten_reader_leave_no_thread(shard):
    leave_early(shard("large.tar", shard_of("", 40, MIB)))


PROGRAM = """
import os, sys
from dfc.inputs.base import ShardRef
from dfc.inputs.sources.shardreader import Segment, SegmentReader

reader = SegmentReader([Segment(ShardRef(sys.argv[1]))] * 20 + [Segment(ShardRef("pipe:sleep 1000"))])
portions = reader.portions()
next(portions)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os._exit(0)", "sys.stdin.read(); raise SystemExit"])
def test_a_program_may_end_in_mid_epoch(shard, end):
    ref = shard("large.tar", shard_of("", 40, MIB))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end, ref.url], capture_output=True, timeout=30, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, b"")


FORK = (
    PROGRAM
    + """
child = os.fork()
if child == 0:
    try:
        next(portions)
    except RuntimeError as problem:
        print(problem, flush=True)
    reader.close()
    del portions, reader
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sum(len(portion) for number, portion in zip(range(8), portions)) > 0)
"""
)


def test_a_fork_leaves_the_parent_alone(shard):
    ref = shard("large.tar", shard_of("", 40, MIB))
    done = subprocess.run([sys.executable, "-c", FORK, ref.url], capture_output=True, timeout=30, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot continue after a fork" in done.stdout
    assert done.stdout.endswith("True\n")


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_parts_errors_and_early_ends(shard, seed):
    """What comes is what each part holds, whatever was left early or broken before it, and nothing ever waits for ever."""
    draw = random.Random(seed)
    data = shard_of("", 40, 150_000)
    starts = starts_of(data)
    refs = [
        shard("plain.tar", data),
        shard("packed.tar", gzip.compress(data, 1)),
        ShardRef(f"pipe:cat {shard('piped.tar', data).url}"),
    ]
    cut = shard("cut.tar", data[: starts[10] + 5000])
    segments: list[Segment] = []
    expected: list[list[str]] = []
    for _ in range(30):
        lo = draw.randrange(40)
        hi = draw.randint(lo, 40)
        kind = draw.choice(["count", "end", "both", "cut", "missing"])
        if kind == "cut":
            segments.append(Segment(cut))
            expected.append(names("", 0, 10))
        elif kind == "missing":
            segments.append(Segment(ShardRef("/nowhere/x.tar")))
            expected.append([])
        else:
            skip = draw.randint(0, 2) if lo + 2 <= hi else 0
            end = starts[hi] if kind != "count" and hi < 40 else None
            count = None if kind == "end" and (end or hi == 40) else hi - lo - skip
            segments.append(Segment(draw.choice(refs), starts[lo], skip, count, end=end if lo < hi else None))
            expected.append(names("", lo + skip, hi) if lo < hi else [])
            if lo == hi:
                segments[-1] = Segment(refs[0], starts[lo], count=0)
    found: list[list[str]] = [[] for _ in segments]
    with SegmentReader(
        segments, handler="skip", readers=draw.randint(1, 4), ahead_bytes=draw.choice([1, 8 * MIB, 64 * MIB])
    ) as reader:
        for portion in reader.portions():
            found[portion.number] += keys(portion)
    assert found == expected


def test_compressed_shards_of_several_buffers(shard):
    """They have a thread more, which receives; it ends with them, however they end."""
    data = bytearray(shard_of("", 8, MIB))
    starts = starts_of(bytes(data))
    for number, start in enumerate(starts):
        data[start + 512 : start + 512 + MIB] = random.Random(number).randbytes(MIB)
    packed = gzip.compress(data, 1)
    ref = shard("x.tgz", packed)
    with SegmentReader([Segment(ref)]) as reader:
        found = [sample["bin"] for portion in reader.portions() for sample in portion]
    assert found == [random.Random(number).randbytes(MIB) for number in range(8)]
    assert read(Segment(ref, starts[5], end=starts[6])) == names("", 5, 6)
    assert read(Segment(ref, count=2), Segment(ref, starts[1], count=1)) == [*names("", 0, 2), *names("", 1, 2)]
    counts = Counts()
    cut = shard("cut.tgz", packed[: len(packed) // 2])
    assert read(Segment(cut), Segment(ref), handler="skip", counts=counts)[-8:] == names("", 0, 8)
    assert (counts.shards, counts.shards_skipped) == (1, 1)
    with pytest.raises(ShardUnreadable):
        read(Segment(ShardRef(f"pipe:cat {ref.url}; exit 3")))
    leave_early(ref)
    reader = SegmentReader([Segment(ShardRef(f"pipe:head -c 1000000 {ref.url}; sleep 1000"))])
    asking = threading.Thread(target=lambda: list(reader.portions()))
    asking.start()
    wait_for(lambda: reader.counts.size >= 1_000_000 or len(own_threads()) == 2, "the command to fall silent")
    reader.close()
    asking.join(10)
    assert not asking.is_alive()
