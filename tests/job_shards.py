"""Shards for tests of jobs: samples to tars and back, by the standard library."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

Members = Sequence[tuple[str, bytes]]


def tar_of(members: Members, format: int = tarfile.GNU_FORMAT, mtime: float = 0) -> bytes:
    """An archive of members, in this order; those whose names end in a slash are folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size = len(data)
            info.mtime = mtime
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def gnu_tar(directory: Path, form: str, *options: str) -> Path:
    """An archive of GNU tar in one of its formats: samples, links, folders, and long names where the format has them; also of
    what is in the folder `tree` already."""
    tree, draw = directory / "tree", random.Random(1)
    deep = tree / "deep" / ("d" * 60) / ("e" * 30)
    deep.mkdir(parents=True)
    for number in range(25):
        for ext in ("jpg", "cls", "txt"):
            (tree / f"{number:03d}.{ext}").write_bytes(draw.randbytes(draw.choice([0, 1, 511, 512, 513, 3000])))
    if form != "v7":
        for name in ("x.jpg", "x.cls", "ключ.txt"):
            (deep / name).write_bytes(b"deep")
    if form in ("gnu", "pax", "oldgnu"):
        (tree / ("n" * 180 + ".jpg")).write_bytes(b"long")
    (tree / "link.jpg").symlink_to("000.jpg")
    (tree / "hard.jpg").hardlink_to(tree / "001.jpg")
    command = ["tar", "--sort=name", f"--format={form}", *options, "-cf", directory / "a.tar", "-C", tree, "."]
    subprocess.run(command, check=True, capture_output=True)
    return directory / "a.tar"


def put(folder: Path, name: str, content: bytes | Members, bucket: str = "in") -> Path:
    """An object in a folder of tests; members become an archive, compressed when its name ends in `gz`."""
    if not isinstance(content, bytes):
        content = tar_of(content)
        if name.endswith("gz"):
            content = gzip.compress(content, mtime=0)
    path = folder / bucket / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def samples(keys: Sequence[str], **fields: str | bytes) -> list[tuple[str, bytes]]:
    """A sample for every key; `{key}` and `{number}` in the texts are replaced."""
    return [
        (f"{key}.{ext}", text if isinstance(text, bytes) else text.format(key=key, number=number).encode())
        for number, key in enumerate(keys)
        for ext, text in fields.items()
    ]


def members_of(archive: bytes) -> list[tuple[str, bytes]]:
    """Names and contents, as tarfile reads them; of a folder, its name with a slash."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return [(info.name + "/" * info.isdir(), (tar.extractfile(info) or io.BytesIO()).read()) for info in tar]


def job(operation: str, pattern: str, shards: Any = "**", **options: Any) -> Mapping[str, Any]:
    """A spec from bucket `in` to bucket `out`."""
    source = {"bucket": "in", "shards": shards}
    return {"operation": operation, "input": source, "output": {"bucket": "out", "pattern": pattern}, "options": options}


def json_of(data: bytes) -> Any:
    return msgspec.json.decode(data)
