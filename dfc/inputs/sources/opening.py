"""Open a shard by a URL of any kind as a stream that survives broken connections.

`open_stream` decides by the kind of URL (`urls`): web servers (`web`, which resumes in mid-shard; objects of DFC nodes are read
from their owners, `cluster`), or files, commands and fsspec (`local`). If the options name a `cache`, it goes through that.
"""

from __future__ import annotations

from dataclasses import replace

from dfc.http.calls.retry import Cancellation
from dfc.inputs.base import Counts, ShardRef, ShardUnreadable
from dfc.inputs.sources.cache import CachedStream, cache_of
from dfc.inputs.sources.local import open_local
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, Stream, StreamOptions
from dfc.inputs.sources.urls import kind_of
from dfc.inputs.sources.web import WebStream


def open_stream(
    ref: ShardRef | str,
    *,
    start: int = 0,
    end: int | None = None,
    etag: str | None = None,
    options: StreamOptions = DEFAULT_OPTIONS,
    counts: Counts | None = None,
    cancellation: Cancellation | None = None,
) -> Stream:
    """Open bytes `start` to `end` (exclusive; None: to the last) of a shard, from the first of its URLs that works.

    `etag` is the expected version: ShardChanged if it has changed (servers, not files). `counts` counts retries and bytes
    received. `cancellation` cancels waiting here and later in `readinto`, from any thread. Raises ShardUnreadable if none of
    the URLs can be opened, ValueError for a URL of an unknown kind.
    """
    if options.cache_dir is not None and kind_of(ref if isinstance(ref, str) else ref.url) in ("web", "cluster", "fsspec"):
        past = replace(options, cache_dir=None)

        def opener(start: int, end: int | None) -> Stream:
            return open_stream(ref, start=start, end=end, etag=etag, options=past, counts=counts, cancellation=cancellation)

        cache = cache_of(options.cache_dir, options.cache_bytes)
        url = ref if isinstance(ref, str) else ref.url
        stream = cache.open(url, opener, start=start, end=end, etag=etag, cancellation=cancellation)
        if counts is not None and isinstance(stream, CachedStream) and stream.was_there:
            counts.add(shards_cached=1)
        return stream
    urls = (ref,) if isinstance(ref, str) else tuple(dict.fromkeys((ref.url, *ref.replicas)))
    web = tuple(url for url in urls if kind_of(url) in ("web", "cluster"))
    problems: list[ShardUnreadable] = []
    for url in urls:
        planned = etag if url == urls[0] else None  # other servers make ETags differently
        try:
            if url not in web:
                return open_local(url, start, end, planned, options, counts, cancellation)
            if url == web[0]:
                return WebStream(web, start, end, planned, options, counts, cancellation)
        except ShardUnreadable as problem:
            problems.append(problem)
    if len(problems) == 1:
        raise problems[0]
    raise ShardUnreadable("; ".join(map(str, problems)), url=urls[0])
