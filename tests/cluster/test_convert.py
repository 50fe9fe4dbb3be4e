"""Conversions in a real cluster: every format there and back, cut anew, failing with nothing left, by the command line."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.parquet
import pytest
from harness import DATA, Cluster, get, run_dfc
from job_shards import members_of

from dfc.client import Client, JobFailed, job_spec
from dfc.errors import BadRequest, OutputExists

PATTERNS = {
    "tgz": "x-%06d.tgz",
    "tar.zst": "x-%06d.tar.zst",
    "tar.lz4": "x-%06d.tar.lz4",
    "zip": "x-%06d.zip",
    "directory": "%06d/",
    "tfrecord": "x-%06d.tfrecord",
    "parquet": "x-%06d.parquet",
    "lmdb": "%06d/",
    "recordio": "x-%06d.rec",
    "sequencefile": "x-%06d.seq",
}
ZIP_OF_NOTHING = b"PK\x05\x06" + bytes(18)
SAMPLES = {"mpdata.tar": 100, "sample.tgz": 90, "tendata.tar": 100}


@pytest.fixture(scope="module")
def own(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Three shards in the bucket `in`, over three targets."""
    cluster = start_cluster(targets=3, environment={"DFC_JOBS_WORKERS": "2"})
    with Client(cluster.url) as client:
        for name in SAMPLES:
            client.put("in", name, (DATA / name).read_bytes())
    return cluster


@pytest.fixture
def client(own: Cluster) -> Iterator[Client]:
    with Client(own.url) as found:
        yield found


@pytest.fixture(scope="module")
def canonical(own: Cluster) -> str:
    """The digest of all shards as plain tars."""
    with Client(own.url) as client:
        return run(client, "in/**", "canonical/x-%06d.tar", format="tar")["digest"]


def run(client: Client, source: str, output: str, **options: Any) -> dict[str, Any]:
    job = client.jobs.wait(client.jobs.submit(job_spec("convert", source, output, **options)).id, timeout_s=90)
    assert job.output is not None
    return {"shards": job.output.shards, "samples": job.output.samples, "digest": job.output.digest, "warnings": job.warnings}


def staged(cluster: Cluster) -> dict[str, Any]:
    return {job: total for url in cluster.target_urls() for job, total in json.loads(get(f"{url}/v1/node/staged", 10)).items()}


@pytest.mark.parametrize("format", [name for name in PATTERNS if name != "directory"])
def test_there_and_back(own: Cluster, client: Client, canonical: str, format: str) -> None:
    bucket = f"to-{format}"
    there = run(client, "in/**", f"{bucket}/{PATTERNS[format]}", format=format)
    assert there["samples"] == sum(SAMPLES.values())
    assert there["shards"] == (6 if format == "recordio" else 3)
    again = run(client, "in/**", f"{bucket}-again/{PATTERNS[format]}", format=format)
    assert again == there
    back = run(client, f"{bucket}/**", f"{bucket}-back/x-%06d.tar", format="tar")
    assert (back["digest"], back["warnings"]) == (canonical, ())
    assert staged(own) == {}


def test_a_tree_there_and_back(own: Cluster, client: Client) -> None:
    run(client, "in/sample.tgz", "tree/some/where/", format="directory")
    back = run(client, "tree/some/where/", "tree-back/x.tar", format="tar")
    assert back["samples"] == SAMPLES["sample.tgz"]
    with tarfile.open(DATA / "sample.tgz") as wanted:
        files = {info.name: wanted.extractfile(info).read() for info in wanted if info.isfile()}  # type: ignore[union-attr]
    assert dict(members_of(get(f"{own.url}/tree-back/x.tar"))) == files


def test_cut_anew_whatever_the_inputs_are(own: Cluster, client: Client) -> None:
    of_shards = run(client, "in/**", "cut/x-%06d.tar", format="tar", samples_per_shard=40)
    assert (of_shards["shards"], of_shards["samples"]) == (8, 290)
    run(client, "in/**", "cut-zip/x-%06d.zip", format="zip")
    of_zips = run(client, "cut-zip/*.zip", "cut-again/x-%06d.tar", format="tar", samples_per_shard=40)
    assert of_zips == of_shards
    assert staged(own) == {}


def test_one_parquet_schema(own: Cluster, client: Client) -> None:
    run(client, "in/**", "schema/x-%06d.parquet", format="parquet")
    schemas = {
        tuple(pyarrow.parquet.read_schema(io.BytesIO(get(f"{own.url}/schema/x-{number:06d}.parquet"))).names)
        for number in range(3)
    }
    assert len(schemas) == 1


def test_a_broken_file_leaves_nothing(own: Cluster, client: Client) -> None:
    for number in range(3):
        client.put("broken", f"{number}.zip", b"no zip" if number == 1 else ZIP_OF_NOTHING)
    with pytest.raises(JobFailed, match=r"broken/1\.zip: not a zip file"):
        run(client, "broken/*.zip", "broken-out/x-%06d.tar", format="tar")
    assert "broken-out" not in {bucket.name for bucket in client.list_buckets()} or list(client.list("broken-out")) == []
    assert staged(own) == {}


def test_what_is_refused(client: Client) -> None:
    client.put("taken", "x-000000.idx", b"mine")
    with pytest.raises(OutputExists, match=r"x-000000\.idx"):
        run(client, "in/**", "taken/x-%06d.rec", format="recordio")
    with pytest.raises(BadRequest, match=r"in/sample\.tgz is compressed"):
        run(client, "in/**", "never/x-%06d.idx", format="dali-index")
    with pytest.raises(BadRequest, match="3 inputs make 3 outputs"):
        run(client, "in/**", "never/x.zip", format="zip")


def test_the_command_line(own: Cluster) -> None:
    flags = ("--format", "wids-index", "--json")
    done = run_dfc(own.url, "convert", "in/*.tar", "by-hand/index.json", *flags, timeout_s=60)
    assert done.returncode == 0, done.stderr
    index = json.loads(get(f"{own.url}/by-hand/index.json"))
    assert [(shard["url"], shard["nsamples"]) for shard in index["shardlist"]] == [
        ("../in/mpdata.tar", 100), ("../in/tendata.tar", 100),
    ]  # fmt: skip
