"""Members of a shard as read-only files in folders, for the `dfc://` filesystem. Listings come from the shard's index."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dfc.client.client import Client
from dfc.errors import MemberNotFound, NotSeekable, RangeNotSatisfiable
from dfc.inputs.files.fspaths import MEMBERS, FilePlace, folders_of
from dfc.wire.objects import ObjectInfo

Info = dict[str, Any]
_FILE = "file"


def modified_at(text: str) -> datetime | None:
    """Parse an RFC 3339 time, to the second: a listing has fractions that a HEAD lacks."""
    return datetime.fromisoformat(text).replace(microsecond=0) if text else None


def file_info(path: str, found: ObjectInfo) -> Info:
    return {"name": path, "size": found.size, "type": "file", "ETag": found.etag, "mtime": modified_at(found.modified)}


def folder_info(path: str) -> Info:
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
