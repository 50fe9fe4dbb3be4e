"""Who opens `dfc://`: pandas, pyarrow, Hugging Face datasets and DuckDB read and write through it, without a line for DFC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pandas
import pyarrow
import pytest
from harness import Cluster
from pyarrow import dataset as arrow_dataset
from pyarrow import parquet

from dfc.inputs.filesystem import DfcFileSystem
from dfc.inputs.writers import ShardWriter

ROWS = 1000
FRAME = pandas.DataFrame({"a": range(ROWS), "b": [f"x{at}" for at in range(ROWS)], "part": [at % 3 for at in range(ROWS)]})


@pytest.fixture(scope="module")
def served(start_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = start_cluster(targets=2, disks=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def fs(served: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DfcFileSystem:
    """What `dfc://` means to everything in the test."""
    monkeypatch.setenv("DFC_URL", served.url)
    found = fsspec.filesystem("dfc")
    assert isinstance(found, DfcFileSystem)
    return found


@pytest.fixture
def hugging_face(fs: DfcFileSystem, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Its cache for a test; nothing is asked of the hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    datasets.disable_progress_bars()
    return tmp_path / "cache"


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "jsonl"])
def test_pandas(fs: DfcFileSystem, ending: str) -> None:
    url = f"dfc://pandas/folder/table.{ending}"
    if ending == "parquet":
        FRAME.to_parquet(url)
        found = pandas.read_parquet(url, columns=["b", "a", "part"])
    elif ending == "jsonl":
        FRAME.to_json(url, orient="records", lines=True)
        found = pandas.read_json(url, lines=True)
    else:
        FRAME.to_csv(url, index=False)
        found = pandas.read_csv(url)
    assert found[["a", "b", "part"]].equals(FRAME)


def test_pandas_names_a_cluster_itself_and_appends(fs: DfcFileSystem, served: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFC_URL", "http://127.0.0.1:9")
    options = {"url": served.url}
    FRAME.to_csv("dfc://pandas/other.csv", index=False, storage_options=options)
    FRAME.to_csv("dfc://pandas/other.csv", index=False, header=False, mode="a", storage_options=options)
    assert len(pandas.read_csv("dfc://pandas/other.csv", storage_options=options)) == 2 * ROWS


def test_a_table_that_breaks_off_is_not_stored(fs: DfcFileSystem) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("this cell has no text")

    frame = pandas.DataFrame({"a": [1] * 200_000 + [Unprintable()]})
    with pytest.raises(RuntimeError, match="no text"):
        frame.to_csv("dfc://pandas/half.csv", chunksize=1000)
    assert not fs.exists("dfc://pandas/half.csv")


def test_pyarrow(fs: DfcFileSystem) -> None:
    table = pyarrow.Table.from_pandas(FRAME)
    arrow_dataset.write_dataset(
        table, "arrow/parts", filesystem=fs, format="parquet", partitioning=["part"], partitioning_flavor="hive"
    )
    for found in (
        arrow_dataset.dataset("arrow/parts", filesystem=fs, format="parquet", partitioning="hive"),
        arrow_dataset.dataset("fsspec+dfc://arrow/parts", format="parquet", partitioning="hive"),
    ):
        assert found.count_rows() == ROWS
        assert found.to_table(filter=arrow_dataset.field("part") == 1).num_rows == 333
    parquet.write_table(table, "fsspec+dfc://arrow/one.parquet")
    assert parquet.read_table("fsspec+dfc://arrow/one.parquet", columns=["a"]).column("a").to_pylist() == list(range(ROWS))
    assert parquet.read_table("dfc://arrow/one.parquet", filesystem=fs).num_rows == ROWS
    assert parquet.read_metadata("arrow/one.parquet", filesystem=fs).num_rows == ROWS


def test_hugging_face_tables(fs: DfcFileSystem, hugging_face: Path) -> None:
    import datasets

    for part in range(3):
        FRAME[FRAME["part"] == part].to_parquet(f"dfc://face/table-{part}.parquet")
    FRAME.to_json("dfc://face/table.jsonl", orient="records", lines=True)
    found = datasets.load_dataset(
        "parquet", data_files="dfc://face/table-*.parquet", split="train", cache_dir=str(hugging_face)
    )
    assert sorted(found["a"]) == list(range(ROWS))
    streamed = datasets.load_dataset("json", data_files={"train": "dfc://face/table.jsonl"}, split="train", streaming=True)
    assert [row["a"] for row in streamed] == list(range(ROWS))
    found.save_to_disk("dfc://face/saved")
    assert sorted(datasets.load_from_disk("dfc://face/saved")["a"]) == list(range(ROWS))
    found.to_parquet("dfc://face/out.parquet")
    assert len(pandas.read_parquet("dfc://face/out.parquet")) == ROWS


def test_hugging_face_reads_shards(fs: DfcFileSystem, hugging_face: Path) -> None:
    import datasets

    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    with ShardWriter("dfc://face/train-%06d.tar", maxcount=10) as writer:
        for at in range(35):
            writer.write({"__key__": f"s{at:03d}", "png": image, "json": {"at": at}, "cls": at})
    files = {"train": "dfc://face/train-*.tar"}
    streamed = datasets.load_dataset("webdataset", data_files=files, split="train", streaming=True)
    rows = list(streamed)
    assert [row["json"]["at"] for row in rows] == list(range(35))
    assert (np.asarray(rows[7]["png"]) == image).all()
    stored = datasets.load_dataset("webdataset", data_files=files, split="train", cache_dir=str(hugging_face))
    assert stored["__key__"] == [f"s{at:03d}" for at in range(35)]


def test_duckdb(fs: DfcFileSystem) -> None:
    import duckdb

    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.execute("create table numbers as select range as i, range % 3 as part from range(1000)")
        connection.execute("copy numbers to 'dfc://duck/numbers.parquet'")
        connection.execute("copy numbers to 'dfc://duck/numbers.csv'")
        connection.execute("copy numbers to 'dfc://duck/parts' (format parquet, partition_by (part))")
        for source in ("'dfc://duck/numbers.parquet'", "'dfc://duck/numbers.csv'", "'dfc://duck/parts/*/*.parquet'"):
            assert connection.execute(f"select count(*), sum(i) from {source}").fetchall() == [(1000, 499500)]
        with pytest.raises(duckdb.Error, match="no more"):
            connection.execute(
                "copy (select case when range = 900000 then error('no more') else range::varchar end from range(1000000))"
                " to 'dfc://duck/half.csv'"
            )
    assert not fs.exists("duck/half.csv")
    assert pandas.read_parquet("dfc://duck/numbers.parquet")["i"].sum() == 499500


def test_other_filesystems_on_top(fs: DfcFileSystem, tmp_path: Path) -> None:
    with ShardWriter("dfc://chain/s-%d.tar") as writer:
        writer.write({"__key__": "a", "json": {"x": 1}})
    for url in ("dfc://chain/s-0.tar//a.json", "tar://a.json::dfc://chain/s-0.tar"):
        with fsspec.open(url) as file:
            assert file.read() == b'{"x": 1}'
    with fsspec.open("simplecache::dfc://chain/s-0.tar", simplecache={"cache_storage": str(tmp_path)}) as file:
        assert len(file.read()) == fs.size("chain/s-0.tar")
