"""What the tests of ordered operations share: datasets of all sorts, and the plain way to say what must come out."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from dfc.tar.compression import open_compressor
from dfc.tar.index.format import index_kind
from dfc.tar.reader import iterate_members
from dfc.tar.samples import SampleGrouper, TarWriter, split_key

Members = list[tuple[str, bytes]]
SampleList = list[Members]


def samples_of(content: bytes, kind: str = "tar") -> SampleList:
    """The samples of an archive, by the streaming reader, which shares nothing with the index."""
    grouper, samples = SampleGrouper(), []
    for member, data in iterate_members(io.BytesIO(content), kind):
        if member.key is not None:
            if grouper.starts_sample(member.name):
                samples.append([])
            samples[-1].append((member.name, data.readall() or b""))
    return samples


def canonical(samples: Sequence[Members]) -> bytes:
    """The archive of these samples."""
    file = io.BytesIO()
    with TarWriter(file) as tar:
        for sample in samples:
            for name, data in sample:
                tar.add(name, data)
    return file.getvalue()


def untidy(samples: Sequence[Members], form: int, rng: random.Random) -> bytes:
    """An archive with owners, times, pax headers and things between that belong to no sample."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for sample in samples:
            for name, data in sample:
                if rng.random() < 0.1:
                    folder = tarfile.TarInfo("folder")
                    folder.type = tarfile.DIRTYPE
                    tar.addfile(folder)
                if rng.random() < 0.05:
                    tar.addfile(tarfile.TarInfo("README"))
                member = tarfile.TarInfo(name)
                member.size, member.mode, member.uid, member.gid = len(data), rng.choice([0o600, 0o755]), rng.randrange(2000), 7
                member.uname, member.gname, member.mtime = "somebody", "users", rng.choice([0, 1_700_000_000.25, 12])
                tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def dataset(folder: Path, bucket: str, shards: int, per_shard: int, *, seed: int = 0, mean: int = 900) -> SampleList:
    """Shards `s-%02d.tar` of all forms, the last one empty; all samples in global order."""
    rng = random.Random(seed)
    (folder / bucket).mkdir(parents=True, exist_ok=True)
    everything: SampleList = []
    for number in range(shards):
        samples = []
        for i in range(per_shard if number < shards - 1 else 0):
            key = f"{'long/' * 40 if rng.random() < 0.03 else ''}{number:02d}/{i:04d}"
            fields: Members = [(f"{key}.cls", str(rng.randrange(10)).encode())]
            fields.append((f"{key}.jpg", rng.randbytes(int(rng.expovariate(1 / mean)))))
            if rng.random() < 0.2:
                fields.append((f"{key}.json", b'{"n": %d, "s": "%d"}' % (i, rng.randrange(50))))
            samples.append(fields)
        form = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT][number % 3]
        content = canonical(samples) if number % 4 == 3 else untidy(samples, form, rng)
        (folder / bucket / f"s-{number:02d}.tar").write_bytes(content)
        everything += samples
    return everything


def compress(folder: Path, bucket: str, target: str, ending: str) -> None:
    """The same shards once more, compressed."""
    (folder / target).mkdir()
    for path in sorted((folder / bucket).iterdir()):
        name = path.with_suffix("").name + ending
        kind = index_kind(name)
        assert kind is not None
        if kind == "gz":
            (folder / target / name).write_bytes(gzip.compress(path.read_bytes(), 1))
        else:
            compressor = open_compressor(kind)
            (folder / target / name).write_bytes(compressor.compress(path.read_bytes()) + compressor.flush())


def spec(
    operation: str, options: dict[str, Any], *, source: str = "in", shards: str = "**", pattern: str = "o-%03d.tar"
) -> Any:
    return {
        "operation": operation,
        "input": {"bucket": source, "shards": shards},
        "output": {"bucket": "out", "pattern": pattern},
        "options": options,
    }


def gnu_tar_reads(content: bytes) -> list[str]:
    """The names that GNU tar finds; it must find nothing wrong."""
    listed = subprocess.run(["tar", "--quoting-style=literal", "-tf", "-"], input=content, capture_output=True, check=True)
    assert not listed.stderr
    return listed.stdout.decode().splitlines()


def key_of(sample: Members) -> str:
    parts = split_key(sample[0][0])
    assert parts is not None
    return parts[0]


def field(sample: Members, ext: str) -> bytes | None:
    return next((data for name, data in sample if (split_key(name) or ("", ""))[1] == ext), None)


def hash_of_key(seed: int, key: str) -> int:
    """What split and select by chance go by."""
    return xxhash.xxh3_64_intdigest(seed.to_bytes(8, "little") + key.encode())
