"""`/v1/batch` at a target."""

from __future__ import annotations

from dfc.batch.answer import answer_batch, read_request
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.target.batch.opening import OwnBatches


class TargetBatchHandlers:
    """Batch reads of whoever asks."""

    def __init__(self, batches: OwnBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """A list of items from anywhere."""
        batches, request = self._batches, await read_request(exchange)
        await batches.learn_buckets(request.items)
        return await answer_batch(exchange, request, batches.owner_of, batches.open, batches.asked, batches.threads)
