"""DALI's and wids' indexes, read by the rules of their programs."""

from __future__ import annotations

import json
import posixpath
from urllib.parse import unquote, urljoin

import pytest
from folder_store import build_index
from job_shards import tar_of

from dfc.errors import Conflict
from dfc.formats.table import dali_index, wids_index
from dfc.tar.index.reader import ShardIndex


def index_of(path, members: dict[str, bytes]) -> ShardIndex:
    path.write_bytes(tar_of(list(members.items())))
    return build_index(path)[0]


def read_as_dali(text: str) -> list[list[tuple[str, int, int, str]]]:
    """`ParseIndexFile` and `ParseSampleDesc` of DALI's webdataset loader: words between white space."""
    lines = text.splitlines()
    version, count = lines[0].split()
    assert version == "v1.2"
    assert int(count) == len(lines) - 1
    samples = []
    for line in lines[1:]:
        words = iter(line.split())
        samples.append([(ext, int(offset), int(size), name) for ext, offset, size, name in zip(*[words] * 4, strict=True)])
    return samples


def test_dali(tmp_path):
    members = {"d/a.jpg": b"1" * 600, "d/a.seg.PNG": b"", ".hid.txt": b"x", "README": b"y", "b.cls": b"3"}
    index = index_of(tmp_path / "x.tar", members)
    found = read_as_dali(b"".join(dali_index(index, "b/x.tar")).decode())
    assert [[(ext, name) for ext, _, _, name in each] for each in found] == [
        [("jpg", "d/a.jpg"), ("seg.PNG", "d/a.seg.PNG")], [("cls", "b.cls")],
    ]  # fmt: skip
    content = (tmp_path / "x.tar").read_bytes()
    for each in found:
        for _, offset, size, name in each:
            assert offset % 512 == 0
            assert content[offset : offset + size] == members[name]
    index.close()


def test_dali_without_samples(tmp_path):
    index = index_of(tmp_path / "x.tar", {})
    assert b"".join(dali_index(index, "b/x.tar")) == b"v1.2 0\n"
    index.close()


@pytest.mark.parametrize("name", ["a b.jpg", "a.", "d\u00a0/a.jpg"])
def test_names_that_dali_would_misread(tmp_path, name):
    index = index_of(tmp_path / "x.tar", {name: b"1"})
    with pytest.raises(Conflict, match=r"b/x\.tar: DALI's index cannot hold"):
        list(dali_index(index, "b/x.tar"))
    index.close()


@pytest.mark.parametrize("location", ["out/index.json", "in/index.json", "out/deep/er/index.json"])
def test_wids(location):
    shards = [("in/train 0%.tar", 10, 1000), ("in/d/x.tar", 0, 1024)]
    found = json.loads(wids_index("in", location, shards))
    assert (found["__kind__"], found["wids_version"], found["name"]) == ("wids-shard-index-v1", 1, "in")
    assert found["base"] == "/" + posixpath.dirname(location) + "/"
    assert [(shard["nsamples"], shard["filesize"]) for shard in found["shardlist"]] == [(10, 1000), (0, 1024)]
    where = [unquote(urljoin(f"http://host/{location}", shard["url"])) for shard in found["shardlist"]]
    assert where == [f"http://host/{name}" for name, _, _ in shards]
