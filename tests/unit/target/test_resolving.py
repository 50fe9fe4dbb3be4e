"""From items to bytes on real disks: whatever the order, the sizes of windows and the number of open shards."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from calls import raising
from harness import own_files
from job_shards import tar_of

from dfc.batch.gather import ItemError
from dfc.batch.items import BatchItem, OnMissing
from dfc.errors import BucketNotFound, NotSeekable, ObjectCorrupt, Unavailable
from dfc.http.peer import PeerPool
from dfc.limits import BATCH_WINDOW_BYTES
from dfc.storage import Disk
from dfc.target import batch, spans
from dfc.target.batch import OwnBatches, resolve
from dfc.target.copies.service import TargetCopies
from dfc.target.local import TargetState
from dfc.target.uploads import Slots

Files = list[tuple[str, bytes]]


def put(disk: Disk, name: str, content: bytes) -> None:
    disk.put_small("b1", name, content, durability="relaxed")


def found_on(disk: Disk):
    def find(bucket: str, name: str) -> tuple[str, Disk]:
        if bucket != "b":
            raise BucketNotFound(f"bucket {bucket!r} does not exist")
        return "b1", disk

    return find


def item(name: str, **more: object) -> BatchItem:
    return BatchItem("b", name, **more)  # type: ignore[arg-type]


def read(disk: Disk, items: list[BatchItem], on_missing: OnMissing = "fail", views: random.Random | None = None) -> bytes:
    """The bytes, taken in views of the sizes that a merge of several targets would ask for."""
    resolved = resolve(items, on_missing, found_on(disk))
    source = resolved.source
    assert len(resolved.lengths) == len(items)
    total = sum(resolved.lengths)
    assert source.left == total
    content = bytearray()
    memory = memoryview(bytearray(2 * BATCH_WINDOW_BYTES))
    while len(content) < total:
        wanted = BATCH_WINDOW_BYTES if views is None else views.choice((1, 700, 12_000, 300_000, 2 * BATCH_WINDOW_BYTES))
        count = source.fill(memory[: min(wanted, total - len(content))])
        assert count > 0
        content += memory[:count]
    assert source.left == 0
    resolved.files.close()
    return bytes(content)


def unpack(content: bytes) -> Files:
    with tarfile.open(fileobj=io.BytesIO(content + bytes(1024))) as archive:
        return [(entry.name, archive.extractfile(entry).read()) for entry in archive]  # type: ignore[union-attr]


def shards(draw: random.Random, disk: Disk, count: int) -> dict[str, list[Files]]:
    """Shards with all that may lie in one; by name the members of each sample."""
    made = {}
    for shard in range(count):
        files: Files = []
        samples: list[Files] = []
        for number in range(draw.randrange(1, 30)):
            key = f"{shard}/{'x' * draw.choice((1, 1, 1, 150, 300))}{number}"
            sample: Files = []
            for ext in draw.sample(("jpg", "cls", "a.b", "json"), draw.randrange(1, 4)):
                if draw.random() < 0.1:
                    files.append(draw.choice((("README", b"-" * 600), (f"{shard}/dir{number}/", b""), ("__meta__/x.y", b"-"))))
                size = draw.choice((0, 1, 511, 512, 513, 9000, 20_000))
                sample.append((f"{key}.{ext}", draw.randbytes(size)))
                files.append(sample[-1])
            samples.append(sample)
        form = draw.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
        put(disk, f"s{shard}.tar", tar_of(files, form))
        made[f"s{shard}.tar"] = samples
    return made


@pytest.mark.parametrize("seed", range(8))
def test_samples_of_every_kind_of_archive(disk: Disk, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    made = shards(draw, disk, 7)
    if seed % 2:
        monkeypatch.setattr(spans, "BATCH_OPEN_SHARDS_MAX", 2)
    picks = [(name, draw.randrange(len(made[name]))) for name in draw.choices(list(made), k=400)]
    items = []
    for name, number in picks:
        key = made[name][number][0][0].rpartition("/")
        by_key = f"{key[0]}/{key[2].partition('.')[0]}"
        items.append(item(name, number=number) if draw.random() < 0.5 else item(name, sample=by_key))
    expected = [member for name, number in picks for member in made[name][number]]
    assert unpack(read(disk, items)) == expected
    assert unpack(read(disk, items, views=draw)) == expected


def test_large_members_go_through_several_windows(disk: Disk) -> None:
    body = os.urandom(3 * BATCH_WINDOW_BYTES + 17)
    put(disk, "big.tar", tar_of([("a.bin", body), ("b.bin", b"small"), ("c.bin", body[::-1])]))
    items = [item("big.tar", number=number) for number in (2, 1, 0, 1)]
    expected = [("c.bin", body[::-1]), ("b.bin", b"small"), ("a.bin", body), ("b.bin", b"small")]
    for views in (None, random.Random(1)):
        assert unpack(read(disk, items, views=views)) == expected


def test_neighbours_are_read_in_one_piece(disk: Disk) -> None:
    put(disk, "s.tar", tar_of([(f"{number:03d}.x", b"%d" % number) for number in range(100)]))
    resolved = resolve([item("s.tar", number=number) for number in range(100)], "fail", found_on(disk))
    assert len(resolved.source._ends) == 1
    resolved.files.close()


def test_nothing_stays_open_when_something_is_missing(disk: Disk) -> None:
    put(disk, "s.tar", tar_of([("a.x", b"1")]))
    disk.open_index(disk.lookup("b1", "s.tar"))
    before = own_files()
    for _ in range(20):
        with pytest.raises(ItemError) as caught:
            resolve([item("s.tar", number=0), item("s.tar", number=1), item("none")], "fail", found_on(disk))
        assert caught.value.number == 1
    assert own_files() == before


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
def test_what_does_not_count_for_certain_is_neither_served_nor_missing(disk: Disk, on_missing: OnMissing) -> None:
    """As of a name whose primary does not know yet what others have, or of a delete that is on its way."""
    put(disk, "there", b"x")
    for name in ("there", "missing"):
        with pytest.raises(ItemError) as caught:
            resolve([item(name)], on_missing, found_on(disk), check_served=raising(Unavailable("it is not settled")))
        assert isinstance(caught.value.error, Unavailable), name


def test_names_of_missing_items_that_no_tar_can_hold(disk: Disk) -> None:
    put(disk, "s.tar", tar_of([("a.x", b"1")]))
    names = [name for name, _ in unpack(read(disk, [item("s.tar", sample="nul\0"), item("s.tar", member="m" * 9000)], "empty"))]
    assert names[0] == "__missing__/b/s.tar/nul\ufffd"
    assert names[1] == ("__missing__/b/s.tar/" + "m" * 9000)[:4096]


def test_a_shard_that_goes_or_shrinks_while_it_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "BATCH_OPEN_SHARDS_MAX", 0)
    for number, harm in enumerate((lambda path: path.write_bytes(b""), lambda path: path.unlink())):
        put(disk, f"s{number}.tar", tar_of([("a.x", b"1" * 5000)]))
        resolved = resolve([item(f"s{number}.tar", number=0)], "fail", found_on(disk))
        harm(Path(disk.blob_path(disk.lookup("b1", f"s{number}.tar"))))
        with pytest.raises(Exception, match=r"length|gone") as caught:
            resolved.source.fill(memoryview(bytearray(10_000)))
        assert getattr(caught.value, "status", 0) == 500
        resolved.files.close()
    monkeypatch.setattr(spans, "BATCH_OPEN_SHARDS_MAX", 8)
    put(disk, "t.tar", tar_of([("a.x", b"1" * 5000)]))
    resolved = resolve([item("t.tar", number=0)], "fail", found_on(disk))
    Path(disk.blob_path(disk.lookup("b1", "t.tar"))).write_bytes(b"")
    with pytest.raises(ObjectCorrupt, match="cannot be read"):
        resolved.source.fill(memoryview(bytearray(10_000)))
    assert [found.name for found in disk.quarantined()] == ["s0.tar", "s1.tar", "t.tar"]
    resolved.files.close()


def test_a_shard_that_is_replaced_while_it_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    for kept_open in (8, 0):
        monkeypatch.setattr(spans, "BATCH_OPEN_SHARDS_MAX", kept_open)
        put(disk, "s.tar", tar_of([("a.x", b"old" * 1000)]))
        resolved = resolve([item("s.tar", number=0)], "fail", found_on(disk))
        put(disk, "s.tar", tar_of([("a.x", b"new" * 1000)]))
        source, memory = resolved.source, memoryview(bytearray(sum(resolved.lengths)))
        if kept_open:
            source.fill(memory)
            assert unpack(bytes(memory)) == [("a.x", b"old" * 1000)]
        else:
            with pytest.raises(Unavailable, match="replaced"):
                source.fill(memory)
        resolved.files.close()


# --- compressed shards


@pytest.fixture
def batches(local: TargetState) -> OwnBatches:
    copied = TargetCopies(local, local.control, SimpleNamespace(token="", hold_s=1.0)).objects  # type: ignore[arg-type]
    return OwnBatches(local, PeerPool(1.0), "", Slots(0.1), copied)


async def test_what_is_decompressed_is_bounded(
    disk: Disk, batches: OwnBatches, monkeypatch: pytest.MonkeyPatch, compress
) -> None:
    files = [(f"{number}.x", os.urandom(1000)) for number in range(20)]
    for name in ("a.tgz", "b.tar.xz"):
        put(disk, name, compress(name, tar_of(files)))
    items = [item("a.tgz", number=3), item("b.tar.xz", number=4), item("a.tgz", number=1)]
    part = await batches.open_own(items, "fail")
    content = bytearray(sum(part.lengths))
    assert part.source.fill(memoryview(content)) == len(content)
    assert unpack(bytes(content)) == [files[3], files[4], files[1]]
    await part.close(whole=True)
    monkeypatch.setattr(batch, "BATCH_DECODED_BYTES_MAX", 5 * 1536 + 4 * 1536)
    with pytest.raises(ItemError) as caught:
        await batches.open_own([*items, item("b.tar.xz", number=9)], "fail")
    assert isinstance(caught.value.error, NotSeekable)
    assert caught.value.number == 1
    before = own_files()
    for _ in range(5):
        with pytest.raises(ItemError):
            await batches.open_own([*items, item("b.tar.xz", number=9)], "fail")
    assert own_files() == before
    assert os.listdir(f"{disk.path}/temporary") == []


@pytest.fixture
def compress():
    import gzip
    import lzma

    return lambda name, data: gzip.compress(data) if name.endswith("gz") else lzma.compress(data)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_in_memory_is_announced_and_read_just_the_same(disk: Disk, seed: int, monkeypatch) -> None:
    monkeypatch.setattr(spans, "COLD_PIECE_S", 0.0)  # every window counts as cold
    draw = random.Random(seed)
    made = shards(draw, disk, 5)
    for name in made:
        fd = disk.open_blob(disk.lookup("b1", name))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    picks = [(name, draw.randrange(len(made[name]))) for name in draw.choices(list(made), k=600)]
    expected = [member for name, number in picks for member in made[name][number]]
    for views in (None, draw):
        assert unpack(read(disk, [item(name, number=number) for name, number in picks], views=views)) == expected
