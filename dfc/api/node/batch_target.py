"""`/v1/node/batch` at a target: answer its own part of a batch read."""

from __future__ import annotations

from dfc.batch.answer import part_answer, read_request
from dfc.http.answers import Answer
from dfc.http.budget import PARTS
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.target.batch.opening import OwnBatches


class OwnBatchHandlers(Handlers):
    """Handler for nodes that assemble a batch and ask the owners of its items."""

    def __init__(self, batches: OwnBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer a list of this target's items: first the length of each, then their bytes."""
        request, _ = await read_request(exchange, PARTS)
        return part_answer(await self._batches.gather_own(request))

    ENDPOINTS = (Endpoint("/v1/node/batch", {"POST": batch}),)
