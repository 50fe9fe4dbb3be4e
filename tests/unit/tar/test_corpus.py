"""Every way in which DFC reads an archive, over what the tools write, against what bsdtar and GNU tar list.

What bsdtar lists without a complaint has an index here with the same names; what it and GNU tar refuse has none. Where only
GNU tar lists an archive, it has no index or that list. What is different is in DIFFERENCES, each with its reason.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from archives import BLOCK, Archive, Listing, corpus, is_sound, list_all, list_with_bsdtar, list_with_gnu_tar
from folder_store import FolderStore, build_index, describe

from dfc.cli.cutting import BrokenInput, CutShard, Limits, ShardCutter, cut_archive
from dfc.inputs.base import Counts, InputError, Sample, ShardRef
from dfc.inputs.epochs.gather import Arrival, BatchRead, BatchShard
from dfc.inputs.sources.shardreader import Segment, SegmentReader
from dfc.jobs.data.samples import read_samples
from dfc.tar.compression import CompressionError, kind_of_bytes, open_decompressed
from dfc.tar.header import TarError
from dfc.tar.index.builder import open_builder
from dfc.tar.index.format import index_kind
from dfc.tar.index.reader import ShardIndex
from dfc.tar.reader import read_member_range
from dfc.tar.sampleparser import SampleParser

DIFFERENCES: Final = {
    "lz4 a broken stream after": "lz4(1) and GNU tar refuse it; libarchive has stopped before, by the size of its buffers",
    # Where a stream is cut or damaged, see `is_known`.
}
SEED: Final = 20261122
FLIPS: Final = 120  # in the default suite; the long sweep has FLIPS_LONG
FLIPS_LONG: Final = 4000
Names = list[str]


def by_name(archive: Archive) -> str:
    return archive.name


def texts(listing: Listing) -> Names:
    return [name.decode(errors="replace") for name in listing.names]


def names_in_index(archive: Archive, directory: Path, piece: int = 1 << 20) -> Names | str:
    """The names in the index that an upload makes, or why there is none."""
    path = directory / "index"
    with open(path, "w+b") as file:
        builder = open_builder(index_kind(archive.name) or "tar", file, str(directory))
        for start in range(0, len(archive.data), piece):
            builder.feed(archive.data[start : start + piece])
        try:
            builder.finish("v", len(archive.data), "c")
        except TarError as problem:
            return str(problem)
    index = ShardIndex.open(path)
    try:
        return [member.name for member in index.members()]
    finally:
        index.close()


def difference(archive: Archive, ours: Names | str, bsdtar: Listing, gnu_tar: Listing) -> str | None:
    """What an index has that it should not, or the other way round."""
    if bsdtar.ok:
        return None if ours == texts(bsdtar) else f"bsdtar lists {texts(bsdtar)}, and we {ours}"
    if gnu_tar.ok:
        return None if isinstance(ours, str) or ours == texts(gnu_tar) else f"GNU tar lists {texts(gnu_tar)}, and we {ours}"
    return None if isinstance(ours, str) else f"both refuse ({bsdtar.message}; {gnu_tar.message}), and we list {ours}"


def test_what_the_tools_write(tmp_path: Path) -> None:
    archives = corpus()
    found = {}
    for archive, bsdtar, gnu_tar in zip(
        archives, list_all(archives, list_with_bsdtar), list_all(archives, list_with_gnu_tar), strict=True
    ):
        ours = names_in_index(archive, tmp_path)
        assert ours == names_in_index(archive, tmp_path, 700), archive.what
        wrong = difference(archive, ours, bsdtar, gnu_tar)
        if wrong is not None:
            found[archive.what] = wrong
    assert found.keys() == DIFFERENCES.keys(), found
    assert len(archives) > 190
    refusals = [ours for archive in archives if isinstance(ours := names_in_index(archive, tmp_path), str)]
    assert refusals
    assert all("offset" in ours for ours in refusals)


# --- Truncations and flips.


def plain_archives() -> list[Archive]:
    """Small ones of each kind of header, compressed ones aside."""
    return [
        archive
        for archive in corpus()
        if archive.ending == ".tar" and archive.data.rstrip(b"\0") and len(archive.data) < 60_000
    ]


def truncations(archives: list[Archive]) -> Iterator[Archive]:
    """At every block up to the one after the last that is not zero, and a piece of it."""
    for archive in archives:
        end = len(archive.data.rstrip(b"\0")) // BLOCK + 3
        for block in range(min(end, len(archive.data) // BLOCK) + 1):
            for more in (0, 300) if block % 5 == 0 else (0,):
                yield Archive(f"{archive.what} cut at {block * BLOCK + more}", ".tar", archive.data[: block * BLOCK + more])


def flips(archives: list[Archive], count: int) -> Iterator[Archive]:
    source = random.Random(SEED)
    for number in range(count):
        archive = archives[number % len(archives)]
        end = min(len(archive.data), len(archive.data.rstrip(b"\0")) + 2 * BLOCK)
        bit = source.randrange(8 * end)
        data = bytearray(archive.data)
        data[bit // 8] ^= 1 << bit % 8
        yield Archive(f"{archive.what} with bit {bit} flipped", archive.ending, bytes(data))


def is_known(archive: Archive, ours: Names | str, bsdtar: Listing, gnu_tar: Listing) -> bool:
    """Differences by what is damaged. Each is a reason why an index should not follow libarchive."""
    if isinstance(ours, str):
        # The stream's own checksum or end says that its bytes are not those that were stored. libarchive does not look at the
        # checksum of gzip, nor at the rest of any stream once it has met the end of the archive in it; the others do.
        return archive.ending != ".tar" and "stream" in ours and (not gnu_tar.ok or not is_sound(archive))
    # The map of a sparse member is its data here, for members without plain data are not served; the tools read it when they
    # list. A name that is not UTF-8 is listed with replacement characters, as GNU tar does.
    return "sparse" in archive.what or ("converted" in bsdtar.message and gnu_tar.ok)


def compare(archives: list[Archive], directory: Path) -> None:
    wrong = {}
    for archive, bsdtar in zip(archives, list_all(archives, list_with_bsdtar), strict=True):
        ours = names_in_index(archive, directory)
        if bsdtar.ok and ours == texts(bsdtar):
            continue
        gnu_tar = list_with_gnu_tar(archive) if bsdtar.ok or not isinstance(ours, str) else Listing(False, (), "not asked")
        found = difference(archive, ours, bsdtar, gnu_tar)
        if found is not None and not is_known(archive, ours, bsdtar, gnu_tar):
            wrong[archive.what] = found
    assert not wrong


SHORT: Final = (
    "gnu tar ustar", "bsdtar pax", "tarfile float times", "exustar", "solaris acl and X", "v7 rubbish behind names",
    "label with members", "one end block",
)  # fmt: skip


def test_truncations(tmp_path: Path) -> None:
    by_what = {archive.what: archive for archive in corpus()}
    archives = list(truncations([by_what[what] for what in SHORT]))
    random.Random(SEED).shuffle(archives)
    compare(archives[:200], tmp_path)


def test_flipped_bits(tmp_path: Path) -> None:
    compressed = [archive for archive in corpus() if archive.ending != ".tar" and 100 < len(archive.data) < 60_000]
    random.Random(SEED).shuffle(compressed)
    compare(list(flips(plain_archives(), FLIPS)), tmp_path)
    compare(list(flips(compressed[:40], FLIPS // 3)), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_truncation_and_many_flipped_bits(tmp_path: Path) -> None:
    compare(list(truncations(plain_archives())), tmp_path)
    compare(list(flips([archive for archive in corpus() if 100 < len(archive.data) < 200_000], FLIPS_LONG)), tmp_path)


# --- All readers.


def samples_of_index(directory: Path, archive: Archive) -> list[Sample] | None:
    """By the offsets that the index gives, as a node serves them with `?member=`; None without an index."""
    path = directory / "b" / archive.name
    try:
        index, summary = build_index(path)
    except TarError:
        return None
    found = []
    try:
        for sample in index.samples():
            fields: Sample = {"__key__": sample.key}
            for member in sample.members:
                with open(path, "rb") as file:
                    fields[member.ext or ""] = b"".join(read_member_range(file, index.kind, member.offset, member.size))
            found.append(fields)
        assert len(found) == summary.samples
        return found
    finally:
        index.close()


def samples_of_iterator(directory: Path, archive: Archive) -> list[Sample] | None:
    """As `iterate_members` gives them, through which jobs and clients read, cut into samples by `read_samples`."""
    try:
        shard = describe(directory, "b", archive.name)
        return [
            {"__key__": sample.key, **{member.ext: member.data for member in sample.members}}
            for sample in read_samples(FolderStore(directory), shard, "keep")
        ]
    except TarError:
        return None


def samples_of_loader(directory: Path, archive: Archive) -> list[Sample] | None:
    found = []
    try:
        with SegmentReader([Segment(ShardRef(str(directory / "b" / archive.name)))]) as reader:
            for portion in reader.portions():
                found += [{key: value for key, value in sample.items() if key != "__source__"} for sample in portion]
    except InputError:
        return None
    return found


def samples_of_pieces(directory: Path, archive: Archive) -> list[Sample] | None:
    """The parser of the loaders, fed in odd pieces."""
    parser = SampleParser("shard")
    kind = kind_of_bytes(archive.data[:100], archive.name)
    try:
        data = archive.data if kind is None else open_decompressed(io.BytesIO(archive.data), kind).read()
        for start in range(0, len(data), 777):
            parser.feed(data, start, min(start + 777, len(data)))
        parser.finish()
    except (TarError, CompressionError):
        return None
    return [{key: value for key, value in sample.items() if key != "__source__"} for sample in parser.samples]


def samples_of_batches(directory: Path, archive: Archive) -> list[Sample] | None:
    """Each sample cut out of the archive by its span, as batch reads send it."""
    import numpy as np

    path = directory / "b" / archive.name
    try:
        index, _ = build_index(path)
    except TarError:
        return None
    data = archive.data
    if index.compressed:
        data = open_decompressed(io.BytesIO(archive.data), index.kind).read()
    spans = index.spans(np.arange(index.sample_count))
    items = []
    for number in range(index.sample_count):
        pieces = spans.pieces.get(number) or [(int(spans.starts[number]), int(spans.ends[number]))]
        items.append(b"".join(data[start:end] for start, end in pieces))
    index.close()
    shard = BatchShard("http://host/b/x.tar", "b", "x.tar", "0" * 32, len(items))
    read = BatchRead(None, [shard], [(0, number) for number in range(len(items))], counts=Counts())  # type: ignore[arg-type]
    found = read.parse(Arrival(range(len(items)), [len(item) for item in items], bytearray(b"".join(items))), 0)
    assert not [problem for problem in found if isinstance(problem, InputError)]
    return [{key: value for key, value in sample.items() if key != "__source__"} for sample in found]  # type: ignore[union-attr]


def samples_of_tarshards(directory: Path, archive: Archive) -> list[Sample] | None:
    """Cut by `tarshards` into one shard, which is then read."""
    shards: list[CutShard] = []
    cutter = ShardCutter(Limits(), str(directory), shards.append)
    descriptor = os.open(directory / "b" / archive.name, os.O_RDONLY)
    try:
        cut_archive(descriptor, cutter, lambda text: None)
        cutter.finish()
    except BrokenInput:
        return None
    finally:
        os.close(descriptor)
        cutter.abandon()
    found = []
    for shard in shards:
        with shard.file as file:
            shard_data = file.read()
        found += samples_of_pieces(directory, Archive("shard", ".tar", shard_data)) or []
    return found


READERS: Final = (samples_of_iterator, samples_of_loader, samples_of_pieces, samples_of_batches, samples_of_tarshards)


def test_all_readers_agree(tmp_path: Path) -> None:
    """The same samples with the same bytes, or no reader takes the archive."""
    (tmp_path / "b").mkdir()
    wrong = []
    taken = 0
    for archive in corpus():
        (tmp_path / "b" / archive.name).write_bytes(archive.data)
        wanted = samples_of_index(tmp_path, archive)
        taken += bool(wanted)
        for reader in READERS:
            found = reader(tmp_path, archive)
            if reader is samples_of_tarshards and found is None and not wanted:
                continue  # nothing on standard input: whoever should have written there has failed
            if found != wanted:
                wrong.append((archive.what, reader.__name__))
    assert not wrong
    assert taken > 150


def test_readers_agree_on_damage(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    by_what = {archive.what: archive for archive in corpus()}
    damaged = [*truncations([by_what[what] for what in SHORT[:4]]), *flips(plain_archives(), 300)]
    damaged += flips([archive for archive in corpus() if archive.ending != ".tar" and 100 < len(archive.data) < 20_000], 150)
    for archive in damaged:
        (tmp_path / "b" / archive.name).write_bytes(archive.data)
        wanted = samples_of_index(tmp_path, archive)
        for reader in (samples_of_iterator, samples_of_loader, samples_of_pieces, samples_of_batches):
            assert reader(tmp_path, archive) == wanted, (archive.what, reader.__name__)
        (tmp_path / "b" / archive.name).unlink()
