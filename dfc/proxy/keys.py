"""Stream the keys of samples from all targets in parallel, one line per sample, with the shards in no order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlencode

import aiohttp

from dfc.errors import BadRequest, Unavailable
from dfc.http.shutdown import end
from dfc.limits import NODE_ANSWER_BYTES_MAX, NODE_LIST_STALL_S
from dfc.placement.map import ClusterMap, NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.listing import by_one_step
from dfc.shards import check

STREAM_QUEUE: Final = 8  # pieces of about 64 KiB that wait for a slow reader
ALL_SHARDS: Final = "**"


class KeyLines:
    """An open stream of lines from all targets. Close it even if nothing was read; an error of one target ends all."""

    def __init__(self, streams: Sequence[aiohttp.ClientResponse]) -> None:
        self._streams = streams

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield complete lines, some at a time. Unavailable when a target breaks off, so that a short result is noticed."""
        return _interleave(self._streams)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


class SampleKeys:
    """*List keys* of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def open(self, bucket: str, shards: str | None = None, fields: str = "") -> KeyLines:
        """Open the stream of the samples of a spec, all shards by default, with all fields or, if `fields` is "key", only keys.
        BucketNotFound, BadShardSpec, BadRequest, and any error of a target before its first line."""
        bucket_id = self._cluster.bucket(bucket).id
        shards = ALL_SHARDS if shards is None else shards
        check(shards)
        if fields not in ("", "key"):
            raise BadRequest("fields must be 'key' or left out")

        async def ask(cluster_map: ClusterMap) -> KeyLines:
            streams: list[aiohttp.ClientResponse] = []

            async def begin(node: NodeEntry) -> None:
                asked = {"bucket": bucket, "shards": shards, "fields": fields, "step": cluster_map.step}
                url = f"{node.url}/v1/node/samples?{urlencode(asked)}"
                streams.append(await self._cluster.control.open_stream(url, stall_s=NODE_LIST_STALL_S))

            try:
                nodes = self._cluster.targets_of(bucket_id, cluster_map)
                for failure in await asyncio.gather(*map(begin, nodes), return_exceptions=True):
                    if failure is not None:
                        raise failure
            except BaseException:
                KeyLines(streams).close()
                raise
            return KeyLines(streams)

        return await by_one_step(self._cluster, ask)


def _without_signs(lines: bytes) -> bytes:
    """Whole lines without the empty ones, by which a target says that it is still looking."""
    if b"\n\n" not in lines and not lines.startswith(b"\n"):
        return lines
    return b"".join(line + b"\n" for line in lines.split(b"\n") if line)


async def _interleave(streams: Sequence[aiohttp.ClientResponse]) -> AsyncIterator[bytes]:
    queue: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(STREAM_QUEUE)

    async def pump(stream: aiohttp.ClientResponse) -> None:
        begun = b""
        try:
            async for piece in stream.content.iter_any():
                lines, newline, rest = (begun + piece).rpartition(b"\n")
                if lines.strip(b"\n"):
                    await queue.put(_without_signs(lines + newline))
                begun = rest
                if len(begun) > NODE_ANSWER_BYTES_MAX:
                    raise TimeoutError("a line without an end")
            await queue.put(Unavailable("a target broke off its answer in the middle of a line") if begun else None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await queue.put(Unavailable(f"a target broke off its answer: {error}"))

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        left = len(tasks)
        while left:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        with suppress(asyncio.CancelledError):
            await end(*tasks)
