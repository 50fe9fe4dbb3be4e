"""The second half of the demo: jobs over the dataset in the cluster, without downloading and uploading it again."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence

from loadtest.cluster import dfc_command

SEED = 1
SOURCE = "default/demo-*.tar"


class JobsDiffer(RuntimeError):
    """A job's output is wrong."""


def job_commands(samples_per_shard: int) -> dict[str, list[str]]:
    """The job commands of the demo, by short name."""
    size = ["--samples-per-shard", str(samples_per_shard)]
    return {
        "reshuffle": dfc_command("reshuffle", SOURCE, "shuffled/train-%06d.tar", "--seed", str(SEED), *size, "--json"),
        "list keys": dfc_command("keys", "shuffled/train-*.tar", "shuffled/keys.ndjson", "--json"),
        "convert to Parquet": dfc_command(
            "convert", "shuffled/train-*.tar", "parquet/train-%06d.parquet", "--format", "parquet", "--json"
        ),
        "convert back": dfc_command("convert", "parquet/train-*.parquet", "back/train-%06d.tar", "--format", "tar", "--json"),
    }


def check_job(text: str, samples: int, shards: int) -> str:
    """Check a job from its JSON, and return a summary. JobsDiffer if it did not succeed, or its counts differ from these."""
    job = json.loads(text)
    if job["state"] != "succeeded":
        raise JobsDiffer(f"job {job['id']} did not succeed; its state is {job['state']}: {job['error']}")
    output = job["output"]
    if (output["samples"], output["shards"]) != (samples, shards):
        raise JobsDiffer(f"the job wrote {output}, not {samples} samples in {shards} objects")
    return f"{output['samples']} samples, digest {output['digest']}"


def read_members(shards: Sequence[bytes]) -> dict[str, bytes]:
    """The files in some tars by name, in order, without directories. JobsDiffer if a name occurs twice."""
    members: dict[str, bytes] = {}
    for data in shards:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if member.isdir():
                    continue
                content = archive.extractfile(member)
                if content is None or member.name in members:
                    raise JobsDiffer(f"{member.name} occurs twice, or is not a file")
                members[member.name] = content.read()
    return members


def compare(download: Callable[[str], bytes], before: Mapping[str, bytes], shards: int) -> int:
    """Compare every member of the reshuffled and of the twice converted dataset with the input. Returns their number."""
    names = [f"train-{number:06d}.tar" for number in range(shards)]
    shuffled = [download(f"shuffled/{name}") for name in names]
    if [download(f"back/{name}") for name in names] != shuffled:
        raise JobsDiffer("after converting to Parquet and back, the shards are not byte for byte the same")
    after = read_members(shuffled)
    if after != before:
        raise JobsDiffer("the reshuffled dataset does not have the same members")
    if list(after) == list(before):
        raise JobsDiffer("the reshuffled dataset is still in its original order")
    return len(after)
