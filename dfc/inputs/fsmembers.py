"""The members of a shard as files in folders, for the filesystem `dfc://`: read only, from the shard's index."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dfc.client.client import Client
from dfc.client.models import ObjectInfo
from dfc.errors import MemberNotFound, NotSeekable, RangeNotSatisfiable
from dfc.inputs.fspaths import MEMBERS, Place, folders_of

Info = dict[str, Any]
_FILE = "file"


def modified_at(text: str) -> datetime | None:
    """From RFC 3339, to the second: a listing knows more of it than a HEAD."""
    return datetime.fromisoformat(text).replace(microsecond=0) if text else None


def file_info(path: str, found: ObjectInfo, size: int | None = None) -> Info:
    """An object, or with `size` a member of it."""
    size = found.size if size is None else size
    return {"name": path, "size": size, "type": "file", "ETag": found.etag, "mtime": modified_at(found.modified)}


def folder_info(path: str) -> Info:
    return {"name": path, "size": 0, "type": "directory"}


def member_info(client: Client, place: Place) -> Info:
    """A member, or a folder of members. NotAShard; NotFound for neither."""
    assert place.member is not None
    path = f"{place.bucket}/{place.name}{MEMBERS}{place.member}"
    if place.member:
        try:
            # One byte tells the size of the whole, too.
            with client.open_member(place.bucket, place.name, place.member, length=1) as reader:
                return file_info(path, reader.info)
        except RangeNotSatisfiable:
            return file_info(path, client.stat(place.bucket, place.name), 0)
        except NotSeekable:
            return {**find_members(client, place._replace(member=""))[path], "compressed": True}
        except MemberNotFound:
            pass
    found = find_members(client, place, withdirs=True)
    if not found and place.member:
        raise MemberNotFound(f"{place.bucket}/{place.name} has no member {place.member}")
    return folder_info(path)


def find_members(client: Client, place: Place, *, withdirs: bool = False, maxdepth: int | None = None) -> dict[str, Info]:
    """The members below a folder by their paths, at most so many levels down. NotAShard, NotFound."""
    assert place.member is not None
    below = f"{place.member}/" if place.member else ""
    shard = client.stat(place.bucket, place.name)
    sizes: dict[str, int] = {}
    for member in client.members(place.bucket, place.name):
        if member.type == _FILE and member.name.startswith(below):
            sizes.setdefault(member.name, member.size)
    root = f"{place.bucket}/{place.name}{MEMBERS}"
    found = {root + name: file_info(root + name, shard, size) for name, size in sizes.items()}
    if withdirs:
        found |= {root + name: folder_info(root + name) for name in folders_of(sizes, place.member)}
    if maxdepth is not None:
        start = len(root + below)
        found = {path: info for path, info in found.items() if path.count("/", start) < maxdepth}
    return dict(sorted(found.items()))
