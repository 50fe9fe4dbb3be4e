"""Archives as the tools write them, through a node: what its index has is what the members, samples and batches of it are."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from urllib.parse import quote

import pytest
from archives import corpus
from folder_store import build_index

from dfc.client import Client
from dfc.tar.compression import open_decompressed
from dfc.tar.header import TarError

STEP = 4  # every so manyth; tests/unit/tar/test_corpus.py has all of them


def test_what_the_tools_write(http, nodes, tmp_path: Path) -> None:
    indexed = refused = 0
    with Client(nodes.proxy) as client:
        for archive in corpus()[::STEP]:
            path = f"/archives/{archive.name}"
            answer = http.put(path, content=archive.data).json()
            assert http.get(path).content == archive.data
            (tmp_path / archive.name).write_bytes(archive.data)
            if answer["samples"] is None:
                refused += 1
                with pytest.raises(TarError) as caught:
                    build_index(tmp_path / archive.name)
                assert answer["warnings"] == [str(caught.value)], archive.what
                assert http.get(f"{path}?list=members").status_code == 409
                continue
            index, summary = build_index(tmp_path / archive.name)
            indexed += 1
            assert (answer["samples"], answer["members"]) == (summary.samples, summary.members), archive.what
            assert answer["warnings"] == list(summary.warnings)
            members = list(index.members())
            listed = [json.loads(line) for line in http.get(f"{path}?list=members").text.splitlines()]
            assert [row["name"] for row in listed] == [member.name for member in members]
            data = archive.data
            if index.compressed:
                data = open_decompressed(io.BytesIO(archive.data), index.kind).read()
            samples = [index.sample_at(number) for number in range(index.sample_count)][-3:]
            for sample in samples:
                wanted = {member.ext: data[member.offset : member.offset + member.size] for member in sample.members}
                for member in sample.members:
                    got = http.get(f"{path}?member={quote(member.name)}")
                    if [other.name for other in members].count(member.name) == 1:
                        assert got.content == wanted[member.ext], (archive.what, member.name)
                if index.repeated_keys:
                    continue
                got = http.get(f"{path}?sample={quote(sample.key)}")
                with tarfile.open(fileobj=io.BytesIO(got.content)) as tar:
                    assert [tar.extractfile(info).read() for info in tar] == list(wanted.values())  # type: ignore[union-attr]
                batch = list(client.batch([{"bucket": "archives", "object": archive.name, "sample": sample.key}]))
                assert [body for _, body in batch] == list(wanted.values()), archive.what
            index.close()
    assert indexed > 35
    assert refused
