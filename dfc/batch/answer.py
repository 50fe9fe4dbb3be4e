"""Batch reads over HTTP: parse the list of items and answer with the tar."""

from __future__ import annotations

import asyncio
from typing import Final

from dfc.batch.gathering import GatheredBatch
from dfc.batch.items import BatchRequest, parse_request
from dfc.batch.merge import Merge, SourceBroke
from dfc.http.answers import Answer, BulkAnswer
from dfc.http.budget import BudgetPlace, Kind
from dfc.http.common import SAFETY_HEADERS, flag
from dfc.http.exchange import Exchange
from dfc.http.transfer import ReadStalled, duplicate
from dfc.limits import BATCH_BODY_BYTES_MAX, BATCH_SHORT_BYTES
from dfc.wire import OCTETS, STALE_HEADER, TAR

BATCH_QUERY: Final = frozenset(("lengths",))


async def read_request(exchange: Exchange, budget: Kind) -> tuple[BatchRequest, BudgetPlace]:
    """Take a place, and decode and check the body, JSON or msgpack, in a thread. Raises BadRequest, BadName, TooLarge,
    Unavailable."""
    size = BATCH_BODY_BYTES_MAX if exchange.declared_length is None else min(exchange.declared_length, BATCH_BODY_BYTES_MAX)
    body = await exchange.read_small(BATCH_BODY_BYTES_MAX) if size <= BATCH_SHORT_BYTES else None
    place = await exchange.enter(budget, size if size > BATCH_SHORT_BYTES else 0)
    if body is None:
        body = await exchange.read_small(BATCH_BODY_BYTES_MAX)
    kind, held = exchange.headers.get("Content-Type", ""), [body]
    exchange.forget_body()
    del body
    async with place.working():
        work = asyncio.get_running_loop().run_in_executor(exchange.bulk.threads, _parse, held, kind)
        return await work, place


def _parse(held: list[bytes], kind: str) -> BatchRequest:
    """Decode a body, and free it here: for a long one that takes a while too."""
    return parse_request(held.pop(), kind)


def wants_lengths(exchange: Exchange) -> bool:
    """Whether the query has `?lengths=1`. Raises BadRequest."""
    return flag(exchange.query_parameters(BATCH_QUERY), "lengths")


def batch_answer(batch: GatheredBatch, *, with_lengths: bool) -> Answer:
    """The answer with the gathered items: a tar, or plain bytes if the lengths come first."""
    return BatchAnswer([("Content-Type", OCTETS if with_lengths else TAR), *SAFETY_HEADERS], batch)


def part_answer(batch: GatheredBatch) -> Answer:
    """The answer to another node: the lengths first, then plain bytes."""
    return BatchAnswer([("Content-Type", OCTETS)], batch)


class BatchAnswer(BulkAnswer):
    """One body of known length, merged from the parts. Owns the parts; on failure the connection is cut."""

    __slots__ = ("_batch", "_whole")

    def __init__(self, headers: list[tuple[str, str]], batch: GatheredBatch) -> None:
        if any(part.possibly_stale for part in batch.parts):
            headers = [*headers, (STALE_HEADER, "1")]
        super().__init__(200, b"", headers, content_length=len(batch.begin) + batch.total + len(batch.tail))
        self._batch = batch
        self._whole = False

    async def _send(self, exchange: Exchange) -> None:
        head = self._head(exchange, self._length_line())
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            sources = [part.source for part in self._batch.parts]
            transfer = Merge(sink, head + self._batch.begin, sources, self._batch.runs, self._batch.tail)
            try:
                await self._drive(exchange, transfer)
            finally:
                self.sent_bytes = max(0, transfer.moved - len(head))
        self._whole = True

    async def _release(self) -> None:
        await self._batch.close(whole=self._whole)

    async def _drive(self, exchange: Exchange, transfer: Merge) -> None:
        while True:
            try:
                await exchange.drive_answer(transfer, self._batch.threads)
                return
            except ReadStalled:
                raise
            except SourceBroke as broke:
                part = self._batch.parts[broke.number]
                await part.reopen()
                transfer.sources[broke.number] = part.source
