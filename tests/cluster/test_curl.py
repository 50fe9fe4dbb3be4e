"""What people type: curl against a real cluster, without `-L` where the lines of the README have none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from harness import owner_of

from dfc.placement.map import ClusterMap


def curl(*arguments: str | Path, stdin: bytes | None = None) -> bytes:
    """The standard output of a curl that succeeds."""
    done = subprocess.run(["curl", "-s", *map(str, arguments)], input=stdin, capture_output=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def object_answer(cluster, name: str) -> bytes:
    return curl("--fail", f"{cluster.url}/{name}")


@pytest.mark.parametrize(
    ("shard", "samples", "members"), [("sample.tgz", 90, 180), ("tendata.tar", 100, 100), ("mpdata.tar", 100, 100)]
)
def test_upload_read_and_list_real_shards(cluster, data, shard: str, samples: int, members: int) -> None:
    answer = json.loads(curl("-T", data / shard, f"{cluster.url}/{shard}"))
    assert (answer["samples"], answer["members"], answer["warnings"]) == (samples, members, [])
    assert object_answer(cluster, shard) == (data / shard).read_bytes()
    lines = curl(f"{cluster.url}/{shard}?list=samples").splitlines()
    assert len(lines) == samples
    first = json.loads(lines[0])
    extension = next(iter(first["members"]))
    direct = curl("--fail", f"{cluster.url}/{shard}?member={first['key']}.{extension}")
    names = subprocess.run(["tar", "-xOf", data / shard, f"{first['key']}.{extension}"], capture_output=True, check=True)
    assert direct == names.stdout


@pytest.mark.parametrize("follow", [(), ("-L",)])
@pytest.mark.parametrize("flags", [(), ("-H", "Transfer-Encoding: chunked"), ("-H", "Expect: 100-continue"), ("-H", "Expect:")])
def test_uploads_to_the_web_namespace_need_no_redirect(cluster, data, follow, flags) -> None:
    name = f"up-{len(follow)}-{abs(hash(flags))}.tar"
    answer = json.loads(curl(*follow, *flags, "-T", data / "tendata.tar", f"{cluster.url}/{name}"))
    assert answer["size"] == (data / "tendata.tar").stat().st_size
    assert object_answer(cluster, name) == (data / "tendata.tar").read_bytes()


def test_a_redirect_comes_before_the_body_is_read(cluster, data) -> None:
    """WebDataset's writer, word for word: chunked from a pipe, with Expect, to a URL that redirects."""
    url = f"{cluster.url}/v1/objects/default/piped.tar"
    body = (data / "tendata.tar").read_bytes() * 20
    curl("-f", "-X", "PUT", "-L", "-T", "-", url, stdin=body)
    assert object_answer(cluster, "piped.tar") == body
    head = curl("-i", "-H", "Expect: 100-continue", "-T", data / "tendata.tar", url)
    assert head.startswith(b"HTTP/1.1 307 ")
    assert b"100 Continue" not in head


def test_large_objects_pass_unchanged_both_ways(cluster, tmp_path: Path) -> None:
    """Above every threshold of the transfer paths: take-over and relay of the upload, sendfile and splice of the answer."""
    source = tmp_path / "large.bin"
    source.write_bytes(bytes(range(256)) * 1024 * 97 + b"end")
    curl("-T", source, f"{cluster.url}/large/a.bin")
    assert curl(f"{cluster.url}/large/a.bin") == source.read_bytes()
    assert curl("-L", f"{cluster.url}/v1/objects/large/a.bin") == source.read_bytes()
    curl("-L", "-H", "Expect: 100-continue", "-T", source, f"{cluster.url}/v1/objects/large/b.bin")
    for url in cluster.target_urls():
        assert curl(f"{url}/large/b.bin") == source.read_bytes()
    assert curl("-r", "1000-1999", f"{cluster.url}/large/a.bin") == source.read_bytes()[1000:2000]


def test_a_download_resumes(cluster, data, tmp_path: Path) -> None:
    curl("-T", data / "tendata.tar", f"{cluster.url}/resume.tar")
    part = tmp_path / "resume.tar"
    part.write_bytes((data / "tendata.tar").read_bytes()[:500_000])
    curl("--fail", "-C", "-", "-o", part, f"{cluster.url}/resume.tar")
    assert part.read_bytes() == (data / "tendata.tar").read_bytes()


def test_objects_spread_evenly_over_targets(cluster) -> None:
    """12,000 names over 4 targets: ±10 %, which is six standard deviations, since ids of disks are drawn anew each time."""
    curl("--fail", "-X", "PUT", "-d", "{}", f"{cluster.url}/v1/buckets/spread")
    cluster_map = ClusterMap.decode(json.dumps(cluster.map()).encode())
    counts: dict[str, int] = {}
    for number in range(12_000):
        owner = owner_of(cluster_map, "spread", f"train-{number:06d}.tar")
        counts[owner.node.id] = counts.get(owner.node.id, 0) + 1
    assert len(counts) == 4
    assert all(2700 <= count <= 3300 for count in counts.values()), counts
