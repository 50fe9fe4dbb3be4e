"""Bodies, tars and images that are made for tests must be what they say."""

from __future__ import annotations

import io
import tarfile

import numpy
import xxhash
from job_shards import members_of
from PIL import Image

from loadtest.bodies import BLOCK_BYTES, Body, make_sample_shard
from loadtest.images import draw, encode_png, make_dataset
from loadtest.tarstream import empty_members, empty_members_size, member_tar_bytes, write_member_tar


def test_a_body_is_the_same_however_it_is_read():
    body = Body(7, 3 * BLOCK_BYTES + 12_345)
    whole = body.read()
    assert len(whole) == body.size
    assert xxhash.xxh3_128_hexdigest(whole) == body.checksum()
    for start, end in ((0, 1), (BLOCK_BYTES - 1, BLOCK_BYTES + 1), (12_345, 2 * BLOCK_BYTES), (body.size - 5, body.size + 5)):
        assert body.read(start, end) == whole[start:end]


def test_bodies_of_other_seeds_differ():
    assert len({Body(seed, 1024).read() for seed in range(1000)}) == 1000


def test_a_sample_shard_holds_its_images():
    shard = make_sample_shard("a.tar", 3, 5, 1000)
    members = dict(members_of(shard.data))
    assert len(members) == 10
    for key, body in shard.images.items():
        assert members[f"{key}.jpg"] == body.read()


def test_empty_members_are_valid_headers():
    count = 10_001  # more than two batches, and not a whole number of them
    data = b"".join(empty_members(count))
    assert len(data) == empty_members_size(count)
    with tarfile.open(fileobj=io.BytesIO(data), errorlevel=2) as archive:  # tarfile verifies each header's checksum
        names = archive.getnames()
    assert names == [f"empty/{number:08d}.cls" for number in range(count)]


def test_member_tars(tmp_path):
    names = write_member_tar(tmp_path / "a.tar", 1 << 20, 100_000)
    members = members_of((tmp_path / "a.tar").read_bytes())
    assert [name for name, _ in members] == names
    assert members[3][1] == Body(3, 100_000).read()
    assert [len(data) for _, data in members_of(member_tar_bytes(4, 10))] == [10] * 4


def test_the_dataset_is_made_of_real_images(tmp_path):
    written = make_dataset(tmp_path, 16, first=0)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written == sum(path.stat().st_size for path in files)
    assert {path.suffix for path in files} == {".jpg", ".png", ".cls"}
    for path in files:
        if path.suffix != ".cls":
            with Image.open(path) as image:
                image.load()


def test_the_png_writer_keeps_every_pixel():
    pixels = draw(5)
    with Image.open(io.BytesIO(encode_png(pixels))) as image:
        assert (numpy.asarray(image) == pixels).all()
