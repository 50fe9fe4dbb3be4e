"""WebDataset as it comes, with the curl that it runs by itself."""

from __future__ import annotations

import subprocess

import webdataset


def curl(*arguments: object) -> bytes:
    command = ["curl", "-f", "-s", "-S", "-L", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


def test_webdataset_reads_and_writes_with_its_stock_curl(cluster, data) -> None:
    for number in range(3):
        curl("-T", data / "sample.tgz", f"{cluster.url}/wds/train-{number}.tgz")
    url = f"{cluster.url}/wds/train-{{0..2}}.tgz"
    dataset = webdataset.WebDataset(url, shardshuffle=False)
    samples = list(dataset)
    assert len(samples) == 270
    assert {"png", "cls"} <= samples[0].keys()
    sink_url = f"pipe:curl -f -s -X PUT -L -T - {cluster.url}/v1/objects/wds/out-%06d.tar"
    with webdataset.ShardWriter(sink_url, maxcount=100, verbose=0) as sink:
        for sample in samples:
            sink.write({"__key__": f"{len(sample)}-{id(sample)}", "png": sample["png"], "cls": sample["cls"]})
    counts = [len(curl(f"{cluster.url}/wds/out-{n:06d}.tar?list=samples").splitlines()) for n in range(3)]
    assert counts == [100, 100, 70]
