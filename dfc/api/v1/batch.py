"""`/v1/batch` at a proxy: batch reads."""

from __future__ import annotations

from dfc.batch.answer import BATCH_QUERY, batch_answer, read_request, wants_lengths
from dfc.http.answers import Answer
from dfc.http.budget import BATCHES
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.proxy.batch import ProxyBatches


class ProxyBatchHandlers(Handlers):
    """The handler of `/v1/batch`."""

    def __init__(self, batches: ProxyBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer a list of items from anywhere in the cluster."""
        with_lengths = wants_lengths(exchange)
        request, place = await read_request(exchange, BATCHES)
        batch = await self._batches.gather(request, place, exchange.bulk.threads, with_lengths=with_lengths)
        return batch_answer(batch, with_lengths=with_lengths)

    ENDPOINTS = (Endpoint("/v1/batch", {"POST": batch}, BATCH_QUERY, reads=True),)
