"""The reading half of the `dfc://` filesystem: its paths, members of shards as files, listings and reads."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from dfc.client.client import Client
from dfc.client.transfers import ObjectReader
from dfc.errors import (
    BadName,
    BucketNotEmpty,
    DfcError,
    Forbidden,
    MemberNotFound,
    NoSpace,
    NotAShard,
    NotFound,
    NotSeekable,
    PreconditionFailed,
    RangeNotSatisfiable,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from dfc.inputs.sources.cluster import cluster_at
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.uploads import FileDestination, UploadFile
from dfc.names import check_bucket_name, check_object_name
from dfc.wire.objects import ObjectInfo

# --- Paths of the `dfc://` filesystem: `bucket/object`, and `bucket/shard.tar//member` for members of a shard. Pure; no I/O.
#
# Object names have no empty segments, so the first `//` separates the shard from the member.

MEMBERS = "//"


class FilePlace(NamedTuple):
    """What a path names. Empty `bucket`: the root; empty `name`: a bucket. `member` None: an object; empty: all of a shard."""

    bucket: str
    name: str
    member: str | None

    @property
    def prefix(self) -> str:
        """The prefix of the names of objects in this folder."""
        return f"{self.name}/" if self.name else ""


def strip_protocol(path: str) -> str:
    """`dfc://bucket/folder/` → `bucket/folder`. The `//` that begins the members of a shard stays."""
    path = path.removeprefix("dfc:").lstrip("/")
    head, members, member = path.partition(MEMBERS)
    return head + members + member.rstrip("/") if members else head.rstrip("/")


def place_of(path: str) -> FilePlace:
    """What a path without protocol names. BadName if the path is invalid."""
    head, members, member = path.partition(MEMBERS)
    bucket, _, name = head.partition("/")
    if bucket:
        check_bucket_name(bucket)
    if name:
        check_object_name(name)
    if members and not name:
        raise BadName(f"only shards have members, and {path!r} does not name a shard before `//`")
    return FilePlace(bucket, name, member if members else None)


def parent_of(path: str) -> str:
    """The folder of a path; for a member at the top of a shard, the shard's root; "" for a bucket."""
    head, _, member = path.partition(MEMBERS)
    if member:
        return head + MEMBERS + (member.rpartition("/")[0])
    return head.rpartition("/")[0]


def folders_of(names: Iterable[str], below: str) -> set[str]:
    """All folders below the prefix `below` that these names imply."""
    found: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while len(folder) > len(below) and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


@contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Convert errors of the cluster to the OSErrors that programs expect of a filesystem; EIO for all others."""
    try:
        yield
    except NotFound as problem:
        raise FileNotFoundError(errno.ENOENT, problem.message, path) from problem
    except NotAShard as problem:
        raise NotADirectoryError(errno.ENOTDIR, problem.message, path) from problem
    except DfcError as problem:
        number = next((number for kind, number in _NUMBERS if isinstance(problem, kind)), errno.EIO)
        raise OSError(number, problem.message or os.strerror(number), path) from problem


_NUMBERS: tuple[tuple[type[DfcError], int], ...] = (
    (BadName, errno.EINVAL),
    (Unauthorized, errno.EACCES),
    (Forbidden, errno.EPERM),
    (BucketNotEmpty, errno.ENOTEMPTY),
    (PreconditionFailed, errno.ESTALE),
    (NoSpace, errno.ENOSPC),
    (TooLarge, errno.EFBIG),
    (Unreachable, errno.ECONNREFUSED),
)


# --- Members of a shard as read-only files in folders, for the `dfc://` filesystem. Listings come from the shard's index.

Info = dict[str, Any]
_FILE = "file"


def modified_at(text: str) -> datetime | None:
    """Parse an RFC 3339 time, to the second: a listing has fractions that a HEAD lacks."""
    return datetime.fromisoformat(text).replace(microsecond=0) if text else None


def file_info(path: str, found: ObjectInfo) -> Info:
    """What fsspec is told of an object; sizes in bytes."""
    return {"name": path, "size": found.size, "type": "file", "ETag": found.etag, "mtime": modified_at(found.modified)}


def folder_info(path: str) -> Info:
    """What fsspec is told of a folder."""
    return {"name": path, "size": 0, "type": "directory"}


def member_info(client: Client, place: FilePlace) -> Info:
    """A member, or a folder of members. NotAShard; NotFound if it is neither."""
    assert place.member is not None
    path = f"{place.bucket}/{place.name}{MEMBERS}{place.member}"
    if place.member:
        try:
            # The answer to a request for one byte also tells the whole size.
            with client.open_member(place.bucket, place.name, place.member, length=1) as reader:
                return file_info(path, reader.info)
        except RangeNotSatisfiable:
            with client.open_member(place.bucket, place.name, place.member) as reader:
                return file_info(path, reader.info)
        except NotSeekable:
            with client.open_member(place.bucket, place.name, place.member) as reader:
                return {**file_info(path, reader.info), "compressed": True}
        except MemberNotFound:
            pass
    found = find_members(client, place, withdirs=True)
    if not found and place.member:
        raise MemberNotFound(f"{place.bucket}/{place.name} has no member {place.member}")
    return folder_info(path)


def find_members(client: Client, place: FilePlace, *, withdirs: bool = False, maxdepth: int | None = None) -> dict[str, Info]:
    """The members below a folder by path, at most `maxdepth` levels down. NotAShard, NotFound."""
    assert place.member is not None
    below = f"{place.member}/" if place.member else ""
    shard = client.stat(place.bucket, place.name)
    modified = modified_at(shard.modified)
    root = f"{place.bucket}/{place.name}{MEMBERS}"
    found: dict[str, Info] = {}
    for member in client.members(place.bucket, place.name):
        path = root + member.name
        if member.type == _FILE and member.name.startswith(below) and path not in found:
            etag = f"{shard.etag}-{member.offset:x}-{member.size:x}"
            found[path] = {"name": path, "size": member.size, "type": "file", "ETag": etag, "mtime": modified}
    if withdirs:
        folders = folders_of([path[len(root) :] for path in found], place.member)
        found |= {root + name: folder_info(root + name) for name in folders}
    if maxdepth is not None:
        start = len(root + below)
        found = {path: info for path, info in found.items() if path.count("/", start) < maxdepth}
    return dict(sorted(found.items()))


# --- The reading half of the `dfc://` filesystem: listings, file facts and reads. `filesystem` adds writing.

PARALLEL: Final = 16  # requests of one call for many ranges or objects


class DfcReads(AbstractFileSystem):  # type: ignore[misc]
    """The reading half of `DfcFileSystem`."""

    root_marker = ""

    def __init__(self, url: str | None = None, token: str | None = None, *, target: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._options = StreamOptions(cluster=url or target, token=token)
        self._made: dict[str, None] = {}  # empty folders, which the cluster does not know

    @property
    def url(self) -> str:
        """A node of the cluster, or several, separated by commas."""
        return self._options.cluster_url

    @property
    def client(self) -> Client:
        """The client of this process."""
        return cluster_at(self.url, self._options).client

    @property
    def fsid(self) -> str:
        return f"dfc_{self.url}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return strip_protocol(os.fspath(path))

    @classmethod
    def _parent(cls, path: str) -> str:
        return parent_of(cls._strip_protocol(path))

    # Listings and file facts.

    def info(self, path: str, **_: Any) -> Info:
        """`name`, `size` (bytes), `type`; for files `ETag` (xxh3-128) and `mtime`."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            place = place_of(path)
            if place.member is not None:
                return member_info(self.client, place)
            if not place.bucket:
                return folder_info(path)
            if not place.name:
                self.client.bucket(place.bucket)
                return folder_info(path)
            try:
                return file_info(path, self.client.stat(place.bucket, place.name))
            except NotFound:
                if path not in self._made and not self.client.list_page(place.bucket, prefix=place.prefix, limit=1).objects:
                    raise
                return folder_info(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """List a folder, a bucket or a shard (`bucket/shard.tar//`), one level deep; a file lists itself."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            try:
                found = {cast(str, info["name"]): info for info in self._listed(place_of(path))}
            except NotFound:
                if path not in self._made:
                    raise
                found = {}
            found |= {made: folder_info(made) for made in list(self._made) if parent_of(made) == path and made not in found}
            if not found:
                info = self.info(path)
                found = {path: info} if info["type"] == "file" else {}
        return [found[name] for name in sorted(found)] if detail else sorted(found)

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any) -> Any:
        """All files below a path, by a single listing, however many folders there are."""
        path = self._strip_protocol(path)
        with as_os_errors(path):
            place = place_of(path)
            if place.member is not None:
                found = find_members(self.client, place, withdirs=withdirs, maxdepth=maxdepth)
            elif not place.bucket or maxdepth is not None:
                return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
            else:
                found = self._below(place, withdirs=withdirs)
        if (withdirs or not found) and path:
            try:
                info = self.info(path)
            except FileNotFoundError:
                info = None
            if info is not None and (withdirs or info["type"] == "file"):
                found = {path: info, **found}
        return found if detail else list(found)

    def exists(self, path: str, **_: Any) -> bool:
        """Whether a file or folder exists. OSError if that cannot be determined now."""
        return self._type_of(path) is not None

    def isdir(self, path: str) -> bool:
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        return self._type_of(path) == "file"

    def modified(self, path: str) -> datetime | None:
        found: datetime | None = self.info(path).get("mtime")
        return found

    def ukey(self, path: str) -> str:
        """The ETag, which changes with the contents."""
        info = self.info(path)
        return str(info.get("ETag") or info["name"])

    def checksum(self, path: str) -> int:
        """The xxh3-128 as a number."""
        return int(self.info(path)["ETag"], 16)

    # Reading.

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a file, or of a range (negative: from the end). A whole file is verified against its checksum."""
        path = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            start, end, _step = slice(start, end).indices(self.info(path)["size"])
        start = start or 0
        length = None if end is None else max(end - start, 0)
        with as_os_errors(path):
            place = place_of(path)
            if length == 0 or not place.name:
                check_file(self.info(path))
                return b""
            try:
                if place.member is None:
                    return self.client.get(place.bucket, place.name, start=start, length=length)
                return self._cat_member(place, start, length)
            except RangeNotSatisfiable:
                return b""

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """The bytes of many ranges, read in parallel. Exceptions are returned in place unless `on_error="raise"`."""
        starts = starts if isinstance(starts, Sequence) else [starts] * len(paths)
        ends = ends if isinstance(ends, Sequence) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError(f"paths, starts and ends must have the same length, not {len(paths)}, {len(starts)}, {len(ends)}")
        return self._map(self.cat_file, list(zip(paths, starts, ends, strict=True)), raising=on_error == "raise")

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """The bytes of a file, or a dict of the bytes of many files by path, read in parallel."""
        paths = self.expand_path(path, recursive=recursive)
        if recursive:
            paths = [each for each in paths if not self.isdir(each)]
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0])
        found = self._map(self.cat_file, [(each,) for each in paths], raising=on_error == "raise")
        pairs = zip(paths, found, strict=True)
        return {each: data for each, data in pairs if on_error != "omit" or not isinstance(data, Exception)}

    def get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, outfile: Any = None, **options: Any) -> None:
        """Download a file, whole and verified, or not at all."""
        rpath = self._strip_protocol(rpath)
        if outfile is not None or hasattr(lpath, "write"):
            super().get_file(rpath, lpath, callback=callback, outfile=outfile, **options)
            return
        info = self.info(rpath)
        if info["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with as_os_errors(rpath):
            place = place_of(rpath)
            callback.set_size(info["size"])
            if place.member is not None:
                with UploadFile(FileDestination(os.fspath(lpath), self._options)) as target:
                    super().get_file(rpath, None, callback=callback, outfile=target, **options)
                return
            self.client.get_to_file(place.bucket, place.name, lpath, resume=False, progress=callback.relative_update)

    # Helpers.

    def _type_of(self, path: str) -> str | None:
        try:
            return cast(str, self.info(path)["type"])
        except OSError as problem:
            if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
                return None
            raise

    def read_part(self, path: str, start: int, end: int | None, etag: str | None) -> bytes:
        """A range of the version with this ETag (`end` None: the rest). OSError(ESTALE) if it was replaced since."""
        with as_os_errors(path):
            place = place_of(path)
            with self._reader(place, start, None if end is None else end - start) as reader:
                if etag and reader.info.etag != etag:
                    raise PreconditionFailed("the object was replaced while it was being read; open it again")
                return reader.readall()

    def _reader(self, place: FilePlace, start: int, length: int | None) -> ObjectReader:
        if place.member is None:
            return self.client.open(place.bucket, place.name, start=start, length=length)
        return self.client.open_member(place.bucket, place.name, place.member, start=start, length=length)

    def _cat_member(self, place: FilePlace, start: int, length: int | None) -> bytes:
        assert place.member is not None
        try:
            return self.client.read_member(place.bucket, place.name, place.member, start=start, length=length)
        except NotSeekable:
            whole = self.client.read_member(place.bucket, place.name, place.member)
            return whole[start : None if length is None else start + length]

    def _listed(self, place: FilePlace) -> Iterator[Info]:
        if place.member is not None:
            yield from find_members(self.client, place, withdirs=True, maxdepth=1).values()
        elif not place.bucket:
            yield from (folder_info(bucket.name) for bucket in self.client.list_buckets())
        else:
            for page in self.client.list_pages(place.bucket, prefix=place.prefix, delimiter="/"):
                yield from (file_info(f"{place.bucket}/{found.name}", found) for found in page.objects)
                yield from (folder_info(f"{place.bucket}/{prefix.rstrip('/')}") for prefix in page.prefixes)

    def _below(self, place: FilePlace, *, withdirs: bool) -> dict[str, Info]:
        found = {f"{place.bucket}/{info.name}": info for info in self.client.list(place.bucket, prefix=place.prefix)}
        infos = {path: file_info(path, info) for path, info in found.items()}
        if withdirs:
            root = f"{place.bucket}/{place.name}".rstrip("/")
            infos |= {path: folder_info(path) for path in folders_of(found, root) if path not in infos}
        return dict(sorted(infos.items()))

    def _map(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, raising: bool) -> list[Any]:
        """Call a function with each of these arguments, several at a time. Exceptions are raised or returned in place."""

        def call(given: tuple[Any, ...]) -> Any:
            try:
                return function(*given)
            except Exception as problem:
                if raising:
                    raise
                return problem

        if len(arguments) < 2:
            return [call(given) for given in arguments]
        with ThreadPoolExecutor(min(PARALLEL, len(arguments)), thread_name_prefix="dfc-fs") as executor:
            return list(executor.map(call, arguments))


class DfcFile(AbstractBufferedFile):  # type: ignore[misc]
    """An object or member opened for reading in blocks, all of one version. `cache_type` and `block_size` are fsspec's."""

    def __init__(self, fs: DfcReads, path: str, mode: str, block_size: int, **options: Any) -> None:
        self._details = fs.info(path)
        check_file(self._details)
        options["size"] = self._details["size"]
        if self._details.get("compressed"):
            options["cache_type"] = "all"  # such a member can only be read whole
        super().__init__(fs, path, mode, block_size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        if self.details.get("compressed"):
            whole: bytes = self.fs.read_part(self.path, 0, None, self.details["ETag"])
            return whole[start:end]
        part: bytes = self.fs.read_part(self.path, start, end, self.details["ETag"])
        return part


def check_file(info: Info) -> None:
    """IsADirectoryError for a folder."""
    if info["type"] == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), info["name"])
