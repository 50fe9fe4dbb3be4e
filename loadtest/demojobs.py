"""The second half of the demo: jobs over the dataset that lies in the cluster. Nothing is downloaded and uploaded again."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence

from loadtest.cluster import dfc_command

SEED = 1
SOURCE = "default/demo-*.tar"


class JobsDiffer(RuntimeError):
    """A job's output is not what it has to be."""


def job_commands(samples_per_shard: int) -> dict[str, list[str]]:
    """What the demo types, by a short name."""
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
    """What to say of a job, from its JSON; JobsDiffer when it did not succeed, or counts are not these."""
    job = json.loads(text)
    if job["state"] != "succeeded":
        raise JobsDiffer(f"the job {job['id']} has {job['state']}: {job['error']}")
    output = job["output"]
    if (output["samples"], output["shards"]) != (samples, shards):
        raise JobsDiffer(f"the job wrote {output}, not {samples} samples in {shards} objects")
    return f"{output['samples']} samples, digest {output['digest']}"


def read_members(shards: Sequence[bytes]) -> dict[str, bytes]:
    """The files of some tars by name, in their order, directories left out; JobsDiffer when one is there twice."""
    members: dict[str, bytes] = {}
    for data in shards:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if member.isdir():
                    continue
                content = archive.extractfile(member)
                if content is None or member.name in members:
                    raise JobsDiffer(f"{member.name} is there twice, or no file")
                members[member.name] = content.read()
    return members


def compare(download: Callable[[str], bytes], before: Mapping[str, bytes], shards: int) -> int:
    """Compare every member of the reshuffled and of the twice converted dataset with what went in; how many they are."""
    names = [f"train-{number:06d}.tar" for number in range(shards)]
    shuffled = [download(f"shuffled/{name}") for name in names]
    if [download(f"back/{name}") for name in names] != shuffled:
        raise JobsDiffer("there to Parquet and back, the shards are not byte for byte what they were")
    after = read_members(shuffled)
    if after != before:
        raise JobsDiffer("the reshuffled dataset does not have the same members")
    if list(after) == list(before):
        raise JobsDiffer("the reshuffled dataset is in the order it was in")
    return len(after)
