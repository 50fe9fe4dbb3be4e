"""Batch reads over HTTP: the list that comes, and the tar that goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dfc.batch.gathering import BatchGate, GatheredBatch, ItemError, Opener, Part, gather_batch
from dfc.batch.items import BatchRequest, parse_request
from dfc.batch.merge import Merge, Run, SourceBroke
from dfc.http.answers import Answer, BulkAnswer
from dfc.http.common import SAFETY_HEADERS, flag
from dfc.http.exchange import Exchange
from dfc.http.transfer import ReadStalled, drive, duplicate
from dfc.limits import BATCH_BODY_BYTES_MAX
from dfc.wire import OCTETS, TAR

BATCH_QUERY: Final = frozenset(("lengths",))
__all__ = [
    "BATCH_QUERY",
    "BatchAnswer",
    "BatchGate",
    "ItemError",
    "Part",
    "answer_batch",
    "batch_answer",
    "read_request",
    "wants_lengths",
]


async def read_request(exchange: Exchange) -> BatchRequest:
    """The body, JSON or msgpack, decoded and checked in a thread. BadRequest, BadName, TooLarge."""
    body = await exchange.read_small(BATCH_BODY_BYTES_MAX)
    kind = exchange.headers.get("Content-Type", "")
    return await asyncio.get_running_loop().run_in_executor(exchange.bulk.threads, parse_request, body, kind)


def wants_lengths(exchange: Exchange) -> bool:
    """Whether `?lengths=1` was asked for. BadRequest."""
    return flag(exchange.query_parameters(BATCH_QUERY), "lengths")


def batch_answer(batch: GatheredBatch, *, with_lengths: bool) -> Answer:
    """What was gathered, as a tar; with lengths before it, it is none."""
    headers = [("Content-Type", OCTETS if with_lengths else TAR), *SAFETY_HEADERS]
    return BatchAnswer(
        headers, batch.parts, batch.runs, batch.total, batch.gate, threads=batch.threads, begin=batch.begin, tail=batch.tail
    )


async def answer_batch(
    exchange: Exchange,
    request: BatchRequest,
    owner_of: Callable[[str, str], str],
    open_part: Opener,
    gate: BatchGate,
    threads: ThreadPoolExecutor,
) -> Answer:
    """`gather_batch`, answered."""
    lengths = wants_lengths(exchange)
    batch = await gather_batch(request, owner_of, open_part, gate, threads, with_lengths=lengths)
    return batch_answer(batch, with_lengths=lengths)


class BatchAnswer(BulkAnswer):
    """Runs of bytes of parts as one body of known length. Owns the parts; cut off rather than short."""

    __slots__ = ("_begin", "_gate", "_parts", "_runs", "_tail", "_threads", "_whole")

    def __init__(
        self,
        headers: list[tuple[str, str]],
        parts: Sequence[Part],
        runs: list[Run],
        total: int,
        gate: BatchGate,
        *,
        threads: ThreadPoolExecutor,
        begin: bytes = b"",
        tail: bytes = b"",
    ) -> None:
        super().__init__(200, b"", headers, content_length=len(begin) + total + len(tail))
        self._parts, self._runs, self._gate, self._begin, self._tail = parts, runs, gate, begin, tail
        self._threads = threads
        self._whole = False

    async def _send(self, exchange: Exchange) -> None:
        head = self._head(exchange, self._length_line())
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            transfer = Merge(sink, head + self._begin, [part.source for part in self._parts], self._runs, self._tail)
            try:
                await self._drive(exchange, transfer)
            finally:
                self.sent_bytes = max(0, transfer.moved - len(head))
        self._whole = True

    async def _release(self) -> None:
        self._gate.leave()
        for part in self._parts:
            await part.close(whole=self._whole)

    async def _drive(self, exchange: Exchange, transfer: Merge) -> None:
        while True:
            try:
                await drive(transfer, self._threads, stall_s=exchange.bulk.read_stall_timeout_s)
                return
            except ReadStalled:
                raise
            except SourceBroke as broke:
                part = self._parts[broke.number]
                await part.reopen()
                transfer.sources[broke.number] = part.source
