"""Addresses of pages, and of what they show."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from dfc.datasets import NumberedNames
from dfc.limits import OBJECT_NAME_BYTES_MAX
from dfc.names import object_path


def page_of(name: str) -> str:
    """The page of a bucket."""
    return f"/ui/buckets/{quote(name, safe='')}"


def above(bucket: str, prefix: str) -> list[tuple[str, str]]:
    """The folders that a prefix is in, with their pages, from the bucket down."""
    found, at = [(bucket, page_of(bucket))], 0
    prefix = prefix[:OBJECT_NAME_BYTES_MAX]  # nothing can be below a longer one
    while (at := prefix.find("/", at) + 1) > 0:
        folder = prefix[:at]
        name = folder.rstrip("/").rpartition("/")[2] + "/"
        found.append((name, f"{page_of(bucket)}?{urlencode({'prefix': folder})}"))
    return found


def datasets_url(bucket: str, prefix: str) -> str:
    """The page of the datasets below a prefix."""
    return f"{page_of(bucket)}/datasets" + (f"?{urlencode({'prefix': prefix})}" if prefix else "")


def dataset_url(bucket: str, shards: str, **more: int) -> str:
    """The page of a dataset, by its pattern. `more`: further numbers of the query."""
    return f"/ui/dataset?{urlencode({'bucket': bucket, 'shards': shards, **more})}"


def dataset_above(bucket: str, name: str) -> tuple[str, str]:
    """The dataset that a shard is of, by its name, with its page."""
    names = NumberedNames.around(name)
    if names is None:
        return "as a dataset", dataset_url(bucket, name)
    return f"{names.before.rpartition('/')[2]}*{names.after}", dataset_url(bucket, names.pattern)


def new_job_url(operation: str, bucket: str, shards: str, more: Mapping[str, str] | None = None) -> str:
    """The page that begins a job, with its input. `more`: further fields of its form."""
    return f"/ui/jobs/new?{urlencode({'operation': operation, 'bucket': bucket, 'shards': shards, **(more or {})})}"


def shard_url(bucket: str, name: str, start: int = 0, **more: str) -> str:
    """The page of a shard, from an ordinal on. `more`: how its samples are shown."""
    return f"/ui/shard?{urlencode({'bucket': bucket, 'object': name, **({'start': start} if start else {}), **more})}"


def members_url(bucket: str, name: str, start: int = 0, *, of_none: bool = False) -> str:
    """The page of a shard's members, from an ordinal on; or of those of no sample, from an offset on."""
    more = {**({"of": "none"} if of_none else {}), **({"start": start} if start else {})}
    return f"/ui/members?{urlencode({'bucket': bucket, 'object': name, **more})}"


def sample_url(bucket: str, name: str, number: int) -> str:
    """The page of a sample."""
    return f"/ui/sample?{urlencode({'bucket': bucket, 'object': name, 'number': number})}"


def thumbnail_url(bucket: str, name: str, number: int, ext: str, pixels: int, version: str) -> str:
    """The path of a small picture of a field."""
    more = {"thumbnail": pixels, **({"version": version} if version else {})}
    return f"{field_url(bucket, name, number, ext)}&{urlencode(more)}"


def search_url(bucket: str, shards: str = "") -> str:
    """The page on which samples are found by their keys, in some shards of a bucket or in all."""
    return f"/ui/search?{urlencode({'bucket': bucket, **({'shards': shards} if shards else {})})}"


def field_url(bucket: str, name: str, number: int, ext: str) -> str:
    """The path of the bytes of a field."""
    return f"{object_path(bucket, name)}?{urlencode({'number': number, 'ext': ext})}"
