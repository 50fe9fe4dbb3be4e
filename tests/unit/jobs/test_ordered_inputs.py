"""Ordered outputs from archives of all makers, of nobody's making, and from sources that break; memory stays bounded."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc

import numpy as np
import pytest
from folder_store import FileSource, FolderStore, build_index, describe, run_job
from hypothesis import given, settings
from hypothesis import strategies as st
from job_shards import gnu_tar, put
from jobs_ordered import canonical, compress, dataset, samples_of, spec

from dfc.jobs.data.corpus import ForwardSource, Sources
from dfc.jobs.data.gathering import read_spans
from dfc.jobs.store import InputChanged
from dfc.order import Permutation
from dfc.tar.header import TarError
from dfc.tar.index.format import IndexCorrupt
from dfc.tar.index.reader import ShardIndex


def check(folder) -> None:
    """Both strategies give exactly the canonical samples in the order of the seed."""
    everything = [sample for path in sorted((folder / "in").iterdir()) for sample in samples_of(path.read_bytes())]
    order = Permutation(8, len(everything)).ordinals(0, len(everything))
    for strategy in ("gather", "spill"):
        done = run_job(folder, spec("reshuffle", {"seed": 8, "samples_per_shard": 9, "strategy": strategy}))
        shuffled = [everything[i] for i in order]
        assert list(done.outputs.values()) == [canonical(shuffled[i : i + 9]) for i in range(0, len(shuffled), 9)]


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax", "v7", "oldgnu"])
def test_archives_of_gnu_tar(tmp_path, form):
    (tmp_path / "in").mkdir()
    gnu_tar(tmp_path, form, "--owner=someone:1234", "--group=others:567", "--mode=0751").rename(tmp_path / "in" / "a.tar")
    check(tmp_path)


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c/d", "long/" * 30 + "k", "ü" * 70, "x y", "d" * 99 + "/" + "e" * 99]),
        st.sampled_from(["jpg", "cls", "JPG", "tar.gz", ""]),
        st.binary(max_size=1100),
        st.sampled_from(
            [tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE]
        ),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(MEMBERS, st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.data())
def test_whatever_is_in_an_archive(tmp_path_factory, members, form, data):
    """Repeated keys and extensions, odd types, names of every length, and padding that is not zero."""
    file, dirty = io.BytesIO(), []
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for number, (key, ext, content, kind) in enumerate(members):
            member = tarfile.TarInfo(f"{key}{number // 3}.{ext}" if data.draw(st.booleans()) else f"{key}{number // 3}")
            member.type = kind
            member.mtime, member.uid = data.draw(st.sampled_from([0, 1.5, 2**33])), data.draw(st.integers(0, 9**6))
            if member.isreg():
                member.size = len(content)
            try:
                tar.addfile(member, io.BytesIO(content) if member.isreg() else None)
            except ValueError:
                continue  # USTAR has no place for it
            if member.isreg() and len(content) % 512:
                dirty.append(file.tell() - 1)
    archive = bytearray(file.getvalue())
    for at in dirty:
        archive[at] = data.draw(st.sampled_from([0, 0xFF]))
    folder = tmp_path_factory.mktemp("store")
    put(folder, "a.tar", bytes(archive))
    everything = samples_of(bytes(archive))
    for strategy in ("gather", "spill"):
        options = {"samples_per_shard": 4, "strategy": strategy, "on_split": "keep"}
        done = run_job(folder, spec("reshard", options))
        assert list(done.outputs.values()) == [canonical(everything[i : i + 4]) for i in range(0, len(everything), 4)]


def test_names_that_are_not_utf8_are_written_as_they_are_listed(tmp_path):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for name in ("ä.jpg", "ä.cls", "b.jpg"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    put(tmp_path, "a.tar", file.getvalue())
    done = run_job(tmp_path, spec("reshard", {}))
    names = [name for sample in samples_of(done.outputs["o-000.tar"]) for name, _ in sample]
    assert names == ["\ufffd.jpg", "\ufffd.cls", "b.jpg"]


def test_an_input_that_has_changed_fails_the_job(tmp_path, monkeypatch):
    dataset(tmp_path, "in", 3, 5)
    changed = tmp_path / "in" / "s-01.tar"

    def describe_then_change(*args, **more):
        shard = describe(*args, **more)
        if args[2] == changed.name:
            changed.write_bytes(changed.read_bytes() + bytes(512))
        return shard

    monkeypatch.setattr("folder_store.describe", describe_then_change)
    with pytest.raises(InputChanged, match="s-01"):
        run_job(tmp_path, spec("reshuffle", {}))


def test_a_source_that_ends_early(tmp_path):
    dataset(tmp_path, "in", 2, 5)
    shard = describe(tmp_path, "in", "s-00.tar")
    with Sources(FolderStore(tmp_path), [shard]) as sources:
        sources[0]
        os.truncate(tmp_path / "in" / "s-00.tar", 1000)
        one = np.array([0])
        with pytest.raises(EOFError):
            read_spans(sources, one, np.array([512]), np.array([1024]), one, memoryview(bytearray(1024)))


def test_compressed_shards_go_forward_only(tmp_path):
    dataset(tmp_path, "in", 2, 20)
    compress(tmp_path, "in", "packed", ".tgz")
    shard = describe(tmp_path, "packed", "s-00.tgz")
    content = (tmp_path / "in" / "s-00.tar").read_bytes()
    with Sources(FolderStore(tmp_path), [shard]) as sources:
        source, buffer = sources[0], bytearray(700)
        assert isinstance(source, ForwardSource)
        for offset in (0, 700, 5000):
            source.read_into(offset, memoryview(buffer))
            assert buffer == content[offset : offset + 700]
        with pytest.raises(ValueError, match="already been passed"):
            source.read_into(100, memoryview(buffer))
        with pytest.raises(TarError, match="ends early"):
            source.read_into(len(content) - 100, memoryview(buffer))


def test_many_more_shards_than_files_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr("dfc.jobs.data.corpus.JOB_OPEN_SOURCES_MAX", 3)
    dataset(tmp_path, "in", 9, 6, mean=30_000)  # of which some are sent, some read
    check(tmp_path)
    compress(tmp_path, "in", "packed", ".tgz")
    plain = run_job(tmp_path, spec("reshuffle", {"strategy": "gather"})).digest
    assert run_job(tmp_path, spec("reshuffle", {}, source="packed")).digest == plain


@pytest.mark.parametrize("memory", [1 << 18, 64 << 20])
@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_sources_without_a_file_give_the_same(tmp_path, monkeypatch, strategy, memory):
    """As over HTTP: ranges are asked for together, and members larger than a window come in pieces."""
    dataset(tmp_path, "in", 5, 20, mean=40_000)
    options = {"seed": 2, "samples_per_shard": 30, "strategy": strategy}
    local = run_job(tmp_path, spec("reshuffle", options), memory_bytes=memory)
    asked = []
    read_ranges = FileSource.read_ranges

    def count(self, ranges, buffer):
        assert list(ranges) == sorted(ranges)
        asked.append(len(ranges))
        read_ranges(self, ranges, buffer)

    monkeypatch.setattr(FileSource, "file", lambda self: None)
    monkeypatch.setattr(FileSource, "read_ranges", count)
    remote = run_job(tmp_path, spec("reshuffle", options), memory_bytes=memory)
    assert remote.digest == local.digest
    assert max(asked) > 1


def test_one_compressed_shard_is_open_at_a_time(tmp_path):
    dataset(tmp_path, "in", 4, 20)
    compress(tmp_path, "in", "packed", ".tar.xz")
    shards = [describe(tmp_path, "packed", f"s-{number:02d}.tar.xz") for number in range(3)]
    with Sources(FolderStore(tmp_path), shards) as sources:
        assert [sources.is_local(row) for row in range(3)] == [False] * 3
        assert len(sources._open) == 0
        for row in range(3):
            sources[row].read_into(0, memoryview(bytearray(512)))
            assert list(sources._open) == [row]


def test_a_damaged_index_is_no_wrong_answer(tmp_path):
    dataset(tmp_path, "in", 2, 30)
    index, _ = build_index(tmp_path / "in" / "s-00.tar")
    damaged = bytearray(index._file.read_through(0, index._file.length))
    damaged[600] ^= 1
    (tmp_path / "index").write_bytes(damaged)
    with pytest.raises(IndexCorrupt):
        ShardIndex.open(tmp_path / "index").arrays(np.arange(3))


@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_memory_is_bounded_whatever_the_size(tmp_path, strategy):
    dataset(tmp_path, "in", 13, 150, mean=20_000)
    size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
    assert size > 30 << 20
    # One output of everything: the most that a task can be asked for. The store of the tests hashes whole files of 3 MB.
    options = {"samples_per_shard": 10_000, "strategy": strategy}
    run_job(tmp_path, spec("reshuffle", options))  # what is loaded once
    with_store = max(path.stat().st_size for path in (tmp_path / "in").iterdir())
    peaks = []
    original = FolderStore.create_temporary, FolderStore.create

    def traced(method):
        def create(self, *args, **more):
            tracemalloc.reset_peak()
            output = method(self, *args, **more)
            commit = output.commit

            def measured():
                peaks.append(tracemalloc.get_traced_memory()[1])
                return commit()

            output.commit = measured
            return output

        return create

    FolderStore.create_temporary, FolderStore.create = map(traced, original)
    tracemalloc.start()
    try:
        run_job(tmp_path, spec("reshuffle", options), memory_bytes=4 << 20)
    finally:
        tracemalloc.stop()
        FolderStore.create_temporary, FolderStore.create = original
    # Indexes and descriptions of inputs that the store keeps, one file that it hashes, and the task's own.
    assert max(peaks) < (4 << 20) + 2 * with_store + (4 << 20)
