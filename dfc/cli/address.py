"""Parses the names of objects on the command line: `bucket/object`, `object` (in the bucket `default`) or a URL. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from dfc.cli.exits import UsageMistake
from dfc.names import DEFAULT_BUCKET, check_bucket_name, check_object_name, parse_object_path
from dfc.wire import OBJECTS_PATH


class Remote(NamedTuple):
    """A parsed address. `base` is None for the cluster of DFC_URL; the `name` of a folder is empty or ends in `/`."""

    base: str | None
    bucket: str
    name: str

    @property
    def is_folder(self) -> bool:
        return not self.name or self.name.endswith("/")

    def __str__(self) -> str:
        return f"{self.base}/{self.bucket}/{self.name}" if self.base else f"{self.bucket}/{self.name}"

    def below(self, relative: str) -> Remote:
        """The address of an object in this folder. BadName if the name is not allowed."""
        return self._replace(name=check_object_name(self.name + relative))


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def parse_remote(text: str) -> Remote:
    """Parse the address of an object, a spec, or a folder (`bucket/`, `bucket/prefix/`). BadName, UsageMistake."""
    if not text:
        raise UsageMistake("the name of an object cannot be empty")
    base, path = _split_url(text) if is_url(text) else (None, text)
    if base is not None:
        parsed = parse_object_path(_without_slash(path))
        bucket, name = parsed.bucket, parsed.name
        if path.endswith("/"):
            # `/bucket/` names a bucket, `/bucket/a/` a folder in it.
            bucket, name = (unquote(path.strip("/")), "") if "/" not in path.strip("/") else (bucket, f"{name}/")
        return Remote(base, check_bucket_name(bucket), name)
    bucket, slash, name = path.partition("/")
    if not slash:
        return Remote(None, DEFAULT_BUCKET, check_object_name(path))
    if name:
        check_object_name(_without_slash(name))
    return Remote(None, check_bucket_name(bucket), name)


def parse_listing(text: str) -> Remote:
    """Parse the address of a bucket or of a prefix in it. Unlike in `parse_remote`, a single word is a bucket."""
    if is_url(text):
        base, path = _split_url(text)
        bucket, _, name = unquote(path).strip("/").partition("/") if path.strip("/") else ("", "", "")
        slash = "/" if path.endswith("/") and name else ""
        return Remote(base, check_bucket_name(bucket) if bucket else "", name + slash)
    bucket, _, name = text.partition("/")
    return Remote(None, check_bucket_name(bucket) if bucket else "", name)


def _split_url(text: str) -> tuple[str, str]:
    parts = urlsplit(text)
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageMistake(f"not the URL of an object: {text}")
    path = parts.path or "/"
    if path.startswith(OBJECTS_PATH):
        path = path[len(OBJECTS_PATH) - 1 :]
    return f"{parts.scheme}://{parts.netloc}", path


def _without_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and len(path) > 1 else path
