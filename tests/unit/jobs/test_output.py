"""Shards and plain objects as outputs: bytes, compression by name, records for the digest, nothing left after an error."""

from __future__ import annotations

import io
import random
import tarfile

import pytest
import xxhash
from folder_store import FolderStore
from job_shards import members_of

from dfc.formats.base import DataMember
from dfc.jobs.data.corpus import open_index
from dfc.jobs.data.output import PlainOutput, ShardOutput
from dfc.limits import DECOMPRESS_CHUNK_BYTES
from dfc.tar.compression import open_decompressed

SIZES = (0, 1, 511, 512, DECOMPRESS_CHUNK_BYTES - 1, DECOMPRESS_CHUNK_BYTES, 3 * DECOMPRESS_CHUNK_BYTES + 7, 5)
MEMBERS = [DataMember("bin", f"k{number}.bin", bytes([number]) * size) for number, size in enumerate(SIZES)]


def write(store: FolderStore, name: str, level: int | None = None):
    with ShardOutput(store, name, level=level) as output:
        for member in MEMBERS:
            output.add([member])
        return output.commit(), (store.staged / "outputs" / name).read_bytes()


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.tar.gz", "x.tar.zst", "x.tar.lz4", "x.tar.bz2", "x.tar.xz"])
def test_shards(tmp_path, name):
    store = FolderStore(tmp_path)
    record, stored = write(store, name)
    kind = {"x.tgz": "gz"}.get(name, name.rpartition(".")[2])
    archive = stored if kind == "tar" else open_decompressed(io.BytesIO(stored), kind).read()
    assert members_of(archive) == [(member.name, member.data) for member in MEMBERS]
    assert (record.size, record.checksum) == (len(stored), xxhash.xxh3_128_hexdigest(stored))
    assert (record.content_size, record.content_checksum) == (len(archive), xxhash.xxh3_128_hexdigest(archive))
    assert record.samples == len(MEMBERS)
    again = write(store, name)
    assert again == (record, stored), f"not the same bytes twice: {stored.hex()}\n{again[1].hex()}"  # whole: to be looked at


def test_the_content_is_the_same_whatever_the_compression(tmp_path):
    store = FolderStore(tmp_path)
    records = [write(store, name, level)[0] for name, level in (("x.tar", None), ("x.tgz", 1), ("x.tgz", 9), ("x.tar.zst", 3))]
    assert len({(record.content_size, record.content_checksum) for record in records}) == 1
    assert len({record.size for record in records}) > 2


def test_headers_are_canonical(tmp_path):
    _, stored = write(FolderStore(tmp_path), "x.tar")
    with tarfile.open(fileobj=io.BytesIO(stored)) as archive:
        assert {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in archive} == {(0, 0, 0, "", 0o644)}


def test_nothing_is_left_of_what_is_given_up(tmp_path):
    store = FolderStore(tmp_path)
    with pytest.raises(ValueError, match="invalid name"), ShardOutput(store, "x.tgz") as output:
        output.add([DataMember("", "", b"x")])
    with PlainOutput(store, "y") as plain:
        plain.write(b"1")
    assert [path for path in store.staged.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.tar.zst", "x.tar.lz4"])
def test_what_is_stored_does_not_depend_on_the_pieces_that_it_came_in(tmp_path, name):
    archive = random.Random(3).randbytes(2000) * 700
    found = set()
    for size in (1, 1000, DECOMPRESS_CHUNK_BYTES - 1, DECOMPRESS_CHUNK_BYTES, DECOMPRESS_CHUNK_BYTES + 1, len(archive)):
        store = FolderStore(tmp_path / str(size))
        with ShardOutput(store, name, len(archive), level=2 if name != "x.tar" else None) as output:
            step = max(size, 1000)
            for at in range(0, len(archive), step):
                piece = archive[at : at + step]
                if size == 1:
                    output.write(piece[:1])
                    piece = piece[1:]
                output.write(piece)
            record = output.commit(1)
        found.add(((store.staged / "outputs" / name).read_bytes(), record.content_checksum, record.content_size))
    ((stored, checksum, content_size),) = found
    assert (checksum, content_size) == (xxhash.xxh3_128_hexdigest(archive), len(archive))
    kind = {"x.tgz": "gz"}.get(name, name.rpartition(".")[2])
    assert (stored if kind == "tar" else open_decompressed(io.BytesIO(stored), kind).read()) == archive


@pytest.mark.parametrize("name", ["x.tar", "x.tgz", "x.tar.lz4"])
def test_samples_that_are_added_are_stored_like_their_archive(tmp_path, name):
    plain = write(FolderStore(tmp_path / "plain"), "x.tar")[1]
    record, stored = write(FolderStore(tmp_path / "added"), name)
    store = FolderStore(tmp_path / "written")
    with ShardOutput(store, name, len(plain)) as output:
        output.write(plain)
        assert output.commit(len(MEMBERS)) == record
    assert (store.staged / "outputs" / name).read_bytes() == stored


def test_a_temporary_shard_has_its_index_beside_it(tmp_path):
    store = FolderStore(tmp_path)
    with ShardOutput(store, "made/1.tar", temporary=True) as output:
        assert not output.sends
        for member in MEMBERS:
            output.add([member])
        shard = output.commit_temporary("0" * 18, "node")
    _, stored = write(FolderStore(tmp_path / "plain"), "x.tar")
    assert (shard.name, shard.size, shard.samples, shard.members) == ("made/1.tar", len(stored), len(MEMBERS), len(MEMBERS))
    assert shard.checksum == xxhash.xxh3_128_hexdigest(stored)
    index = open_index(store, shard)
    assert [(member.name, member.size) for member in index.members()] == [(member.name, len(member.data)) for member in MEMBERS]
    index.close()


def test_nothing_is_left_of_a_temporary_shard_that_is_given_up(tmp_path):
    store = FolderStore(tmp_path)
    with ShardOutput(store, "made/1.tar", temporary=True) as output:
        output.add(MEMBERS[:1])
    assert [path for path in store.staged.rglob("*") if path.is_file()] == []
