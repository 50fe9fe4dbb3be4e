"""The blocking client of one cluster, and the lines of its answers.

Bytes go directly between the caller's buffers and the target that owns the object. The node whose URL was given answers
requests for the map, buckets and listings, and relays where a target cannot be reached. All calls are idempotent and are
retried for some seconds. Errors are classes of `dfc.errors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from dfc.addresses import is_http_url, split_addresses
from dfc.batch.items import BatchItem, OnMissing
from dfc.checksum import CHECKSUM_NAME
from dfc.client.control import ClusterCalls, Control, decode
from dfc.client.jobs import Jobs
from dfc.client.search import Items, SearchReader, SearchResult, as_item, open_batch, query_of, read_batch
from dfc.client.transfers import (
    HASH_FIRST_BYTES,
    Body,
    ObjectReader,
    ObjectRequest,
    UploadSource,
    download,
    make_source,
    object_info,
)
from dfc.errors import BadRequest, ChecksumMismatch, ObjectCorrupt, ObjectNotFound, PreconditionFailed
from dfc.http.blocking import Broken, Response, Transport
from dfc.http.retry import Cancellation, RetryPolicy
from dfc.limits import INDEX_MEMBERS_MAX, KIB, LIST_PAGE_MAX, MIB
from dfc.listing.specs import list_specs
from dfc.names import check_bucket_name, check_object_name
from dfc.reach.objects import Locator, ObjectCalls, Tries
from dfc.reach.reading import BatchReader
from dfc.tar.header import FILE, TarError
from dfc.tar.samples import split_key
from dfc.tar.scanner import Scanner
from dfc.wire import CHECKSUM_HEADER, DEFAULT_URL, MSGPACK, prepared
from dfc.wire.objects import DatasetInfo, KeyInfo, ListPage, MemberInfo, ObjectInfo, SampleInfo, StoredObject

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# --- Read NDJSON answers, one typed value per line, in large blocks.

T = TypeVar("T")
_BLOCK_BYTES: Final = 128 * KIB
_LINE_BYTES_MAX: Final = 64 * MIB  # a sample with every extension that an index can hold


def read_lines(answer: Response) -> Iterator[bytes]:
    """Yield the lines without their line ends, and close the answer. Broken if the last line is incomplete."""
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    rest = b""
    with answer:
        while count := answer.readinto(buffer):
            *lines, rest = (rest + bytes(buffer[:count])).split(b"\n")
            yield from lines
            if len(rest) > _LINE_BYTES_MAX:
                raise Broken(f"a line of the answer is longer than {_LINE_BYTES_MAX} bytes")
    if rest:
        raise Broken("the answer ended in the middle of a line")


def read_values(answer: Response, kind: type[T]) -> Iterator[T]:
    """Yield the lines decoded as `kind`. Broken if one cannot be decoded."""
    decode = msgspec.json.Decoder(prepared(kind)).decode
    for line in read_lines(answer):
        try:
            value = decode(line)
        except msgspec.MsgspecError as problem:
            raise Broken(f"cannot decode the line {line[:80]!r} of the answer: {problem}") from None
        yield value


# --- The blocking client for objects, listings, shards and buckets of one cluster. Thread-safe.

_ANSWER_BYTES_MAX: Final = 256 * KIB  # of a PUT: warnings are short


class Client(ClusterCalls):
    """A client of a cluster, through any of its nodes. Close it, or use it as a context manager.

    `url` can be several URLs, separated by commas; they are tried in order (see `dfc.addresses`). BadRequest.
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
        """Close all connections. Open readers can still be read to their end."""
        self._transport.close()
        self._control.close()

    def _forget(self) -> None:
        """Drop the connections in a forked child: they belong to the parent."""
        self._transport.forget()

    def abort(self) -> None:
        """Cancel all calls in other threads: they raise `Cancelled`. The client cannot be used afterwards."""
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
        """Store an object. `body` is a path, bytes, an open binary file or an iterable of bytes.

        The upload of an iterable, or of a file that is not seekable, cannot be retried. What was stored is compared with what
        was sent; if they differ, ChecksumMismatch is raised. If the checksum was known before (`checksum`, xxh3-128 in hex),
        the node refuses such a body before it replaces anything. PreconditionFailed for `if_match` (an etag) or
        `if_none_match` ("*"). `progress` gets the bytes sent, and a negative number on each retry.
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
        """Return the bytes of an object or of a range; a whole object is verified. RangeNotSatisfiable beyond its end."""
        return self._read_whole(ObjectRequest(self._calls, *_checked(bucket, name)), start, length)

    def open(self, bucket: str, name: str, *, start: int = 0, length: int | None = None) -> ObjectReader:
        """Open a raw, seekable reader; for small reads, wrap it in `io.BufferedReader`."""
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
        """Download an object to a file; an interrupted download is resumed. See `dfc.client.transfers.download`."""
        return download(ObjectRequest(self._calls, *_checked(bucket, name)), os.fspath(path), resume=resume, progress=progress)

    def stat(self, bucket: str, name: str) -> ObjectInfo:
        """Return size, etag (the xxh3-128), time, content type and number of samples of an object. ObjectNotFound."""
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
            # An earlier try deleted it, and the connection broke before the answer arrived.
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
        """Return one page of a bucket's objects in byte order, and the common prefixes up to the delimiter. BucketNotFound."""
        params: dict[str, str | int] = {"limit": limit}
        for key, value in (("prefix", prefix), ("start_after", start_after), ("delimiter", delimiter), ("token", token)):
            if value:
                params[key] = value
        path = f"/v1/buckets/{check_bucket_name(bucket)}/objects"
        return msgspec.msgpack.decode(self._control.call("GET", path, params=params, accept=MSGPACK), type=prepared(ListPage))

    def list_pages(self, bucket: str, *, prefix: str = "", start_after: str = "", delimiter: str = "") -> Iterator[ListPage]:
        """Yield all pages. Each page is complete, or the call fails."""
        page = self.list_page(bucket, prefix=prefix, start_after=start_after, delimiter=delimiter)
        while True:
            yield page
            if page.next_token is None:
                return
            page = self.list_page(bucket, prefix=prefix, delimiter=delimiter, token=page.next_token)

    def list(self, bucket: str, *, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose names start with the prefix, in byte order."""
        for page in self.list_pages(bucket, prefix=prefix, start_after=start_after):
            yield from page.objects

    def datasets(self, bucket: str, *, prefix: str = "") -> Sequence[DatasetInfo]:
        """Return the shards below a prefix, grouped by their names. BucketNotFound, TooLarge for more than a million."""
        path = f"/v1/buckets/{check_bucket_name(bucket)}/datasets"
        content = self._control.call("GET", path, params={"prefix": prefix} if prefix else {})
        return msgspec.json.decode(content, type=prepared(_Datasets)).datasets

    # Shards.

    def members(self, bucket: str, shard: str, *, start: int = 0, limit: int | None = None) -> Iterator[MemberInfo]:
        """Yield the members of a shard in the order of the archive, from ordinal `start` on, all or at most `limit` (which is
        at most 10,000). NotAShard."""
        return self._part(bucket, shard, "members", start, limit, MemberInfo)

    def samples(self, bucket: str, shard: str, *, start: int = 0, limit: int | None = None) -> Iterator[SampleInfo]:
        """Yield the samples of a shard in the order of the archive, from ordinal `start` on, all or at most `limit` (which is
        at most 10,000). NotAShard."""
        return self._part(bucket, shard, "samples", start, limit, SampleInfo)

    def unsampled(self, bucket: str, shard: str, *, start: int = 0, limit: int | None = None) -> Iterator[MemberInfo]:
        """Yield the members of a shard that belong to no sample, without directories, in the order of the archive: those whose
        `offset` is `start` or more, all or at most `limit` (which is at most 10,000). NotAShard."""
        return self._part(bucket, shard, "unsampled", start, limit, MemberInfo)

    def sample_offsets(self, bucket: str, shard: str, *, etag: str | None = None) -> NDArray[np.uint64]:
        """Return the offset of each sample in the (uncompressed) archive, and the end of the last one: n + 1 numbers, from the
        index. NotAShard; PreconditionFailed if the shard's etag is not `etag`."""
        import numpy as np

        with self._calls.call("GET", *_checked(bucket, shard), query=(("list", "offsets"),)) as answer:
            found = object_info(bucket, shard, answer.headers, 0).etag
            if etag is not None and found != etag:
                raise PreconditionFailed(f"{bucket}/{shard} has changed: its etag is {found}, not {etag}")
            return np.frombuffer(answer.read_all(8 * (INDEX_MEMBERS_MAX + 1)), dtype="<u8").astype(np.uint64, copy=False)

    def read_member(self, bucket: str, shard: str, member: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of one member. MemberNotFound; NotSeekable for a range in a compressed shard."""
        request = ObjectRequest(self._calls, *_checked(bucket, shard), (("member", member),))
        return self._read_whole(request, start, length)

    def open_member(self, bucket: str, shard: str, member: str, *, start: int = 0, length: int | None = None) -> ObjectReader:
        """Open a reader of one member; positions count from the member's first byte."""
        return ObjectReader(ObjectRequest(self._calls, *_checked(bucket, shard), (("member", member),)), start, length)

    def read_sample(self, bucket: str, shard: str, key: str) -> dict[str, bytes]:
        """Return the members of the first sample with that key, by extension. SampleNotFound."""
        return _split_sample(self.read_sample_tar(bucket, shard, key))

    def read_sample_tar(self, bucket: str, shard: str, key: str) -> bytes:
        """Return the first sample with that key as a tar."""
        return self._read_whole(self._sample(bucket, shard, key, None), 0, None)

    def read_sample_member(self, bucket: str, shard: str, key: str, ext: str) -> bytes:
        """Return one member, by extension, of the first sample with that key. SampleNotFound, MemberNotFound."""
        return self._read_whole(self._sample(bucket, shard, key, ext), 0, None)

    def open_sample(self, bucket: str, shard: str, key: str, ext: str | None = None) -> ObjectReader:
        """Open a reader of a sample as a tar or, with `ext`, of one of its members."""
        return ObjectReader(self._sample(bucket, shard, key, ext))

    def keys(self, bucket: str, shards: str | Sequence[str], *, fields: str = "all") -> Iterator[KeyInfo]:
        """Yield the samples of many shards (a spec or a list), in no order between shards; only keys if `fields="key"`."""
        for spec in (shards,) if isinstance(shards, str) else list_specs(shards):
            query = [("shards", spec)] if fields == "all" else [("shards", spec), ("fields", fields)]
            path = f"/v1/buckets/{check_bucket_name(bucket)}/samples?{urlencode(query, quote_via=quote)}"
            yield from read_values(self._calls.stream(path), KeyInfo)

    def find_samples(
        self,
        bucket: str,
        *,
        key: str | None = None,
        prefix: str | None = None,
        contains: str | None = None,
        shards: str | Sequence[str] | None = None,
        limit: int | None = None,
        token: str | None = None,
    ) -> SearchResult:
        """Find samples with a key, or with keys that begin with a `prefix` or contain a text, in all shards of a bucket or in
        some (a spec or a list); all of them, or at most `limit`. `token` is the `next_token` of a search that goes on.

        BucketNotFound, TooLarge for more than 100,000 shards. Unavailable if a key cannot be looked up in all shards.
        """
        reader = self.open_search(bucket, key=key, prefix=prefix, contains=contains, shards=shards, limit=limit, token=token)
        samples = tuple(reader)
        return msgspec.structs.replace(reader.result, samples=samples)

    def open_search(
        self,
        bucket: str,
        *,
        key: str | None = None,
        prefix: str | None = None,
        contains: str | None = None,
        shards: str | Sequence[str] | None = None,
        limit: int | None = None,
        token: str | None = None,
    ) -> SearchReader:
        """Like `find_samples`, but return an iterator over the samples, which holds no more than 10,000 of them."""
        return SearchReader(self._control, bucket, query_of(key, prefix, contains), shards, limit, token)

    # Batches.

    def batch(self, items: Items, *, on_missing: OnMissing = "fail") -> Iterator[tuple[str, bytes]]:
        """Yield the name and bytes of the members of all items, in the order asked for, from wherever they are.

        An item is a `BatchItem`, or a mapping with its fields. A list or iterator of any length becomes as many requests as
        needed. The error of an item names it (with its number in the request, from the header X-DFC-Item); `on_missing` is
        "fail", "skip" or "empty". Unreachable if a stream breaks off and cannot be resumed.
        """
        return read_batch(self._calls, items, on_missing)

    def open_batch(
        self, items: Sequence[BatchItem | Mapping[str, Any]], *, on_missing: OnMissing = "fail", lengths: bool = False
    ) -> BatchReader:
        """Open the tar of up to 100,000 items as a raw reader; for speed, `readinto` a large buffer.

        With `lengths`, the reader's `lengths` has the number of bytes of each item, so that the stream can be split.
        """
        return open_batch(self._calls, [as_item(item) for item in items], on_missing, lengths=lengths)

    # What the methods above share.

    def _sample(self, bucket: str, shard: str, key: str, ext: str | None) -> ObjectRequest:
        query = (("sample", key),) if ext is None else (("sample", key), ("ext", ext))
        return ObjectRequest(self._calls, *_checked(bucket, shard), query)

    def _part(self, bucket: str, shard: str, what: str, start: int, limit: int | None, kind: type[T]) -> Iterator[T]:
        """A list of the samples or members of a shard, or a part of it."""
        window = [("start", str(start))] if start else []
        query = (("list", what), *window, *([] if limit is None else [("limit", str(limit))]))
        return read_values(self._calls.call("GET", *_checked(bucket, shard), query=query), kind)

    def _put(self, bucket: str, name: str, source: UploadSource, headers: Mapping[str, str]) -> StoredObject:
        tries = Tries()
        try:
            with self._calls.call("PUT", bucket, name, headers=headers, source=source, tries=tries) as answer:
                stored = decode(answer.read_all(_ANSWER_BYTES_MAX), StoredObject)
        except PreconditionFailed:
            # The precondition may fail because an earlier try, whose connection broke, stored the object.
            found = self.stat(bucket, name) if tries.broken and source.checksum else None
            if found is None or found.etag != source.checksum:
                raise
            return StoredObject(bucket=bucket, object=name, size=found.size, checksum=found.etag)
        sent = source.sent_checksum or source.checksum
        if sent is not None and stored.checksum != sent:
            self.delete(bucket, name, if_match=stored.checksum)
            raise ChecksumMismatch(
                f"{bucket}/{name} was damaged on the way ({stored.checksum} instead of {sent}) and was deleted; upload it again"
            )
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
        raise BadRequest(f"the URL of a cluster must be like http://host:port, not {url!r}")
    return f"{parts.scheme}://{parts.netloc}"


def _checked(bucket: str, name: str) -> tuple[str, str]:
    return check_bucket_name(bucket), check_object_name(name)


def _conditions(if_match: str | None, if_none_match: str | None) -> dict[str, str]:
    headers = {}
    for header, value in (("If-Match", if_match), ("If-None-Match", if_none_match)):
        if value is not None:
            headers[header] = value if value == "*" else f'"{value}"'
    return headers


def _split_sample(archive: bytes) -> dict[str, bytes]:
    scanner = Scanner()
    try:
        entries = scanner.feed(archive)
        scanner.finish(strict=True)
    except TarError as problem:
        raise ObjectCorrupt(f"the sample arrived as a damaged tar: {problem}") from None
    members = {}
    for name, kind, _, offset, size in entries:
        key = split_key(name.decode("utf-8", "replace")) if kind == FILE else None
        if key is not None:
            members[key[1]] = archive[offset : offset + size]
    return members


class _Datasets(msgspec.Struct):
    datasets: list[DatasetInfo]
