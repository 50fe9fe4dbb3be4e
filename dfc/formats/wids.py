"""The JSON that wids opens a dataset by: its shards with their numbers of samples. Source: wids 0.1.11, wids_specs.py.

Addresses of shards are relative to where the index itself lies, so that it works on any node, and on a copy of both.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from urllib.parse import quote

import msgspec


def wids_index(name: str, location: str, shards: Iterable[tuple[str, int, int]]) -> bytes:
    """`location` is `BUCKET/NAME` of the index; a shard is (`BUCKET/NAME`, samples, size in bytes)."""
    base = "/" + posixpath.dirname(location)
    rows = [
        {"url": quote(posixpath.relpath("/" + where, base)), "nsamples": samples, "filesize": size}
        for where, samples, size in shards
    ]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "base": base + "/", "shardlist": rows}
    return msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n"
