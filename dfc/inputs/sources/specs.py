"""Expand a spec into shards: counts, braces, wildcards, prefixes, `.shards` files and lists become `ShardRef`s in order.

Listings come from a DFC server, the local disk or fsspec; other web servers cannot list. Only the path of a URL is expanded, so
that users, ports, queries and escapes stay as they are. docs/inputs.md describes each form.
"""

from __future__ import annotations

import glob
import os
import posixpath
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from dfc.errors import BadShardSpec, BucketNotFound, DfcError, NoShards
from dfc.http.retry import Cancellation, current_cancellation
from dfc.inputs.base import LOG, ShardRef, ShardUnreadable
from dfc.inputs.sources.cluster import ObjectPlace, is_in_vain, locate, trouble_with
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import (
    DEFAULT_OPTIONS,
    SHARD_ENDINGS,
    StreamOptions,
    hint_at_scheme,
    kind_of,
    local_path,
    origin_of,
    shown,
    split_cluster_url,
)
from dfc.inputs.sources.web import retry_after_s, said
from dfc.limits import INPUT_SHARDS_FILE_BYTES_MAX, MIB, SHARD_SPEC_NAMES_MAX
from dfc.listing import specs as shards
from dfc.names import object_path
from dfc.wire import prepared

Entry = str | ShardRef | Sequence[str]
Spec = str | os.PathLike[str] | ShardRef | Sequence[Entry]
_WILDCARD: Final = re.compile(r"[*?\[]")
_URL_WILDCARD: Final = re.compile(r"[*\[]")  # in a URL, "?" begins the query
_PLAIN_URL: Final = re.compile(r"https?://[A-Za-z0-9._:-]+/[A-Za-z0-9._/-]*\.(?:tar|tgz|tar\.[a-z0-9]+)")
_RANGE: Final = re.compile(r"\{[0-9]+\.\.[0-9]+(?:\.\.[0-9]+)?\}")
_HIDDEN: Final = re.compile(r"(?<![^/])\.")  # a dot at the start of a name

_TRIES_SILENT: Final = 2  # failed tries before a warning, since the URL may be mistyped


class _ShardsFile(msgspec.Struct):
    shards: list[str | list[str]]
    metadata: dict[str, Any] = {}


def resolve(spec: Spec, *, options: StreamOptions = DEFAULT_OPTIONS, seed: int | None = None) -> list[ShardRef]:
    """Expand a spec into its shards, in order. `seed` chooses among the replicas in `.shards` files (None: at random).

    Each entry of a list is a spec; an entry that is itself a list names the replicas of one shard. Raises BadShardSpec for a
    spec that cannot be parsed or listed, NoShards if nothing matches, ShardUnreadable if a listing fails.
    """
    chooser = random.Random(seed)
    if isinstance(spec, ShardRef | str | os.PathLike):
        found = _resolve_entry(spec if isinstance(spec, ShardRef) else os.fspath(spec), options, chooser)
    else:
        found = [ref for entry in spec for ref in _resolve_entry(entry, options, chooser)]
        if not found:
            raise NoShards("the list of shards is empty")
    if len(found) > SHARD_SPEC_NAMES_MAX:
        raise BadShardSpec(f"a spec can name at most {SHARD_SPEC_NAMES_MAX} shards, not {len(found)}")
    return found


def _resolve_entry(entry: Entry | os.PathLike[str], options: StreamOptions, chooser: random.Random) -> list[ShardRef]:
    if isinstance(entry, ShardRef):
        return [entry]
    if isinstance(entry, os.PathLike):
        entry = os.fspath(entry)
    if not isinstance(entry, str):
        urls = list(entry)
        if not urls or not all(isinstance(url, str) and url for url in urls):
            raise BadShardSpec("the replicas of a shard must be a non-empty list of URLs")
        return [ShardRef(urls[0], tuple(urls[1:]))]
    if entry.startswith('["'):
        return [ref for name in shards.expand(entry) for ref in _resolve_text(name, options, chooser)]  # type: ignore[union-attr]
    return _resolve_text(entry, options, chooser)


def _resolve_text(spec: str, options: StreamOptions, chooser: random.Random) -> list[ShardRef]:
    kind = kind_of(spec)
    if kind == "stdin":
        return [ShardRef(spec)]
    if kind == "pipe":
        return [ShardRef(command) for command in _expand_command(spec)]
    if kind == "file" and os.path.isfile(local_path(spec)) and not _is_shards_file(spec):
        return [ShardRef(spec)]  # even if its name looks like a pattern
    found: list[ShardRef] = []
    for url in shards.expand_url(spec):
        if _PLAIN_URL.fullmatch(url):
            found.append(ShardRef(url))  # the common case: there may be many thousands
        elif _is_shards_file(url):
            found.extend(_read_shards_file(url, options, chooser))
        elif kind in ("web", "cluster"):
            found.extend(map(ShardRef, _list_web(url, options)))
        elif kind == "fsspec":
            found.extend(map(ShardRef, _list_fsspec(url, options)))
        else:
            found.extend(map(ShardRef, _list_local(url)))
    return found


def _expand_command(command: str) -> Iterator[str]:
    """Expand ranges of numbers in a command. Other braces, and `@`, have their own meaning in a shell."""
    pieces = _RANGE.split(command)
    ranges = [shards.expand_url(braces) for braces in _RANGE.findall(command)]
    for choice in product(*ranges):
        yield pieces[0] + "".join(text + piece for text, piece in zip(choice, pieces[1:], strict=True))


# Listings. Each returns names in byte order.


def _list_web(url: str, options: StreamOptions) -> Iterable[str]:
    path = urlsplit(url).path if kind_of(url) == "web" else url
    prefix = path.endswith("/") or (kind_of(url) == "cluster" and "/" not in url.removeprefix("dfc:").removeprefix("//"))
    if not prefix and not (_URL_WILDCARD if kind_of(url) == "web" else _WILDCARD).search(path):
        return [url]
    place = locate_for_sure(url, options)
    if place is None:
        raise BadShardSpec(
            f"{shown(url)} cannot be listed, because it is not on a DFC server: name the shards with @N or {{a..b}}, "
            "or in a .shards file"
        )
    if not place.bucket:
        raise BadShardSpec(f"{shown(url)} names no bucket")
    selection = shards.expand(place.name) if place.name else shards.Prefix("")
    assert not isinstance(selection, list)
    try:
        listed = place.cluster.client.list(place.bucket, prefix=selection.prefix)
        names = [info.name for info in listed if selection.matches(info.name)]
        names = _shards_only(names, selection.prefix) if prefix else names
    except BucketNotFound as problem:
        raise NoShards(str(problem)) from problem
    except DfcError as problem:
        raise ShardUnreadable(f"{shown(url)} cannot be listed: {problem}", url=url) from problem
    return _found([_web_url(url, place.bucket, name) for name in names], shown(url))


def locate_for_sure(url: str, options: StreamOptions, *, meant: str = "") -> ObjectPlace | None:
    """`locate`, retrying while the server does not answer, since a wrong guess here would be permanent.

    `meant` is the URL to name in messages, if different. ShardUnreadable, at once if the host does not exist.
    """
    meant = meant or url
    tries = 0
    while kind_of(url) == "web" and (problem := trouble_with(url, options)) is not None:
        reason = said(problem).removeprefix(f"GET {origin_of(url)}/v1/cluster: ")
        if is_in_vain(problem, url, options):
            raise ShardUnreadable(f"{shown(meant)}: {reason}", url=meant) from problem
        if tries >= options.retries:
            raise ShardUnreadable(
                f"{shown(meant)}: giving up after {tries + 1} tries: {reason}; is `dfc serve` running there?", url=meant
            ) from problem
        tries += 1
        if tries == _TRIES_SILENT:
            LOG.warning("%s: still retrying: %s", shown(meant), reason)
        current_cancellation(Cancellation()).wait(options.policy.delay_s(tries - 1, retry_after_s(problem)))
    return locate(url, options)


def _web_url(url: str, bucket: str, name: str) -> str:
    """The URL of an object, in the same form as the URL that was listed."""
    if kind_of(url) == "cluster":
        return f"dfc:{'//' if url.startswith('dfc://') else ''}{bucket}/{name}"
    parts = urlsplit(url)
    path = object_path(bucket, name)
    if parts.path.startswith("/v1/objects/"):
        path = "/v1/objects" + path
    elif "/" not in parts.path[1:] and "/" not in name:
        path = object_path("", name)[1:]  # the URL was given without the bucket `default`
    return f"{parts.scheme}://{parts.netloc}{path}"


def _list_local(url: str) -> Iterable[str]:
    path = local_path(url)
    form = "file:" if url.startswith("file:") else ""
    if path.endswith("/"):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        return _found([form + name for name in sorted(_shards_only(found, path))], url)
    if not _WILDCARD.search(path):
        return [url]
    found = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    return _found([form + name for name in sorted(found)], url)


def _list_fsspec(url: str, options: StreamOptions) -> Iterable[str]:
    prefix = url.endswith("/")
    if not prefix and not _WILDCARD.search(url):
        return [url]
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url, **options.storage_options)
    try:
        found = sorted(filesystem.find(path) if prefix else filesystem.glob(path))
    except FileNotFoundError:
        found = []
    except OSError as problem:
        raise ShardUnreadable(f"{url}: {problem}", url=url) from problem
    found = _shards_only(found, path) if prefix else found
    return _found([str(filesystem.unstrip_protocol(name)) for name in found], url)


def _shards_only(names: list[str], prefix: str) -> list[str]:
    """The shards below a prefix, by their extensions, without other and hidden files."""
    below = len(prefix)  # the prefix itself may contain hidden names: `./data/`, `/home/me/.cache/`
    return [name for name in names if name.lower().endswith(SHARD_ENDINGS) and not _HIDDEN.search(name, below)]


def _found(urls: list[str], spec: str) -> list[str]:
    if not urls:
        raise NoShards(f"no shards match {spec}{hint_at_scheme(spec)}")
    return urls


# Files that list shards.

# The fsspec schemes that are certainly remote. Others (`local:`, `git:`, chains like `simplecache::…`) may read local files.
_REMOTE: Final = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "hdfs", "webhdfs", "hf"))


def _is_shards_file(url: str) -> bool:
    path = urlsplit(url).path if kind_of(url) == "web" else url
    return path.endswith(".shards")


def _read_shards_file(url: str, options: StreamOptions, chooser: random.Random) -> Iterator[ShardRef]:
    try:
        listed = msgspec.json.decode(_read_whole(url, options), type=prepared(_ShardsFile))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise BadShardSpec(
            f'{shown(url)} is not a list of shards like {{"shards": [[url, replica, …], …]}}: {problem}'
        ) from None
    if not listed.shards:
        raise NoShards(f"{shown(url)} lists no shards")
    for entry in listed.shards:
        urls = [_absolute(url, name) for name in ([entry] if isinstance(entry, str) else entry)]
        if not urls:
            raise BadShardSpec(f"{shown(url)} lists a shard without a URL")
        chosen = urls.pop(chooser.randrange(len(urls)))
        yield ShardRef(chosen, tuple(urls))


def _read_whole(url: str, options: StreamOptions) -> bytes:
    buffer = bytearray(1 * MIB)
    data = bytearray()
    with open_stream(url, options=options) as stream:
        while count := stream.readinto(buffer):
            data += buffer[:count]
            if len(data) > INPUT_SHARDS_FILE_BYTES_MAX:
                raise BadShardSpec(f"{shown(url)} is too large: more than {INPUT_SHARDS_FILE_BYTES_MAX} bytes")
    return bytes(data)


def _is_remote(name: str, base: str) -> bool:
    """Whether a remote list may name this URL: it must be on an object store, or have the scheme of the list itself."""
    scheme = name.partition("://")[0].lower()
    return "::" not in name and (scheme in _REMOTE or scheme == base.partition("://")[0].lower())


def _absolute(base: str, name: str) -> str:
    """Resolve a name in a file that lists shards. It cannot name commands; a remote list cannot name local files either."""
    kind, here = kind_of(name), kind_of(base)
    relative = kind == "file" and not name.startswith("file:")
    local = kind == "file" and (not relative or (name.startswith("/") and here == "cluster"))
    if kind in ("pipe", "stdin") or (here != "file" and (local or (kind == "fsspec" and not _is_remote(name, base)))):
        raise BadShardSpec(f"{shown(base)} names {name[:200]!r}, but a list of shards must name URLs")
    if not relative:
        return name
    if here == "web":
        # What has a colon in front is no scheme here, where only web addresses have one.
        joined = urljoin(base, name if name.startswith("/") else f"./{name}")
        if kind_of(joined) != "web":
            raise BadShardSpec(f"{shown(base)} names {name[:200]!r}, but a list of shards must name URLs")
        return joined
    if here == "cluster":
        bucket, path = split_cluster_url(base)
        form = "dfc://" if base.startswith("dfc://") else "dfc:"
        return f"{form}{bucket}/{posixpath.join(posixpath.dirname(path), name)}"
    scheme, slashes, path = base.rpartition("://")
    escaped = quote(name) if scheme == "file" and slashes else name
    return scheme + slashes + posixpath.join(posixpath.dirname(path), escaped)
