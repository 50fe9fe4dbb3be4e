"""keys: the manifest in global order, the same lines as the listing of a bucket, whatever is in the names."""

from __future__ import annotations

import importlib
import io
import json

import jobs_ordered
import pytest
from folder_store import build_index, run_job
from job_shards import put
from jobs_ordered import canonical, compress, dataset, samples_of

from dfc.errors import BadRequest, Conflict
from dfc.tar.samples import split_key


def spec(pattern: str, options: dict | None = None, source: str = "in") -> dict:
    return jobs_ordered.spec("keys", options or {}, source=source, pattern=pattern)


def lines_of(folder, source: str = "in", *, members: bool) -> list[dict]:
    found = []
    for path in sorted((folder / source).iterdir()):
        for sample in samples_of(path.read_bytes()):
            parts = [split_key(name) for name, _ in sample]
            line = {"shard": path.name, "key": parts[0][0]}
            if members:
                line["members"] = {ext: len(data) for (_, ext), (_, data) in zip(parts, sample, strict=True)}
            found.append(line)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    dataset(path, "in", 4, 50)
    odd = [[('quote"/%s.jpg', b"1")], [("back\\slash.jpg", b"22"), ("back\\slash.CLS", b"")], [("ключ.Jpg.ПОЛЕ", b"3")]]
    put(path, 'z-%d".tar', canonical([*odd, [("\x01.x", b"")], [("k.", b"7")]]))
    compress(path, "in", "packed", ".tar.lz4")
    return path


@pytest.mark.parametrize("options", [{}, {"fields": ["key"]}, {"fields": ["key", "members"]}])
def test_ndjson(folder, options):
    done = run_job(folder, spec("keys.ndjson", options), twice=True)
    lines = [json.loads(line) for line in done.outputs["keys.ndjson"].splitlines()]
    assert lines == lines_of(folder, members=options != {"fields": ["key"]})
    assert done.samples == len(lines) == 155


def test_text(folder):
    done = run_job(folder, spec("a/keys.txt"))
    assert done.outputs["a/keys.txt"].decode().split("\n")[:-1] == [line["key"] for line in lines_of(folder, members=False)]


@pytest.mark.parametrize("members", [True, False])
def test_parquet(folder, members):
    parquet = importlib.import_module("pyarrow.parquet")
    done = run_job(folder, spec("keys.parquet", {} if members else {"fields": ["key"]}), twice=True)
    table = parquet.read_table(io.BytesIO(done.outputs["keys.parquet"])).to_pylist()
    if members:
        table = [row | {"members": dict(row["members"])} for row in table]
    assert table == lines_of(folder, members=members)


def test_parquet_without_its_library(folder, monkeypatch):
    monkeypatch.setattr("dfc.jobs.operations.keys.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="pyarrow"):
        run_job(folder, spec("keys.parquet"))


def test_compressed_shards(folder):
    plain = run_job(folder, spec("keys.ndjson")).outputs["keys.ndjson"]
    packed = run_job(folder, spec("keys.ndjson", source="packed")).outputs["keys.ndjson"]
    assert packed.replace(b".tar.lz4", b".tar") == plain


def test_a_line_break_has_no_place_in_text(tmp_path):
    put(tmp_path, "a.tar", canonical([[("a\nb.x", b"")]]))
    with pytest.raises(Conflict, match="line break"):
        run_job(tmp_path, spec("keys.txt"))
    assert json.loads(run_job(tmp_path, spec("keys.ndjson")).outputs["keys.ndjson"])["key"] == "a\nb"


def test_nothing_in_nothing_out(tmp_path):
    put(tmp_path, "a.tar", canonical([]))
    for name in ("k.ndjson", "k.txt"):
        assert run_job(tmp_path, spec(name)).outputs == {name: b""}


def test_split_samples(tmp_path):
    shard = put(tmp_path, "s.tar", canonical([[("a.x", b"1")], [("b.x", b"2")], [("a.y", b"3")]]))
    assert build_index(shard)[1].repeated_keys == 1
    with pytest.raises(Conflict, match="'a'"):
        run_job(tmp_path, spec("k.ndjson"))
    kept = run_job(tmp_path, spec("k.ndjson", {"on_split": "keep"})).outputs["k.ndjson"]
    assert [json.loads(line)["members"] for line in kept.splitlines()] == [{"x": 1}, {"x": 1}, {"y": 1}]
    joined = run_job(tmp_path, spec("k.ndjson", {"on_split": "join"}), twice=True).outputs["k.ndjson"]
    assert [json.loads(line) for line in joined.splitlines()] == [
        {"shard": "s.tar", "key": "a", "members": {"x": 1, "y": 1}},
        {"shard": "s.tar", "key": "b", "members": {"x": 1}},
    ]


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("k.csv", {}), ("k-%03d.ndjson", {}), ("k/", {}), ("k.txt", {"fields": ["key", "members"]}),
        ("k.ndjson", {"fields": []}), ("k.ndjson", {"fields": ["members"]}), ("k.ndjson", {"fields": ["shard"]}),
        ("k.ndjson", {"samples_per_shard": 3}),
    ],
)  # fmt: skip
def test_bad_specs(folder, pattern, options):
    with pytest.raises(BadRequest):
        run_job(folder, spec(pattern, options))
