"""Look into a shard from a proxy: some of its samples, and the beginnings of their fields. Targets that have it are asked."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from dfc.addresses import Refusals
from dfc.batch.items import BatchItem, BatchRequest
from dfc.errors import NotAShard, ObjectNotFound, Unavailable
from dfc.http.calls.problems import RemoteError
from dfc.names import object_path
from dfc.pages import ListedObject, ListingQuery, listed
from dfc.placement.readers import in_order
from dfc.proxy.cluster import Cluster
from dfc.proxy.listing import one_page
from dfc.wire import HOP_HEADER, OBJECTS_PATH

HEADER_BYTES: Final = 512  # of a member in a tar; its bytes follow
_MAGIC_AT: Final = 257
_HEAD_BYTES: Final = 8 * 1024  # of an item in a batch: its headers, with the longest name
_LINES_BYTES_MAX: Final = 32 << 20  # of the list of some samples
Query = Mapping[str, str | int]
_AGAIN: Final = 500  # from this status on another copy is asked


class FieldPlace(msgspec.Struct, frozen=True):
    """Where a field of a sample is in the uncompressed archive."""

    offset: int
    size: int


class SampleRow(msgspec.Struct, frozen=True):
    """A sample: its key, and its members by extension."""

    key: str
    members: dict[str, FieldPlace]


class Beginning(NamedTuple):
    """The first bytes of something, and how many it has."""

    content: bytes
    size: int


class ShardViews:
    """Looks into shards. `refusals` are asked last."""

    def __init__(self, cluster: Cluster, refusals: Refusals) -> None:
        self._cluster = cluster
        self._refusals = refusals

    async def shard(self, bucket: str, name: str) -> ListedObject:
        """Return what a listing says of a shard. BucketNotFound, ObjectNotFound, NotAShard, Unavailable."""
        query = ListingQuery(self._cluster.bucket(bucket).id, prefix=name)
        page = await one_page(self._cluster, query, 1)
        if not page.rows or page.rows[0][0] != name:
            raise ObjectNotFound(f"object {name!r} does not exist")
        found = listed(page.rows)[0]
        if found.samples is None:
            raise NotAShard(f"{name!r} has no tar index, so its samples are not known")
        return found

    async def samples(self, bucket: str, name: str, start: int, limit: int) -> list[SampleRow]:
        """Return samples from an ordinal on. Errors of the target."""
        query: Query = {"list": "samples", "start": start, "limit": limit}
        content = await self._ask("GET", bucket, name, query, b"", {}, _LINES_BYTES_MAX)
        try:
            return [msgspec.json.decode(line, type=SampleRow) for line in content.splitlines()]
        except msgspec.DecodeError as error:
            raise Unavailable(f"unexpected answer about {name!r}: {error}") from error

    async def beginnings(self, bucket: str, shard: ListedObject, places: Sequence[FieldPlace], limit: int) -> list[bytes]:
        """Return the first `limit` bytes of fields in a plain tar, with one request; nothing of a field in an archive that is
        none. Errors of the target, also if the shard is another one by now."""
        items = [
            BatchItem(bucket, shard.name, start=place.offset - HEADER_BYTES, length=length, if_match=shard.etag)
            for place, length in ((place, HEADER_BYTES + min(place.size, limit)) for place in places)
        ]
        if not items:
            return []
        body = msgspec.json.encode(BatchRequest(items))
        headers = {"Content-Type": "application/json"}
        content = await self._ask("POST", bucket, shard.name, None, body, headers, len(items) * (_HEAD_BYTES + limit))
        with tarfile.open(fileobj=BytesIO(content), mode="r:") as archive:
            files = [archive.extractfile(member) for member in archive]
            found = [b"" if file is None else file.read() for file in files]
        return [each[HEADER_BYTES:] if each[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar" else b"" for each in found]

    async def beginning(self, bucket: str, name: str, number: int, ext: str, limit: int) -> Beginning:
        """Return the first `limit` bytes of a field of the sample with an ordinal; of a compressed shard all of it is read.
        Errors of the target."""
        query: Query = {"number": number, "ext": ext}
        content = await self._ask("GET", bucket, name, query, b"", {"Range": f"bytes=0-{limit - 1}"}, _LINES_BYTES_MAX)
        return Beginning(content[:limit], len(content))

    async def _ask(
        self,
        method: str,
        bucket: str,
        name: str,
        query: Query | None,
        body: bytes,
        headers: Mapping[str, str],
        bytes_max: int,
    ) -> bytes:
        """Ask one target after the other that has the object; a batch (no `query`) of it, or what a query selects inside it."""
        path = "/v1/batch" if query is None else f"{_path(bucket, name)}?{urlencode(query, quote_via=quote)}"
        problem: Exception = Unavailable("no target has the object")
        for node in in_order(self._cluster.readers(self._cluster.bucket(bucket), name), self._refusals):
            try:
                status, _, content = await self._cluster.control.fetch(
                    method, node.url + path, body, {**headers, HOP_HEADER: "1"}, bytes_max=bytes_max
                )
            except Unavailable as error:
                problem = error
                continue
            if status < 400:
                return content
            problem = RemoteError(status, content, node.url)
            if status < _AGAIN:
                break
        raise problem


def _path(bucket: str, name: str) -> str:
    return OBJECTS_PATH + object_path(bucket, name).removeprefix("/")
