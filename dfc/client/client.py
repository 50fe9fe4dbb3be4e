"""The blocking client: objects, listings, shards and buckets of one cluster. Thread-safe.

Bytes travel between the caller's buffers and the target that owns the object; a node whose URL was given is asked for the
map, for buckets and listings, and relays where a target cannot be reached. Every call that is idempotent, and all are, is
retried for some seconds. Errors are classes of `dfc.errors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from dfc.addresses import is_http_url, split_addresses
from dfc.batch.items import BatchItem, OnMissing
from dfc.checksum import CHECKSUM_NAME
from dfc.client.batch import Items, as_item, open_batch, read_batch
from dfc.client.control import Control
from dfc.client.download import download
from dfc.client.jobs import Jobs
from dfc.client.lines import read_values
from dfc.client.models import (
    BucketInfo,
    BucketList,
    KeyInfo,
    ListPage,
    MemberInfo,
    ObjectInfo,
    SampleInfo,
    StoredObject,
    object_info,
)
from dfc.client.reader import ObjectReader, ObjectRequest
from dfc.client.source import HASH_FIRST_BYTES, Body, UploadSource, make_source
from dfc.errors import BadRequest, BucketNotFound, ChecksumMismatch, ObjectCorrupt, ObjectNotFound, PreconditionFailed
from dfc.http.calls.blocking import Transport
from dfc.http.calls.retry import Cancellation, RetryPolicy
from dfc.limits import INDEX_MEMBERS_MAX, KIB, LIST_PAGE_MAX
from dfc.names import check_bucket_name, check_object_name
from dfc.placement.map import ClusterMap
from dfc.reach.batch import BatchReader
from dfc.reach.objects import ObjectCalls, Tries
from dfc.reach.routing import Locator
from dfc.shards import list_specs
from dfc.tar.header import FILE, TarError
from dfc.tar.samples import split_key
from dfc.tar.scanner import Scanner
from dfc.wire import CHECKSUM_HEADER, DEFAULT_URL, MSGPACK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ANSWER_BYTES_MAX: Final = 256 * KIB  # of a PUT: warnings are short


class Client:
    """A connection to a cluster through any of its nodes. Close it, or use it as a context manager.

    `url` may be several URLs of it, separated by commas; they are tried in turn (see `dfc.addresses`). BadRequest.
    """

    def __init__(self, url: str = DEFAULT_URL, token: str | None = None, *, retries: int | None = None) -> None:
        self.url = ",".join(map(_base_url, split_addresses(url)))
        self.cancellation = Cancellation()
        policy = RetryPolicy() if retries is None else RetryPolicy(retries=retries)
        self._control = Control(self.url, token, policy, self.cancellation)
        self.jobs = Jobs(self._control)
        self._transport = Transport(self.cancellation)
        self._router = Locator(self.url, self._fetch_map)
        self._calls = ObjectCalls(self._router, self._transport, token, policy, self.cancellation)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; readers that are open may be read to their end."""
        self._transport.close()
        self._control.close()

    def _forget(self) -> None:
        """In a child after a fork: let go of the connections, which are the parent's."""
        self._transport.forget()

    def abort(self) -> None:
        """End everything that runs in other threads: it raises `Cancelled` there. The client is of no use afterwards."""
        self.cancellation.cancel()

    # Objects.

    def put(
        self,
        bucket: str,
        name: str,
        body: Body,
        *,
        checksum: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> StoredObject:
        """Store an object: `body` is a path, bytes, an open binary file or an iterable of bytes (the last two go out once).

        What was stored is compared with what was sent; a body that changed on the way raises ChecksumMismatch, and is refused
        before anything is replaced when its checksum (`checksum`, xxh3-128 in hex) was known. PreconditionFailed for `if_match`
        (an etag) or `if_none_match` ("*"). `progress` gets the bytes sent, and a negative number when a try begins anew.
        """
        source = make_source(body, checksum)
        source.progress = progress
        if source.replayable and source.size is not None and source.size <= HASH_FIRST_BYTES:
            source.hash_first()
        headers = _conditions(if_match, if_none_match)
        if source.checksum is not None:
            headers[CHECKSUM_HEADER] = f"{CHECKSUM_NAME}={source.checksum}"
        path = _checked(bucket, name)
        try:
            return self._put(*path, source, headers)
        except ChecksumMismatch:
            # Changed on the way, or between hashing and sending; a file that really changed will fail again.
            if not source.replayable or checksum is not None:
                raise
            return self._put(*path, source, headers)

    def get(self, bucket: str, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of an object, or of a range of it; the whole is verified. RangeNotSatisfiable beyond its end."""
        return self._read_whole(ObjectRequest(self._calls, *_checked(bucket, name)), start, length)

    def open(self, bucket: str, name: str, *, start: int = 0, length: int | None = None) -> ObjectReader:
        """A raw, seekable reader; wrap it in `io.BufferedReader` for small reads."""
        return ObjectReader(ObjectRequest(self._calls, *_checked(bucket, name)), start, length)

    def get_to_file(
        self,
        bucket: str,
        name: str,
        path: str | os.PathLike[str],
        *,
        resume: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        """Store an object as a file, continuing an earlier try that broke off. See `dfc.client.download.download`."""
        return download(ObjectRequest(self._calls, *_checked(bucket, name)), os.fspath(path), resume=resume, progress=progress)

    def stat(self, bucket: str, name: str) -> ObjectInfo:
        """Size, etag (the xxh3-128) and time of an object. ObjectNotFound."""
        bucket, name = _checked(bucket, name)
        with self._calls.call("HEAD", bucket, name) as answer:
            return object_info(bucket, name, answer.headers, int(answer.headers.get("Content-Length") or 0))

    head = stat

    def delete(self, bucket: str, name: str, *, if_match: str | None = None) -> None:
        """Delete an object. ObjectNotFound, PreconditionFailed."""
        tries = Tries()
        try:
            self._calls.call("DELETE", *_checked(bucket, name), headers=_conditions(if_match, None), tries=tries).close()
        except ObjectNotFound:
            # An earlier try broke off after it had done its work.
            if not tries.broken:
                raise

    # Listings.

    def list_page(
        self,
        bucket: str,
        *,
        prefix: str = "",
        start_after: str = "",
        delimiter: str = "",
        limit: int = LIST_PAGE_MAX,
        token: str | None = None,
    ) -> ListPage:
        """One page of a bucket's objects in byte order, and the common prefixes up to the delimiter. BucketNotFound."""
        params: dict[str, str | int] = {"limit": limit}
        for key, value in (("prefix", prefix), ("start_after", start_after), ("delimiter", delimiter), ("token", token)):
            if value:
                params[key] = value
        path = f"/v1/buckets/{check_bucket_name(bucket)}/objects"
        return msgspec.msgpack.decode(self._control.call("GET", path, params=params, accept=MSGPACK), type=ListPage)

    def list_pages(self, bucket: str, *, prefix: str = "", start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        """All pages; each is complete, or the call fails."""
        page = self.list_page(bucket, prefix=prefix, start_after=start_after, delimiter=delimiter)
        while True:
            yield page
            if page.next_token is None:
                return
            page = self.list_page(bucket, prefix=prefix, delimiter=delimiter, token=page.next_token)

    def list(self, bucket: str, *, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects whose name starts with the prefix, in byte order, page by page."""
        for page in self.list_pages(bucket, prefix=prefix, start_after=start_after):
            yield from page.objects

    # Shards.

    def members(self, bucket: str, shard: str) -> Iterator[MemberInfo]:
        """The members of a shard in the order of the archive. NotAShard."""
        return read_values(self._calls.call("GET", *_checked(bucket, shard), query=(("list", "members"),)), MemberInfo)

    def samples(self, bucket: str, shard: str) -> Iterator[SampleInfo]:
        """The samples of a shard in the order of the archive. NotAShard."""
        return read_values(self._calls.call("GET", *_checked(bucket, shard), query=(("list", "samples"),)), SampleInfo)

    def sample_offsets(self, bucket: str, shard: str, *, etag: str | None = None) -> NDArray[np.uint64]:
        """Where each sample of a shard begins in the (uncompressed) archive, and after them where the last one ends: n + 1
        numbers, from the index. NotAShard; PreconditionFailed when the shard has not the `etag` that is given."""
        import numpy as np

        with self._calls.call("GET", *_checked(bucket, shard), query=(("list", "offsets"),)) as answer:
            found = object_info(bucket, shard, answer.headers, 0).etag
            if etag is not None and found != etag:
                raise PreconditionFailed(f"{bucket}/{shard} is {found} by now, not {etag}")
            return np.frombuffer(answer.read_all(8 * (INDEX_MEMBERS_MAX + 1)), dtype="<u8").astype(np.uint64, copy=False)

    def read_member(self, bucket: str, shard: str, member: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of one member. MemberNotFound; NotSeekable for a range in a compressed shard."""
        request = ObjectRequest(self._calls, *_checked(bucket, shard), (("member", member),))
        return self._read_whole(request, start, length)

    def open_member(self, bucket: str, shard: str, member: str, *, start: int = 0, length: int | None = None) -> ObjectReader:
        """A reader of one member; its positions count from the member's first byte."""
        return ObjectReader(ObjectRequest(self._calls, *_checked(bucket, shard), (("member", member),)), start, length)

    def read_sample(self, bucket: str, shard: str, key: str) -> dict[str, bytes]:
        """The members of the first sample with that key, by extension. SampleNotFound."""
        return _split_sample(self.read_sample_tar(bucket, shard, key))

    def read_sample_tar(self, bucket: str, shard: str, key: str) -> bytes:
        """The first sample with that key as a tar of its own."""
        return self._read_whole(self._sample(bucket, shard, key, None), 0, None)

    def read_sample_member(self, bucket: str, shard: str, key: str, ext: str) -> bytes:
        """The member with that extension of the first sample with that key. SampleNotFound, MemberNotFound."""
        return self._read_whole(self._sample(bucket, shard, key, ext), 0, None)

    def open_sample(self, bucket: str, shard: str, key: str, ext: str | None = None) -> ObjectReader:
        """A reader of the sample as a tar of its own, or with `ext` of one member of it."""
        return ObjectReader(self._sample(bucket, shard, key, ext))

    def keys(self, bucket: str, shards: str | Sequence[str], *, fields: str = "all") -> Iterator[KeyInfo]:
        """The samples of many shards (a shard spec, or a list), in no order between shards; `fields="key"`: only their keys."""
        for spec in (shards,) if isinstance(shards, str) else list_specs(shards):
            query = [("shards", spec)] if fields == "all" else [("shards", spec), ("fields", fields)]
            path = f"/v1/buckets/{check_bucket_name(bucket)}/samples?{urlencode(query, quote_via=quote)}"
            yield from read_values(self._calls.stream(path), KeyInfo)

    # Batches.

    def batch(self, items: Items, *, on_missing: OnMissing = "fail") -> Iterator[tuple[str, bytes]]:
        """Name and bytes of the members of all items, in the order asked for, from wherever they are.

        An item is a `BatchItem`, or a mapping with its fields. A list of any length, also an iterator, becomes as many requests
        as it takes. The errors of an item name it (of its request, in the header X-DFC-Item); `on_missing` is "fail", "skip"
        or "empty". Unreachable when a stream breaks off for good.
        """
        return read_batch(self._calls, items, on_missing)

    def open_batch(
        self, items: Sequence[BatchItem | Mapping[str, Any]], *, on_missing: OnMissing = "fail", lengths: bool = False
    ) -> BatchReader:
        """The tar of up to 100,000 items as a raw reader, for speed: `readinto` a large buffer.

        With `lengths` the reader's `lengths` are the bytes of each item, so that the parts can be told from each other.
        """
        return open_batch(self._calls, [as_item(item) for item in items], on_missing, lengths=lengths)

    # Buckets.

    def list_buckets(self) -> tuple[BucketInfo, ...]:
        """All buckets with their counts."""
        listed: BucketList = _decode(self._control.call("GET", "/v1/buckets"), BucketList)
        return listed.buckets

    def bucket(self, name: str) -> BucketInfo:
        """Settings and counts. BucketNotFound."""
        found: BucketInfo = _decode(self._control.call("GET", f"/v1/buckets/{check_bucket_name(name)}"), BucketInfo)
        return found

    def create_bucket(self, name: str, *, durability: str = "fsync", copies: int = 1) -> None:
        """Make a bucket, or find it with the same settings; BucketConflict when they differ."""
        body = {"copies": copies, "durability": durability}
        self._control.call("PUT", f"/v1/buckets/{check_bucket_name(name)}", body=body)

    def change_bucket(self, name: str, *, durability: str | None = None, copies: int | None = None) -> BucketInfo:
        """Change the settings that are given. BucketNotFound."""
        body = {key: value for key, value in (("durability", durability), ("copies", copies)) if value is not None}
        self._control.call("PATCH", f"/v1/buckets/{check_bucket_name(name)}", body=body)
        return self.bucket(name)

    def delete_bucket(self, name: str, *, force: bool = False) -> None:
        """Delete a bucket; with `force` and all that is in it, BucketNotEmpty otherwise."""
        params: dict[str, str | int] | None = {"force": 1} if force else None
        self._control.call("DELETE", f"/v1/buckets/{check_bucket_name(name)}", params=params, done=BucketNotFound)

    # Cluster.

    def cluster_map(self) -> ClusterMap:
        """Nodes, disks and buckets, fetched now."""
        return ClusterMap.decode(self._fetch_map(True))

    def health(self) -> dict[str, Any]:
        """Role, id and map version of a node that was given. Unavailable while it is not ready."""
        facts: dict[str, Any] = _decode(self._control.call("GET", "/v1/health"), dict[str, Any])
        return facts

    def start_scrub(self) -> None:
        """Ask every target to read and verify all that it holds."""
        self._control.call("POST", "/v1/cluster/scrub")

    def scrub_status(self) -> dict[str, Any]:
        """`disks`: for each its state, bytes done and in all, errors, and what is quarantined."""
        status: dict[str, Any] = _decode(self._control.call("GET", "/v1/cluster/scrub"), dict[str, Any])
        return status

    # What the methods above share.

    def _fetch_map(self, patient: bool) -> bytes:
        return self._control.call("GET", "/v1/cluster", patient=patient)

    def _sample(self, bucket: str, shard: str, key: str, ext: str | None) -> ObjectRequest:
        query = (("sample", key),) if ext is None else (("sample", key), ("ext", ext))
        return ObjectRequest(self._calls, *_checked(bucket, shard), query)

    def _put(self, bucket: str, name: str, source: UploadSource, headers: Mapping[str, str]) -> StoredObject:
        tries = Tries()
        try:
            with self._calls.call("PUT", bucket, name, headers=headers, source=source, tries=tries) as answer:
                stored: StoredObject = _decode(answer.read_all(_ANSWER_BYTES_MAX), StoredObject)
        except PreconditionFailed:
            # The precondition may fail because an earlier try, which broke off, has stored the object.
            found = self.stat(bucket, name) if tries.broken and source.checksum else None
            if found is None or found.etag != source.checksum:
                raise
            return StoredObject(bucket=bucket, object=name, size=found.size, checksum=found.etag)
        sent = source.sent_checksum or source.checksum
        if sent is not None and stored.checksum != sent:
            self.delete(bucket, name, if_match=stored.checksum)
            raise ChecksumMismatch(f"{bucket}/{name} arrived as {stored.checksum}, not {sent}, and was deleted")
        return stored

    def _read_whole(self, request: ObjectRequest, start: int, length: int | None) -> bytes:
        try:
            with ObjectReader(request, start, length) as reader:
                return reader.readall()
        except ChecksumMismatch:
            with ObjectReader(request, start, length) as reader:
                return reader.readall()


def _base_url(url: str) -> str:
    if not is_http_url(url) or (parts := urlsplit(url)).path or parts.query or parts.fragment:
        raise BadRequest(f"the URL of a cluster is http://host:port, not {url!r}")
    return f"{parts.scheme}://{parts.netloc}"


def _checked(bucket: str, name: str) -> tuple[str, str]:
    return check_bucket_name(bucket), check_object_name(name)


def _conditions(if_match: str | None, if_none_match: str | None) -> dict[str, str]:
    headers = {}
    for header, value in (("If-Match", if_match), ("If-None-Match", if_none_match)):
        if value is not None:
            headers[header] = value if value == "*" else f'"{value}"'
    return headers


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as problem:
        raise BadRequest(f"an answer that is not DFC's: {problem}") from None


def _split_sample(archive: bytes) -> dict[str, bytes]:
    scanner = Scanner()
    try:
        entries = scanner.feed(archive)
        scanner.finish(strict=True)
    except TarError as problem:
        raise ObjectCorrupt(f"a sample arrived as a broken tar: {problem}") from None
    members = {}
    for name, kind, _, offset, size in entries:
        key = split_key(name.decode("utf-8", "replace")) if kind == FILE else None
        if key is not None:
            members[key[1]] = archive[offset : offset + size]
    return members
