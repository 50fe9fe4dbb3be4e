"""Programs taken from the page of a dataset, and what they find when they are run."""

from __future__ import annotations

import hashlib
import html
import io
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from harness import DATA, Cluster
from job_shards import members_of, tar_of
from PIL import Image

TOKEN = "sesame-0123456789"
FOLDER = "it's $(touch made) {a,b}@3/"  # nothing in it may mean anything to Python, a shell, curl or DFC
NUMBERS = (8, 9, 11)  # 10 is missing
PATTERN = f"{FOLDER}d-{{008..011}}.tar"
SHARD = f"{FOLDER}d-009.tar"
_PROGRAM = re.compile(r"<summary>([^<]+)</summary>\s*<pre data-copy>(.*?)</pre>", re.DOTALL)
Found = set[tuple[int, str]]
"""The class and a digest of the pixels of each sample."""


@dataclass
class Stocked:
    """A cluster with a dataset of pictures. `shards`: their bytes by name."""

    cluster: Cluster
    shards: dict[str, bytes]
    token: str

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.cluster.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def programs(self, page: str, **query: str) -> dict[str, str]:
        """The texts to copy of a page, by their titles."""
        found = self.ask("GET", f"{page}?{urlencode({'bucket': 'pictures', **query})}").decode()
        return {title: html.unescape(text) for title, text in _PROGRAM.findall(found)}

    def run(self, command: list[str], folder: Path, **options: Any) -> str:
        """Run a program as somebody would who has the token, if there is one. Return what it prints."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DFC_")}
        environment |= {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            **({"DFC_TOKEN": self.token} if self.token else {}),
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, **options)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert not (folder / "made").exists(), "a name was taken for a command"
        return done.stdout

    def python(self, program: str, more: str, folder: Path) -> Found:
        """Run a program of a page and then `more` of it, which appends classes and pixels to `found`."""
        path = folder / "program.py"
        tail = f"\nimport hashlib, json\nimport numpy\nfound = []\n{more}\nprint(json.dumps(found))\n"
        path.write_text(program + tail)
        lines = self.run([sys.executable, str(path)], folder).splitlines()
        return {(label, digest) for label, digest in json.loads(lines[-1])}

    def content(self, *names: str) -> Found:
        """What is in shards."""
        return {each for name in names for each in _samples(self.shards[name])}


def _samples(shard: bytes) -> Iterator[tuple[int, str]]:
    files = dict(members_of(shard))
    for name, content in files.items():
        if name.endswith(".png"):
            pixels = Image.open(io.BytesIO(content)).convert("RGB").tobytes()
            yield int(files[name.removesuffix("png") + "cls"]), hashlib.md5(pixels).hexdigest()


def cut(content: bytes, parts: int) -> list[bytes]:
    """Cut a shard of pairs of files into shards."""
    members = members_of(content)
    edges = [len(members) * part // parts // 2 * 2 for part in range(parts + 1)]
    return [tar_of(members[start:end]) for start, end in pairwise(edges)]


def stock(cluster: Cluster, token: str = "") -> Stocked:
    """Upload the dataset."""
    parts = cut((DATA / "sample.tgz").read_bytes(), 3)
    shards = {f"{FOLDER}d-{number:03}.tar": part for number, part in zip(NUMBERS, parts, strict=True)}
    stocked = Stocked(cluster, shards, token)
    for name, content in shards.items():
        stocked.ask("PUT", f"/pictures/{quote(name)}", content)
    return stocked
